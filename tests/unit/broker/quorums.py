"""Quorums in one process, on a virtual loop: real logs in temporary directories, no sockets."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from headrace.broker.metadata_store import MetadataStore
from headrace.broker.quorum.quorum import QuorumNode
from headrace.broker.thread_pools import ThreadPools
from headrace.config import BrokerConfig, Listener, TopicConfig
from headrace.config.cluster import QuorumVoter
from headrace.errors import HeadraceError, KafkaError, StorageError
from headrace.metadata.image import ConfigResourceType, Image
from headrace.metadata.records import CommandResult
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed, NoAnswer
from headrace.protocol.apis import Api, served_versions
from headrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from headrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochResponse
from headrace.protocol.messages.end_quorum_epoch import EndQuorumEpochResponse
from headrace.protocol.messages.metadata_records import ConfigRecord
from headrace.protocol.messages.vote import VoteResponse
from headrace.protocol.schema import Message, decode_message, encode_message
from headrace.storage.data_directory import METADATA_LOG
from headrace.storage.files import DiskFull, File, Files
from headrace.storage.log import Log
from headrace.types import Buffer
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

Outcome = TypeVar("Outcome")

_LATENCY_SECONDS = 0.001


class FaultyFile(File):
    """A file on a disk whose flushes can be made to fail, and take no time."""

    __slots__ = ("disk",)
    disk: "FaultyFiles"

    def sync(self) -> None:
        self.disk.sync()

    def write_at(self, position: int, data: Buffer) -> None:
        self.disk.write(self.path)
        super().write_at(position, data)


class FaultyFiles(Files):
    """The files of one node."""

    def __init__(self) -> None:
        self.is_broken = False
        self.is_full = False
        self.is_full_for: str | None = None
        self.syncs = 0

    def sync(self) -> None:
        if self.is_broken:
            raise StorageError("cannot flush: the disk is gone")
        self.syncs += 1

    def write(self, path: str) -> None:
        if self.is_full or (self.is_full_for is not None and path.endswith(self.is_full_for)):
            raise DiskFull(f"cannot write {path}: there is no room")

    def open(self, path: str, *, create: bool = False) -> File:
        opened = super().open(path, create=create)
        file = FaultyFile(path, os.dup(opened._fd))
        file.disk = self
        return file

    def sync_directory(self, path: str) -> None:
        self.sync()


class InlineWorkers(ThreadPools):
    """Work of threads, done by the loop a turn later, or once it is no longer `held`."""

    def __init__(self) -> None:
        self.held = False

    async def flush(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        while self.held:
            await asyncio.sleep(0.01)
        return work(*args, **kwargs)

    read = flush
    compact = flush

    def close(self) -> None:
        pass


class Member:
    """One node: what it has on disk, and while it runs its quorum and its store."""

    def __init__(self, network: "Network", node_id: int, directory: Path, config: BrokerConfig):
        self.node_id = node_id
        self.config = config
        self.files = FaultyFiles()
        self.fatal: list[HeadraceError] = []
        self.is_up = False
        self.images = 0
        self._network = network
        self._directory = directory

    def start(self) -> None:
        clock = self._network.clock
        self.workers = InlineWorkers()
        self.log = Log.open(
            self.files,
            str(self._directory / str(METADATA_LOG)),
            METADATA_LOG,
            TopicConfig(retention_ms=-1, retention_bytes=-1),
            clock.now_ms(),
        )
        self.quorum = QuorumNode(
            self.log,
            self.files,
            self.config,
            cluster_id="test",
            directory_id=bytes(15) + bytes([self.node_id]),
            clock=clock,
            rng=Random(self.node_id),
            workers=self.workers,
            on_fatal=self.fatal.append,
            link_factory=cast("Any", self._network.link),
        )
        self.store = MetadataStore(self.quorum, self.config, clock, self.workers)
        self.store.follow(self._count)
        self.is_up = True
        self.quorum.start([Listener("PLAINTEXT", f"10.0.0.{self.node_id}", 9092)])

    async def _count(self, old: Image, new: Image) -> None:
        self.images += 1

    async def stop(self) -> None:
        await self.store.close()
        await self.quorum.stop()
        self.is_up = False
        self.log.close()

    async def kill(self) -> None:
        """End it without a word to the others; the page cache survives."""
        self.is_up = False
        self.quorum._driver.closed = True
        await self.store.close()
        await self.quorum.stop()
        self.log.close(clean=False)

    def value(self, name: str) -> str | None:
        return self.store.image.config_of(ConfigResourceType.BROKER, "").get(name)

    async def put(self, name: str, value: str) -> int:
        return await self.store.submit(put(name, value))


def put(name: str, value: str) -> Callable[[Image, int], CommandResult[int]]:
    """A command that answers with the offset of its record."""
    record = ConfigRecord(
        resource_type=ConfigResourceType.BROKER, resource_name="", name=name, value=value
    )
    return lambda _, offset: CommandResult((record,), offset)


class Network:
    """The nodes and what is between them. `cut` has pairs (from, to) that lose everything."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.members: dict[int, Member] = {}
        self.cut: set[tuple[int, int]] = set()
        self.asked: list[tuple[int, str]] = []

    def link(self, address_of: Callable[[], Address | None], client_id: str) -> "FakeLink":
        return FakeLink(self, int(client_id.split("-")[1]), address_of)

    def isolate(self, node_id: int) -> None:
        for other in self.members:
            self.cut |= {(node_id, other), (other, node_id)}

    def heal(self) -> None:
        self.cut.clear()


class FakeLink:
    """A link that carries messages as bytes, with a latency, to a node in the same process."""

    def __init__(
        self, network: Network, sender: int, address_of: Callable[[], Address | None]
    ) -> None:
        self._network = network
        self._sender = sender
        self._address_of = address_of

    async def ask(self, request: Message, timeout_s: float) -> Any:
        address = self._address_of()
        assert address is not None
        target = int(address.host.rpartition(".")[2])
        self._network.asked.append((self._sender, type(request).__name__))
        version = served_versions(request.api_key)[1]
        encoded = encode_message(request, version)
        await self._travel(self._sender, target, address, timeout_s)
        member = self._network.members[target]
        received = decode_message(type(request), version, encoded)
        answer = await answer_of(member.quorum, received)
        await self._travel(target, self._sender, address, timeout_s)
        if not member.is_up:
            raise ConnectionFailed(address, "the broker closed the connection", "")
        return decode_message(type(answer), version, encode_message(answer, version))

    async def _travel(self, a: int, b: int, address: Address, timeout_s: float) -> None:
        await asyncio.sleep(_LATENCY_SECONDS)
        if (a, b) in self._network.cut:
            await asyncio.sleep(timeout_s)
            raise NoAnswer(address, "no answer in time", "")
        if not self._network.members[b].is_up:
            raise ConnectionFailed(address, "nothing is listening there", "")

    def close(self) -> None:
        pass


async def answer_of(quorum: QuorumNode, request: Any) -> Any:
    """What the handlers of a node answer."""
    try:
        match request.api_key:
            case Api.VOTE:
                return quorum.vote(request)
            case Api.BEGIN_QUORUM_EPOCH:
                return quorum.begin_epoch(request)
            case Api.END_QUORUM_EPOCH:
                return quorum.end_epoch(request)
            case Api.FETCH:
                return await quorum.fetch(cast("Any", None), request)
            case Api.API_VERSIONS:
                told = SupportedFeatureKey(name="a", min_version=1, max_version=quorum.leader.epoch)
                served = ApiVersion(api_key=Api.CREATE_ACLS, min_version=1, max_version=3)
                return ApiVersionsResponse(supported_features=[told], api_keys=[served])
            case Api.FETCH_SNAPSHOT:
                return await quorum.fetch_snapshot(request)
    except KafkaError as error:
        kinds: dict[int, Any] = {
            Api.VOTE: VoteResponse,
            Api.BEGIN_QUORUM_EPOCH: BeginQuorumEpochResponse,
            Api.END_QUORUM_EPOCH: EndQuorumEpochResponse,
        }
        return kinds[request.api_key](error_code=error.code)
    raise AssertionError(request)


class Cluster:
    """Nodes 1 to `voters`, which vote, and `observers` more, which do not."""

    def __init__(
        self, directory: Path, voters: int = 3, observers: int = 0, **settings: Any
    ) -> None:
        self.clock = FakeClock()
        self.network = Network(self.clock)
        self.members = self.network.members
        self._directory = directory
        named = tuple(QuorumVoter(n, f"10.0.0.{n}", 9092) for n in range(1, voters + 1))
        for node_id in range(1, voters + observers + 1):
            if "controller_quorum_voters" not in settings:
                config = BrokerConfig(node_id=node_id, controller_quorum_voters=named, **settings)
            else:
                config = BrokerConfig(node_id=node_id, **settings)
            self.members[node_id] = Member(self.network, node_id, directory / str(node_id), config)

    def run(self, test: Coroutine[Any, Any, Outcome]) -> Outcome:
        """What a test returns, with every node stopped after it."""

        async def with_cleanup() -> Outcome:
            try:
                return await test
            finally:
                for member in self.members.values():
                    if member.is_up:
                        await member.kill()

        logging.disable(logging.CRITICAL)
        try:
            return run(self.clock, with_cleanup())
        finally:
            logging.disable(logging.NOTSET)

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.members:
            self.members[node_id].start()

    async def until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        due = self.clock.seconds + seconds
        while not condition():
            assert self.clock.seconds < due, "it did not come to pass"
            await asyncio.sleep(0.005)

    @property
    def active(self) -> list[Member]:
        return [value for value in self.members.values() if value.is_up and value.store.is_active]

    async def leader(self, *among: int) -> Member:
        """The active controller, once there is one that the wanted nodes follow."""
        wanted = [self.members[n] for n in among or self.members if self.members[n].is_up]

        def agreed() -> bool:
            active = [entry for entry in wanted if entry.store.is_active]
            return len(active) == 1 and all(
                entry.quorum.leader.leader_id == active[0].node_id for entry in wanted
            )

        await self.until(agreed)
        return next(entry for entry in wanted if entry.store.is_active)
