"""Argument checks of consumer calls, and conversion to one type."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.errors import ConfigError
from headrace.types import TopicPartition

Partitions: TypeAlias = TopicPartition | tuple[str, int] | Iterable[TopicPartition]
Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata | int]

_INT32_MAX = 0x7FFF_FFFF
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF


def partitions_of(given: Iterable[Any]) -> list[TopicPartition]:
    """The partitions of a call like pause(tp, tp) or pause([tp, tp]), each once.

    >>> partitions_of([TopicPartition("orders", 0), [("orders", 1)]])
    [TopicPartition(topic='orders', partition=0), TopicPartition(topic='orders', partition=1)]
    """
    found: dict[TopicPartition, None] = {}
    for argument in given:
        if is_partition(argument):
            found[partition_of(argument)] = None
        elif isinstance(argument, Iterable) and not isinstance(argument, str):
            found |= dict.fromkeys(map(partition_of, argument))
        else:
            found[partition_of(argument)] = None
    return list(found)


def partition_of(given: Any) -> TopicPartition:
    """The partition as a TopicPartition; a plain tuple is accepted."""
    if not is_partition(given):
        raise TypeError(
            f"{given!r} is no partition; give TopicPartition(topic, number), for example"
            ' TopicPartition("orders", 0)'
        )
    if not 0 <= given[1] <= _INT32_MAX:
        raise ConfigError(f"partitions are numbered from 0 on: {given!r} is none")
    return TopicPartition(*given)


def is_partition(given: Any) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], str)
        and isinstance(given[1], int)
        and not isinstance(given[1], bool)
    )


def topics_of(given: Any) -> frozenset[str]:
    """The topics of a call like subscribe("orders") or subscribe(["orders", "payments"])."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable):
        raise TypeError(f"topics are a list of names, not {given!r}")
    found = []
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a topic is given by its name, not as {name!r}")
        if not name:
            raise ConfigError("a topic's name cannot be empty")
        found.append(name)
    if not found:
        raise ConfigError("no topic is given; call unsubscribe() to read nothing")
    return frozenset(found)


def pattern_of(given: Any) -> re.Pattern[str]:
    """A pattern for topic names; a str is compiled."""
    if isinstance(given, re.Pattern) and isinstance(given.pattern, str):
        return given
    if not isinstance(given, str):
        raise TypeError(f"a pattern is a regular expression as text, not {given!r}")
    try:
        return re.compile(given)
    except re.error as error:
        raise ConfigError(f"pattern {given!r} is no regular expression: {error}") from None


def offset_of(given: Any, name: str = "offset") -> int:
    """An offset to seek to or to commit."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} is a whole number, not {given!r}")
    if not 0 <= given <= _INT64_MAX:
        raise ConfigError(f"{name} is at least 0, and at most {_INT64_MAX}, not {given}")
    return given


def offsets_of(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit; a plain number is an offset without metadata."""
    if not isinstance(given, Mapping):
        raise TypeError(f"offsets are a dict of partitions, such as {{tp: 42}}, not {given!r}")
    found = {}
    for tp, offset in given.items():
        known = (
            offset
            if isinstance(offset, OffsetAndMetadata)
            else OffsetAndMetadata(offset_of(offset))
        )
        offset_of(known.offset)
        found[partition_of(tp)] = known
    return found


def group_of(given: Any) -> ConsumerGroupMetadata:
    """The group and member that commit offsets; a group name alone means no particular member."""
    group = ConsumerGroupMetadata(given) if isinstance(given, str) else given
    if not isinstance(group, ConsumerGroupMetadata):
        raise TypeError(
            f"a group is given as consumer.group_metadata(), or by its name, not as {given!r}"
        )
    if not group.group_id:
        raise ConfigError("a group's name cannot be empty")
    return group


def times_of(given: Any) -> dict[TopicPartition, int]:
    """Times to look up, in milliseconds since the epoch."""
    if not isinstance(given, Mapping):
        raise TypeError(f"times are a dict of partitions, such as {{tp: 0}}, not {given!r}")
    return {partition_of(tp): offset_of(ms, "a time in ms") for tp, ms in given.items()}


def count_of(given: Any, name: str, least: int = 1) -> int:
    """A number of records."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} is a whole number, not {given!r}")
    if given < least:
        raise ConfigError(f"{name} is at least {least}, not {given}")
    return given


def seconds_of(given: Any, name: str = "timeout_ms") -> float | None:
    """A timeout in milliseconds converted to seconds; None waits for ever."""
    if given is None:
        return None
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"{name} is a number of milliseconds, not {given!r}")
    if not given >= 0:
        raise ConfigError(f"{name} is at least 0, not {given}")
    return given / 1000
