"""What must be true of everything that has happened to a group, whatever it went through.

Reports carry the machine's monotonic time. A member says that it has partitions after it got them,
that it gives them up before it does, and that it has committed after it has: so two spans that
overlap are an overlap, and a commit reported before an assignment came before it.
"""

from itertools import pairwise
from typing import NamedTuple

from tests.integration.groups.consumers import Group, Member, Partition, partitions_of

FOREVER = float("inf")


class Span(NamedTuple):
    """A time during which a member worked on a partition."""

    start: float
    end: float
    member: str


def check_history(group: Group) -> None:
    """No partition had two owners at a time, and nothing was read again that was committed."""
    spans: dict[Partition, list[Span]] = {}
    for member in group.everybody:
        for partition, span in spans_of(member):
            spans.setdefault(partition, []).append(span)
    for partition, owned in spans.items():
        owned.sort()
        for before, after in pairwise(owned):
            assert before.end <= after.start, f"{partition} was owned twice: {before}, {after}"
    for member in group.everybody:
        check_reading(member, commits_of(group))


def spans_of(member: Member) -> list[tuple[Partition, Span]]:
    """Every partition the member has had, and when it worked on it.

    A member that stopped polling works on nothing, though it hears only later what it has lost.
    """
    since: dict[Partition, float] = {}
    spans: list[tuple[Partition, Span]] = []
    for report in member.reports:
        if report.kind == "assigned":
            since |= dict.fromkeys(partitions_of(report) - since.keys(), report.time)
        elif report.kind in {"revoked", "paused"}:
            ended = partitions_of(report) if report.kind == "revoked" else set(since)
            for partition in ended & since.keys():
                spans.append((partition, Span(since.pop(partition), report.time, member.name)))
    end = member.killed_at or FOREVER
    if (closed := member.said("closed")) is not None:
        end = closed.time
    return spans + [
        (partition, Span(start, end, member.name)) for partition, start in since.items()
    ]


def commits_of(group: Group) -> dict[Partition, list[tuple[float, int]]]:
    """The offsets that members know to be committed, and since when."""
    commits: dict[Partition, list[tuple[float, int]]] = {}
    for member in group.everybody:
        for report in member.reports:
            if report.kind == "committed":
                for topic, partition, offset in report.details:
                    commits.setdefault((topic, partition), []).append((report.time, offset))
    return commits


def check_reading(member: Member, commits: dict[Partition, list[tuple[float, int]]]) -> None:
    """A member starts no earlier than what was committed, and reads on without a step back."""
    lowest: dict[Partition, int] = {}
    for report in member.reports:
        if report.kind == "assigned":
            for partition in partitions_of(report):
                known = commits.get(partition, ())
                lowest[partition] = max((at for when, at in known if when < report.time), default=0)
        elif report.kind == "records":
            for topic, partition, offsets in report.details:
                for offset in offsets:
                    assert offset >= lowest.get((topic, partition), 0), (
                        f"{member.name} was given {topic}-{partition} at {offset} again, "
                        f"after {lowest[topic, partition]}"
                    )
                    lowest[topic, partition] = offset + 1
