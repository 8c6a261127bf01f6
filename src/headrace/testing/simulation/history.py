"""What clients did and saw in a run, and whether a cluster that keeps its promises allows it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from headrace.types import TopicPartition


class Violation(AssertionError):
    """Something happened that must not, whatever fails."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record handed to a producer: the `number`th of its producer for that partition."""

    producer: str
    partition: TopicPartition
    number: int


@dataclass
class History:
    """Every value is sent once, so a value says which record it is."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    # Where the cluster said that it is.
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    failed: dict[bytes, str] = field(default_factory=dict)
    # What consumers saw, at any time of the run.
    seen: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    # The disks that hold the record at an offset; None if no disk may ever lose any.
    holders: Callable[[TopicPartition, int], Collection[str]] | None = None

    def may_be_lost(self, partition: TopicPartition, offset: int) -> bool:
        """Whether faults have taken a record from every disk that held it."""
        return self.holders is not None and not self.holders(partition, offset)

    def send(self, producer: str, partition: TopicPartition, number: int) -> bytes:
        """Note that a record is sent; returns its value."""
        value = f"{producer}/{partition.partition}/{number}".encode()
        assert value not in self.sent, value
        self.sent[value] = Sent(producer, partition, number)
        return value

    def acknowledge(self, value: bytes, offset: int) -> None:
        self.acknowledged[value] = offset

    def see(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """A consumer was given a record; another reader must find the same there."""
        before = self.seen.setdefault((partition, offset), value)
        if before != value and self.may_be_lost(partition, offset):
            self.seen[partition, offset] = value
        elif before != value:
            raise Violation(
                f"{partition} at offset {offset}: a consumer read {value!r} where {before!r} was"
                " read before"
            )

    def unseen(self, producer: str) -> list[bytes]:
        """What of a producer was acknowledged, and no consumer was given yet."""
        return [
            value
            for value, sent in self.sent.items()
            if sent.producer == producer
            and value in self.acknowledged
            and (sent.partition, self.acknowledged[value]) not in self.seen
        ]

    def check(self, logs: dict[TopicPartition, dict[int, bytes]]) -> None:
        """Compare with what the partitions hold in the end, by offset.

        Nothing acknowledged is lost, nothing is there twice, the order of each producer is kept,
        and whatever a consumer saw is still there.
        """
        for partition, records in logs.items():
            self._check_order(partition, records)
        found = {
            value: (partition, offset)
            for partition, records in logs.items()
            for offset, value in records.items()
        }
        for value, offset in self.acknowledged.items():
            partition = self.sent[value].partition
            if value not in found:
                if self.may_be_lost(partition, offset):
                    continue
                raise Violation(
                    f"{value!r}, acknowledged at {partition} {offset}, is lost"
                    f"{self._where(partition, offset)}"
                )
            if offset >= 0 and found[value] != (partition, offset):
                raise Violation(
                    f"{value!r}, acknowledged at {partition} {offset}, is at {found[value]}"
                )
        for (partition, offset), value in self.seen.items():
            there = logs[partition].get(offset)
            if there != value and not self.may_be_lost(partition, offset):
                raise Violation(
                    f"{partition} at offset {offset}: a consumer read {value!r}, and in the end"
                    f" there is {there!r}{self._where(partition, offset)}"
                )

    def _where(self, partition: TopicPartition, offset: int) -> str:
        if self.holders is None:
            return ""
        return (
            f", though no fault took it from {', '.join(sorted(self.holders(partition, offset)))}"
        )

    def _check_order(self, partition: TopicPartition, records: dict[int, bytes]) -> None:
        last: dict[str, int] = {}
        for offset, value in sorted(records.items()):
            sent = self.sent.get(value)
            if sent is None or sent.partition != partition:
                raise Violation(f"{partition} holds {value!r}, which nobody sent there")
            before = last.get(sent.producer, -1)
            if sent.number <= before:
                how = "twice" if sent.number == before else f"after number {before}"
                raise Violation(f"{partition} has {value!r} {how}, at offset {offset}")
            last[sent.producer] = sent.number
