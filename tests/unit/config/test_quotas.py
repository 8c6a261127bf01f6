"""Limits on connections by address, and those of one listener."""

import pytest

from headrace.config import broker_config
from headrace.config.quotas import limits_by_address
from headrace.errors import ConfigError

OVERRIDES = "max.connections.per.ip.overrides"


def test_addresses_have_limits_of_their_own() -> None:
    config = broker_config({OVERRIDES: "10.0.0.1:5, [2001:db8::1]:0,10.0.0.2:7"})
    assert limits_by_address(config.max_connections_per_ip_overrides) == {
        "10.0.0.1": 5,
        "2001:db8::1": 0,
        "10.0.0.2": 7,
    }
    assert limits_by_address(broker_config({}).max_connections_per_ip_overrides) == {}


@pytest.mark.parametrize("text", ["10.0.0.1", "host:5", "10.0.0.1:-1", "10.0.0.1:x", "10.0.0.1:"])
def test_what_is_no_address_and_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=OVERRIDES):
        broker_config({OVERRIDES: text})


def test_limits_of_connections_may_be_those_of_one_listener() -> None:
    config = broker_config(
        {
            "max.connections": "100",
            "listener.name.plaintext.max.connections": "10",
            "listener.name.plaintext.max.connection.creation.rate": "7",
        }
    )
    assert config.value_at("PLAINTEXT", "max.connections") == 10
    assert config.value_at("INTERNAL", "max.connections") == 100
    assert config.value_at("PLAINTEXT", "max.connection.creation.rate") == 7
    assert config.without_effect == ()
