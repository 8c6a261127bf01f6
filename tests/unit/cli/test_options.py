"""Options that commands share: settings as KEY=VALUE, each given once."""

import click
import pytest

from headrace.cli.options import key_value, unique


def test_a_setting_is_divided_at_its_first_equals_sign() -> None:
    assert key_value("sasl.jaas.config=a b=c;") == ("sasl.jaas.config", "a b=c;")


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(click.BadParameter):
        key_value("num.partitions")


def test_a_setting_is_given_once() -> None:
    assert unique((("a", "1"), ("b", "2")), "--set") == {"a": "1", "b": "2"}
    with pytest.raises(click.UsageError, match="--set"):
        unique((("a", "1"), ("a", "2")), "--set")
