"""Whether a copy is what it was made from: every record exactly once, in order, nothing aborted.

Rule: nothing here knows of brokers. Records of a partition are numbered from 0 in their order.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

STRANGE = -1
_DOOMED = b"doomed "


def value_of(number: int) -> bytes:
    """The record with a number, as it is in the source and should be in the copy."""
    return b"%d %s" % (number, b"x" * (number % 50))


def doomed(value: bytes) -> bytes:
    """What a copier writes in a transaction that is never to be committed."""
    return _DOOMED + value


def is_doomed(value: bytes | None) -> bool:
    return (value or b"").startswith(_DOOMED)


def number_of(value: bytes | None) -> int:
    """The number of a record; STRANGE if it is none of those that were to be copied."""
    first = (value or b"").partition(b" ")[0]
    return int(first) if first.isdigit() and value == value_of(int(first)) else STRANGE


@dataclass(frozen=True, slots=True)
class Findings:
    """What a reader of committed records found; all but `copied` must be 0."""

    copied: int
    missing: int = 0
    duplicated: int = 0
    reordered: int = 0
    """Behind a record that comes later in the source."""
    aborted: int = 0
    """Of a transaction that was never committed."""
    strange: int = 0

    @property
    def problems(self) -> dict[str, int]:
        """What is not 0 and should be."""
        counts = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: count for name, count in counts.items() if count and name != "copied"}

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def judge(values: Sequence[bytes | None], count: int) -> Findings:
    """What was read of one partition of the copy, beside `count` records of its source."""
    numbers = [number_of(value) for value in values if not is_doomed(value)]
    times = Counter(number for number in numbers if 0 <= number < count)
    newest, reordered = -1, 0
    for number in numbers:
        # A repetition of an older record is a duplicate, and no disorder of its own.
        reordered += 0 <= number < newest and times[number] == 1
        newest = max(newest, number)
    return Findings(
        copied=len(times),
        missing=count - len(times),
        duplicated=sum(times.values()) - len(times),
        reordered=reordered,
        aborted=len(values) - len(numbers),
        strange=sum(not 0 <= number < count for number in numbers),
    )


def total(findings: Iterable[Findings]) -> Findings:
    """The findings of several partitions as one."""
    return sum(findings, Findings(0))


@dataclass(slots=True)
class Watch:
    """A partition of the copy while it is made: what comes must be the next record, always."""

    following: int = 0
    """The number of the record that has to come next."""
    violations: list[str] = field(default_factory=list)

    def see(self, offset: int, value: bytes | None) -> None:
        """A reader of committed records was given one."""
        if number_of(value) != self.following:
            what = repr(value[:40] if value else value)
            self.violations.append(f"offset {offset}: {what} instead of {self.following}")
        else:
            self.following += 1
