"""What a load has sent and what was acknowledged, compared with what is stored.

Rule: nothing here knows of brokers or time; times are given, and are seconds of any one clock.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Findings:
    """How far the stored records are from what was promised; all of it must be 0."""

    acknowledged: int
    stored: int
    lost: int
    """Acknowledged and not stored."""
    duplicated: int
    """Stored once more than sent."""
    reordered: int
    """Stored behind a record that was sent later."""
    misplaced: int
    """Not at the offset that was acknowledged."""
    unknown: int
    """Stored and never sent."""
    failed: int
    """Given up by the client."""

    @property
    def problems(self) -> dict[str, int]:
        """What is not 0 and should be."""
        names = ("lost", "duplicated", "reordered", "misplaced", "unknown", "failed")
        return {name: value for name in names if (value := getattr(self, name))}


@dataclass(slots=True)
class PartitionHistory:
    """The records of one partition, numbered from 0 in the order they were sent."""

    sent_at: list[float] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Offsets by number; UNKNOWN if the client was not told where a record is."""
    acknowledged_at: dict[int, float] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)

    def send(self, at: float) -> int:
        """The number of a record that is sent now."""
        self.sent_at.append(at)
        return len(self.sent_at) - 1

    def acknowledge(self, number: int, offset: int, at: float) -> None:
        assert number not in self.acknowledged, f"record {number} was acknowledged twice"
        self.acknowledged[number] = offset
        self.acknowledged_at[number] = at

    def resumed_at(self, after: float) -> float | None:
        """When the first record was acknowledged that was sent after a moment; None if none was."""
        return min(self._times_of_those_sent(after), default=None)

    def longest_gap_s(self, after: float) -> float:
        """The longest time between two acknowledgements of records sent after a moment."""
        times = sorted(self._times_of_those_sent(after))
        return max((later - at for at, later in pairwise(times)), default=0.0)

    def _times_of_those_sent(self, after: float) -> list[float]:
        """When they were acknowledged, as far as they were."""
        later = range(bisect_left(self.sent_at, after), len(self.sent_at))
        return [self.acknowledged_at[entry] for entry in later if entry in self.acknowledged_at]


def compare(history: PartitionHistory, stored: Sequence[tuple[int, int]]) -> Findings:
    """A partition's history beside its records, given as offset and number in stored order."""
    numbers = [number for _, number in stored]
    times = Counter(numbers)
    at_offset = dict(stored)
    newest = UNKNOWN
    reordered = 0
    for number in numbers:
        # A repetition of an older record is a duplicate, and no disorder of its own.
        reordered += number < newest and times[number] == 1
        newest = max(newest, number)
    return Findings(
        acknowledged=len(history.acknowledged),
        stored=len(stored),
        lost=sum(number not in times for number in history.acknowledged),
        duplicated=sum(count - 1 for count in times.values()),
        reordered=reordered,
        misplaced=sum(
            offset != UNKNOWN and number in times and at_offset.get(offset) != number
            for number, offset in history.acknowledged.items()
        ),
        unknown=sum(not 0 <= number < len(history.sent_at) for number in times),
        failed=len(history.failed),
    )


def total(findings: Iterable[Findings]) -> Findings:
    """The findings of several partitions as one."""
    names = Findings.__dataclass_fields__
    everything: Mapping[str, list[int]] = {name: [] for name in names}
    for finding in findings:
        for name in names:
            everything[name].append(getattr(finding, name))
    return Findings(**{name: sum(values) for name, values in everything.items()})
