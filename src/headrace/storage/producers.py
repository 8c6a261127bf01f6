"""What a log remembers of its idempotent producers, and the `.snapshot` files that keep it.

Rule: `check` decides and changes nothing; `record` changes state once the batch is written. So a
failed write leaves a producer free to try again.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError, ProtocolError
from headrace.protocol.crc import crc32c
from headrace.protocol.messages.producer_snapshot import ProducerEntry, ProducerSnapshot
from headrace.protocol.records import BatchHeader
from headrace.protocol.schema import decode_message, encode_message

BATCHES_MAX = 5  # As many as a producer may have in flight, so any of them may be retried.
SNAPSHOT_VERSION = 1

_SEQUENCES = 2**31
_PREFIX = Struct(">hI")  # Version and CRC32C of what follows.
_NO_TRANSACTION = -1


class ProducerBatch(NamedTuple):
    """A batch that was appended: enough to recognise it when it comes again."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Producer:
    """The newest epoch of a producer id, and its newest batches, oldest first."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[ProducerBatch] = []
        self.coordinator_epoch = -1
        self.timestamp = -1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record appended in this epoch, or -1."""
        return self.batches[-1].last_sequence if self.batches else -1

    def duplicate_of(self, header: BatchHeader) -> ProducerBatch | None:
        """The remembered batch with the same epoch and sequence range."""
        if header.producer_epoch == self.epoch:
            for batch in self.batches:
                if (
                    batch.first_sequence == header.base_sequence
                    and batch.last_sequence == header.last_sequence
                ):
                    return batch
        return None


class Producers:
    """The producers of one log. Owned by the thread that owns the log."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._by_id.items())

    def get(self, producer_id: int) -> Producer | None:
        """What is known of a producer id."""
        return self._by_id.get(producer_id)

    def check(self, headers: Sequence[BatchHeader]) -> ProducerBatch | None:
        """Whether these batches may be appended; if they were already, what they became then.

        Raises KafkaError for a sequence that leaves a gap and for an epoch that is over.
        """
        if len(headers) == 1:
            header = headers[0]
            producer = self._by_id.get(header.producer_id)
            if producer is None or header.is_control:
                return None  # Unknown, perhaps expired: any sequence is a beginning, as in Kafka.
            if (duplicate := producer.duplicate_of(header)) is not None:
                return duplicate
            _check_next(header, producer.epoch, producer.last_sequence)
            return None
        return self._check_several(headers)

    def _check_several(self, headers: Sequence[BatchHeader]) -> ProducerBatch | None:
        """As `check`, where a later batch may follow on an earlier one of the same set."""
        expected: dict[int, tuple[int, int]] = {}
        duplicates: list[ProducerBatch] = []
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
            expected[header.producer_id] = (header.producer_epoch, header.last_sequence)
        if not duplicates:
            return None
        if len(duplicates) < len(headers):
            detail = "some of the batches were appended before, others were not"
            raise KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, detail)
        return duplicates[0]

    def record(self, header: BatchHeader, base_offset: int, timestamp: int) -> None:
        """Remember a batch that was appended at `base_offset`."""
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            producer = self._by_id[header.producer_id] = Producer(header.producer_epoch)
        elif header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.timestamp = timestamp
        if header.is_control:
            return  # A transaction marker has no sequence.
        batches = producer.batches
        if len(batches) == BATCHES_MAX:
            del batches[0]
        batches.append(
            ProducerBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                timestamp,
            )
        )

    def replay(self, headers: Iterable[BatchHeader]) -> None:
        """Remember batches found in the log, without judging them."""
        for header in headers:
            if header.has_producer:
                self.record(header, header.base_offset, header.max_timestamp)

    def expire(self, oldest_timestamp: int) -> int:
        """Forget the producers that were last heard of before `oldest_timestamp`; how many."""
        gone = [key for key, one in self._by_id.items() if one.timestamp < oldest_timestamp]
        for producer_id in gone:
            del self._by_id[producer_id]
        return len(gone)

    def clear(self) -> None:
        """Forget every producer."""
        self._by_id.clear()

    def encode_snapshot(self) -> bytes:
        """The content of a `.snapshot` file: of each producer the newest batch."""
        entries = [_entry(producer_id, producer) for producer_id, producer in self._by_id.items()]
        body = encode_message(ProducerSnapshot(producer_entries=entries), SNAPSHOT_VERSION)
        content = memoryview(body)[4:]  # Behind the place of the CRC.
        return _PREFIX.pack(SNAPSHOT_VERSION, crc32c(content)) + content

    def load_snapshot(self, data: bytes) -> None:
        """Replace the state by a snapshot's; ValueError if that is damaged."""
        if len(data) < _PREFIX.size:
            raise ValueError(f"a producer snapshot of {len(data)} bytes")
        version, crc = _PREFIX.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"producer snapshot version {version}, expected {SNAPSHOT_VERSION}")
        if crc != crc32c(memoryview(data)[_PREFIX.size :]):
            raise ValueError("the producer snapshot's CRC does not match its content")
        try:
            snapshot = decode_message(ProducerSnapshot, version, memoryview(data)[2:])
        except ProtocolError as error:
            raise ValueError(f"the producer snapshot does not parse: {error}") from error
        self._by_id = {entry.producer_id: _producer(entry) for entry in snapshot.producer_entries}


def _check_next(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    """Whether a batch may follow the last one of its producer."""
    if header.producer_epoch < epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {epoch}, the batch {header.producer_epoch}",
        )
    expected = (last_sequence + 1) % _SEQUENCES if header.producer_epoch == epoch else 0
    if header.base_sequence != expected:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} epoch {header.producer_epoch}: expected sequence"
            f" {expected}, got {header.base_sequence}",
        )


def _entry(producer_id: int, producer: Producer) -> ProducerEntry:
    last = producer.batches[-1] if producer.batches else None
    return ProducerEntry(
        producer_id=producer_id,
        epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_offset=last.last_offset if last else -1,
        offset_delta=last.last_offset - last.base_offset if last else 0,
        timestamp=producer.timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_first_offset=_NO_TRANSACTION,
    )


def _producer(entry: ProducerEntry) -> Producer:
    producer = Producer(entry.epoch)
    producer.timestamp = entry.timestamp
    producer.coordinator_epoch = entry.coordinator_epoch
    if entry.last_sequence >= 0:
        producer.batches.append(
            ProducerBatch(
                (entry.last_sequence - entry.offset_delta) % _SEQUENCES,
                entry.last_sequence,
                entry.last_offset - entry.offset_delta,
                entry.last_offset,
                entry.timestamp,
            )
        )
    return producer
