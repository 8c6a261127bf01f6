"""Brokers in memory that coordinate transactions and remember producers, for the admin client."""

from collections import deque
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TopicData,
)
from headrace.protocol.messages.describe_transactions import TransactionState as Described
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.list_transactions import ListTransactionsResponse
from headrace.protocol.messages.list_transactions import TransactionState as Listed
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import AdminBrokers

START_MS = 1_700_000_999_000


class TransactionBrokers(AdminBrokers):
    """Two brokers: "copier" is ongoing in orders-0 and invoices-1, "idle" has no transaction.

    In orders-1 the transaction of producer 9 hangs. The even ids are coordinated by broker 1.
    """

    def __init__(self, *, versions: dict[int, int] | None = None) -> None:
        super().__init__(2, versions=versions)
        self.add_topic("orders", 2)
        self.add_topic("invoices", 2)
        self.coordinators = {"copier": 2, "idle": 1}
        self.described = {
            "copier": Described(
                transactional_id="copier",
                transaction_state="Ongoing",
                transaction_timeout_ms=60_000,
                transaction_start_time_ms=START_MS,
                producer_id=8,
                producer_epoch=3,
                topics=[
                    TopicData(topic="orders", partitions=[0]),
                    TopicData(topic="invoices", partitions=[1]),
                ],
            ),
            "idle": Described(
                transactional_id="idle",
                transaction_state="CompleteCommit",
                transaction_timeout_ms=1_000,
                transaction_start_time_ms=START_MS,
                producer_id=7,
                producer_epoch=0,
            ),
        }
        self.producers = {
            TopicPartition("orders", 0): [_open(8, 3, 100, 2)],
            TopicPartition("invoices", 1): [_open(8, 3, 5, 2), _open(7, 0, -1, 1)],
            TopicPartition("orders", 1): [_open(9, 1, 42, -1)],
        }
        self.refusals: deque[ErrorCode] = deque()
        # A broker that has all partitions it does not lead as well.
        self.follower = 0

    def _next_refusal(self) -> ErrorCode:
        return self.refusals.popleft() if self.refusals else ErrorCode.NONE

    def _FindCoordinator(self, node: int, request: Any) -> FindCoordinatorResponse:
        assert request.key_type == 1
        found = [
            Coordinator(key=key, node_id=self.coordinators.get(key, 1))
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)

    def _ListTransactions(self, node: int, request: Any) -> ListTransactionsResponse:
        states = request.state_filters
        ids = request.producer_id_filters
        listed = [
            Listed(
                transactional_id=name,
                producer_id=entry.producer_id,
                transaction_state=entry.transaction_state,
            )
            for name, entry in self.described.items()
            if self.coordinators[name] == node
            and (not states or entry.transaction_state in states)
            and (not ids or entry.producer_id in ids)
        ]
        return ListTransactionsResponse(error_code=self._next_refusal(), transaction_states=listed)

    def _DescribeTransactions(self, node: int, request: Any) -> DescribeTransactionsResponse:
        missing = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribeTransactionsResponse(
            transaction_states=[
                self.described.get(name) or Described(transactional_id=name, error_code=missing)
                for name in request.transactional_ids
            ]
        )

    def _DescribeProducers(self, node: int, request: Any) -> DescribeProducersResponse:
        def one(tp: TopicPartition) -> PartitionResponse:
            code = self._next_refusal()
            if node not in (self.logs[tp].leader, self.follower):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            states = [] if code else self.producers.get(tp, [])
            return PartitionResponse(
                partition_index=tp.partition, error_code=code, active_producers=states
            )

        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        one(TopicPartition(topic.name, number))
                        for number in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def _WriteTxnMarkers(self, node: int, request: Any) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=number, error_code=self._next_refusal()
                                )
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _InitProducerId(self, node: int, request: Any) -> InitProducerIdResponse:
        assert self.coordinators.get(request.transactional_id, 1) == node
        code = self._next_refusal()
        if code:
            return InitProducerIdResponse(error_code=code)
        known = self.described[request.transactional_id]
        return InitProducerIdResponse(
            producer_id=known.producer_id, producer_epoch=known.producer_epoch + 1
        )


def _open(producer_id: int, epoch: int, start_offset: int, coordinator_epoch: int) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=11,
        last_timestamp=START_MS,
        coordinator_epoch=coordinator_epoch,
        current_txn_start_offset=start_offset,
    )
