"""What is kept of a transactional id, how it changes, and the values that callers see."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from headrace.coordinator.shard import NO_PRODUCER
from headrace.protocol.markers import Marker
from headrace.protocol.schema import Message, array, boolean, int16, int32, int64, string
from headrace.types import TopicPartition

NO_EPOCH = -1
EPOCH_MAX = 32_767
# The last epoch a client may have: one is left to fence it with.
CLIENT_EPOCH_MAX = EPOCH_MAX - 1

# Transactions version 2 (KIP-890): the epoch rises with the end of every transaction.
VERSION_WITHOUT_BUMP = 0
VERSION_WITH_BUMP = 2


class Status(IntEnum):
    """Where a transactional id stands; the numbers are those of its record."""

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
        """Whether the outcome is decided and not every partition knows of it yet."""
        return self in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)


_TITLES = {
    Status.EMPTY: "Empty",
    Status.ONGOING: "Ongoing",
    Status.PREPARE_COMMIT: "PrepareCommit",
    Status.PREPARE_ABORT: "PrepareAbort",
    Status.COMPLETE_COMMIT: "CompleteCommit",
    Status.COMPLETE_ABORT: "CompleteAbort",
}
STATUS_BY_TITLE = {title: status for status, title in _TITLES.items()}
# Kafka knows these names too. No transactional id is ever shown in such a state.
TRANSIENT_TITLES = frozenset(("Dead", "PrepareEpochFence"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The broker's settings that transactions follow, with Kafka's defaults."""

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

    Answered with an AddPartitionsToTxnResponse that has one result, in the form of version 4. Its
    version is the request's: 4 and above add for a client of transactions version 2.
    """

    transactional_id: str = string(default="")
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16(default=-1)
    verify_only: bool = boolean(default=False)
    partitions: tuple[TopicPartition, ...] = array(string, default=())


class AddOffsets(Message, versions=(0, 0)):
    """An AddOffsetsToTxn request with the partition that keeps its group. Never on the wire.

    Answered with an AddOffsetsToTxnResponse.
    """

    transactional_id: str = string(default="")
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16(default=-1)
    topic: str = string(default="")
    partition: int = int32(default=-1)


class MarkerOrder(NamedTuple):
    """Markers to be written; say so to the shard, partition by partition.

    `transaction_version` is what WriteTxnMarkers carries: VERSION_WITH_BUMP if the marker's epoch
    is above that of the transaction's records.
    """

    transactional_id: str
    marker: Marker
    partitions: tuple[TopicPartition, ...]
    transaction_version: int


# What is kept of a transactional id, and how it changes.
#
# Every change is a record of the log.


NO_TIME = -1

# From where each state may be reached. None is an id that is not known, or removed.
SOURCES: dict[Status | None, frozenset[Status | None]] = {
    None: frozenset((Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)),
    Status.EMPTY: frozenset(
        (None, Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT),
    ),
    Status.ONGOING: frozenset(
        (Status.EMPTY, Status.ONGOING, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
    ),
    Status.PREPARE_COMMIT: frozenset((Status.ONGOING,)),
    Status.PREPARE_ABORT: frozenset((Status.ONGOING,)),
    Status.COMPLETE_COMMIT: frozenset((Status.PREPARE_COMMIT,)),
    # Without partitions there is nothing to prepare.
    Status.COMPLETE_ABORT: frozenset(
        (Status.PREPARE_ABORT, Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """What is kept of a transactional id.

    Invariants: an epoch is never given to two clients. `partitions` has every partition that may
    hold records of the open transaction, and only an id that is ONGOING or prepared has any. Once
    an id is prepared nothing but its completion follows, so the outcome never changes.
    """

    status: Status
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    start_ms: int = NO_TIME
    partitions: tuple[TopicPartition, ...] = ()
    # The id that was used up, until the producer has surely heard of the one it got instead.
    previous_producer_id: int = NO_PRODUCER
    # The id to go on with, at epoch 0, once a transaction is complete that used up the epochs.
    next_producer_id: int = NO_PRODUCER
    # Transactions version 2 if the last change was made by a client that speaks it, or by us.
    client_version: int = 0
    # The epoch before the present one if the same client has both, to know a request that is sent
    # again. Not in the log, as in Kafka: after a failover such a client is fenced.
    last_epoch: int = NO_EPOCH

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the epoch cannot rise for a client any more."""
        return self.producer_epoch >= CLIENT_EPOCH_MAX

    @property
    def client_producer(self) -> tuple[int, int]:
        """The producer id and epoch its client has, or gets in the answer."""
        if self.next_producer_id != NO_PRODUCER:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    def with_epoch(
        self, producer_epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> "TransactionMetadata":
        """Ready for a client that gets this epoch."""
        return replace(
            self,
            status=Status.EMPTY,
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
        """Ready for a client that gets another producer id, because the epochs are used up."""
        renewed = self.with_epoch(0, last_epoch, timeout_ms, now_ms)
        return replace(renewed, producer_id=producer_id, previous_producer_id=self.producer_id)

    def with_partitions(
        self, partitions: tuple[TopicPartition, ...], client_version: int, now_ms: int
    ) -> "TransactionMetadata":
        """Open, with these partitions besides those it has."""
        return replace(
            self,
            status=Status.ONGOING,
            partitions=tuple(dict.fromkeys(self.partitions + partitions)),
            client_version=client_version,
            start_ms=self.start_ms if self.status is Status.ONGOING else now_ms,
            updated_ms=now_ms,
        )

    def prepared(self, committed: bool, now_ms: int) -> "TransactionMetadata":
        """Decided by a client of transactions version 1, whose epoch stays."""
        return replace(
            self,
            status=Status.PREPARE_COMMIT if committed else Status.PREPARE_ABORT,
            client_version=0,
            updated_ms=now_ms,
        )

    def prepared_with_bump(
        self, committed: bool, next_producer_id: int, now_ms: int
    ) -> "TransactionMetadata":
        """Decided by a client of transactions version 2, or by us: markers have the next epoch.

        So a record that is still under way with the epoch before is refused wherever a marker is.
        An abort by us looks like the client's own. So the client may still ask for that and go on,
        as in Kafka, unless a new producer has the id by then; what it cannot do is commit.
        """
        return replace(
            self,
            status=Status.PREPARE_COMMIT if committed else Status.PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            last_epoch=self.producer_epoch,
            next_producer_id=next_producer_id,
            client_version=VERSION_WITH_BUMP,
            updated_ms=now_ms,
        )

    @property
    def has_last_epoch(self) -> bool:
        """Whether the epoch is the last one, which no client may have.

        Every end takes another producer id instead. A log may still have records of a broker
        that aborted transactions without one.
        """
        return self.producer_epoch == EPOCH_MAX and self.next_producer_id == NO_PRODUCER

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """Known to every partition; a producer id that waited for this comes into use."""
        is_commit = self.status is Status.PREPARE_COMMIT
        producer_id, producer_epoch = self.client_producer
        has_another = producer_id != self.producer_id
        return replace(
            self,
            status=Status.COMPLETE_COMMIT if is_commit else Status.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            previous_producer_id=self.producer_id if has_another else NO_PRODUCER,
            next_producer_id=NO_PRODUCER,
            partitions=(),
            updated_ms=now_ms,
        )
