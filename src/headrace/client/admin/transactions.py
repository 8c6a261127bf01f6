"""Administration of transactions: listing, describing, fencing, and aborting hanging ones."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.client.admin.admin_requests import by_topic, passes, retry_until_answered
from headrace.client.cluster import ClusterClient
from headrace.client.coordinator_lookup import CoordinatorLookup
from headrace.client.errors import check, failure
from headrace.errors import ErrorCode, KafkaError, Subject
from headrace.protocol.apis import Api
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicRequest,
)
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.types import TopicPartition

# The transaction timeout sent when fencing; it has no effect on a fenced producer.
_TIMEOUT_MS = 60_000
# The pause between checks whether a fenced producer's transaction is aborted.
_PAUSE_S = 0.05
_ANY_DURATION = -1
_PATTERNS_SINCE = 2

# Kafka's states of a transactional id, and the states in which a transaction is open.
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
UNDER_WAY = frozenset(("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"))


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its transaction, if one is open or ending.

    Without a transaction `start_ms` is None; `partitions` are those the transaction has written to.
    """

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer's state in a partition. `transaction_start_offset` is None outside of one."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int | None


class FencedProducer(NamedTuple):
    """The producer id of a fenced transactional id, and the epoch after the fencing."""

    producer_id: int
    epoch: int


class TransactionAdmin:
    """Commands about transactions. Errors about one of several ids are returned, not raised."""

    def __init__(self, cluster: ClusterClient, coordinators: CoordinatorLookup) -> None:
        self._cluster = cluster
        self._coordinators = coordinators

    async def listed(
        self,
        states: Sequence[str],
        producer_ids: Sequence[int],
        duration_ms: int | None,
        pattern: str | None = None,
    ) -> dict[str, TransactionListing]:
        """The transactional ids of every broker: all, or those that match every condition."""
        deadline = self._cluster.deadline()
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=_ANY_DURATION if duration_ms is None else duration_ms,
            transactional_id_pattern=pattern,
        )

        async def attempt() -> dict[str, TransactionListing]:
            view = await self._cluster.refresh((), deadline)
            found: dict[str, TransactionListing] = {}
            for node in sorted(view.brokers):
                if pattern is not None:
                    await self._check_patterns(node, deadline)
                response = await self._cluster.call(request, deadline, node)
                check(response.error_code, subject=Subject("broker", str(node)))
                for transaction_state in response.transaction_states:
                    found[transaction_state.transactional_id] = TransactionListing(
                        transaction_state.transactional_id,
                        transaction_state.producer_id,
                        transaction_state.transaction_state,
                        node,
                    )
            return {name: found[name] for name in sorted(found)}

        return await self._cluster.retrying(attempt, deadline)

    async def _check_patterns(self, node: int, deadline: float) -> None:
        """Raise KafkaError if the broker cannot filter by pattern: it would list all transactional
        ids.
        """
        connection = await self._cluster.connection(node, deadline)
        if connection.version_of(Api.LIST_TRANSACTIONS) < _PATTERNS_SINCE:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"broker {node} does not list by a pattern"
            )

    async def describe(
        self, names: Sequence[str]
    ) -> dict[str, TransactionDescription | KafkaError]:
        """State, producer and partitions of ids; TRANSACTIONAL_ID_NOT_FOUND for an unknown id."""

        async def attempt(
            node: int, asked: list[str], deadline: float
        ) -> dict[str, TransactionDescription | KafkaError]:
            request = DescribeTransactionsRequest(transactional_ids=asked)
            response = await self._cluster.call(request, deadline, node)
            return {
                transaction_state.transactional_id: _described(transaction_state, node)
                for transaction_state in response.transaction_states
            }

        return await self._coordinators.ask(names, attempt)

    async def producers(
        self, partitions: Iterable[TopicPartition], broker_id: int | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        """The producers known to the leaders of partitions, or to the replicas on one broker."""

        async def attempt(
            missing: list[TopicPartition], deadline: float
        ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
            await self._cluster.topics(sorted({tp.topic for tp in missing}), deadline)
            outcomes: dict[TopicPartition, tuple[ProducerState, ...] | KafkaError] = {}
            for node, held in (await self._holders(missing, broker_id, deadline)).items():
                request = DescribeProducersRequest(
                    topics=[
                        TopicRequest(name=name, partition_indexes=numbers)
                        for name, numbers in by_topic(held).items()
                    ]
                )
                response = await self._cluster.call(request, deadline, node)
                for topic in response.topics:
                    for partition in topic.partitions:
                        tp = TopicPartition(topic.name, partition.partition_index)
                        outcomes[tp] = _producers(tp, partition)
            return outcomes

        def is_retried(error: KafkaError) -> bool:
            # A chosen broker without the partition will not get it by a retry.
            absent = broker_id is not None and error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            return passes(error) and not absent

        return await retry_until_answered(self._cluster, list(partitions), attempt, is_retried)

    async def _holders(
        self, partitions: Sequence[TopicPartition], broker_id: int | None, deadline: float
    ) -> Mapping[int, Sequence[TopicPartition]]:
        """The partitions grouped by the broker to ask about them."""
        if broker_id is None:
            return await self._cluster.by_leader(partitions, deadline)
        known = sorted(self._cluster.view.brokers)
        if broker_id not in known:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"there is no broker {broker_id}",
                advice=f"the cluster has {', '.join(map(str, known))}",
            )
        return {broker_id: partitions}

    async def abort(self, tp: TopicPartition, producer: ProducerState) -> None:
        """Abort a producer's transaction in one partition by writing the marker."""
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            # A transaction without any marker before it knows no coordinator epoch.
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        deadline = self._cluster.deadline()

        async def attempt() -> None:
            leader = (await self._cluster.partition(tp, deadline)).leader
            # Repeating does no harm: a second marker ends nothing.
            response = await self._cluster.call(request, deadline, leader)
            for answered in response.markers:
                for topic in answered.topics:
                    for partition in topic.partitions:
                        check(partition.error_code, subject=Subject("partition", str(tp)))

        await self._cluster.retrying(attempt, deadline)

    async def fence(self, names: Sequence[str]) -> dict[str, FencedProducer | KafkaError]:
        """Fence the producers of transactional ids, and abort their open transactions."""

        async def attempt(
            node: int, asked: list[str], deadline: float
        ) -> dict[str, FencedProducer | KafkaError]:
            return {name: await self._fence(node, name, deadline) for name in asked}

        return await self._coordinators.ask(names, attempt)

    async def _fence(self, node: int, name: str, deadline: float) -> FencedProducer | KafkaError:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=_TIMEOUT_MS)
        while True:
            response = await self._cluster.call(request, deadline, node)
            error = failure(response.error_code, subject=Subject("transactional id", name))
            if error is None:
                return FencedProducer(response.producer_id, response.producer_epoch)
            late = self._cluster.clock.monotonic() + _PAUSE_S >= deadline
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or late:
                return error
            await asyncio.sleep(_PAUSE_S)


def open_producer(
    tp: TopicPartition,
    producers: Iterable[ProducerState],
    *,
    producer_id: int | None,
    start_offset: int | None,
) -> ProducerState:
    """The producer with the chosen open transaction; KafkaError if no producer matches."""
    for producer in producers:
        if producer.transaction_start_offset is None:
            continue
        if producer_id in (None, producer.producer_id) and start_offset in (
            None,
            producer.transaction_start_offset,
        ):
            return producer
    meant = [f"of producer {producer_id}"] if producer_id is not None else []
    meant += [f"at offset {start_offset}"] if start_offset is not None else []
    raise KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"partition {tp} has no open transaction {' '.join(meant)}"
    )


def hanging(
    producers: Mapping[TopicPartition, Iterable[ProducerState]],
    described: Iterable[TransactionDescription],
    *,
    before_ms: int,
) -> dict[TopicPartition, list[ProducerState]]:
    """The hanging transactions: open, last written before `before_ms`, and in no coordinator's
    state.
    """
    known = {
        (transaction.producer_id, tp) for transaction in described for tp in transaction.partitions
    }
    return {
        tp: found
        for tp, states in producers.items()
        if (
            found := [
                state
                for state in states
                if state.transaction_start_offset is not None
                and state.last_timestamp < before_ms
                and (state.producer_id, tp) not in known
            ]
        )
    }


def _described(state: TransactionState, node: int) -> TransactionDescription | KafkaError:
    name = state.transactional_id
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return KafkaError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {name} does not exist"
        )
    error = failure(state.error_code, subject=Subject("transactional id", name))
    if error is not None:
        return error
    return TransactionDescription(
        name,
        state.transaction_state,
        node,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_state in UNDER_WAY else None,
        tuple(
            sorted(
                TopicPartition(topic.topic, number)
                for topic in state.topics
                for number in topic.partitions
            )
        ),
    )


def _producers(
    tp: TopicPartition, answer: PartitionResponse
) -> tuple[ProducerState, ...] | KafkaError:
    error = failure(answer.error_code, answer.error_message, Subject("partition", str(tp)))
    if error is not None:
        return error
    return tuple(
        ProducerState(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else None,
        )
        for producer in sorted(answer.active_producers, key=lambda producer: producer.producer_id)
    )
