"""The metadata of a transactional id, its changes, and the values of the shard's interface."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from headrace.coordinator.shard import NO_PRODUCER
from headrace.protocol.markers import Marker
from headrace.protocol.schema import Message, array, boolean, int16, int32, int64, string
from headrace.types import TopicPartition

NO_EPOCH = -1
EPOCH_MAX = 32_767
# The last epoch a client may have: the maximum is left to fence it.
CLIENT_EPOCH_MAX = EPOCH_MAX - 1

# Transactions version 2 (KIP-890): the epoch rises with the end of every transaction.
VERSION_WITHOUT_BUMP = 0
VERSION_WITH_BUMP = 2


class TransactionStatus(IntEnum):
    """The state of a transactional id; the numbers are those of its record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The name that DescribeTransactions and ListTransactions show."""
        return _TITLES[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and not every partition has its marker yet."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)


_TITLES = {
    TransactionStatus.EMPTY: "Empty",
    TransactionStatus.ONGOING: "Ongoing",
    TransactionStatus.PREPARE_COMMIT: "PrepareCommit",
    TransactionStatus.PREPARE_ABORT: "PrepareAbort",
    TransactionStatus.COMPLETE_COMMIT: "CompleteCommit",
    TransactionStatus.COMPLETE_ABORT: "CompleteAbort",
}
STATUS_BY_TITLE = {title: status for status, title in _TITLES.items()}
# More state names of Kafka. Here no transactional id is ever in such a state.
TRANSIENT_TITLES = frozenset(("Dead", "PrepareEpochFence"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The broker's settings for transactions, with Kafka's defaults."""

    # transaction.max.timeout.ms
    max_timeout_ms: int = 900_000
    # transactional.id.expiration.ms
    id_expiration_ms: int = 604_800_000
    # transaction.abort.timed.out.transaction.cleanup.interval.ms
    timeout_check_ms: int = 10_000
    # The largest record of a transaction, which names each of its partitions.
    record_bytes_max: int = 1_048_588


class AddPartitions(Message, versions=(0, 0)):
    """One transaction of an AddPartitionsToTxn request. Never on the wire.

    The answer is an AddPartitionsToTxnResponse with one result, in the form of version 4. The
    version is the request's: 4 and above are from clients of transactions version 2.
    """

    transactional_id: str = string(default="")
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16(default=-1)
    verify_only: bool = boolean(default=False)
    partitions: tuple[TopicPartition, ...] = array(string, default=())


class AddOffsets(Message, versions=(0, 0)):
    """An AddOffsetsToTxn request with the `__consumer_offsets` partition. Never on the wire.

    The answer is an AddOffsetsToTxnResponse.
    """

    transactional_id: str = string(default="")
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16(default=-1)
    topic: str = string(default="")
    partition: int = int32(default=-1)


class PendingMarkers(NamedTuple):
    """Transaction markers to write; the shell reports them with `marker_written`.

    `transaction_version` is the version for WriteTxnMarkers: VERSION_WITH_BUMP if the marker's
    epoch is above that of the transaction's records.
    """

    transactional_id: str
    marker: Marker
    partitions: tuple[TopicPartition, ...]
    transaction_version: int


NO_TIME = -1

# The legal predecessors of each state. None is a transactional id that is unknown or removed.
SOURCES: dict[TransactionStatus | None, frozenset[TransactionStatus | None]] = {
    None: frozenset(
        (
            TransactionStatus.EMPTY,
            TransactionStatus.COMPLETE_COMMIT,
            TransactionStatus.COMPLETE_ABORT,
        )
    ),
    TransactionStatus.EMPTY: frozenset(
        (
            None,
            TransactionStatus.EMPTY,
            TransactionStatus.COMPLETE_COMMIT,
            TransactionStatus.COMPLETE_ABORT,
        ),
    ),
    TransactionStatus.ONGOING: frozenset(
        (
            TransactionStatus.EMPTY,
            TransactionStatus.ONGOING,
            TransactionStatus.COMPLETE_COMMIT,
            TransactionStatus.COMPLETE_ABORT,
        )
    ),
    TransactionStatus.PREPARE_COMMIT: frozenset((TransactionStatus.ONGOING,)),
    TransactionStatus.PREPARE_ABORT: frozenset((TransactionStatus.ONGOING,)),
    TransactionStatus.COMPLETE_COMMIT: frozenset((TransactionStatus.PREPARE_COMMIT,)),
    # A transaction without partitions is completed without being prepared.
    TransactionStatus.COMPLETE_ABORT: frozenset(
        (
            TransactionStatus.PREPARE_ABORT,
            TransactionStatus.EMPTY,
            TransactionStatus.COMPLETE_COMMIT,
            TransactionStatus.COMPLETE_ABORT,
        )
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """The metadata of a transactional id. Every change is a record of the log.

    Invariants: an epoch is never given to two clients. `partitions` has every partition that may
    hold records of the open transaction, and only an id that is ONGOING or prepared has any. Once
    an id is prepared nothing but its completion follows, so the outcome never changes.
    """

    status: TransactionStatus
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    start_ms: int = NO_TIME
    partitions: tuple[TopicPartition, ...] = ()
    # The producer id that was used up, until the client has surely received its new producer id.
    previous_producer_id: int = NO_PRODUCER
    # The producer id, at epoch 0, after the completion of a transaction that used up the epochs.
    next_producer_id: int = NO_PRODUCER
    # Transactions version 2 if the last change was by a client of that version, or a timeout.
    client_version: int = 0
    # The epoch before the present if the same client has both, to recognize a retried request. Not
    # in the log, as in Kafka: after a failover such a client is fenced.
    last_epoch: int = NO_EPOCH

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether no client may have a higher epoch: a new producer id is needed."""
        return self.producer_epoch >= CLIENT_EPOCH_MAX

    @property
    def client_producer(self) -> tuple[int, int]:
        """The producer id and epoch that the client has, or gets in the response."""
        if self.next_producer_id != NO_PRODUCER:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    def with_epoch(
        self, producer_epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> "TransactionMetadata":
        """The metadata after InitProducerId with a new epoch."""
        return replace(
            self,
            status=TransactionStatus.EMPTY,
            producer_epoch=producer_epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            start_ms=NO_TIME,
            previous_producer_id=NO_PRODUCER,
        )

    def with_producer_id(
        self, producer_id: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> "TransactionMetadata":
        """The metadata after InitProducerId with a new producer id: the epochs are used up."""
        renewed = self.with_epoch(0, last_epoch, timeout_ms, now_ms)
        return replace(renewed, producer_id=producer_id, previous_producer_id=self.producer_id)

    def with_partitions(
        self, partitions: tuple[TopicPartition, ...], client_version: int, now_ms: int
    ) -> "TransactionMetadata":
        """The metadata of the open transaction with more partitions."""
        return replace(
            self,
            status=TransactionStatus.ONGOING,
            partitions=tuple(dict.fromkeys(self.partitions + partitions)),
            client_version=client_version,
            start_ms=self.start_ms if self.status is TransactionStatus.ONGOING else now_ms,
            updated_ms=now_ms,
        )

    def prepared(self, committed: bool, now_ms: int) -> "TransactionMetadata":
        """The metadata after EndTxn of transactions version 1; the epoch stays."""
        return replace(
            self,
            status=TransactionStatus.PREPARE_COMMIT
            if committed
            else TransactionStatus.PREPARE_ABORT,
            client_version=0,
            updated_ms=now_ms,
        )

    def prepared_with_bump(
        self, committed: bool, next_producer_id: int, now_ms: int
    ) -> "TransactionMetadata":
        """The metadata after EndTxn of transactions version 2, or a timeout: the epoch rises.

        Markers have the raised epoch, so a delayed record with the epoch before is refused behind
        them. An abort by timeout looks like the client's own. So the client may still abort and
        continue, as in Kafka, unless a new producer has the id by then; it cannot commit.
        """
        return replace(
            self,
            status=TransactionStatus.PREPARE_COMMIT
            if committed
            else TransactionStatus.PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            last_epoch=self.producer_epoch,
            next_producer_id=next_producer_id,
            client_version=VERSION_WITH_BUMP,
            updated_ms=now_ms,
        )

    @property
    def has_last_epoch(self) -> bool:
        """Whether the epoch is the maximum, which no client may have.

        Every end takes a new producer id instead. A log may still have records of an older broker
        that aborted transactions without a new producer id.
        """
        return self.producer_epoch == EPOCH_MAX and self.next_producer_id == NO_PRODUCER

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """The metadata after the last marker is written; a next producer id comes into use."""
        is_commit = self.status is TransactionStatus.PREPARE_COMMIT
        producer_id, producer_epoch = self.client_producer
        has_another = producer_id != self.producer_id
        return replace(
            self,
            status=TransactionStatus.COMPLETE_COMMIT
            if is_commit
            else TransactionStatus.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            previous_producer_id=self.producer_id if has_another else NO_PRODUCER,
            next_producer_id=NO_PRODUCER,
            partitions=(),
            updated_ms=now_ms,
        )
