"""Brokers in memory that coordinate transactions, and know of every record whether it counts."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ErrorCode
from headrace.protocol.batch import read_header
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.protocol.records import decode_rows
from headrace.types import TopicPartition
from tests.unit.client.virtual_time import Brokers


@dataclass
class FakeTransaction:
    """What a coordinator knows of a transactional id. `ended` is how the last one ended."""

    producer_id: int
    epoch: int
    is_open: bool = False
    ended: bool | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)


class TransactionalBrokers(Brokers):
    """Brokers whose transactions have a version; `refusals` has the next error of each API."""

    def __init__(self, nodes: int = 1, *, version: int = 2, **options: Any) -> None:
        super().__init__(nodes, **options)
        self.features = {"transaction.version": version} if version > 1 else {}
        self.transactions: dict[str, FakeTransaction] = {}
        self.refusals: dict[str, deque[ErrorCode]] = {}
        # The outcomes of batches, by partition and place in its log.
        self.outcomes: dict[tuple[TopicPartition, int], bool] = {}
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self._pending: list[tuple[int, tuple[str, TopicPartition], int]] = []
        self.coordinator = 1

    def committed(self, partition: int = 0, topic: str = "t") -> list[bytes | None]:
        """What a read_committed consumer sees."""
        tp = TopicPartition(topic, partition)
        return [
            row.value
            for place, batch in enumerate(self.logs[tp].batches)
            if self.outcomes.get((tp, place))
            for row in decode_rows(batch)
        ]

    @property
    def undecided(self) -> int:
        """How many batches belong to a transaction that has not ended."""
        return sum(len(log.batches) for log in self.logs.values()) - len(self.outcomes)

    def answer(self, node: int, request: Any) -> Any:
        self._refusal = ErrorCode.NONE
        waiting = self.refusals.get(type(request).__name__.removesuffix("Request"))
        if waiting:
            self._refusal = waiting.popleft()
        return super().answer(node, request)

    def _FindCoordinator(self, node: int, request: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=self.coordinator) for key in request.coordinator_keys
            ]
        )

    def _InitProducerId(self, node: int, request: Any) -> InitProducerIdResponse:
        if self._refusal or node != self.coordinator:
            code = self._refusal or ErrorCode.NOT_COORDINATOR
            return InitProducerIdResponse(error_code=code)
        name = request.transactional_id
        known = self.transactions.get(name)
        if known is None:
            self.next_producer_id += 1
            known = self.transactions[name] = FakeTransaction(self.next_producer_id, -1)
        if known.is_open:
            self._end(known, False)
            return InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        if request.producer_epoch not in (-1, known.epoch, known.epoch - 1):
            return InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if request.producer_epoch in (-1, known.epoch):
            known.epoch += 1
        known.ended = None
        return InitProducerIdResponse(producer_id=known.producer_id, producer_epoch=known.epoch)

    def _AddPartitionsToTxn(self, node: int, request: Any) -> AddPartitionsToTxnResponse:
        asked = request.v3_and_below_topics
        code = self._check(
            node,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        if not code:
            known = self.transactions[request.v3_and_below_transactional_id]
            self._open(known)
            known.partitions |= {
                TopicPartition(t.name, partition) for t in asked for partition in t.partitions
            }
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=partition, partition_error_code=code
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in asked
            ]
        )

    def _AddOffsetsToTxn(self, node: int, request: Any) -> AddOffsetsToTxnResponse:
        code = self._check_one(node, request)
        if not code:
            known = self.transactions[request.transactional_id]
            self._open(known)
            known.groups.add(request.group_id)
        return AddOffsetsToTxnResponse(error_code=code)

    def _TxnOffsetCommit(self, node: int, request: Any) -> TxnOffsetCommitResponse:
        code = self._check_one(node, request)
        if not code:
            known = self.transactions[request.transactional_id]
            if self.features:
                self._open(known)
            elif request.group_id not in known.groups:
                code = ErrorCode.INVALID_TXN_STATE
        if not code:
            for topic in request.topics:
                for partition in topic.partitions:
                    place = (
                        request.group_id,
                        TopicPartition(topic.name, partition.partition_index),
                    )
                    self._pending.append((request.producer_id, place, partition.committed_offset))
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=partition.partition_index, error_code=code
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _EndTxn(self, node: int, request: Any) -> EndTxnResponse:
        code = self._check_one(node, request, retried=True)
        if code:
            return EndTxnResponse(error_code=code)
        known = self.transactions[request.transactional_id]
        is_retry = bool(self.features) and request.producer_epoch == known.epoch - 1
        if is_retry or (not known.is_open and known.ended is not None):
            if known.ended is not request.committed:
                return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
        elif not known.is_open and (request.committed or not self.features):
            return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
        else:
            self._end(known, request.committed)
            known.epoch += 1 if self.features else 0
        if not self.features:
            return EndTxnResponse()
        return EndTxnResponse(producer_id=known.producer_id, producer_epoch=known.epoch)

    def _Produce(self, node: int, request: Any) -> ProduceResponse:
        self._transactional_id = request.transactional_id
        return super()._Produce(node, request)

    def _append(self, node: int, topic: Any, data: Any) -> PartitionProduceResponse:
        header = read_header(data.records)
        assert header.is_transactional
        known = self.transactions[self._transactional_id]
        names = {topic_id: name for name, topic_id in self.topics.items()}
        tp = TopicPartition(topic.name or names[topic.topic_id], data.index)
        code = ErrorCode.NONE
        if header.producer_epoch != known.epoch:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif self.features:
            self._open(known)
            known.partitions.add(tp)
        elif tp not in known.partitions:
            code = ErrorCode.INVALID_TXN_STATE
        if code:
            return PartitionProduceResponse(index=data.index, error_code=code)
        return super()._append(node, topic, data)

    def _check_one(self, node: int, request: Any, *, retried: bool = False) -> ErrorCode:
        return self._check(
            node,
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            retried=retried,
        )

    def _check(
        self, node: int, name: str, producer_id: int, epoch: int, *, retried: bool = False
    ) -> ErrorCode:
        if self._refusal:
            return self._refusal
        if node != self.coordinator:
            return ErrorCode.NOT_COORDINATOR
        known = self.transactions.get(name)
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        allowed = {known.epoch}
        if retried and self.features and not known.is_open and known.ended is not None:
            allowed.add(known.epoch - 1)
        return ErrorCode.NONE if epoch in allowed else ErrorCode.PRODUCER_FENCED

    def _open(self, known: FakeTransaction) -> None:
        if not known.is_open:
            known.is_open = True
            known.ended = None

    def _end(self, known: FakeTransaction, committed: bool) -> None:
        known.is_open = False
        known.ended = committed
        for tp, log in self.logs.items():
            for place, batch in enumerate(log.batches):
                if read_header(batch).producer_id == known.producer_id:
                    self.outcomes.setdefault((tp, place), committed)
        for producer_id, where, offset in self._pending:
            if producer_id == known.producer_id and committed:
                self.offsets[where] = offset
        self._pending = [entry for entry in self._pending if entry[0] != known.producer_id]
        known.partitions.clear()
        known.groups.clear()


def refuse(brokers: TransactionalBrokers, api: str, *codes: ErrorCode) -> None:
    brokers.refusals.setdefault(api, deque()).extend(codes)


def lose(brokers: TransactionalBrokers, api: str, *losses: str) -> None:
    brokers.losses.setdefault(api, deque()).extend(losses)
