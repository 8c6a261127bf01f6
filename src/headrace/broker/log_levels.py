"""Levels of this process's loggers under Kafka's names, listed and changed while it runs.

Changes are not kept: a restart begins with the configured levels.
"""

import logging
from collections.abc import Iterable

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.configs import ConfigOperation
from headrace.protocol.messages.incremental_alter_configs import AlterableConfig

ROOT = "root"

_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def log_levels() -> dict[str, str]:
    """Every logger with its effective level, set or inherited."""
    names = [ROOT, *sorted(logging.Logger.manager.loggerDict)]
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in names}


def check_changes(changes: Iterable[AlterableConfig]) -> None:
    """KafkaError for a change that cannot be made, with Kafka's code."""
    for change in changes:
        if change.config_operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{change.name}: the level of a logger can be set or deleted, and nothing else",
            )
        if change.name != ROOT and change.name not in logging.Logger.manager.loggerDict:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"there is no logger {change.name!r}",
                advice="describe the broker's loggers to see which there are",
            )
        if change.config_operation == ConfigOperation.SET:
            if change.value not in _LEVELS:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{change.name} cannot have the level {change.value!r}",
                    advice=f"it must be one of {', '.join(_LEVELS)}",
                )
        elif change.name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "the level of the root logger cannot be deleted",
                advice="set it",
            )


def make_changes(changes: Iterable[AlterableConfig]) -> None:
    """Set levels, or delete them so that loggers inherit; all changes were checked before."""
    for change in changes:
        level = logging.NOTSET
        if change.config_operation == ConfigOperation.SET:
            assert change.value is not None
            level = _LEVELS[change.value]
        _logger(change.name).setLevel(level)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(level: int) -> str:
    """Kafka's name of the level with the same threshold."""
    for name, least in _LEVELS.items():
        if level <= least:
            return name
    return "OFF"
