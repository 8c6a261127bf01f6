"""Groups in virtual time: our members, and the broker's own coordinator behind fake connections."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, cast

from headrace.client.cluster import ClusterClient
from headrace.client.consumer.group import GroupMember
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import consumer_options
from headrace.coordinator.groups.group_offsets import offset_commit_error
from headrace.coordinator.shard import GroupSettings
from headrace.errors import ErrorCode
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.apis import APIS, Api
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from headrace.protocol.schema import Message, decode_message, encode_message
from headrace.types import TopicPartition
from tests.unit.client.consumer.hosts import Host
from tests.unit.client.fake_brokers import FakeBrokers
from tests.unit.client.virtual_time import run
from tests.unit.coordinator.driving import Shell

# How often the coordinator looks at its clock, besides when something is due.
TICK_S = 1.0
NAMES_ONLY: dict[int, int] = {Api.OFFSET_COMMIT: 9, Api.OFFSET_FETCH: 9}


class Coordinated(FakeBrokers):
    """Brokers that all know the topics; `node` coordinates the groups."""

    def __init__(self, nodes: int = 1, *, versions: dict[int, int] | None = None) -> None:
        super().__init__(nodes, versions={**NAMES_ONLY, **(versions or {})})
        self.shell = Shell(GroupSettings(initial_rebalance_delay_ms=0), now_ms=self.clock.now_ms())
        self.node = 1
        # Whom FindCoordinator names; None is whoever it is.
        self.named: int | None = None
        self.channels: list[Channel] = []
        # What requests of a kind are answered with instead.
        self.refusals: dict[type[Message], deque[ErrorCode]] = {}

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run a test in virtual time, with the coordinator beside it."""

        async def both() -> None:
            ticking = asyncio.create_task(self._tick())
            try:
                await test()
            finally:
                ticking.cancel()
                with suppress(asyncio.CancelledError):
                    await ticking

        run(self.clock, both())

    def move_to(self, node: int) -> None:
        """Have another broker coordinate the groups, with what was written to the log."""
        self.shell = self.shell.reload()
        self.node = node
        for channel in self.channels:
            channel.close()

    async def open(self, address: Address, timeout_s: float, *, client_id: str) -> "Channel":
        await asyncio.sleep(0.001)
        for node, known in self.nodes.items():
            if known == address and node not in self.down:
                channel = Channel(self, node)
                self.channels.append(channel)
                return channel
        raise ConnectionFailed(address, "nothing is listening there", "start a broker")

    async def _tick(self) -> None:
        while True:
            due_ms = self.shell.shard.next_deadline_ms
            left_ms = TICK_S * 1000 if due_ms is None else due_ms - self.shell.now_ms
            await asyncio.sleep(min(max(left_ms / 1000, 0.001), TICK_S))
            self.shell.advance(self.clock.now_ms() - self.shell.now_ms)
            self.pump()

    def pump(self) -> None:
        for channel in self.channels:
            channel.pump()

    def _FindCoordinator(self, node: int, request: Any) -> FindCoordinatorResponse:
        named = self.node if self.named is None else self.named
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key=key, node_id=named) for key in request.coordinator_keys]
        )

    def _OffsetFetch(self, node: int, request: Any) -> OffsetFetchResponse:
        if request.groups:
            found = [self.shell.shard.fetch_offsets(group) for group in request.groups]
            return OffsetFetchResponse(groups=found)
        wanted = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
        asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=wanted)
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=partition.partition_index,
                            committed_offset=partition.committed_offset,
                            committed_leader_epoch=partition.committed_leader_epoch,
                            metadata=partition.metadata,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in self.shell.shard.fetch_offsets(asked).topics
            ]
        )


class Channel:
    """A connection: answers come in the order of the requests, however long one waits."""

    def __init__(self, brokers: Coordinated, node: int) -> None:
        self.address = brokers.nodes[node]
        self.is_open = True
        self._brokers = brokers
        self._node = node
        self._shell = brokers.shell
        self._waiting: deque[tuple[asyncio.Future[Any], int, Message | int]] = deque()

    def version_of(self, api_key: int) -> int:
        return self._brokers.version(api_key)

    def ask(
        self, request: Message, timeout_s: float, *, version_max: int | None = None
    ) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self.is_open or self._node in self._brokers.down:
            self.close()
            future.set_exception(self._broken())
            return future
        version = self.version_of(request.api_key)
        received = decode_message(type(request), version, encode_message(request, version))
        self._brokers.requests.append((self._node, received))
        self._waiting.append((future, request.api_key, self._do(received, version)))
        loop.call_soon(self._brokers.pump)
        timer = loop.call_later(timeout_s, self.close)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def pump(self) -> None:
        """Hand out the answers that are there."""
        while self._waiting:
            future, api_key, answer = self._waiting[0]
            if isinstance(answer, int):
                if answer not in self._shell.answers:
                    return
                answer = self._shell.answers[answer]
            self._waiting.popleft()
            if not future.done():
                version = self.version_of(api_key)
                encoded = encode_message(answer, version)
                future.set_result(decode_message(APIS[api_key].response, version, encoded))

    def close(self) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, deque()
        for future, _, answer in waiting:
            if isinstance(answer, int) and answer in self._shell.waiting:
                self._shell.shard.cancel(answer)
                self._shell.asked.discard(answer)
            if not future.done():
                future.set_exception(self._broken())

    def _do(self, request: Any, version: int) -> Message | int:
        """The answer, or the token of one that the coordinator will give."""
        brokers = self._brokers
        refusals = brokers.refusals.get(type(request))
        if refusals:
            return _refused(request, refusals.popleft())
        if hasattr(brokers, f"_{type(request).__name__.removesuffix('Request')}"):
            return brokers.answer(self._node, request)
        if self._node != brokers.node:
            return _refused(request, ErrorCode.NOT_COORDINATOR)
        self._shell.now_ms = max(self._shell.now_ms, brokers.clock.now_ms())
        return self._shell.send(request, version)

    def _broken(self) -> ConnectionFailed:
        return ConnectionFailed(self.address, "the broker closed the connection", "its log knows")


def _refused(request: Any, code: ErrorCode) -> Message:
    response = cast("Any", APIS[request.api_key].response())
    if hasattr(response, "error_code"):
        response.error_code = code
    if request.api_key == Api.OFFSET_COMMIT:
        return offset_commit_error(request, code)
    if request.api_key == Api.OFFSET_FETCH:
        response.groups = [
            OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
            for group in request.groups
        ]
    return cast("Message", response)


class Member:
    """A group and its host, with connections of its own and the options' defaults."""

    def __init__(self, brokers: Coordinated, topics: Iterable[str], **options: Any) -> None:
        given = {"group_id": "group", "bootstrap_servers": "10.0.0.1:9092", **options}
        self.options = consumer_options(**given)
        self.host = Host(topics)
        self.metrics = ConsumerMetrics(brokers.clock)
        self.cluster = ClusterClient(
            list(brokers.nodes.values()),
            clock=brokers.clock,
            rng=Random(1),
            connect=brokers.open,  # type: ignore[arg-type]
        )
        self.group = GroupMember(
            self.cluster, self.options, self.host, self.metrics, client_id="app"
        )

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self.host.mine)


@asynccontextmanager
async def member(
    brokers: Coordinated, *topics: str, started: bool = True, **options: Any
) -> AsyncIterator[Member]:
    """A member that is gone at the end."""
    joining = Member(brokers, topics, **options)
    if started:
        joining.group.start()
    try:
        yield joining
    finally:
        await joining.group.stop(leave=False)
        await joining.cluster.close()
