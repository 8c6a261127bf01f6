"""The queue of a partition's batches that are being sent, in order through retries.

Pure: the sender reports sent batches and responses; a queue returns the next batch to send.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from headrace.client.producer.delivery import BatchDelivery
from headrace.errors import HeadraceError
from headrace.protocol.batch import renumber
from headrace.protocol.builder import BatchBuilder
from headrace.protocol.records import decode_rows
from headrace.types import TopicPartition

_SEQUENCES = 2**31

_EPOCH_MAX = 2**15 - 2
_PLACE = attrgetter("place")


class ProducerIdentity(NamedTuple):
    """The producer id and epoch of an idempotent producer."""

    producer_id: int
    epoch: int

    def next_epoch(self) -> "ProducerIdentity | None":
        """The same producer id with the next epoch (KIP-360); None if the epochs are used up."""
        return self._replace(epoch=self.epoch + 1) if self.epoch < _EPOCH_MAX else None


NOBODY = ProducerIdentity(-1, -1)


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records that are sent to the broker together, and the state of their delivery.

    `encode` makes the bytes; after that it is dropped, with the memory behind it. `deadline` is the
    end of the delivery timeout, counted from the first `send`. `is_uncertain` is set once an
    attempt may have been written without an acknowledgement.
    """

    tp: TopicPartition
    encode: Callable[..., bytearray] | None
    delivery: BatchDelivery
    count: int
    raw_bytes: int
    reserved_bytes: int
    deadline: float
    encoded: bytearray | None = None
    identity: ProducerIdentity | None = None
    base_sequence: int = -1
    attempts: int = 0
    is_uncertain: bool = False
    # The order among the batches of its partition; parts of a batch have one more number.
    place: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size in a request; before encoding, an upper bound."""
        return self.raw_bytes if self.encoded is None else len(self.encoded)

    def number(
        self, identity: ProducerIdentity | None, base_sequence: int, **options: object
    ) -> None:
        """Encode under a producer's id and sequence, or change these in bytes already encoded."""
        producer_id, epoch = identity or NOBODY
        self.identity = identity
        self.base_sequence = base_sequence
        if self.encoded is None:
            assert self.encode is not None
            self.encoded = self.encode(
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=base_sequence,
                **options,
            )
            self.encode = None
        else:
            # A copy: a request that was given up may still hold the old bytes.
            self.encoded = renumbered(self.encoded, producer_id, epoch, base_sequence)


def renumbered(batch: bytearray, producer_id: int, epoch: int, base_sequence: int) -> bytearray:
    """The same records under another producer identity or base sequence."""
    changed = bytearray(batch)
    renumber(changed, producer_id, epoch, base_sequence)
    return changed


def halves(batch: ProducerBatch) -> list[ProducerBatch]:
    """Two batches with the records of a batch that is too large, whose delivery they share.

    They share its sequence numbers too: no broker has accepted a batch under them.
    """
    assert batch.encoded is not None and batch.count > 1
    rows = decode_rows(batch.encoded)
    sequence = batch.base_sequence
    middle = len(rows) // 2
    parts: list[ProducerBatch] = []
    reserved = batch.reserved_bytes
    for part_rows in (rows[:middle], rows[middle:]):
        builder = BatchBuilder(2**31 - 1)
        for row in part_rows:
            builder.append(row.timestamp, row.key, row.value, row.headers)
        share = reserved - batch.reserved_bytes // 2 if not parts else batch.reserved_bytes // 2
        parts.append(
            ProducerBatch(
                batch.tp,
                builder.finish,
                BatchDelivery(batch.tp, builder.count, batch.delivery.home),
                builder.count,
                builder.size_bytes,
                share,
                batch.deadline,
                identity=batch.identity,
                base_sequence=sequence,
                attempts=batch.attempts,
                place=(*batch.place, len(parts)),
            )
        )
        if sequence >= 0:
            sequence = (sequence + builder.count) % _SEQUENCES
    batch.delivery.divide([(0, parts[0].delivery), (middle, parts[1].delivery)])
    return parts


class PartitionQueue:
    """The unsettled batches of one partition that were taken for sending, in order.

    Invariant: a batch is in exactly one of `_returned`, `_in_flight` and `_waiting`, and the
    batches before it in that order were filled before. While a batch is returned nothing is sent;
    returned batches go back to the front of the waiting ones once nothing is in flight.
    """

    def __init__(self, tp: TopicPartition, *, in_flight_max: int) -> None:
        self.tp = tp
        self.identity: ProducerIdentity | None = None
        self.attempts = 0
        self.retry_at = 0.0
        self.last_error: HeadraceError | None = None
        self._is_known = False
        self._next_sequence = 0
        self._in_flight_max = in_flight_max
        self._next_place = 0
        self._waiting: deque[ProducerBatch] = deque()
        self._in_flight: deque[ProducerBatch] = deque()
        self._returned: list[ProducerBatch] = []

    @property
    def is_settled(self) -> bool:
        """Whether no batch is left in the queue."""
        return not (self._waiting or self._in_flight or self._returned)

    def may_send(self, now: float) -> bool:
        """Whether another batch may be sent now."""
        if self._returned or now < self.retry_at:
            return False
        # A broker accepts the first batch of a producer with any sequence number: until one is
        # written a second batch in flight could overtake it.
        limit = self._in_flight_max if self._is_known or self.identity is None else 1
        return len(self._in_flight) < limit

    @property
    def next(self) -> ProducerBatch | None:
        """The next waiting batch to send, or None."""
        return self._waiting[0] if self._waiting else None

    def push(self, batch: ProducerBatch) -> None:
        """Append a batch to the waiting ones."""
        batch.place = (self._next_place,)
        self._next_place += 1
        self._waiting.append(batch)

    def use_identity(self, identity: ProducerIdentity | None) -> None:
        """Number batches for another producer identity from now on, beginning at 0."""
        self.identity = identity
        self._is_known = False
        self._next_sequence = 0

    def number(self, batch: ProducerBatch, **options: object) -> None:
        """Encode the next batch, once: a retry must be identical to be known as a duplicate."""
        if batch.identity == self.identity:
            if batch.encoded is not None:
                return
            if batch.base_sequence >= 0:
                batch.number(self.identity, batch.base_sequence, **options)
                return
        sequence = -1
        if self.identity is not None:
            sequence = self._next_sequence
            self._next_sequence = (sequence + batch.count) % _SEQUENCES
        batch.number(self.identity, sequence, **options)

    def sent(self, batch: ProducerBatch) -> None:
        """Move the next batch to those in flight."""
        assert self._waiting[0] is batch
        self._in_flight.append(self._waiting.popleft())

    def written(self, batch: ProducerBatch) -> None:
        """Remove a batch in flight that was written to the log."""
        if batch.identity == self.identity:
            self._is_known = True
        self.refused(batch)

    def refused(self, batch: ProducerBatch) -> None:
        """Remove a batch in flight that is not retried."""
        self._in_flight.remove(batch)
        self.attempts = 0
        self._resume()

    def returned(self, batch: ProducerBatch) -> None:
        """Return a batch in flight to be sent again, before the batches behind it.

        Those may be back already: they went to another leader, which answered sooner.
        """
        self._in_flight.remove(batch)
        insort(self._returned, batch, key=_PLACE)
        self._resume()

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Split a batch in flight that is too large, and send it in two parts."""
        assert self.is_first_unsettled(batch)
        self._in_flight.remove(batch)
        parts = halves(batch)
        self._returned[:0] = parts
        self._resume()
        return parts

    def postpone(self, retry_at: float, error: HeadraceError) -> None:
        """Send nothing before `retry_at`, after a failed attempt."""
        self.retry_at = max(self.retry_at, retry_at)
        self.last_error = error
        self.attempts += 1

    def is_first_unsettled(self, batch: ProducerBatch) -> bool:
        """Whether every batch before this one, which is in flight, is settled."""
        if self._returned and self._returned[0].place < batch.place:
            return False
        return self._in_flight[0] is batch

    def is_newest(self, batch: ProducerBatch) -> bool:
        """Whether no batch behind this one was ever sent."""
        return (batch.base_sequence + batch.count) % _SEQUENCES == self._next_sequence

    def none_written(self) -> None:
        """The first batch was refused for its sequence number, so all later ones were as well."""
        for batch in (*self._returned, *self._in_flight, *self._waiting):
            batch.is_uncertain = False

    def drop_doubtful(self) -> list[ProducerBatch]:
        """Remove and return batches that might be written twice under other sequence numbers."""
        dropped = []
        while self._waiting:
            batch = self._waiting[0]
            if not batch.is_uncertain or batch.identity in (None, self.identity):
                break
            dropped.append(self._waiting.popleft())
        return dropped

    def drop_waiting(self, deadline: float | None = None) -> list[ProducerBatch]:
        """Remove and return the waiting batches, or those due by `deadline`."""
        dropped = []
        while self._waiting and (deadline is None or self._waiting[0].deadline <= deadline):
            dropped.append(self._waiting.popleft())
        return dropped

    def late_in_flight(self, deadline: float) -> list[ProducerBatch]:
        """The in-flight and returned batches that had expired by `deadline`."""
        return [
            batch for batch in (*self._in_flight, *self._returned) if batch.deadline <= deadline
        ]

    def drop_unsent(self) -> list[ProducerBatch]:
        """Remove and return every batch that is not in flight."""
        dropped = [*self._returned, *self._waiting]
        self._returned.clear()
        self._waiting.clear()
        return dropped

    def drop_all(self) -> list[ProducerBatch]:
        """Remove and return every batch, because no more will be sent."""
        dropped = [*self._returned, *self._in_flight, *self._waiting]
        self._returned.clear()
        self._in_flight.clear()
        self._waiting.clear()
        return dropped

    def _resume(self) -> None:
        if not self._in_flight and self._returned:
            self._waiting.extendleft(reversed(self._returned))
            self._returned.clear()
