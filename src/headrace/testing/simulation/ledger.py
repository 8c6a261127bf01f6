"""What transactions wrote and what readers of committed records saw: all of each, or nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.testing.simulation.history import Violation
from headrace.types import TopicPartition

Records = Mapping[TopicPartition, Mapping[int, bytes]]
_DOOMED = b"doomed/"


@dataclass
class Transaction:
    """The `number`th of its producer; `committed` is None as long as nobody was told its end."""

    producer: str
    number: int
    values: dict[bytes, TopicPartition] = field(default_factory=dict)
    committed: bool | None = None


@dataclass
class Ledger:
    """Every value is written in one transaction, so a value says which one it is of."""

    transactions: list[Transaction] = field(default_factory=list)
    seen: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    """What readers of committed records were given, at any time of the run."""
    seen_counts: Counter[str] = field(default_factory=Counter)
    """How many records of each topic those are."""
    _counts: dict[str, int] = field(default_factory=dict)
    _owners: dict[bytes, tuple[Transaction, int]] = field(default_factory=dict)

    def begin(self, producer: str) -> Transaction:
        """Note that a producer begins a transaction."""
        number = self._counts.get(producer, 0)
        self._counts[producer] = number + 1
        transaction = Transaction(producer, number)
        self.transactions.append(transaction)
        return transaction

    def write(self, transaction: Transaction, partition: TopicPartition) -> bytes:
        """Note that a record is sent; returns its value."""
        index = len(transaction.values)
        value = f"{transaction.producer}/{transaction.number}/{index}".encode()
        transaction.values[value] = partition
        self._owners[value] = transaction, index
        return value

    @staticmethod
    def doom(value: bytes) -> bytes:
        """The value of a copy in a transaction that is never to be committed."""
        return _DOOMED + value

    def see(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """A reader of committed records was given one; another must find the same there."""
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
        """Compare with the committed records that the partitions of transactions have in the end.

        A transaction that was committed is there, one that was aborted is not, and of one whose
        end nobody was told there is everything or nothing; once each, in its producer's order.
        """
        found: dict[bytes, tuple[TopicPartition, int]] = {}
        for partition, records in logs.items():
            self._check_order(partition, records)
            for offset, value in records.items():
                if value in found:
                    raise Violation(f"{value!r} is at {found[value]} and at {partition} {offset}")
                found[value] = partition, offset
        for one in self.transactions:
            name = f"transaction {one.number} of {one.producer}"
            there = [value for value in one.values if value in found]
            if one.committed is False and there:
                raise Violation(f"{name} was aborted, and {there} can be read")
            if one.committed and len(there) < len(one.values):
                lost = sorted(one.values.keys() - set(there))
                raise Violation(f"{name} was committed, and {lost} cannot be read")
            if there and len(there) < len(one.values):
                raise Violation(f"{name} is there in part: {there} of {list(one.values)}")
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
    """Whatever readers were given is what the partitions have in the end."""
    for (partition, offset), value in seen.items():
        if partition in logs and logs[partition].get(offset) != value:
            raise Violation(
                f"{partition} at offset {offset}: a reader was given {value!r}, and in the end"
                f" there is {logs[partition].get(offset)!r}"
            )


def check_copy(
    source: Mapping[int, bytes], copy: Mapping[int, bytes], name: object, *, whole: bool = True
) -> None:
    """A copy made in transactions has every record of its source, once and in its order.

    While it is made, and not `whole`, it has them as far as it goes.
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
