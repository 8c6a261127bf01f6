"""The fetcher of a consumer: choice of replica, fetch requests, checks for truncated logs.

Rule: a partition has at most one fetch in flight, and at most two completed ones
waiting; all of these and the maximum sizes of fetches in flight are bounded by `fetch_max_bytes`.
(A single batch that exceeds a limit is still fetched, or no consumer could ever read past it.)
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import PartitionInfo, TopicInfo
from headrace.client.consumer.completed_fetch import CompletedFetch, completed_fetch_of
from headrace.client.consumer.subscription import PartitionState, SubscriptionState
from headrace.client.errors import TimedOut, Unreachable, check
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import ConsumerOptions, IsolationLevel
from headrace.errors import ErrorCode, HeadraceError, KafkaError, Subject, error_code
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.types import ZERO_UUID, TopicPartition

_SESSIONLESS = -1


class PartitionFetch(NamedTuple):
    """A partition to fetch, with the state of it and its leader when the request was made."""

    state: PartitionState
    generation: int
    offset: int
    leader_epoch: int


def wanted_of(state: PartitionState, leader: PartitionInfo | None) -> PartitionFetch:
    """The fetch of one partition: its state and its position."""
    epoch = leader.leader_epoch if leader else -1
    return PartitionFetch(state, state.generation, state.fetch_offset, epoch)


class FetchedPartition(NamedTuple):
    """A partition in a Fetch response."""

    wanted: PartitionFetch
    answer: PartitionData


def fetch_request(
    cluster: ClusterClient,
    options: ConsumerOptions,
    wanted: Sequence[PartitionFetch],
    max_bytes: int,
    max_wait_ms: int,
) -> FetchRequest:
    """A fetch request without a session; brokers fill the partitions in this order."""
    topics: dict[str, FetchTopic] = {}
    for state, _, offset, leader_epoch in wanted:
        name = state.tp.topic
        if name not in topics:
            topics[name] = FetchTopic(topic=name, topic_id=_topic_id(cluster.known_topic(name)))
        topics[name].partitions.append(
            FetchPartition(
                partition=state.tp.partition,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=state.max_bytes or options.max_partition_fetch_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=options.fetch_min_bytes,
        max_bytes=max(max_bytes, *(partition.state.max_bytes for partition in wanted)),
        isolation_level=options.isolation_level,
        session_epoch=_SESSIONLESS,
        topics=list(topics.values()),
        rack_id=options.client_rack,
    )


def fetched_partitions(
    request: FetchRequest, response: FetchResponse, wanted: Sequence[PartitionFetch]
) -> list[FetchedPartition]:
    """The requested partitions of a response; later versions name topics by id."""
    names: Mapping[bytes, str] = {topic.topic_id: topic.topic for topic in request.topics}
    asked = {partition.state.tp: partition for partition in wanted}
    found = []
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id, "")
        for answer in topic.partitions:
            partition = asked.get(TopicPartition(name, answer.partition_index))
            if partition is not None:
                found.append(FetchedPartition(partition, answer))
    return found


def _topic_id(topic: TopicInfo | None) -> bytes:
    return topic.topic_id if topic else ZERO_UUID


# The broker to read a partition from: its leader, or a replica nearer to the consumer (KIP-392).
#
# A leader that knows the consumer's rack may name a replica there. Rule: the choice is valid for a
# while only, and not after an error: then the leader is asked again.


class ReadReplicas:
    """The preferred read replicas. Pure; `now` is an instant of a monotonic clock."""

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}

    def prefer(self, tp: TopicPartition, node: int, now: float) -> None:
        """Note the replica that the leader prefers for reading a partition."""
        self._preferred[tp] = (node, now + self._max_age_s)

    def preferred(self, tp: TopicPartition, now: float) -> int | None:
        """The preferred read replica of a partition, or None to read from the leader."""
        known = self._preferred.get(tp)
        if known is None:
            return None
        node, until = known
        if now >= until:
            del self._preferred[tp]
            return None
        return node

    def drop(self, tp: TopicPartition) -> bool:
        """Forget the preferred replica of a partition; returns whether there was one."""
        return self._preferred.pop(tp, None) is not None


# Position validation: whether a new leader's log still has the records that were read (KIP-320).
#
# A leader that was elected uncleanly may lack records that consumers have read, and have others at
# their offsets. It knows the end offset of the epoch of the last batch that was read: a reader past
# that offset goes back to it. A committed offset has the epoch of the record before it, so it is
# validated in the same way before a consumer starts there.


UNKNOWN = -1

_CONSUMER = -1


class UnconfirmedPosition(NamedTuple):
    """A position that the leader has not confirmed, as of the request to confirm it."""

    state: PartitionState
    generation: int
    offset: int
    epoch: int
    leader_epoch: int


def doubt_of(state: PartitionState, leader: PartitionInfo | None) -> UnconfirmedPosition:
    """The position to validate with the partition's leader."""
    leader_epoch = leader.leader_epoch if leader else UNKNOWN
    return UnconfirmedPosition(
        state, state.generation, state.fetch_offset, state.fetch_epoch, leader_epoch
    )


def is_doubtful(state: PartitionState, leader: PartitionInfo) -> bool:
    """Whether the leader is newer than the one that the last records were read from."""
    return state.fetch_epoch > UNKNOWN and leader.leader_epoch > state.leader_epoch


def is_newer_than_metadata(doubt: UnconfirmedPosition) -> bool:
    """Whether the last record read is of a newer leader epoch than the metadata has."""
    return doubt.epoch > doubt.leader_epoch


def epoch_request(doubts: Iterable[UnconfirmedPosition]) -> OffsetForLeaderEpochRequest:
    """A request for the end offsets of the epochs that were read last."""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for doubt in doubts:
        name, number = doubt.state.tp
        topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name))
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=number,
                current_leader_epoch=doubt.leader_epoch,
                leader_epoch=doubt.epoch,
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values()))


def answers_of(response: OffsetForLeaderEpochResponse) -> Mapping[TopicPartition, EpochEndOffset]:
    """The epoch end offsets of a response, by partition."""
    return {
        TopicPartition(topic.topic, partition.partition): partition
        for topic in response.topics
        for partition in topic.partitions
    }


class TruncationPoint(NamedTuple):
    """The offset at which the leader's log diverges from the records read, and the epoch before it.

    `offset` is None if the leader does not know the epoch that was read last: its log was truncated
    before that epoch, or the topic was created again.
    """

    offset: int | None
    epoch: int


def truncation_of(doubt: UnconfirmedPosition, answer: EpochEndOffset) -> TruncationPoint | None:
    """The divergence of a leader's log from the records read; None if there is none."""
    if answer.end_offset == UNKNOWN or answer.leader_epoch == UNKNOWN:
        return TruncationPoint(None, UNKNOWN)
    if answer.end_offset < doubt.offset:
        return TruncationPoint(answer.end_offset, answer.leader_epoch)
    return None


# A fetch waits at a broker, and later requests on its connection wait too. With a second connection
# a partition that was just resumed, or read empty, need not wait for one without new records.
LANES = ("fetch", "fetch-2")
# How long a fetch that leaves out some partitions of its leader waits at first, so that they can
# join the next one soon. It doubles as long as nothing comes.
SHORT_WAIT_MS = 10

NOBODY = -1

_BYTES_MAX = 0x7FFF_FFFF

_log = logging.getLogger("headrace.consumer")

_MOVED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)


@dataclass(slots=True)
class _FetchedBroker:
    """A broker that is fetched from. After a failure it is not asked before `quiet_until`."""

    free_lanes: list[str] = field(default_factory=lambda: list(reversed(LANES)))
    wait_ms: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LANES, SHORT_WAIT_MS))
    failures: int = 0
    quiet_until: float = 0.0


@dataclass(frozen=True, slots=True)
class _InFlightFetch:
    """A fetch in flight: its broker, lane and partitions, and the most bytes it may return."""

    node: int
    leader: _FetchedBroker
    lane: str
    wanted: Sequence[PartitionFetch]
    request: FetchRequest
    granted_bytes: int


class ConsumerFetcher:
    """Fetches the partitions of a subscription. For one event loop; `pump` sends due fetches.

    `on_data` is called when records can be polled, `on_error` when a partition has an error,
    `on_out_of_range` when a position does not exist (any more), `on_recreated` when its topic was
    deleted and created again, and `on_truncated` when the leader's log diverges from the records
    read, with the offset (None: unknown) and the epoch before it. `spawn` runs a task.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: ConsumerOptions,
        metrics: ConsumerMetrics,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_data: Callable[[], None],
        on_error: Callable[[PartitionState, HeadraceError], None],
        on_out_of_range: Callable[[PartitionState], None],
        on_recreated: Callable[[PartitionState], None],
        on_truncated: Callable[[PartitionState, int | None, int], None],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._metrics = metrics
        self._spawn = spawn
        self._on_data = on_data
        self._on_error = on_error
        self._on_out_of_range = on_out_of_range
        self._on_recreated = on_recreated
        self._on_truncated = on_truncated
        self._committed_only = options.isolation_level is IsolationLevel.READ_COMMITTED
        self._replicas = ReadReplicas(options.metadata_max_age_ms / 1000)
        self._leaders: dict[int, _FetchedBroker] = {}
        self._stale: set[str] = set()
        self._refreshing = False
        self._refusals = 0
        self._retry: asyncio.Handle | None = None
        self._retry_due = 0.0
        self._turn = count(1)
        self._closed = False
        # The most bytes that the fetches in flight may return.
        self.reserved_bytes = 0

    def close(self) -> None:
        """Stop sending fetches."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()

    def pump(self) -> None:
        """Send the fetches that are due."""
        if self._closed:
            return
        active: dict[int, int] = {}
        due: dict[int, list[PartitionState]] = {}
        doubtful: dict[int, list[PartitionState]] = {}
        for state in self._active_states():
            leader = self._cluster.leader_of(state.tp)
            if leader is None:
                self._stale.add(state.tp.topic)
                continue
            if self._is_recreated(state):
                self._on_recreated(state)
                continue
            node = self._node_of(state.tp, leader)
            active[node] = active.get(node, 0) + 1
            if state.is_fetchable and is_doubtful(state, leader):
                doubtful.setdefault(leader.leader, []).append(state)
            elif state.is_fetchable:
                due.setdefault(node, []).append(state)
        if self._stale and not self._refreshing:
            self._refreshing = True
            self._spawn(self._refresh())
        now = self._cluster.clock.monotonic()
        for node in [node for node in self._leaders if node not in active]:
            # A leader whose fetch failed may seem to lead nothing only while metadata is refreshed.
            idle = self._leaders[node]
            if len(idle.free_lanes) == len(LANES) and idle.quiet_until <= now:
                del self._leaders[node]
        for node, partitions in doubtful.items():
            self._validate_positions(node, partitions)
        for node, partitions in due.items():
            self._start(node, partitions, active[node])

    def _node_of(self, tp: TopicPartition, leader: PartitionInfo) -> int:
        """The broker to read a partition from."""
        nearer = self._replicas.preferred(tp, self._cluster.clock.monotonic())
        if nearer is None or nearer not in self._cluster.view.brokers:
            return leader.leader
        return nearer

    def _is_recreated(self, state: PartitionState) -> bool:
        """Whether a position is in a topic that was deleted, and created again by that name."""
        topic_id = _topic_id(self._cluster.known_topic(state.tp.topic))
        with self._subscription.lock:
            return not self._subscription.is_in_topic(state, topic_id)

    def _active_states(self) -> list[PartitionState]:
        with self._subscription.lock:
            return [
                state
                for state in self._subscription.states.values()
                if state.given is not None and not state.is_paused and not state.is_revoked
            ]

    def _start(self, node: int, due: list[PartitionState], active: int) -> None:
        """Fetch due partitions from a broker, unless it is busy or failing, or there is no room."""
        leader = self._leaders.setdefault(node, _FetchedBroker())
        quiet_s = leader.quiet_until - self._cluster.clock.monotonic()
        if quiet_s > 0:
            self._pump_later(quiet_s)
            return
        if not leader.free_lanes:
            return
        # A larger share for one leader would leave none for the others while it has nothing.
        share = max(self._options.fetch_max_bytes // (len(LANES) * len(self._leaders)), 1)
        granted = min(share, len(due) * self._options.max_partition_fetch_bytes)
        # Brokers fill responses in the order of the request: partitions that had data go last.
        due.sort(key=lambda state: state.served)
        with self._subscription.lock:
            held = self._subscription.buffered_bytes + self.reserved_bytes
            if held + granted > self._options.fetch_max_bytes:
                return
            wanted = [wanted_of(state, self._cluster.leader_of(state.tp)) for state in due]
            for state in due:
                state.in_flight = True
        lane = leader.free_lanes.pop()
        wait_ms = self._options.fetch_max_wait_ms
        if len(due) < active:
            wait_ms = min(leader.wait_ms[lane], wait_ms)
        request = fetch_request(self._cluster, self._options, wanted, granted, wait_ms)
        self.reserved_bytes += granted
        self._spawn(self._fetch(_InFlightFetch(node, leader, lane, wanted, request, granted)))

    async def _fetch(self, flight: _InFlightFetch) -> None:
        cluster, leader, lane = self._cluster, flight.leader, flight.lane
        try:
            connection = await cluster.connection(flight.node, cluster.deadline(), lane=lane)
            begun = cluster.clock.monotonic()
            response = await connection.ask(flight.request, cluster.request_timeout_s)
            check(response.error_code, subject=Subject("fetch"))
            cluster.hear_brokers(response.node_endpoints)
            answers = fetched_partitions(flight.request, response, flight.wanted)
            completed_fetches = self._take(flight, answers)
            self._metrics.fetch_done(
                cluster.clock.monotonic() - begun,
                sum(completed.size for completed in completed_fetches),
                sum(completed.record_count for completed in completed_fetches),
            )
            leader.failures = 0
            leader.wait_ms[lane] = SHORT_WAIT_MS if completed_fetches else leader.wait_ms[lane] * 2
            leader.wait_ms[lane] = min(leader.wait_ms[lane], self._options.fetch_max_wait_ms)
        except (ConnectionFailed, Unreachable, TimedOut, KafkaError) as error:
            completed_fetches = []
            self._failed(flight, error)
        finally:
            leader.free_lanes.append(lane)
            self.reserved_bytes -= flight.granted_bytes
            with self._subscription.lock:
                for partition in flight.wanted:
                    if partition.state.generation == partition.generation:
                        partition.state.in_flight = False
        # The next fetch leaves before the application wakes up and takes the processor.
        self.pump()
        if completed_fetches:
            self._on_data()

    def _take(
        self, flight: _InFlightFetch, answers: Sequence[FetchedPartition]
    ) -> list[CompletedFetch]:
        """Put fetched data into the buffers of partitions that still want it."""
        completed_fetches = []
        refused = False
        for wanted, answer in answers:
            if answer.error_code:
                refused = True
                self._refused(flight.node, wanted, answer)
                continue
            if answer.preferred_read_replica not in (NOBODY, flight.node):
                now = self._cluster.clock.monotonic()
                self._replicas.prefer(wanted.state.tp, answer.preferred_read_replica, now)
            completed = None
            if answer.records:
                aborted = answer.aborted_transactions if self._committed_only else None
                completed = completed_fetch_of(answer.records, wanted.offset, aborted)
            if self._add(wanted, answer, completed) and completed is not None:
                completed_fetches.append(completed)
        if not refused:
            self._refusals = 0
        return completed_fetches

    def _add(
        self, wanted: PartitionFetch, answer: PartitionData, completed: CompletedFetch | None
    ) -> bool:
        state = wanted.state
        with self._subscription.lock:
            if not self._subscription.is_current(state, wanted.generation):
                return False
            state.high_watermark = answer.high_watermark
            state.last_stable_offset = answer.last_stable_offset
            state.log_start_offset = answer.log_start_offset
            if completed is not None:
                self._subscription.add(state, wanted.generation, completed)
                state.leader_epoch = wanted.leader_epoch
                state.served = next(self._turn)
                state.max_bytes = 0
            elif answer.records:
                # Not one whole batch fits the requested size, so a larger size has to be requested.
                asked = state.max_bytes or self._options.max_partition_fetch_bytes
                state.max_bytes = min(asked * 2, _BYTES_MAX)
            position = state.position
        end = answer.last_stable_offset if self._committed_only else answer.high_watermark
        if position is not None:
            self._metrics.lag(state.tp, max(end - position, 0))
        return True

    def _failed(self, flight: _InFlightFetch, error: HeadraceError) -> None:
        """Pause fetching from a failed broker, and refresh the leaders of its partitions."""
        leader = flight.leader
        for partition in flight.wanted:
            self._replicas.drop(partition.state.tp)
        log = _log.debug if leader.failures else _log.warning
        log("%s: fetching from broker %d failed: %s", self._cluster.client_id, flight.node, error)
        delay_s = self._cluster.backoff.delay_s(leader.failures, self._cluster.rng)
        leader.failures += 1
        leader.quiet_until = self._cluster.clock.monotonic() + delay_s
        if isinstance(error, KafkaError) and not self._cluster.passes(error):
            for partition in flight.wanted:
                self._report_error(partition, error)
        else:
            self._cluster.forget({partition.state.tp.topic for partition in flight.wanted})

    def _refused(self, node: int, wanted: PartitionFetch, answer: PartitionData) -> None:
        """Handle the error of one partition in a response."""
        state = wanted.state
        code = error_code(answer.error_code)
        error = KafkaError(code, f"{state.tp}: fetch failed at offset {wanted.offset}")
        was_nearer = self._replicas.drop(state.tp)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and not was_nearer:
            with self._subscription.lock:
                current = self._subscription.is_current(state, wanted.generation)
                # Records fetched before are read first; the next fetch leads back to here.
                state.is_out_of_range = current
                current = current and not state.completed_fetches
            if current:
                self._on_out_of_range(state)
        elif (
            code is ErrorCode.OFFSET_OUT_OF_RANGE
            or code in _MOVED
            or (
                # The leader may have records that a follower lacks; it is asked next.
                self._cluster.passes(error) and code is not ErrorCode.CORRUPT_MESSAGE
            )
        ):
            leader = answer.current_leader
            if self._cluster.hear_leader(state.tp, leader.leader_id, leader.leader_epoch, node):
                return
            self._lost(state.tp)
        else:
            self._report_error(wanted, error)

    def _lost(self, tp: TopicPartition) -> None:
        """Refresh the leader of a partition, after a pause."""
        self._refusals += 1
        self._stale.add(tp.topic)
        self._cluster.forget([tp.topic])

    def _validate_positions(self, node: int, doubtful: list[PartitionState]) -> None:
        with self._subscription.lock:
            doubts = [doubt_of(state, self._cluster.leader_of(state.tp)) for state in doubtful]
            for state in doubtful:
                state.in_flight = True
        self._spawn(self._confirm(node, doubts))

    async def _confirm(self, node: int, doubts: Sequence[UnconfirmedPosition]) -> None:
        """Validate positions with a new leader (KIP-320)."""
        cluster = self._cluster
        try:
            asked = await self._current(doubts)
            if asked:
                response = await cluster.call(epoch_request(asked), cluster.deadline(), node)
                answers = answers_of(response)
                for doubt in asked:
                    self._confirmed(doubt, answers.get(doubt.state.tp))
        except (ConnectionFailed, Unreachable, TimedOut, KafkaError) as error:
            if isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
                for doubt in doubts:
                    doubt.state.leader_epoch = doubt.leader_epoch
            else:
                for doubt in doubts:
                    self._lost(doubt.state.tp)
        finally:
            with self._subscription.lock:
                for doubt in doubts:
                    if doubt.state.generation == doubt.generation:
                        doubt.state.in_flight = False
        self.pump()

    async def _current(self, doubts: Sequence[UnconfirmedPosition]) -> list[UnconfirmedPosition]:
        """The positions whose leader is still current; metadata that may be stale is refreshed
        first.

        A leader of the past does not know epochs after its own, so its answer would not count.
        """
        cluster = self._cluster
        topics = {doubt.state.tp.topic for doubt in doubts if is_newer_than_metadata(doubt)}
        if not topics:
            return list(doubts)
        await cluster.refresh(sorted(topics), cluster.deadline())
        known = [(doubt, cluster.leader_of(doubt.state.tp)) for doubt in doubts]
        return [
            doubt
            for doubt, leader in known
            if leader is not None and leader.leader_epoch == doubt.leader_epoch
        ]

    def _confirmed(self, doubt: UnconfirmedPosition, answer: EpochEndOffset | None) -> None:
        state = doubt.state
        if answer is None or answer.error_code:
            self._lost(state.tp)
            return
        truncation = truncation_of(doubt, answer)
        with self._subscription.lock:
            if not self._subscription.is_current(state, doubt.generation):
                return
            state.leader_epoch = doubt.leader_epoch
        if truncation is not None:
            self._on_truncated(state, truncation.offset, truncation.epoch)

    def _report_error(self, wanted: PartitionFetch, error: HeadraceError) -> None:
        with self._subscription.lock:
            current = self._subscription.is_current(wanted.state, wanted.generation)
        if current:
            self._on_error(wanted.state, error)

    async def _refresh(self) -> None:
        """Refresh the topics of partitions without a known leader, until every leader is known."""
        attempts = self._refusals
        while self._stale:
            if attempts:
                await asyncio.sleep(self._cluster.backoff.delay_s(attempts - 1, self._cluster.rng))
            attempts += 1
            names, self._stale = self._stale, set()
            try:
                await self._cluster.refresh(sorted(names), self._cluster.deadline())
            except (ConnectionFailed, Unreachable, TimedOut, KafkaError):
                self._stale |= names
            # Partitions that still have no leader are found by this, and refreshed again.
            self.pump()
        self._refreshing = False

    def _pump_later(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        if self._retry is not None:
            if self._retry_due <= due:
                return
            self._retry.cancel()
        self._retry, self._retry_due = loop.call_later(delay_s, self._pump_again), due

    def _pump_again(self) -> None:
        self._retry = None
        self.pump()
