"""Levels of loggers under Kafka's names."""

import logging
from collections.abc import Iterator

import pytest

from headrace.broker.log_levels import check_changes, log_levels, make_changes
from headrace.errors import KafkaError
from headrace.metadata.configs import ConfigOperation
from headrace.protocol.messages.incremental_alter_configs import AlterableConfig

NAME = "headrace.broker.log_levels_test"


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(NAME)
    yield logger
    logger.setLevel(logging.NOTSET)


def change(name: str, operation: int, value: str | None = None) -> list[AlterableConfig]:
    return [AlterableConfig(name=name, config_operation=operation, value=value)]


@pytest.mark.parametrize(
    ("name", "level"),
    [("TRACE", 5), ("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERROR", 40), ("FATAL", 50)],
)
def test_a_level_is_set_and_deleted_under_kafkas_name(
    logger: logging.Logger, name: str, level: int
) -> None:
    changes = change(NAME, ConfigOperation.SET, name)
    check_changes(changes)
    make_changes(changes)
    assert logger.level == level
    assert log_levels()[NAME] == name
    # Kafka's kafka-configs sends an empty text as the value of what it deletes.
    make_changes(change(NAME, ConfigOperation.DELETE, ""))
    assert logger.level == logging.NOTSET
    make_changes(change(NAME, ConfigOperation.DELETE))
    assert log_levels()[NAME] == log_levels()["root"]


def test_packages_have_levels_too_and_a_level_beyond_all_is_off(logger: logging.Logger) -> None:
    assert {"root", "headrace", "headrace.broker", NAME} <= set(log_levels())
    logger.setLevel(logging.CRITICAL + 1)
    assert log_levels()[NAME] == "OFF"


@pytest.mark.parametrize(
    ("name", "operation", "value", "answer"),
    [
        ("no.such.logger", ConfigOperation.SET, "INFO", "INVALID_CONFIG: there is no logger"),
        ("no.such.logger", ConfigOperation.DELETE, None, "INVALID_CONFIG: there is no logger"),
        (NAME, ConfigOperation.SET, "LOUD", "INVALID_CONFIG: .* cannot have the level 'LOUD'"),
        (NAME, ConfigOperation.SET, "OFF", "INVALID_CONFIG: .* cannot have the level 'OFF'"),
        (NAME, ConfigOperation.APPEND, "INFO", "INVALID_REQUEST: .* can be set or deleted"),
        ("root", ConfigOperation.DELETE, None, "INVALID_REQUEST: the level of the root logger"),
    ],
)
def test_a_change_that_kafka_refuses_is_refused_with_its_code(
    name: str, operation: int, value: str | None, answer: str
) -> None:
    with pytest.raises(KafkaError, match=answer):
        check_changes(change(name, operation, value))
