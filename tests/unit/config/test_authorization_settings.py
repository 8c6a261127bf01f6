"""Settings of the authorizer."""

import pytest

from headrace.config import broker_config
from headrace.config.authorization import AUTHORIZER, parse_super_users
from headrace.errors import ConfigError


def test_the_authorizer_of_kafka_is_ours_and_others_are_refused() -> None:
    assert broker_config({"authorizer.class.name": AUTHORIZER}).authorizer_class_name == AUTHORIZER
    with pytest.raises(ConfigError, match=r"cannot run Java classes.*StandardAuthorizer"):
        broker_config({"authorizer.class.name": "org.example.Mine"})


def test_super_users_are_separated_by_semicolons_as_names_may_have_commas() -> None:
    text = "User:CN=a,O=b; User:bob;"
    assert parse_super_users(broker_config({"super.users": text}).super_users) == (
        "User:CN=a,O=b",
        "User:bob",
    )
    with pytest.raises(ConfigError, match="'bob' is no principal"):
        broker_config({"super.users": "User:a;bob"})
