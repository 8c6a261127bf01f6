"""What is kept of a transactional id, and how it changes. Every change is a record of the log."""

from dataclasses import dataclass, replace

from headrace.coordinator.shard import NO_PRODUCER
from headrace.coordinator.transactions.values import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    NO_EPOCH,
    VERSION_WITH_BUMP,
    Status,
)
from headrace.types import TopicPartition

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
