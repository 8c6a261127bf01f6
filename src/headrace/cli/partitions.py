"""Partitions as text, `orders:0-3,7`, and start positions, `--from`."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

import click

from headrace.cli.options import Command
from headrace.client.admin.admin import Admin
from headrace.client.admin.admin_requests import by_topic
from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.errors import ErrorCode, KafkaError, unknown_partition
from headrace.monitoring.problems import numbers_text
from headrace.types import TopicPartition

_PARTITIONS_MAX = 100_000


class ChosenPartitions(NamedTuple):
    """A topic and numbers of its partitions; an empty tuple means all."""

    topic: str
    numbers: tuple[int, ...]


def parse_partitions(text: str) -> ChosenPartitions:
    """The parsed `TOPIC[:PARTITIONS]`; a usage error for anything else."""
    topic, colon, rest = text.partition(":")
    numbers: list[int] = []
    try:
        for part in rest.split(",") if colon else ():
            first, dash, last = part.partition("-")
            found = range(_number(first), _number(last if dash else first) + 1)
            if not found:
                raise ValueError
            numbers += found
    except ValueError:
        numbers, topic = [], ""
    if not topic:
        raise click.BadParameter(f"{text!r} is not of the form TOPIC[:0,2-5].")
    return ChosenPartitions(topic, tuple(sorted(set(numbers))))


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= _PARTITIONS_MAX:
        raise ValueError
    return int(text)


def topic_option(*, help: str, required: bool = False) -> Callable[[Command], Command]:
    """The option `--topic`, which may be repeated; its values are the argument `chosen`."""
    return click.option(
        "--topic",
        "chosen",
        type=parse_partitions,
        multiple=True,
        required=required,
        metavar="TOPIC[:N,...]",
        help=help,
    )


def chosen_partitions(admin: Admin, chosen: Iterable[ChosenPartitions]) -> list[TopicPartition]:
    """The chosen partitions, in order; KafkaError for a partition that does not exist."""
    wanted = list(chosen)
    topics = admin.describe_topics(sorted({choice.topic for choice in wanted}))
    found: set[TopicPartition] = set()
    for choice in wanted:
        existing = [partition.index for partition in topics[choice.topic].partitions]
        check_numbers(choice.topic, choice.numbers, existing)
        found.update(TopicPartition(choice.topic, number) for number in choice.numbers or existing)
    return sorted(found)


def check_numbers(topic: str, numbers: Iterable[int], existing: Sequence[int]) -> None:
    """Raise UnknownTopic if one of the numbers is not a partition."""
    for number in numbers:
        if number not in existing:
            raise unknown_partition(topic, number, len(existing))


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as text, in the form of the option: `orders:0-3,7 payments:0`."""
    return " ".join(
        f"{topic}:{numbers_text(numbers)}" for topic, numbers in by_topic(partitions).items()
    )


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)\Z")
_INT64_MAX = 2**63 - 1

FORMS = (
    "beginning, end, an offset (42), the last records of each partition (-10), an age (-90s, -15m,"
    " -1h, -7d), a time (2024-05-01T12:00:00Z), or milliseconds since 1970 (@1714564800000)"
)


@dataclass(frozen=True, slots=True)
class AtEdge:
    """The start or the end of the log: EARLIEST or LATEST."""

    edge: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The same offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTail:
    """A number of records before the end of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is not older than a time."""

    timestamp_ms: int


Start: TypeAlias = AtEdge | AtOffset | AtTail | AtTime


def parse_start(text: str, now_ms: int) -> Start:
    """The parsed `--from`; a usage error for anything else."""
    if text == "beginning":
        return AtEdge(EARLIEST)
    if text == "end":
        return AtEdge(LATEST)
    age_ms = parse_duration_ms(text[1:]) if text.startswith("-") else None
    if age_ms is not None:
        return AtTime(max(now_ms - age_ms, 0))
    digits = text.lstrip("-@")
    if digits.isascii() and digits.isdigit() and int(digits) <= _INT64_MAX:
        match text[: -len(digits)]:
            case "":
                return AtOffset(int(digits))
            case "-":
                return AtTail(int(digits))
            case "@":
                return AtTime(int(digits))
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise click.UsageError(f"--from {text!r} is none of: {FORMS}.")
    return AtTime(time_ms)


def parse_duration_ms(text: str) -> int | None:
    """The milliseconds of a number and its unit, as `90s` or `7d`; None for anything else."""
    found = _DURATION.match(text)
    return int(found[1]) * _UNITS_MS[found[2]] if found else None


def parse_time_ms(text: str) -> int | None:
    """The milliseconds of an ISO 8601 time, not before 1970; None for anything else."""
    try:
        # A time without a zone is in the user's own, as `date` would print it.
        return max(int(datetime.fromisoformat(text).timestamp() * 1000), 0)
    except (ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The start of a partition's log, and the offsets to read from it: [start, end)."""

    earliest: int
    start: int
    end: int


def find_ranges(
    admin: Admin, partitions: Iterable[TopicPartition], start: Start
) -> dict[TopicPartition, PartitionRange]:
    """The offset of a start position in each partition, with the log's start and end."""
    wanted = list(partitions)
    earliest = admin.offsets(dict.fromkeys(wanted, EARLIEST))
    latest = admin.offsets(dict.fromkeys(wanted, LATEST))
    timed = (
        admin.offsets(dict.fromkeys(wanted, start.timestamp_ms))
        if isinstance(start, AtTime)
        else None
    )
    if isinstance(start, AtOffset) and not any(
        earliest[tp].offset <= start.offset <= latest[tp].offset for tp in wanted
    ):
        held = ", ".join(
            f"{tp} has [{earliest[tp].offset}, {latest[tp].offset})" for tp in wanted[:5]
        )
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"no partition has offset {start.offset}: {held}",
            advice="choose one of these offsets",
        )
    ranges = {}
    for tp in wanted:
        low, high = earliest[tp].offset, latest[tp].offset
        found = timed[tp].offset if timed else -1
        ranges[tp] = PartitionRange(low, _begin(start, low, high, found), high)
    return ranges


def _begin(start: Start, earliest: int, latest: int, found: int) -> int:
    match start:
        case AtEdge(edge):
            return earliest if edge == EARLIEST else latest
        case AtOffset(offset):
            # Partitions may differ in length: in a shorter partition its nearest end.
            return min(max(offset, earliest), latest)
        case AtTail(count):
            return max(latest - count, earliest)
        case AtTime():
            return latest if found < 0 else found
