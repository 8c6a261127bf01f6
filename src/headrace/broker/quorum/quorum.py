"""The node's part in the quorum that keeps the metadata log: it drives `raft.RaftNode`.

Composition (what others construct and call):

    quorum = Quorum(log, files, config, cluster_id=..., directory_id=..., clock=..., rng=...,
                    workers=..., on_fatal=stop_the_process)
    store = MetadataStore(quorum, config, clock, workers)
    quorum.start(endpoints)     # own (name, host, port) addresses at which controllers are reached
    await store.ready()         # a first committed image is there; listeners must be open by then
    ...
    await store.close(); await quorum.stop()

Rule: an epoch or a vote is on stable storage before anybody hears of it, a record before it is
counted. When either cannot be written the node takes no further part: `on_fatal` is called.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.cluster.channels import Link
from headrace.broker.quorum import wire
from headrace.broker.quorum.log_replication import Follower, Serving, check, check_member
from headrace.broker.quorum.peers import LinkFactory, Peers
from headrace.broker.quorum.raft_driver import Driver
from headrace.broker.thread_pools import Workers
from headrace.clock import Clock
from headrace.config import BrokerConfig, Listener
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.metadata.features import Ranges, VersionRange
from headrace.metadata.snapshot import encode_snapshot
from headrace.net.addresses import Address
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from headrace.protocol.messages.vote import VoteRequest
from headrace.protocol.schema import Message
from headrace.raft.messages import (
    Effects,
    Endpoint,
    LeaderAndEpoch,
    RaftSettings,
    ReplicaProgress,
    Voter,
    Voters,
)
from headrace.raft.raft_node import RaftNode
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.metadata_log import MetadataLog, QuorumStateFile, SnapshotId, SnapshotPart

if TYPE_CHECKING:
    from headrace.broker.request import RequestContext

logger = logging.getLogger(__name__)

Replayed = TypeVar("Replayed")

METADATA_TOPIC = wire.METADATA_TOPIC
METADATA_TOPIC_ID = wire.METADATA_TOPIC_ID

_RETRY_SECONDS = 0.05
# In a fetch timeout: how often a stall of this process is looked for, and fetches without news.
# The rest of the timeout is for a leader, or a machine, that is slow.
_PULSES = 8
_FETCHES = 4
_WAIT_MS_MAX = 500
_RESIGN_SECONDS = 1.0


class Quorum:
    """The metadata log and this node's vote about it. Used on the event loop's thread only."""

    def __init__(
        self,
        log: Log,
        files: Files,
        config: BrokerConfig,
        *,
        cluster_id: str | None,
        directory_id: bytes,
        clock: Clock,
        rng: Random,
        workers: Workers,
        on_fatal: Callable[[HeadraceError], None],
        link_factory: LinkFactory = Link,
    ) -> None:
        self.log = MetadataLog(log, files)
        self._config = config
        self._workers = workers
        self._clock = clock
        self._watchers: list[Callable[[], None]] = []
        peers = Peers(config, lambda: self._node.voters, link_factory)
        state_file = QuorumStateFile(files, log.directory)
        history = [(offset, wire.voters_in(record)) for offset, record in self.log.voters_records()]
        request_s = self._request_s = config.controller_quorum_request_timeout_ms / 1000
        fetch_ms = config.controller_quorum_fetch_timeout_ms
        self._node = RaftNode(
            RaftSettings(
                election_timeout_ms=config.controller_quorum_election_timeout_ms,
                election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
                fetch_timeout_ms=fetch_ms,
                has_bootstrap_servers=peers.has_bootstrap,
            ),
            config.node_id,
            directory_id,
            peers.configured_voters(config, directory_id),
            state_file.read(),
            self.log,
            rng,
            int(clock.monotonic() * 1000),
            history,
        )
        self._driver = Driver(
            self._node,
            self.log,
            state_file,
            peers,
            history,
            node_id=config.node_id,
            cluster_id=cluster_id,
            ask_seconds=min(request_s, config.controller_quorum_election_timeout_ms / 1000),
            pulse_ms=max(fetch_ms // _PULSES, 1),
            clock=clock,
            workers=workers,
            on_fatal=on_fatal,
        )
        self._driver.on_change = self._changed
        wait_ms = max(min(fetch_ms // _FETCHES, _WAIT_MS_MAX), 1)
        self._follower = Follower(self._driver, max_wait_ms=wait_ms, ask_seconds=request_s)
        self._serving = Serving(self._driver, wait_ms)

    # -- life

    def start(self, endpoints: Iterable[Listener]) -> None:
        """Take part; a single voter leads when this returns."""
        own = [Endpoint(one.name, one.host, one.port) for one in endpoints]
        self._driver.peers.set_own(own)
        self._driver.begin()

    async def stop(self) -> None:
        """Hand leadership over if there is anybody to take it, and end every task."""
        driver = self._driver
        if not driver.is_down and self.is_leader and len(self._node.voters) > 1:
            await self._resign()
        await driver.close()

    async def _resign(self) -> None:
        driver = self._driver
        driver.perform(self._node.resign(driver.now_ms()))
        await driver.asked(_RESIGN_SECONDS)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when leadership, the high watermark or the log's start has changed."""
        self._watchers.append(on_change)

    def _changed(self) -> None:
        for on_change in self._watchers:
            on_change()

    def fail(self, error: HeadraceError) -> None:
        """Take no further part; for whoever finds that the log cannot be followed."""
        self._driver.fail(error)

    # -- what is known

    @property
    def leader(self) -> LeaderAndEpoch:
        """The leader of the metadata log, who is the active controller."""
        return LeaderAndEpoch(self._node.leader_id, self._node.epoch)

    @property
    def is_leader(self) -> bool:
        return self._node.is_leader and not self._driver.is_down

    @property
    def is_recovering(self) -> bool:
        """Whether this voter lost its log or its votes, and does not vote until it is back."""
        return self._node.hard_state.recovering

    @property
    def is_confirmed(self) -> bool:
        """Whether this node leads, and nobody can have been elected in its place."""
        return self.is_leader and self._node.is_confirmed(self._driver.now_ms())

    @property
    def is_voter(self) -> bool:
        return self._node.is_voter

    @property
    def epoch_start_offset(self) -> int:
        """At a leader, the offset of the first record of its epoch."""
        return self._node.epoch_start_offset

    @property
    def high_watermark(self) -> int:
        """The end of what is committed, as far as this node knows; -1 if it does not yet."""
        return self._node.high_watermark

    @property
    def first_high_watermark(self) -> int | None:
        """What was committed when this node first heard of a leader other than itself."""
        return self._driver.first_high_watermark

    @property
    def voters(self) -> Voters:
        """Who votes; of this node itself where it is reached, which no configuration may tell."""
        return tuple(self._driver.peers.completed(voter) for voter in self._node.voters)

    @property
    def kraft_version(self) -> int:
        """The level of the feature `kraft.version`."""
        return self._driver.kraft_version

    def progress(self) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """At a leader: how far voters and observers are, with times of day."""
        now_ms = self._driver.now_ms()
        shift = self._clock.now_ms() - now_ms
        voters, observers = self._node.progress(now_ms)
        return [_shifted(one, shift) for one in voters], [_shifted(one, shift) for one in observers]

    def address_of(self, node_id: int) -> Address | None:
        """Where a controller is reached: by the configuration, by itself, or by the log."""
        return self._driver.peers.address_of(node_id)

    def controller_address(self) -> Address | None:
        """Where the leader is reached, if one is known."""
        leader_id = self.leader.leader_id
        return None if leader_id < 0 else self.address_of(leader_id)

    # -- the leader's log

    def append(self, batch: bytearray) -> int:
        """Append a batch of records as the leader; the end offset.

        KafkaError if this node leads no more, or the disk does not take it.
        """
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        self._driver.append_records(batch)
        return self.log.end_offset

    async def flushed(self) -> None:
        """Return when all that was appended is on disk here, or cannot be."""
        await self._driver.flushed()

    # -- snapshots

    async def write_snapshot(
        self, end_offset: int, records: Iterable[Message], metadata_version: int
    ) -> None:
        """Write a snapshot of what `records` say, which is the log below `end_offset`.

        `records` are taken in a worker thread. StorageError leaves everything as it was.
        """
        snapshot = SnapshotId(end_offset, self.log.epoch_before(end_offset))
        now_ms = self._clock.now_ms()
        voters = self._driver.voters_before(end_offset)
        content = encode_snapshot(
            records,
            None if voters is None else wire.voters_record(voters),
            epoch=snapshot.epoch,
            now_ms=now_ms,
            metadata_version=metadata_version,
        )
        part = await self._workers.flush(self.log.snapshots.begin, snapshot)
        await self._workers.flush(_write, part, content)
        if self._driver.is_down:
            return
        self.log.add_snapshot(snapshot, now_ms)
        await self._workers.flush(self.log.log.delete_retired, now_ms)

    def read_snapshot(
        self, replay: Callable[[Iterable[Message]], Replayed]
    ) -> tuple[Replayed, int]:
        """What the records of the newest snapshot replay to, and its end offset.

        MetadataError or StorageError if it cannot be read. May run in a worker thread.
        """
        newest = self.log.snapshots.newest
        assert newest is not None
        return replay(self.log.read_snapshot(newest).records()), newest.end_offset

    # -- requests of other nodes

    async def fetch(self, context: "RequestContext", request: FetchRequest) -> FetchResponse:
        """Answer a Fetch of the metadata log, of a follower or of an observer."""
        return await self._serving.fetch(request)

    async def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        return await self._serving.fetch_snapshot(request)

    def vote(self, request: VoteRequest) -> Message:
        """Vote or pre-vote; KafkaError if the request cannot be answered at all."""
        check_member(self._driver, request.cluster_id)
        response, effects = self._node.handle_vote(wire.decode_vote(request), self._driver.now_ms())
        return self._promise(effects, wire.encode_response(response, self.controller_address()))

    def begin_epoch(self, request: BeginQuorumEpochRequest) -> Message:
        check_member(self._driver, request.cluster_id)
        begun = wire.decode_begin_epoch(request)
        response, effects = self._node.handle_begin_epoch(begun, self._driver.now_ms())
        if response.error is ErrorCode.NONE:
            self._driver.peers.told_endpoints(
                begun.leader_id,
                [Endpoint(one.name, one.host, one.port) for one in request.leader_endpoints],
            )
        return self._promise(effects, wire.encode_response(response, self.controller_address()))

    def end_epoch(self, request: EndQuorumEpochRequest) -> Message:
        check_member(self._driver, request.cluster_id)
        response, effects = self._node.handle_end_epoch(
            wire.decode_end_epoch(request), self._driver.now_ms()
        )
        return self._promise(effects, wire.encode_response(response, self.controller_address()))

    def _promise(self, effects: Effects, response: Message) -> Message:
        """Carry out what a response promises; only then is it sent."""
        self._driver.perform(effects)
        check(self._driver, None)
        return response

    async def ranges_of(self, node_id: int) -> Ranges | None:
        """The feature levels that another voter supports, None if it does not answer."""
        request = ApiVersionsRequest(client_software_name="headrace", client_software_version="0")
        try:
            answer: ApiVersionsResponse = await self._driver.peers.link(node_id, "quorum").ask(
                request, self._request_s
            )
        except HeadraceError as error:
            logger.warning("controller %d does not tell what it supports: %s", node_id, error)
            return None
        return {
            one.name: VersionRange(one.min_version, one.max_version)
            for one in answer.supported_features
        }

    # -- changes of the voters

    async def add_voter(self, voter: Voter, timeout_s: float, *, wait: bool) -> None:
        """Make an observer a voter; returns when that is committed, or at once without `wait`."""
        await self._change_voters(
            lambda: self._node.add_voter(voter, self._driver.now_ms()), timeout_s, wait
        )

    async def record_voters(self, timeout_s: float) -> None:
        """Have the log say who votes: `kraft.version` 1; returns when that is committed."""
        await self._change_voters(
            lambda: self._node.record_voters(self._driver.now_ms()), timeout_s, True
        )

    async def remove_voter(self, node_id: int, timeout_s: float) -> None:
        """Take a voter's vote away; returns when that is committed."""
        await self._change_voters(
            lambda: self._node.remove_voter(node_id, self._driver.now_ms()), timeout_s, True
        )

    async def _change_voters(
        self, change: Callable[[], tuple[ErrorCode, Effects]], timeout_s: float, wait: bool
    ) -> None:
        driver, loop = self._driver, asyncio.get_running_loop()
        due = loop.time() + timeout_s
        while True:
            if not self.is_leader:
                raise KafkaError(ErrorCode.NOT_CONTROLLER)
            code, effects = change()
            driver.perform(effects)
            if code is ErrorCode.NONE:
                break
            if code is not ErrorCode.REQUEST_TIMED_OUT or loop.time() >= due:
                raise KafkaError(code, "the voters stay as they are")
            await asyncio.sleep(_RETRY_SECONDS)
        epoch, offset = self.leader.epoch, driver.voter_history[-1][0]
        while wait and self.high_watermark <= offset:
            if not self.is_leader or self.leader.epoch != epoch:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "whether the voters change is not known")
            if loop.time() >= due:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            await asyncio.sleep(_RETRY_SECONDS)


def _write(part: SnapshotPart, content: Iterable[bytearray]) -> None:
    try:
        for batch in content:
            part.append(batch)
        part.finish()
    except HeadraceError:
        part.discard()
        raise


def _shifted(progress: ReplicaProgress, shift_ms: int) -> ReplicaProgress:
    def day(ms: int) -> int:
        return ms if ms < 0 else ms + shift_ms

    return ReplicaProgress(
        progress.node_id,
        progress.directory_id,
        progress.end_offset,
        day(progress.last_fetch_ms),
        day(progress.last_caught_up_ms),
    )
