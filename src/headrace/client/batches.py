"""Records gathered into batches, and the batches of a partition kept in order through retries.

Pure: the writer says what was sent and what came back; a queue says what may be sent next.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from headrace.errors import HeadraceError
from headrace.types import Buffer, TopicPartition

Header: TypeAlias = tuple[str, bytes | None]
Row: TypeAlias = tuple[int, bytes | None, bytes | None, Sequence[Header]]

# What a batch and each of its records cost beyond keys, values and headers, rounded up.
BATCH_OVERHEAD_BYTES = 61
RECORD_OVERHEAD_BYTES = 24
HEADER_OVERHEAD_BYTES = 6

_SEQUENCES = 2**31


class Producer(NamedTuple):
    """Who a broker knows an idempotent producer as."""

    producer_id: int
    epoch: int


def row_bytes(row: Row) -> int:
    """At most what a record takes in a batch that is not compressed."""
    _, key, value, headers = row
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        # A character is at most four bytes of UTF-8.
        size += HEADER_OVERHEAD_BYTES + 4 * len(name) + len(content or b"")
    return size


@dataclass(slots=True, eq=False)
class Batch:
    """Records that go to the broker together. `tags` are the caller's names for them."""

    tp: TopicPartition
    created: float
    rows: list[Row] = field(default_factory=list)
    tags: list[object] = field(default_factory=list)
    size_bytes: int = BATCH_OVERHEAD_BYTES
    deadline: float = 0.0
    encoded: Buffer | None = None
    producer: Producer | None = None


def halves(batch: Batch) -> list[Batch]:
    """Two batches with the records of one that is too large."""
    middle = len(batch.rows) // 2
    parts = []
    for rows, tags in (
        (batch.rows[:middle], batch.tags[:middle]),
        (batch.rows[middle:], batch.tags[middle:]),
    ):
        size_bytes = BATCH_OVERHEAD_BYTES + sum(map(row_bytes, rows))
        parts.append(Batch(batch.tp, batch.created, rows, tags, size_bytes, batch.deadline))
    return parts


class PartitionQueue:
    """The batches of one partition that are not settled, in the order they must be written.

    Invariant: a batch is in exactly one of `_returned`, `_in_flight`, `_waiting` and `_open`, and
    records before it in that order were added before. While a batch is returned nothing is sent;
    the returned ones go back to the front of the waiting ones once nothing is in flight.
    """

    def __init__(
        self, tp: TopicPartition, *, in_flight_max: int, batch_bytes: int, delivery_s_max: float
    ) -> None:
        self.tp = tp
        self.producer: Producer | None = None
        self.attempts = 0
        self.retry_at = 0.0
        self.last_error: HeadraceError | None = None
        self._is_known = False
        self._next_sequence = 0
        self._in_flight_max = in_flight_max
        self._batch_bytes = batch_bytes
        self._delivery_s_max = delivery_s_max
        self._open: Batch | None = None
        self._waiting: deque[Batch] = deque()
        self._in_flight: deque[Batch] = deque()
        self._returned: list[Batch] = []

    @property
    def is_settled(self) -> bool:
        """Whether every record has an outcome."""
        return not (self._open or self._waiting or self._in_flight or self._returned)

    @property
    def open_since(self) -> float | None:
        """When the batch that is being filled was begun."""
        return self._open.created if self._open else None

    def fits(self, size_bytes: int) -> bool:
        """Whether a record of this size can join the open batch, or begin one."""
        return self._open is None or self._open.size_bytes + size_bytes <= self._batch_bytes

    def add(self, row: Row, tag: object, size_bytes: int, now: float) -> None:
        """Put a record into the open batch, or into a new one if it does not fit."""
        if not self.fits(size_bytes):
            self.seal(now)
        if self._open is None:
            self._open = Batch(self.tp, now)
        self._open.rows.append(row)
        self._open.tags.append(tag)
        self._open.size_bytes += size_bytes

    def seal(self, now: float) -> None:
        """Close the open batch, if there is one; from now on its time for delivery runs."""
        if self._open is not None:
            self._open.deadline = now + self._delivery_s_max
            self._waiting.append(self._open)
            self._open = None

    def ready(self, now: float) -> Batch | None:
        """The batch to send next, or None if none may be sent now."""
        if not self._waiting or self._returned or now < self.retry_at:
            return None
        # A broker takes the first batch it sees of a producer, whatever its number: until one is
        # written a second one in flight could overtake it.
        limit = self._in_flight_max if self._is_known or self.producer is None else 1
        return self._waiting[0] if len(self._in_flight) < limit else None

    def use_producer(self, producer: Producer | None) -> None:
        """Number batches for another producer from now on, beginning at 0."""
        self.producer = producer
        self._is_known = False
        self._next_sequence = 0

    def take_sequence(self, count: int) -> int:
        """The sequence number of the first of `count` records."""
        first = self._next_sequence
        self._next_sequence = (first + count) % _SEQUENCES
        return first

    def sent(self, batch: Batch) -> None:
        """The batch that was ready is on its way."""
        assert self._waiting[0] is batch
        self._in_flight.append(self._waiting.popleft())

    def written(self, batch: Batch) -> None:
        """The batch in flight is in the log."""
        if batch.producer == self.producer:
            self._is_known = True
        self.refused(batch)

    def refused(self, batch: Batch) -> None:
        """The batch in flight will never be in the log."""
        self._in_flight.remove(batch)
        self.attempts = 0
        self._resume()

    def returned(self, batch: Batch) -> None:
        """The batch in flight has to be sent again, before those behind it."""
        self._in_flight.remove(batch)
        self._returned.append(batch)
        self._resume()

    def split(self, batch: Batch) -> None:
        """The batch in flight is too large: send it in two, and make later ones smaller."""
        assert self.is_first_unsettled(batch)
        self._in_flight.remove(batch)
        parts = halves(batch)
        self._returned += parts
        self._batch_bytes = min(self._batch_bytes, max(part.size_bytes for part in parts))
        # The numbers that the whole batch had cannot be given to two.
        self.use_producer(None)
        self._resume()

    def postpone(self, retry_at: float, error: HeadraceError) -> None:
        """Send nothing before `retry_at`: an attempt has failed."""
        self.retry_at = max(self.retry_at, retry_at)
        self.last_error = error
        self.attempts += 1

    def is_first_unsettled(self, batch: Batch) -> bool:
        """Whether every batch before this one, which is in flight, has its outcome."""
        return not self._returned and self._in_flight[0] is batch

    def drop_waiting(self, deadline: float | None = None) -> list[Batch]:
        """Take out and return the waiting batches, or those due by `deadline`."""
        dropped = []
        while self._waiting and (deadline is None or self._waiting[0].deadline <= deadline):
            dropped.append(self._waiting.popleft())
        return dropped

    def _resume(self) -> None:
        if not self._in_flight and self._returned:
            self._waiting.extendleft(reversed(self._returned))
            self._returned.clear()
