"""What a leader may append to a transaction: only what the transaction's coordinator knows of."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

from headrace.broker.coordination.verifier import Verdicts
from headrace.broker.replication.partition import Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.batch import claimed_producer, claims_transaction
from headrace.protocol.messages.produce import ProduceRequest
from headrace.types import Buffer, TopicPartition

if TYPE_CHECKING:
    from headrace.broker.node import Node

# Clients that speak transactions version 2 leave it to the leader to add partitions.
_ADDING_SINCE = 12
_ABORTABLE_SINCE = 11
_TOPIC_IDS_SINCE = 13
# Older clients may not know what to do about these; they try again after NOT_ENOUGH_REPLICAS,
# without asking for metadata. A partition that is led here exists, whatever the coordinator knows.
_PASSING = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNSUPPORTED_VERSION,  # A coordinator that is still to be upgraded.
    )
)


class Producing(NamedTuple):
    """Whose batches a request has."""

    producer_id: int
    producer_epoch: int


class _State(NamedTuple):
    """What is another after a marker of the producer, whoever led the partition then."""

    leader_epoch: int
    marker_count: int


def is_transactional(records: Buffer | None) -> bool:
    """Whether what is to be produced says that it is part of a transaction."""
    return records is not None and claims_transaction(records)


class VerifiedAppends:
    """The part of a transaction that a Produce request is: what of it may be appended.

    Rule: a batch goes to a log where its transaction is open already, or where the coordinator was
    asked and no marker has come since.
    """

    def __init__(
        self,
        node: "Node",
        transactional_id: str,
        version: int,
        producer: Producing,
        names: list[TopicPartition],
    ) -> None:
        self.producer = producer
        self._node = node
        self._transactional_id = transactional_id
        self._version = version
        self._names = names
        self._verdicts: Verdicts = {}
        self._asked_in: dict[TopicPartition, _State] = {}

    @classmethod
    def of(cls, node: "Node", request: ProduceRequest, version: int) -> Self | None:
        """That of a request; None if nothing in it is part of a transaction."""
        if request.transactional_id is None:
            return None
        producers: dict[Producing, None] = {}
        names = []
        for name, records in _batches(node, request, version):
            producer = claimed_producer(records) if is_transactional(records) else None
            if producer is not None:
                producers[Producing(*producer[:2])] = None
                names.append(name)
        if not producers:
            return None
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one transaction has one producer id"
            )
        return cls(node, request.transactional_id, version, next(iter(producers)), names)

    @property
    def unverified(self) -> list[TopicPartition]:
        """Those led here whose logs do not know of the transaction yet."""
        if not self._adds and not self._node.config.transaction_partition_verification_enable:
            return []
        found = []
        for name in self._names:
            try:
                partition = self._node.replicas.leader_of(name.topic, name.partition)
            except KafkaError:
                continue  # It is refused for that.
            if not partition.log.producers.has_open_transaction(*self.producer):
                found.append(name)
        return found

    async def verify(self) -> None:
        """Ask the coordinator for what is to be asked."""
        names = self.unverified
        if not names:
            return
        for name in names:
            partition = self._node.replicas.leader_of(name.topic, name.partition)
            self._asked_in[name] = self._state_of(partition)
        self._verdicts = await self._node.verifier.verify(
            self._transactional_id, *self.producer, names, add=self._adds
        )

    def check(self, partition: Partition, records: Buffer) -> None:
        """KafkaError if a batch of the request must not be appended to a partition."""
        producers = partition.log.producers
        if producers.has_open_transaction(*self.producer):
            return
        if not self._adds and not self._node.config.transaction_partition_verification_enable:
            return
        name = partition.name
        code = self._verdicts.get(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if code is not ErrorCode.NONE:
            raise self._refusal(code)
        before, now = self._asked_in[name], self._state_of(partition)
        if before.leader_epoch != now.leader_epoch:
            # Who led in between may have ended the transaction. The client asks again.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Under version 2 the epoch tells: what ended this transaction has raised it, and a repeated
        # marker of the one before has not.
        if not self._adds and before.marker_count != now.marker_count:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, "the transaction ended while it was looked up"
            )
        if self._adds and producers.get(self.producer.producer_id) is None:
            # Every transaction of version 2 has an epoch of its own, and an epoch begins at zero.
            claimed = claimed_producer(records)
            sequence = 0 if claimed is None else claimed[2]
            if sequence:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{name} has no record of producer {self.producer.producer_id}, whose"
                    f" transaction has to begin with sequence 0 and not {sequence}",
                )

    def _state_of(self, partition: Partition) -> _State:
        producer_id = self.producer.producer_id
        return _State(partition.leader_epoch, partition.log.producers.marker_count(producer_id))

    @property
    def _adds(self) -> bool:
        return self._version >= _ADDING_SINCE

    def _refusal(self, code: ErrorCode) -> KafkaError:
        detail = f"the coordinator of {self._transactional_id!r} said {code.name}"
        if code in _PASSING or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds):
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, detail)
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        return KafkaError(code, detail)


def _batches(
    node: "Node", request: ProduceRequest, version: int
) -> Iterator[tuple[TopicPartition, Buffer]]:
    for topic in request.topic_data:
        name: str | None = topic.name
        if version >= _TOPIC_IDS_SINCE:
            name = node.replicas.name_of(topic.topic_id)
        if name is not None:
            for data in topic.partition_data:
                yield TopicPartition(name, data.index), data.records or b""
