"""Where a group is to go on reading: targets, and the offsets they mean in each partition."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

from headrace.cli.start import AtEdge, AtOffset, AtTime
from headrace.client.administration.admin import Admin
from headrace.client.administration.offsets import EARLIEST, LATEST
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

# A line of a plan is some 30 bytes, or 150 as JSON.
_PLAN_CHARACTERS_MAX = 64 * 1_048_576
_OFFSET_MAX = 2**63 - 1


class ResetRefused(HeadraceError):
    """A reset that cannot be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class AtShift:
    """So many records after the committed offset, or before it."""

    count: int


@dataclass(frozen=True, slots=True)
class AtCommitted:
    """Where the group is; the end of the log where it has committed nothing."""


@dataclass(frozen=True, slots=True)
class AtPlan:
    """An offset for each partition."""

    offsets: Mapping[TopicPartition, int]


Target: TypeAlias = AtEdge | AtOffset | AtTime | AtShift | AtCommitted | AtPlan


@dataclass(frozen=True, slots=True)
class Reset:
    """What happens to one partition. `wanted_offset` may lie outside the log, `new_offset` not."""

    tp: TopicPartition
    old_offset: int | None
    wanted_offset: int
    earliest_offset: int
    latest_offset: int

    @property
    def new_offset(self) -> int:
        return min(max(self.wanted_offset, self.earliest_offset), self.latest_offset)

    @property
    def change(self) -> int | None:
        return None if self.old_offset is None else self.new_offset - self.old_offset


def find_resets(
    admin: Admin,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    target: Target,
) -> list[Reset]:
    """What a target means in each partition, in their order."""
    wanted = list(partitions)
    earliest = admin.offsets(dict.fromkeys(wanted, EARLIEST))
    latest = admin.offsets(dict.fromkeys(wanted, LATEST))
    timed = (
        admin.offsets(dict.fromkeys(wanted, target.timestamp_ms))
        if isinstance(target, AtTime)
        else {}
    )
    resets = []
    for tp in wanted:
        low, high, old = earliest[tp].offset, latest[tp].offset, committed.get(tp)
        found = timed[tp].offset if tp in timed else -1
        resets.append(Reset(tp, old, _wanted(target, tp, old, low, high, found), low, high))
    return resets


def _wanted(
    target: Target, tp: TopicPartition, committed: int | None, low: int, high: int, found: int
) -> int:
    match target:
        case AtEdge(edge):
            return low if edge == EARLIEST else high
        case AtOffset(offset):
            return offset
        case AtTime():
            return high if found < 0 else found
        case AtCommitted():
            return high if committed is None else committed
        case AtPlan(offsets):
            return offsets[tp]
        case AtShift(count):
            if committed is None:
                raise ResetRefused(
                    f"{tp} has no committed offset to shift from; name the partitions that have"
                    f" one, as --topic {tp.topic}:0,1"
                )
            return committed + count


def read_plan(file: TextIO, name: str) -> AtPlan:
    """A plan from a file: lines of topic, partition, offset, or JSON of a reset or its dry run."""
    try:
        text = file.read(_PLAN_CHARACTERS_MAX + 1)
    except UnicodeDecodeError:
        raise ResetRefused(f"{name} is no text; write lines as orders,0,42") from None
    if len(text) > _PLAN_CHARACTERS_MAX:
        raise ResetRefused(f"{name} is too long for a plan; split it")
    offsets: dict[TopicPartition, int] = {}
    rows = _json_rows(text, name) if text.lstrip().startswith("{") else _csv_rows(text, name)
    for where, topic, partition, offset in rows:
        if not topic or partition not in range(2**31) or offset not in range(_OFFSET_MAX + 1):
            raise ResetRefused(
                f"{where} of {name} has no topic, partition and offset; write lines as orders,0,42"
            )
        tp = TopicPartition(topic, partition)
        if tp in offsets:
            raise ResetRefused(f"{where} of {name} gives {tp} a second time; leave one of them out")
        offsets[tp] = offset
    if not offsets:
        raise ResetRefused(f"{name} has no offsets; write lines as orders,0,42")
    return AtPlan(offsets)


def _csv_rows(text: str, name: str) -> Iterable[tuple[str, str, int, int]]:
    reader = csv.reader(text.splitlines())
    try:
        for row in reader:
            if not row:
                continue
            match [cell.strip() for cell in row]:
                case [topic, partition, offset] if partition.isdecimal() and offset.isdecimal():
                    yield f"line {reader.line_num}", topic, int(partition), int(offset)
                case _:
                    yield f"line {reader.line_num}", "", -1, -1
    except csv.Error as error:
        raise ResetRefused(f"{name} is no CSV: {error}; write lines as orders,0,42") from None


def _json_rows(text: str, name: str) -> Iterable[tuple[str, str, int, int]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ResetRefused(f"{name} is no JSON: {error}; see what was written to it") from None
    entries = document.get("offsets")
    if not isinstance(entries, list):
        raise ResetRefused(
            f'{name} has no list "offsets"; take what `headrace groups reset-offsets --json` prints'
        )
    for number, entry in enumerate(entries, 1):
        fields = entry if isinstance(entry, dict) else {}
        topic = fields.get("topic")
        yield (
            f"offset {number}",
            topic if isinstance(topic, str) else "",
            _integer(fields.get("partition")),
            _integer(fields.get("new_offset")),
        )


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
