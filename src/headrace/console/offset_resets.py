"""New offsets of a group: where each partition would go, shown before anything is committed.

Rule: the plan is pure but for asking the log's ends; nothing is written here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace import aio
from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.console.errors import FieldError
from headrace.types import TopicPartition

OFFSET_MAX = 2**63 - 1
TARGETS = {
    "earliest": "the first record",
    "latest": "the end: only records that are written from now on",
    "time": "the first record not older than a time",
    "offset": "an offset",
    "shift": "forward or back by a number of records",
}


@dataclass(frozen=True, slots=True)
class NewOffset:
    """The change of one partition. `is_clamped` if the log does not have the wanted offset."""

    tp: TopicPartition
    old_offset: int | None
    new_offset: int
    lag_after: int
    is_clamped: bool

    @property
    def change(self) -> int | None:
        """The records that are read again if it is negative, or left out."""
        return None if self.old_offset is None else self.new_offset - self.old_offset


async def planned_resets(
    admin: aio.Admin,
    committed: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
    target: str,
    value: str,
) -> list[NewOffset]:
    """The resets of partitions to a target of `TARGETS`, clamped to what their logs have."""
    tps = sorted(partitions)
    earliest = await admin.offsets(dict.fromkeys(tps, EARLIEST))
    latest = await admin.offsets(dict.fromkeys(tps, LATEST))
    at_time: Mapping[TopicPartition, int] = {}
    if target == "time":
        found = await admin.offsets(dict.fromkeys(tps, time_ms_of(value)))
        # No record is that new: the group goes on with what will be written.
        at_time = {
            tp: answer.offset if answer.offset >= 0 else latest[tp].offset
            for tp, answer in found.items()
        }
    resets = []
    for tp in tps:
        low, high = earliest[tp].offset, latest[tp].offset
        wanted = _wanted(target, value, tp, committed.get(tp), low, high, at_time)
        new = min(max(wanted, low), high)
        resets.append(NewOffset(tp, committed.get(tp), new, high - new, new != wanted))
    return resets


def _wanted(
    target: str,
    value: str,
    tp: TopicPartition,
    committed: int | None,
    low: int,
    high: int,
    at_time: Mapping[TopicPartition, int],
) -> int:
    match target:
        case "earliest":
            return low
        case "latest":
            return high
        case "time":
            return at_time[tp]
        case "offset":
            return _integer(value, 0)
        case "shift":
            if committed is None:
                raise FieldError(
                    "target", f"{tp} has no committed offset to shift", advice="choose a topic"
                )
            return committed + _integer(value, -OFFSET_MAX)
    raise FieldError("target", "the place to go to is missing", advice="choose one")


def _integer(text: str, lowest: int) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = OFFSET_MAX + 1
    if not lowest <= number <= OFFSET_MAX:
        raise FieldError("value", f"{text or 'nothing'} is no such number", advice="give another")
    return number


def time_ms_of(text: str) -> int:
    """A time as a form has it (2024-05-01T12:00), in UTC unless it says otherwise."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise FieldError(
            "value", f"{text or 'nothing'} is no time", advice="write it as 2024-05-01T12:00:00"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(int(time.timestamp() * 1000), 0)
