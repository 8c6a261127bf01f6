"""Producer state of a log: recent batches, open transactions, and the `.snapshot` files."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from headrace.errors import CorruptBatch, ErrorCode, KafkaError, StorageError
from headrace.protocol.batch import BatchHeader, crc32c
from headrace.protocol.markers import Marker, decode_marker
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.files import Files
from headrace.types import Buffer

# The transactions of a log that hold its last stable offset back.
#
# Rule: a transaction is unstable while it is open, and after that until its marker is committed:
# below the last stable offset every transaction has ended, and no marker can be lost.


class _EndedTransaction(NamedTuple):
    first_offset: int
    marker_offset: int


class OpenTransactions:
    """The unstable transactions of a log. Owned by the thread that owns the log.

    Invariant: `_open` is ordered by first offset. In `_ended` first offsets and marker offsets both
    rise: a transaction that began earlier and ended later covers those between.
    """

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        # First offset -> producer id, in the order of the log.
        self._open: dict[int, int] = {}
        self._ended: deque[_EndedTransaction] = deque()

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    @property
    def first_open(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return next(iter(self._open), None)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a transaction at the append of its first record."""
        self._open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Note an appended marker; return the last stable offset once it is committed."""
        del self._open[first_offset]
        ended = self._ended
        while ended and ended[-1].first_offset > first_offset:
            ended.pop()
        ended.append(_EndedTransaction(first_offset, marker_offset))
        oldest = self.first_open
        return marker_offset + 1 if oldest is None else oldest

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset of the oldest unstable transaction.

        Markers below `high_watermark` are forgotten, so it must be the partition's.
        """
        ended = self._ended
        while ended and ended[0].marker_offset < high_watermark:
            ended.popleft()
        oldest = self.first_open
        if ended and (oldest is None or ended[0].first_offset < oldest):
            return ended[0].first_offset
        return oldest

    def restore(self, open_transactions: Iterable[tuple[int, int]], offset: int) -> None:
        """Restore the state at `offset`, given (first offset, producer id) of open transactions."""
        self._open = dict(sorted(open_transactions))
        while self._ended and self._ended[-1].marker_offset >= offset:
            self._ended.pop()

    def clear(self) -> None:
        """Forget all transactions."""
        self._open.clear()
        self._ended.clear()


# The idempotent producers of a log, and the content of `.snapshot` files.
#
# Rule: `check` decides and changes nothing; `record` and `end_transaction` change state once the
# batch is written. So a producer can retry after a failed write.


REMEMBERED_BATCHES_MAX = (
    5  # As many as a producer may have in flight, so any of them may be retried.
)
REFUSED_MAX = 1000  # Unknown producers of a log whose refused batches are remembered.
SNAPSHOT_VERSION = 1

_SEQUENCES = 2**31
_PREFIX = Struct(">hI")  # Version and CRC32C of what follows.
_COUNT = Struct(">i")
# Of a producer: id, epoch, last sequence, last offset and its distance from the base offset of its
# batch, timestamp, coordinator epoch, first offset of the open transaction.
_ENTRY = Struct(">qhiqiqiq")
_NO_TRANSACTION = -1
# From this version of transactions on a marker's epoch is one more than that of the records.
_BUMPS_EPOCH = 2


class RecentBatch(NamedTuple):
    """An appended batch, as far as needed to recognise a duplicate."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class _RefusedSequence(NamedTuple):
    """The lowest refused sequence of an unknown producer, which will be sent again."""

    epoch: int
    sequence: int
    timestamp: int


class ProducerEntry:
    """The newest epoch of a producer id, and its newest batches, oldest first.

    `transaction_first_offset` is the first offset of its open transaction, or -1;
    `coordinator_epoch` that of its last marker, or -1. Markers have no sequence and are not in
    `batches`.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "markers_seen",
        "timestamp",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[RecentBatch] = []
        self.coordinator_epoch = -1
        self.timestamp = -1
        self.transaction_first_offset = _NO_TRANSACTION
        self.markers_seen = 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record appended in this epoch, or -1."""
        return self.batches[-1].last_sequence if self.batches else -1

    def duplicate_of(self, header: BatchHeader) -> RecentBatch | None:
        """The remembered batch with the same epoch and sequence range."""
        if header.producer_epoch == self.epoch:
            for batch in self.batches:
                if (
                    batch.first_sequence == header.base_sequence
                    and batch.last_sequence == header.last_sequence
                ):
                    return batch
        return None


class ProducerStates:
    """The producers of a log. Owned by the thread that owns the log."""

    __slots__ = ("_by_id", "_marker_count", "_refused", "transactions")

    def __init__(self) -> None:
        self.transactions = OpenTransactions()
        self._by_id: dict[int, ProducerEntry] = {}
        # Of producers that `_by_id` does not have, oldest first.
        self._refused: dict[int, _RefusedSequence] = {}
        self._marker_count = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._by_id.items())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """The state of a producer, or None if it is unknown or expired."""
        return self._by_id.get(producer_id)

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction of that epoch in the log."""
        producer = self._by_id.get(producer_id)
        return (
            producer is not None
            and producer.transaction_first_offset >= 0
            and producer.epoch == producer_epoch
        )

    def marker_count(self, producer_id: int) -> int:
        """A number that changes with every marker of the producer.

        If it is the same before and after an await, no transaction of the producer has ended.
        """
        producer = self._by_id.get(producer_id)
        return 0 if producer is None else producer.markers_seen

    def check(self, headers: Sequence[BatchHeader], data: Buffer = b"") -> RecentBatch | None:
        """Check that batches may be appended; return the original of the first duplicate.

        `data` holds the batches; only markers are read from it. Raises KafkaError for a sequence
        that leaves a gap, for a fenced epoch, and for a batch outside the open transaction.
        """
        if len(headers) == 1:
            header = headers[0]
            producer = self._by_id.get(header.producer_id)
            if producer is None:
                # Unknown, perhaps expired: it may begin with any sequence, as in Kafka.
                self._check_refused(header)
                return None
            if header.is_control:
                if (marker := decode_marker(data, header)) is not None:
                    self.check_marker(marker)
                return None
            if (duplicate := producer.duplicate_of(header)) is not None:
                return duplicate
            _check_next(header, producer.epoch, producer.last_sequence)
            if producer.transaction_first_offset >= 0:
                _check_transactional(header)
            return None
        return self._check_several(headers)

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """Remember the sequence of a batch that was refused with a retriable error.

        An unknown producer may begin with any sequence, so the batch behind the refused batch would
        be appended, and the refused batch never could be (KIP-890). Unlike Kafka: not only for
        batches of transactions that wait for their coordinator.
        """
        producer_id = header.producer_id
        if header.base_sequence < 0 or header.is_control or producer_id in self._by_id:
            return
        before = self._refused.get(producer_id)
        epoch, sequence = header.producer_epoch, header.base_sequence
        if before is not None:
            if epoch < before.epoch:
                return
            if epoch == before.epoch:
                sequence = min(sequence, before.sequence)
            del self._refused[producer_id]
        elif len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[producer_id] = _RefusedSequence(epoch, sequence, now_ms)

    def _check_refused(self, header: BatchHeader) -> None:
        refused = self._refused.get(header.producer_id)
        if (
            refused is not None
            and refused.epoch == header.producer_epoch
            and refused.sequence < header.base_sequence
        ):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} epoch {header.producer_epoch}: sequence"
                f" {refused.sequence} was refused and has to come before {header.base_sequence}",
            )

    def check_marker(self, marker: Marker, transaction_version: int = 0) -> None:
        """Raise KafkaError if the producer epoch or the coordinator epoch of a marker is fenced."""
        producer = self._by_id.get(marker.producer_id)
        if producer is None:
            return
        if (
            self.is_duplicate_marker(marker, transaction_version)
            or marker.producer_epoch < producer.epoch
        ):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {marker.producer_id} has epoch {producer.epoch}, the marker"
                f" {marker.producer_epoch}",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {marker.producer_id} has a marker of coordinator epoch"
                f" {producer.coordinator_epoch}, this one is of {marker.coordinator_epoch}",
            )

    def is_duplicate_marker(self, marker: Marker, transaction_version: int) -> bool:
        """Whether a marker is of the transaction before the open transaction.

        Under version 2 every transaction has its own epoch, and its marker has the next epoch. So a
        marker with the epoch of an open transaction is a late duplicate of the marker before. If no
        transaction is open, a duplicate does no harm.
        """
        return transaction_version >= _BUMPS_EPOCH and self.has_open_transaction(
            marker.producer_id, marker.producer_epoch
        )

    def _check_several(self, headers: Sequence[BatchHeader]) -> RecentBatch | None:
        """Check several batches as `check` does; a batch may follow another of the same set."""
        expected: dict[int, tuple[int, int]] = {}
        duplicates: list[RecentBatch] = []
        for header in headers:
            if not header.has_producer or header.is_control:
                continue
            producer = self._by_id.get(header.producer_id)
            if producer is not None and (duplicate := producer.duplicate_of(header)) is not None:
                duplicates.append(duplicate)
                continue
            if header.producer_id in expected:
                _check_next(header, *expected[header.producer_id])
            elif producer is not None:
                _check_next(header, producer.epoch, producer.last_sequence)
                if producer.transaction_first_offset >= 0:
                    _check_transactional(header)
            expected[header.producer_id] = (header.producer_epoch, header.last_sequence)
        if not duplicates:
            return None
        if len(duplicates) < len(headers):
            detail = "some of the batches were appended before, others were not"
            raise KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, detail)
        return duplicates[0]

    @property
    def end_offset(self) -> int:
        """The offset after the last offset in the state of any producer; 0 if there is none."""
        last = -1
        for producer in self._by_id.values():
            last = max(last, producer.transaction_first_offset)
            if producer.batches:
                last = max(last, producer.batches[-1].last_offset)
        return last + 1

    @property
    def newest_timestamp(self) -> int:
        """The newest time at which any producer was active, or -1."""
        return max((producer.timestamp for producer in self._by_id.values()), default=-1)

    def record(
        self, header: BatchHeader, base_offset: int, timestamp: int, heard_ms: int | None = None
    ) -> None:
        """Record a batch of records that was appended at `base_offset`.

        `timestamp` is the time of the append as far as it is known; the producer counts as active
        then, or at `heard_ms`. But not before the time of its records: if the broker's clock was
        behind and is corrected, the producer would expire at once.
        """
        producer = self._by_id.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = self._of_epoch(header.producer_id, header.producer_epoch)
        timestamp = max(timestamp, header.max_timestamp)
        producer.timestamp = timestamp if heard_ms is None else max(timestamp, heard_ms)
        if (
            header.is_transactional
            and producer.transaction_first_offset < 0
            # Compaction empties batches and markers of transactions that have ended.
            and header.record_count
        ):
            producer.transaction_first_offset = base_offset
            self.transactions.begin(header.producer_id, base_offset)
        if header.base_sequence < 0:
            return
        batches = producer.batches
        if len(batches) == REMEMBERED_BATCHES_MAX:
            del batches[0]
        batches.append(
            RecentBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                timestamp,
            )
        )

    def record_marker(
        self, header: BatchHeader, data: Buffer, heard_ms: int
    ) -> AbortedTransaction | None:
        """Record a control batch of a producer; return the transaction that it aborted.

        Compaction empties a marker when no record of its transaction is left. A replica that
        fetched such records before, and the emptied marker only now, takes the transaction for
        aborted: so its readers see the same records as at the other replicas, and its last stable
        offset moves on.
        """
        marker = decode_marker(data, header)
        if marker is None:
            producer = self._by_id.get(header.producer_id)
            if header.record_count or producer is None or producer.transaction_first_offset < 0:
                return None
            marker = Marker(
                header.producer_id, header.producer_epoch, producer.coordinator_epoch, False
            )
        timestamp = max(heard_ms, header.max_timestamp)
        return self.end_transaction(marker, header.base_offset, timestamp)

    def end_transaction(
        self, marker: Marker, offset: int, timestamp: int
    ) -> AbortedTransaction | None:
        """Record a marker that was appended at `offset`; return the transaction that it aborted."""
        producer = self._of_epoch(marker.producer_id, marker.producer_epoch)
        producer.timestamp = timestamp
        producer.coordinator_epoch = marker.coordinator_epoch
        self._marker_count += 1
        producer.markers_seen = self._marker_count
        first_offset = producer.transaction_first_offset
        if first_offset < 0:
            return None
        producer.transaction_first_offset = _NO_TRANSACTION
        stable_offset = self.transactions.end(first_offset, offset)
        if marker.committed:
            return None
        return AbortedTransaction(marker.producer_id, first_offset, offset, stable_offset)

    def _of_epoch(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The state of a producer, made if missing, moved on to `epoch` if that is newer."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            self._refused.pop(producer_id, None)
            producer = self._by_id[producer_id] = ProducerEntry(epoch)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer

    def replay(
        self, header: BatchHeader, data: Buffer, heard_ms: int | None = None
    ) -> AbortedTransaction | None:
        """Record a batch found in the log, without checks; return the transaction it aborted.

        The log does not have the time of the append. By the time of old records their producer
        would expire at once, and a batch that it retries after a crash would be appended twice; so
        it counts as active at `heard_ms`, which is not before the append. Unlike Kafka, where
        producers expire by the timestamps of their records.
        """
        if not header.has_producer:
            return None
        if not header.is_control:
            self.record(header, header.base_offset, header.max_timestamp, heard_ms)
            return None
        try:
            return self.record_marker(header, data, heard_ms or 0)
        except CorruptBatch:
            return None  # Its outcome cannot be read, so the transaction stays open.

    def expire(self, oldest_timestamp: int) -> int:
        """Forget producers last active before `oldest_timestamp`; return their number.

        A producer with an open transaction stays, for the marker that ends it.
        """
        expired = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if producer.timestamp < oldest_timestamp and producer.transaction_first_offset < 0
        ]
        for producer_id in expired:
            del self._by_id[producer_id]
        self._refused = {
            producer_id: refused
            for producer_id, refused in self._refused.items()
            if refused.timestamp >= oldest_timestamp
        }
        return len(expired)

    def clear(self) -> None:
        """Forget every producer."""
        self._by_id.clear()
        self._refused.clear()
        self.transactions.clear()

    def encode_snapshot(self) -> bytes:
        """The content of a `.snapshot` file: an entry for each recent batch of each producer.

        Unlike Kafka, which keeps only the newest batch: a producer whose batches were in flight
        when the broker stopped sends all of them again. Kafka reads the last entry of a producer.
        """
        entries = [
            entry
            for producer_id, producer in self._by_id.items()
            for entry in _encode_entries(producer_id, producer)
        ]
        content = _COUNT.pack(len(entries)) + b"".join(entries)
        return _PREFIX.pack(SNAPSHOT_VERSION, crc32c(content)) + content

    def load_snapshot(self, data: bytes, offset: int = 0) -> None:
        """Replace the state by that of a snapshot at `offset`; ValueError if that is damaged."""
        if len(data) < _PREFIX.size + _COUNT.size:
            raise ValueError(f"a producer snapshot of {len(data)} bytes")
        version, crc = _PREFIX.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"producer snapshot version {version}, expected {SNAPSHOT_VERSION}")
        content = memoryview(data)[_PREFIX.size :]
        if crc != crc32c(content):
            raise ValueError("the producer snapshot's CRC does not match its content")
        if len(content) != _COUNT.size + _COUNT.unpack_from(content)[0] * _ENTRY.size:
            raise ValueError(f"a producer snapshot of {len(data)} bytes says that it has more")
        self._by_id = {}
        for fields in _ENTRY.iter_unpack(content[_COUNT.size :]):
            self._load_entry(*fields)
        begun = (
            (producer.transaction_first_offset, producer_id)
            for producer_id, producer in self._by_id.items()
            if producer.transaction_first_offset >= 0
        )
        self.transactions.restore(begun, offset)

    def _load_entry(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        transaction_first_offset: int,
    ) -> None:
        producer = self._by_id.setdefault(producer_id, ProducerEntry(epoch))
        producer.timestamp = timestamp
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_first_offset = transaction_first_offset
        if last_sequence >= 0:
            first_sequence = (last_sequence - offset_delta) % _SEQUENCES
            base_offset = last_offset - offset_delta
            if len(producer.batches) == REMEMBERED_BATCHES_MAX:
                del producer.batches[0]
            producer.batches.append(
                RecentBatch(first_sequence, last_sequence, base_offset, last_offset, timestamp)
            )


def _check_next(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    """Raise KafkaError if a batch does not follow the last batch of its producer."""
    if header.producer_epoch < epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {epoch}, the batch {header.producer_epoch}",
        )
    expected = (last_sequence + 1) % _SEQUENCES if header.producer_epoch == epoch else 0
    if header.base_sequence != expected and header.base_sequence >= 0:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} epoch {header.producer_epoch}: expected sequence"
            f" {expected}, got {header.base_sequence}",
        )


def _check_transactional(header: BatchHeader) -> None:
    if not header.is_transactional:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} has an open transaction, and the batch is not of it",
        )


def _encode_entries(producer_id: int, producer: ProducerEntry) -> list[bytes]:
    """The entries of a producer, one for each batch, oldest first; other fields are repeated."""
    state = (
        producer.timestamp,
        producer.coordinator_epoch,
        producer.transaction_first_offset,
    )
    if not producer.batches:
        return [_ENTRY.pack(producer_id, producer.epoch, -1, -1, 0, *state)]
    return [
        _ENTRY.pack(
            producer_id,
            producer.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.last_offset - batch.base_offset,
            *state,
        )
        for batch in producer.batches
    ]


# The `.snapshot` files of a log: producer state as it was at an offset.
#
# Rule: a snapshot can always be rebuilt by reading the log from an older snapshot on, so a damaged
# snapshot is dropped, and a new snapshot need not be durable before the recovery point passes it.


logger = logging.getLogger(__name__)

SUFFIX = ".snapshot"


class ProducerSnapshots:
    """The snapshots in a log's directory, by offset. Owned by the thread that owns the log."""

    __slots__ = ("_directory", "_files", "_offsets", "unsynced")

    def __init__(self, files: Files, directory: str, offsets: list[int]) -> None:
        self._files = files
        self._directory = directory
        self._offsets = sorted(offsets)
        # Paths whose content is not durable yet: appended to here, taken by a flush in any thread.
        self.unsynced: deque[str] = deque()

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of the snapshots, in order."""
        return tuple(self._offsets)

    def path(self, offset: int) -> str:
        """The file of the snapshot at `offset`."""
        return f"{self._directory}/{offset:020d}{SUFFIX}"

    def take(self, producers: ProducerStates, offset: int) -> None:
        """Write a snapshot of producer state as of `offset`."""
        path = self.path(offset)
        self._files.write_atomically(path, producers.encode_snapshot(), sync=False)
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()
        self.unsynced.append(path)

    def load_newest(self, producers: ProducerStates, offset: int) -> int | None:
        """Load the newest sound snapshot up to `offset`; return its offset, None if there is none.

        Later snapshots, and those that turn out to be damaged, are removed. Without a snapshot the
        state is cleared.
        """
        self.remove_after(offset)
        return self.load_as_of(producers, offset)

    def load_as_of(self, producers: ProducerStates, offset: int) -> int | None:
        """Load as `load_newest` does, but keep the snapshots after `offset`."""
        for newest in [known for known in reversed(self._offsets) if known <= offset]:
            try:
                producers.load_snapshot(self._files.read_bytes(self.path(newest)) or b"", newest)
                if producers.end_offset > newest:
                    raise ValueError(f"it knows of a batch at offset {producers.end_offset - 1}")
            except ValueError as error:
                path = self.path(newest)
                logger.warning("%s is damaged: %s; older state and the log tell it", path, error)
                self._remove(newest)
            else:
                return newest
        producers.clear()
        return None

    def remove_after(self, offset: int) -> None:
        """Remove the snapshots of offsets above `offset`."""
        for late in [known for known in self._offsets if known > offset]:
            self._remove(late)

    def remove_before(self, offset: int) -> None:
        """Remove the snapshots of offsets below `offset`."""
        for early in [known for known in self._offsets if known < offset]:
            self._remove(early)

    def keep_only(self, offsets: set[int]) -> None:
        """Remove all snapshots but those at `offsets` and the newest."""
        for stray in [known for known in self._offsets[:-1] if known not in offsets]:
            self._remove(stray)

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory."""
        self._directory = directory
        self.unsynced = deque(f"{directory}/{path.rpartition('/')[2]}" for path in self.unsynced)

    def sync(self) -> None:
        """Make the written snapshots durable. May run in a worker thread."""
        while True:
            try:
                path = self.unsynced[0]
            except IndexError:
                return
            self._files.sync_file(path)
            # Only after success: after a failure the next call has to retry it.
            self.unsynced.popleft()

    def _remove(self, offset: int) -> None:
        self._offsets.remove(offset)
        try:
            self._files.remove(self.path(offset))
        except StorageError:
            self._offsets.append(offset)
            self._offsets.sort()
            raise
