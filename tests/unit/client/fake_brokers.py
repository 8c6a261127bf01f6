"""A cluster in memory: values in, values out, faults on demand. Clients reach it by `transport`."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ErrorCode, KafkaError
from headrace.net.addresses import Address
from headrace.protocol.apis import served_versions
from headrace.protocol.batch import assign, read_header
from headrace.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.protocol.records import decode_rows
from headrace.protocol.schema import Message
from headrace.types import ZERO_UUID, TopicPartition


class FakeClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        # How long it was suspended: the steady clock does not count that.
        self.suspended_s = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int((self.seconds + self.suspended_s) * 1000)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.seconds += seconds


@dataclass
class FakeLog:
    """A partition: its batches as bytes, and what it knows of producers."""

    leader: int
    batches: list[bytearray] = field(default_factory=list)
    start_offset: int = 0
    next_offset: int = 0
    # By producer id: the epoch, and the sequence after the last one in it.
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    written: set[tuple[int, int, int, int]] = field(default_factory=set)

    def append(self, records: bytes) -> int:
        batch = bytearray(records)
        header = read_header(batch)
        if header.has_producer:
            first, last = header.base_sequence, header.last_sequence
            producer_id, epoch = header.producer_id, header.producer_epoch
            if (producer_id, epoch, first, last) in self.written:
                return 0
            known, expected = self.producers.get(producer_id, (epoch, first))
            if epoch < known:
                raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
            if first != (expected if epoch == known else 0):
                raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self.producers[producer_id] = (epoch, (last + 1) % 2**31)
            self.written.add((producer_id, epoch, first, last))
        base = self.next_offset
        assign(batch, header, base, 0)
        self.batches.append(batch)
        self.next_offset += header.record_count
        return base

    def values(self) -> list[bytes | None]:
        return [row.value for batch in self.batches for row in decode_rows(batch)]


# What happens to a request: it is lost, or done and its answer lost, or done and answered.
LOSE, LOSE_ANSWER, ANSWER = "lose", "lose answer", "answer"


# Errors that say that nothing was written; others come although it was.
_NOTHING_DONE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)


class FakeBrokers:
    """Brokers at 10.0.0.<id>:9092, the first of which is the controller."""

    def __init__(self, nodes: int = 1, *, versions: dict[int, int] | None = None) -> None:
        self.clock = FakeClock()
        self.nodes = {node: Address(f"10.0.0.{node}", 9092) for node in range(1, nodes + 1)}
        self.down: set[int] = set()
        self.topics: dict[str, bytes] = {}
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.auto_create_after = 0
        self.max_message_bytes = 2**31
        self.refused_values: set[bytes] = set()
        self.requests: list[tuple[int, Message]] = []
        self.connections = 0
        self.most_in_flight = 0
        self.is_slow = False
        self.next_producer_id = 7
        self.produce_faults: deque[str | ErrorCode] = deque()
        self.fetch_faults: deque[str | ErrorCode] = deque()
        self.faults: deque[str | ErrorCode] = deque()
        # Requests and answers that are lost, by the name of the API.
        self.losses: dict[str, deque[str | ErrorCode]] = {}
        self.features: dict[str, int] = {}
        self._versions = versions or {}

    def add_topic(self, name: str, partitions: int = 1) -> None:
        self.topics[name] = (len(self.topics) + 1).to_bytes(16, "big")
        nodes = list(self.nodes)
        for index in range(partitions):
            self.logs[TopicPartition(name, index)] = FakeLog(nodes[index % len(nodes)])

    def version(self, api_key: int) -> int:
        return self._versions.get(api_key, served_versions(api_key)[1])

    def sent(self, kind: type[Message]) -> list[Any]:
        return [request for _, request in self.requests if isinstance(request, kind)]

    def answer(self, node: int, request: Any) -> Message:
        name = type(request).__name__.removesuffix("Request")
        handler: Callable[[int, Any], Message] = getattr(self, f"_{name}")
        return handler(node, request)

    def _Metadata(self, node: int, request: Any) -> MetadataResponse:
        names = list(self.topics) if request.topics is None else [t.name for t in request.topics]
        topics = []
        for name in names:
            if name not in self.topics and request.allow_auto_topic_creation:
                self.auto_create_after -= 1
                if self.auto_create_after == 0:
                    self.add_topic(name)
            topics.append(self._describe(name))
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node_id, host=address.host, port=address.port)
                for node_id, address in self.nodes.items()
            ],
            cluster_id="fake",
            controller_id=1,
            topics=topics,
        )

    def _describe(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
        partitions = [
            MetadataResponsePartition(
                partition_index=tp.partition,
                leader_id=log.leader,
                leader_epoch=0,
                replica_nodes=[log.leader],
                isr_nodes=[log.leader],
            )
            for tp, log in self.logs.items()
            if tp.topic == name
        ]
        return MetadataResponseTopic(name=name, topic_id=self.topics[name], partitions=partitions)

    def _InitProducerId(self, node: int, request: Any) -> InitProducerIdResponse:
        self.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)

    def _CreateTopics(self, node: int, request: Any) -> CreateTopicsResponse:
        results = []
        for topic in request.topics:
            if topic.name in self.topics:
                results.append(
                    CreatableTopicResult(
                        name=topic.name,
                        error_code=ErrorCode.TOPIC_ALREADY_EXISTS,
                        error_message=f"Topic '{topic.name}' already exists.",
                    )
                )
            else:
                self.add_topic(topic.name, max(topic.num_partitions, 1))
                results.append(
                    CreatableTopicResult(
                        name=topic.name,
                        topic_id=self.topics[topic.name],
                        num_partitions=max(topic.num_partitions, 1),
                        replication_factor=1,
                    )
                )
        return CreateTopicsResponse(topics=results)

    def _log(self, node: int, name: str, topic_id: bytes, index: int) -> tuple[FakeLog, str]:
        names = {known: topic for topic, known in self.topics.items()}
        topic = name or names.get(topic_id, "")
        log = self.logs.get(TopicPartition(topic, index))
        if topic_id not in (b"", ZERO_UUID, self.topics.get(topic)):
            log, name = None, ""
        if log is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID
            )
        if log.leader != node:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return log, topic

    def _Produce(self, node: int, request: Any) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        self._produce_one(node, topic, data) for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _produce_one(self, node: int, topic: Any, data: Any) -> PartitionProduceResponse:
        fault = self.produce_faults.popleft() if self.produce_faults else ANSWER
        answer = self._append(node, topic, data) if fault not in _NOTHING_DONE else None
        if isinstance(fault, ErrorCode) and (answer is None or not answer.error_code):
            return PartitionProduceResponse(index=data.index, error_code=fault, base_offset=-1)
        assert answer is not None
        return answer

    def _append(self, node: int, topic: Any, data: Any) -> PartitionProduceResponse:
        try:
            log, _ = self._log(node, topic.name, topic.topic_id, data.index)
            if len(data.records) > self.max_message_bytes:
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
            guilty = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message="bad")
                for index, row in enumerate(decode_rows(data.records))
                if row.value in self.refused_values
            ]
            if guilty:
                return PartitionProduceResponse(
                    index=data.index,
                    error_code=ErrorCode.INVALID_RECORD,
                    base_offset=-1,
                    record_errors=guilty,
                )
            return PartitionProduceResponse(index=data.index, base_offset=log.append(data.records))
        except KafkaError as error:
            return PartitionProduceResponse(
                index=data.index, error_code=error.code, error_message=error.detail or None
            )

    def _ListOffsets(self, node: int, request: Any) -> ListOffsetsResponse:
        def one(name: str, wanted: Any) -> ListOffsetsPartitionResponse:
            try:
                log, _ = self._log(node, name, b"", wanted.partition_index)
            except KafkaError as error:
                return ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=error.code
                )
            offset = {-1: log.next_offset, -2: log.start_offset}.get(wanted.timestamp, -1)
            return ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index, offset=offset
            )

        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[one(topic.name, wanted) for wanted in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _OffsetForLeaderEpoch(self, node: int, request: Any) -> OffsetForLeaderEpochResponse:
        """No leader lacks anything."""
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        EpochEndOffset(
                            partition=partition.partition,
                            leader_epoch=partition.leader_epoch,
                            end_offset=self.logs[
                                TopicPartition(topic.topic, partition.partition)
                            ].next_offset,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _Fetch(self, node: int, request: Any) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[
                        self._fetch_one(node, topic, partition) for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _fetch_one(self, node: int, topic: Any, wanted: Any) -> PartitionData:
        fault = self.fetch_faults.popleft() if self.fetch_faults else ANSWER
        if isinstance(fault, ErrorCode):
            return PartitionData(partition_index=wanted.partition, error_code=fault)
        try:
            log, _ = self._log(node, topic.topic, topic.topic_id, wanted.partition)
            if not log.start_offset <= wanted.fetch_offset <= log.next_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        except KafkaError as error:
            return PartitionData(partition_index=wanted.partition, error_code=error.code)
        found = [
            bytes(batch)
            for batch in log.batches
            if read_header(batch).next_offset > wanted.fetch_offset
        ]
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=log.next_offset,
            # One batch at a time, so that reading takes several polls.
            records=found[0] if found else b"",
        )
