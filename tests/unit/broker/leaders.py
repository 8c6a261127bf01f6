"""A leader without a broker around it, for tests of followers: a log, and what it answers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.broker.cluster.channels import NodeChannel
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import BrokerImage, EndpointImage, Image, PartitionImage
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.batch import read_header
from headrace.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset as EpochEnd,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.records import encode_batch
from headrace.protocol.schema import Message
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(15) + b"\x0a"
ADDRESS = Address("leader", 9092)


def name_of(index: int) -> TopicPartition:
    return TopicPartition("orders", index)


def open_log(
    directory: Path,
    index: int = 0,
    config: TopicConfig | None = None,
    files: Files | None = None,
) -> Log:
    path = str(directory / str(name_of(index)))
    config = config or TopicConfig()
    return Log.open(files or Files(), path, name_of(index), config, NOW_MS, topic_id=TOPIC_ID)


def write(log: Log, epoch: int, *values: bytes, producer_id: int = -1, sequence: int = -1) -> None:
    """Append one batch as the leader of an epoch."""
    epoch_of_producer = 0 if producer_id >= 0 else -1
    data = encode_batch(
        [(NOW_MS, None, value, ()) for value in values],
        producer_id=producer_id,
        producer_epoch=epoch_of_producer,
        base_sequence=sequence,
    )
    log.append(data, [read_header(data)], epoch, NOW_MS)


def content(log: Log) -> bytes:
    """All bytes of a log."""
    return b"".join(
        bytes(segment.file().read_at(0, segment.size)) for segment in log.segments if segment.size
    )


def brokers(*epochs: tuple[int, int]) -> Image:
    """An image with brokers of these ids and epochs."""
    return Image(
        brokers={
            broker_id: BrokerImage(
                broker_id,
                epoch,
                bytes(16),
                (EndpointImage("PLAINTEXT", "leader", 9092, 0),),
                None,
                False,
            )
            for broker_id, epoch in epochs
        }
    )


class FakeStore(SimpleNamespace):
    """What fetchers need of a metadata store."""

    image: Image


class FakeClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Leader:
    """Leads the logs it is given, in one epoch each, over links that tests look into."""

    def __init__(self) -> None:
        self.logs: dict[int, Log] = {}
        self.epochs: dict[int, int] = {}
        self.high_watermarks: dict[int, int] = {}
        self.errors: dict[int, ErrorCode] = {}
        self.requests: list[Message] = []
        self.is_down = False
        self.says_diverging: EpochEndOffset | None = None
        self.links: list[FakeLink] = []
        self.changed = asyncio.Event()
        self.spoil: Callable[[bytes], bytes] = lambda data: data
        self._sessions: dict[int, dict[int, FetchPartition]] = {}

    @property
    def fetches(self) -> list[FetchRequest]:
        return [request for request in self.requests if isinstance(request, FetchRequest)]

    def lead(self, index: int, log: Log, epoch: int) -> None:
        log.start_epoch(epoch)
        self.logs[index], self.epochs[index] = log, epoch

    def changes(self) -> None:
        """Wake the fetches that wait."""
        self.changed.set()
        self.changed = asyncio.Event()

    def link(self, address_of: Callable[[], Address | None], client_id: str) -> NodeChannel:
        link = FakeLink(self, client_id)
        self.links.append(link)
        return link  # type: ignore[return-value]

    async def answer(self, request: Message) -> Message:
        self.requests.append(request)
        if self.is_down:
            raise ConnectionFailed(ADDRESS, "is down", "wait")
        if isinstance(request, FetchRequest):
            return await self._fetch(request)
        if isinstance(request, ListOffsetsRequest):
            return self._list_offsets(request)
        assert isinstance(request, OffsetForLeaderEpochRequest)
        return self._epoch_ends(request)

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        wanted = self._wanted(request)
        if wanted is None:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session_id = request.session_id
        if request.session_epoch <= 0:
            session_id = 0 if request.session_epoch < 0 else len(self._sessions)
        changed = self.changed
        results = [self._read(value) for value in wanted.values()]
        if not any(
            result.records or result.error_code or result.diverging_epoch.epoch >= 0
            for result in results
        ):
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    await changed.wait()
            except TimeoutError:
                pass
            results = [self._read(value) for value in wanted.values()]
        topic = FetchableTopicResponse(topic="orders", topic_id=TOPIC_ID, partitions=results)
        return FetchResponse(session_id=session_id, responses=[topic])

    def _wanted(self, request: FetchRequest) -> dict[int, FetchPartition] | None:
        named = {
            partition.partition: partition
            for topic in request.topics
            for partition in topic.partitions
        }
        if request.session_epoch < 0:
            return named
        if request.session_epoch == 0:
            self._sessions[len(self._sessions) + 1] = named
            return named
        session = self._sessions.get(request.session_id)
        if session is not None:
            for topic in request.forgotten_topics_data:
                for index in topic.partitions:
                    session.pop(index, None)
            session.update(named)
        return session

    def forget_sessions(self) -> None:
        self._sessions.clear()

    def _check(self, index: int, epoch: int) -> Log:
        if index in self.errors:
            raise KafkaError(self.errors[index])
        if index not in self.logs:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if epoch < self.epochs[index]:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if epoch > self.epochs[index]:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return self.logs[index]

    def _read(self, fetch: FetchPartition) -> PartitionData:
        data = PartitionData(partition_index=fetch.partition, high_watermark=-1, records=b"")
        try:
            log = self._check(fetch.partition, fetch.current_leader_epoch)
            data.high_watermark = self.high_watermarks.get(fetch.partition, log.log_end_offset)
            data.log_start_offset = log.log_start_offset
            if self.says_diverging is not None:
                data.diverging_epoch = self.says_diverging
                return data
            epoch, end = log.end_offset_for_epoch(fetch.last_fetched_epoch)
            if end >= 0 and (epoch != fetch.last_fetched_epoch or end < fetch.fetch_offset):
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                return data
            read = log.read(
                fetch.fetch_offset, fetch.partition_max_bytes, log.log_end_offset, at_least_one=True
            )
            data.records = self.spoil(bytes(read.records))
        except KafkaError as error:
            data.error_code = error.code
        return data

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        response = ListOffsetsResponse()
        for topic in request.topics:
            for partition in topic.partitions:
                found = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
                try:
                    log = self._check(partition.partition_index, partition.current_leader_epoch)
                    found.offset = log.log_start_offset
                except KafkaError as error:
                    found.error_code = error.code
                response.topics.append(
                    ListOffsetsTopicResponse(name=topic.name, partitions=[found])
                )
        return response

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            for partition in topic.partitions:
                found = EpochEnd(partition=partition.partition)
                try:
                    log = self._check(partition.partition, partition.current_leader_epoch)
                    found.leader_epoch, found.end_offset = log.end_offset_for_epoch(
                        partition.leader_epoch
                    )
                except KafkaError as error:
                    found.error_code = error.code
                response.topics.append(
                    OffsetForLeaderTopicResult(topic=topic.topic, partitions=[found])
                )
        return response


class FakeLink:
    """A link to `Leader`."""

    def __init__(self, leader: Leader, client_id: str) -> None:
        self.leader = leader
        self.client_id = client_id
        self.closed = 0
        self._broken: asyncio.Future[None] | None = None

    async def ask(self, request: Message, timeout_s: float) -> Any:
        self._broken = asyncio.get_running_loop().create_future()
        answer = asyncio.ensure_future(self.leader.answer(request))
        try:
            await asyncio.wait((answer, self._broken), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ConnectionFailed(ADDRESS, "was closed", "ask again")
            return answer.result()
        finally:
            answer.cancel()

    def close(self) -> None:
        self.closed += 1
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(None)


def follower_of(
    log: Log,
    *,
    leader_id: int = 1,
    epoch: int = 1,
    config: TopicConfig | None = None,
    flusher: FlushQueue | None = None,
    high_watermark: int = 0,
) -> Partition:
    """A partition of node 2 that follows a leader."""
    assert flusher is not None or config is None or config.flush_messages > 1
    partition = Partition(
        log.topic_partition,
        log,
        config or TopicConfig(),
        flusher,  # type: ignore[arg-type]
        high_watermark,
    )
    partition.follow(PartitionImage((1, 2), (1, 2), leader_id, epoch, 0))
    return partition


async def until(condition: Callable[[], bool], turns: int = 2000) -> None:
    """Wait for something that needs a few turns of the loop."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not become true")
