"""The history of clients in a run, and checks that a sound cluster allows it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.types import TopicPartition


class Violation(AssertionError):
    """A violation of an invariant that holds under any faults."""


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record sent by a producer: its `number`th for that partition."""

    producer: str
    partition: TopicPartition
    number: int


@dataclass
class History:
    """The records sent, acknowledged and read. A value is sent once, so it identifies a record."""

    sent: dict[bytes, SentRecord] = field(default_factory=dict)
    # The offset in the acknowledgement of each value.
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    failed: dict[bytes, str] = field(default_factory=dict)
    # The records that consumers read, at any time of the run.
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
        self.sent[value] = SentRecord(producer, partition, number)
        return value

    def acknowledge(self, value: bytes, offset: int) -> None:
        self.acknowledged[value] = offset

    def see(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """Note that a consumer read a record; every later reader must find the same there."""
        before = self.seen.setdefault((partition, offset), value)
        if before != value and self.may_be_lost(partition, offset):
            self.seen[partition, offset] = value
        elif before != value:
            raise Violation(
                f"{partition} at offset {offset}: a consumer read {value!r} where {before!r} was"
                " read before"
            )

    def unseen(self, producer: str) -> list[bytes]:
        """The acknowledged records of a producer that no consumer has read yet."""
        return [
            value
            for value, sent in self.sent.items()
            if sent.producer == producer
            and value in self.acknowledged
            and (sent.partition, self.acknowledged[value]) not in self.seen
        ]

    def check(self, logs: dict[TopicPartition, dict[int, bytes]]) -> None:
        """Compare the history with the final content of the partitions, by offset.

        No acknowledged record is lost, no record is there twice, the order of each producer is
        kept, and every record that a consumer read is still there.
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


Records = Mapping[TopicPartition, Mapping[int, bytes]]
_DOOMED = b"doomed/"


@dataclass
class RecordedTransaction:
    """The `number`th transaction of its producer; `committed` is None while its end is unknown."""

    producer: str
    number: int
    values: dict[bytes, TopicPartition] = field(default_factory=dict)
    committed: bool | None = None


@dataclass
class TransactionHistory:
    """The transactions. Every value is written in one transaction, so it identifies that."""

    transactions: list[RecordedTransaction] = field(default_factory=list)
    seen: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    """The records that readers of committed records were given during the run."""
    seen_counts: Counter[str] = field(default_factory=Counter)
    """The number of these records, by topic."""
    _counts: dict[str, int] = field(default_factory=dict)
    _owners: dict[bytes, tuple[RecordedTransaction, int]] = field(default_factory=dict)

    def begin(self, producer: str) -> RecordedTransaction:
        """Note that a producer begins a transaction."""
        number = self._counts.get(producer, 0)
        self._counts[producer] = number + 1
        transaction = RecordedTransaction(producer, number)
        self.transactions.append(transaction)
        return transaction

    def write(self, transaction: RecordedTransaction, partition: TopicPartition) -> bytes:
        """Note that a record is sent; returns its value."""
        index = len(transaction.values)
        value = f"{transaction.producer}/{transaction.number}/{index}".encode()
        transaction.values[value] = partition
        self._owners[value] = transaction, index
        return value

    @staticmethod
    def doom(value: bytes) -> bytes:
        """The value of a copy in a transaction that is going to be aborted."""
        return _DOOMED + value

    def see(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """Note that a read_committed consumer read a record; every later one must read the same."""
        place = (partition, offset)
        before = self.seen.get(place)
        if before is None:
            self.seen[place] = before = value
            self.seen_counts[partition.topic] += 1
        if before != value:
            raise Violation(
                f"{partition} at offset {offset}: a reader was given {value!r} where another was"
                f" given {before!r}"
            )
        owner = self._owners.get(value)
        if value.startswith(_DOOMED) or (owner is not None and owner[0].committed is False):
            raise Violation(f"{partition} at offset {offset}: {value!r} was aborted, and is read")

    def check(self, logs: Records) -> None:
        """Compare the history with the finally committed records of the partitions.

        A committed transaction is there, an aborted one is not, and one with an unknown end is
        there as a whole or not at all; once each, in its producer's order.
        """
        found: dict[bytes, tuple[TopicPartition, int]] = {}
        for partition, records in logs.items():
            self._check_order(partition, records)
            for offset, value in records.items():
                if value in found:
                    raise Violation(f"{value!r} is at {found[value]} and at {partition} {offset}")
                found[value] = partition, offset
        for transaction in self.transactions:
            name = f"transaction {transaction.number} of {transaction.producer}"
            there = [value for value in transaction.values if value in found]
            if transaction.committed is False and there:
                raise Violation(f"{name} was aborted, and {there} can be read")
            if transaction.committed and len(there) < len(transaction.values):
                lost = sorted(transaction.values.keys() - set(there))
                raise Violation(f"{name} was committed, and {lost} cannot be read")
            if there and len(there) < len(transaction.values):
                raise Violation(f"{name} is there in part: {there} of {list(transaction.values)}")
        check_seen(self.seen, logs)

    def _check_order(self, partition: TopicPartition, records: Mapping[int, bytes]) -> None:
        last: dict[str, tuple[int, int]] = {}
        for offset, value in sorted(records.items()):
            owner = self._owners.get(value)
            if owner is None or owner[0].values[value] != partition:
                raise Violation(f"{partition} holds {value!r}, which no transaction wrote there")
            transaction, index = owner
            place = (transaction.number, index)
            if place <= last.get(transaction.producer, (-1, -1)):
                raise Violation(f"{partition} has {value!r} out of order, at offset {offset}")
            last[transaction.producer] = place


def check_seen(seen: Mapping[tuple[TopicPartition, int], bytes], logs: Records) -> None:
    """Check that all records read during the run are in the partitions in the end."""
    for (partition, offset), value in seen.items():
        if partition in logs and logs[partition].get(offset) != value:
            raise Violation(
                f"{partition} at offset {offset}: a reader was given {value!r}, and in the end"
                f" there is {logs[partition].get(offset)!r}"
            )


def check_copy(
    source: Mapping[int, bytes], copy: Mapping[int, bytes], name: object, *, whole: bool = True
) -> None:
    """Check that a copy made in transactions has every record of its source, once and in order.

    While it is being made, and not `whole`, it must be a prefix.
    """
    wanted, found = _in_order(source), _in_order(copy)
    if wanted == found or (not whole and wanted[: len(found)] == found):
        return
    place = next(
        (at for at, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]),
        min(len(wanted), len(found)),
    )
    raise Violation(
        f"{name} is no copy: of {len(wanted)} records it has {len(found)}, and number {place} is"
        f" {_at(found, place)!r} where the source has {_at(wanted, place)!r}"
    )


def _in_order(records: Mapping[int, bytes]) -> list[bytes]:
    return [value for _, value in sorted(records.items())]


def _at(values: Iterable[bytes], place: int) -> bytes | None:
    return dict(enumerate(values)).get(place)
