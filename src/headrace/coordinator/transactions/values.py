"""What passes between the transaction coordinator and the shell that drives it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

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
