"""This node in the quorum that keeps the metadata log: the shell around `raft.RaftNode`.

Construction and use:

    quorum = Quorum(log, files, config, cluster_id=..., directory_id=..., clock=..., rng=...,
                    workers=..., on_fatal=stop_the_process)
    store = MetadataStore(quorum, config, clock, workers)
    quorum.start(endpoints)     # own (name, host, port) addresses at which controllers are reached
    await store.ready()         # a first committed image is there; listeners must be open by then
    ...
    await store.close(); await quorum.stop()

Rule: an epoch or a vote is on stable storage before another node learns of it, a record before it
counts as replicated. If either cannot be written the node leaves the quorum: `on_fatal` is called.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.cluster.channels import NodeChannel
from headrace.broker.quorum import wire
from headrace.broker.quorum.log_replication import (
    MetadataLogFetcher,
    MetadataLogServer,
    check_request,
    check_voter_request,
)
from headrace.broker.quorum.peers import ChannelFactory, QuorumPeers
from headrace.broker.quorum.raft_driver import RaftDriver
from headrace.broker.thread_pools import ThreadPools
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
    LeaderAndEpoch,
    RaftEffects,
    RaftSettings,
    ReplicaProgress,
    Voter,
    VoterEndpoint,
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
# Per fetch timeout: checks for a stall of this process, and fetches while there are no records. The
# rest of the timeout tolerates a slow leader or machine.
_PULSES = 8
_FETCHES = 4
_WAIT_MS_MAX = 500
_RESIGN_SECONDS = 1.0


class QuorumNode:
    """The metadata log, and this node as its voter or observer. For the loop's thread only."""

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
        workers: ThreadPools,
        on_fatal: Callable[[HeadraceError], None],
        link_factory: ChannelFactory = NodeChannel,
    ) -> None:
        self.log = MetadataLog(log, files)
        self._config = config
        self._workers = workers
        self._clock = clock
        self._watchers: list[Callable[[], None]] = []
        peers = QuorumPeers(config, lambda: self._node.voters, link_factory)
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
            state_file.load(),
            self.log,
            rng,
            int(clock.monotonic() * 1000),
            history,
        )
        self._driver = RaftDriver(
            self._node,
            self.log,
            state_file,
            peers,
            history,
            node_id=config.node_id,
            cluster_id=cluster_id,
            request_seconds=min(request_s, config.controller_quorum_election_timeout_ms / 1000),
            pulse_ms=max(fetch_ms // _PULSES, 1),
            clock=clock,
            workers=workers,
            on_fatal=on_fatal,
        )
        self._driver.on_change = self._changed
        wait_ms = max(min(fetch_ms // _FETCHES, _WAIT_MS_MAX), 1)
        self._follower = MetadataLogFetcher(
            self._driver, max_wait_ms=wait_ms, request_seconds=request_s
        )
        self._serving = MetadataLogServer(self._driver, wait_ms)

    # -- start and stop

    def start(self, endpoints: Iterable[Listener]) -> None:
        """Join the quorum; a single voter leads when this returns."""
        own = [VoterEndpoint(listener.name, listener.host, listener.port) for listener in endpoints]
        self._driver.peers.set_own(own)
        self._driver.begin()

    async def stop(self) -> None:
        """Resign leadership if there are other voters, and end every task."""
        driver = self._driver
        if not driver.is_down and self.is_leader and len(self._node.voters) > 1:
            await self._resign()
        await driver.close()

    async def _resign(self) -> None:
        driver = self._driver
        driver.perform(self._node.resign(driver.now_ms()))
        await driver.wait_for_requests(_RESIGN_SECONDS)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when leadership, the high watermark or the log's start has changed."""
        self._watchers.append(on_change)

    def _changed(self) -> None:
        for on_change in self._watchers:
            on_change()

    def fail(self, error: HeadraceError) -> None:
        """Leave the quorum for good, because the metadata log cannot be replayed."""
        self._driver.fail(error)

    # -- state

    @property
    def leader(self) -> LeaderAndEpoch:
        """The leader of the metadata log, which is the active controller."""
        return LeaderAndEpoch(self._node.leader_id, self._node.epoch)

    @property
    def is_leader(self) -> bool:
        return self._node.is_leader and not self._driver.is_down

    @property
    def is_recovering(self) -> bool:
        """Whether this voter lost its log or its votes, and does not vote until recovered."""
        return self._node.hard_state.recovering

    @property
    def is_confirmed(self) -> bool:
        """Whether this node leads, and no other can have been elected in its place."""
        return self.is_leader and self._node.is_confirmed(self._driver.now_ms())

    @property
    def is_voter(self) -> bool:
        return self._node.is_voter

    @property
    def epoch_start_offset(self) -> int:
        """On the leader, the offset of the first record of its epoch."""
        return self._node.epoch_start_offset

    @property
    def high_watermark(self) -> int:
        """The end offset of the committed records, as far as known here; -1 if not yet known."""
        return self._node.high_watermark

    @property
    def first_high_watermark(self) -> int | None:
        """The high watermark in the first response of another leader; None before."""
        return self._driver.first_high_watermark

    @property
    def voters(self) -> Voters:
        """The voters; this node with its own endpoints, which its configuration may not have."""
        return tuple(self._driver.peers.with_own_endpoints(voter) for voter in self._node.voters)

    @property
    def kraft_version(self) -> int:
        """The level of the feature `kraft.version`."""
        return self._driver.kraft_version

    def progress(self) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """On the leader, the progress of voters and of observers, with wall-clock times."""
        now_ms = self._driver.now_ms()
        shift = self._clock.now_ms() - now_ms
        voters, observers = self._node.progress(now_ms)
        return (
            [_with_wall_times(replica, shift) for replica in voters],
            [_with_wall_times(replica, shift) for replica in observers],
        )

    def address_of(self, node_id: int) -> Address | None:
        """The address of a controller: from the configuration, from itself, or from the log."""
        return self._driver.peers.address_of(node_id)

    def controller_address(self) -> Address | None:
        """The address of the leader; None if no leader is known."""
        leader_id = self.leader.leader_id
        return None if leader_id < 0 else self.address_of(leader_id)

    # -- the leader's log

    def append(self, batch: bytearray) -> int:
        """Append a batch of records as the leader, and return the end offset.

        KafkaError if this node leads no more, or the disk does not take it.
        """
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        self._driver.append_records(batch)
        return self.log.end_offset

    async def wait_until_flushed(self) -> None:
        """Return when all appended records are on this node's disk, or it has failed."""
        await self._driver.wait_until_flushed()

    # -- snapshots

    async def write_snapshot(
        self, end_offset: int, records: Iterable[Message], metadata_version: int
    ) -> None:
        """Write a snapshot of `records`, which stand for the log below `end_offset`.

        `records` are iterated in a worker thread. StorageError leaves everything as it was.
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
        """Replay the records of the newest snapshot; the result, and the end offset.

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
        check_voter_request(self._driver, request.cluster_id)
        response, effects = self._node.handle_vote(wire.decode_vote(request), self._driver.now_ms())
        return self._perform_then_respond(
            effects, wire.encode_response(response, self.controller_address())
        )

    def begin_epoch(self, request: BeginQuorumEpochRequest) -> Message:
        check_voter_request(self._driver, request.cluster_id)
        begun = wire.decode_begin_epoch(request)
        response, effects = self._node.handle_begin_epoch(begun, self._driver.now_ms())
        if response.error is ErrorCode.NONE:
            self._driver.peers.learn_endpoints(
                begun.leader_id,
                [
                    VoterEndpoint(endpoint.name, endpoint.host, endpoint.port)
                    for endpoint in request.leader_endpoints
                ],
            )
        return self._perform_then_respond(
            effects, wire.encode_response(response, self.controller_address())
        )

    def end_epoch(self, request: EndQuorumEpochRequest) -> Message:
        check_voter_request(self._driver, request.cluster_id)
        response, effects = self._node.handle_end_epoch(
            wire.decode_end_epoch(request), self._driver.now_ms()
        )
        return self._perform_then_respond(
            effects, wire.encode_response(response, self.controller_address())
        )

    def _perform_then_respond(self, effects: RaftEffects, response: Message) -> Message:
        """Carry out the effects that a response depends on; only then may it be sent."""
        self._driver.perform(effects)
        check_request(self._driver, None)
        return response

    async def feature_ranges_of(self, node_id: int) -> Ranges | None:
        """The feature levels that another voter supports; None if it does not answer."""
        answer = await self._versions_of(node_id)
        if answer is None:
            return None
        return {
            feature.name: VersionRange(feature.min_version, feature.max_version)
            for feature in answer.supported_features
        }

    async def served_apis_of(self, node_id: int) -> frozenset[int] | None:
        """The keys of the APIs that another voter serves; None if it does not answer."""
        answer = await self._versions_of(node_id)
        return None if answer is None else frozenset(api.api_key for api in answer.api_keys)

    async def _versions_of(self, node_id: int) -> ApiVersionsResponse | None:
        request = ApiVersionsRequest(client_software_name="headrace", client_software_version="0")
        try:
            answer: ApiVersionsResponse = await self._driver.peers.link(node_id, "quorum").ask(
                request, self._request_s
            )
        except HeadraceError as error:
            logger.warning(
                "controller %d did not answer which features it supports: %s", node_id, error
            )
            return None
        return answer

    # -- changes of the voters

    async def add_voter(self, voter: Voter, timeout_s: float, *, wait: bool) -> None:
        """Make an observer a voter; returns when that is committed, or at once without `wait`."""
        await self._change_voters(
            lambda: self._node.add_voter(voter, self._driver.now_ms()), timeout_s, wait
        )

    async def record_voters(self, timeout_s: float) -> None:
        """Write the voters into the log (`kraft.version` 1); returns when that is committed."""
        await self._change_voters(
            lambda: self._node.record_voters(self._driver.now_ms()), timeout_s, True
        )

    async def remove_voter(self, node_id: int, timeout_s: float) -> None:
        """Remove a voter; returns when that is committed."""
        await self._change_voters(
            lambda: self._node.remove_voter(node_id, self._driver.now_ms()), timeout_s, True
        )

    async def _change_voters(
        self, change: Callable[[], tuple[ErrorCode, RaftEffects]], timeout_s: float, wait: bool
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


def _with_wall_times(progress: ReplicaProgress, shift_ms: int) -> ReplicaProgress:
    def wall_ms(ms: int) -> int:
        return ms if ms < 0 else ms + shift_ms

    return ReplicaProgress(
        progress.node_id,
        progress.directory_id,
        progress.end_offset,
        wall_ms(progress.last_fetch_ms),
        wall_ms(progress.last_caught_up_ms),
    )
