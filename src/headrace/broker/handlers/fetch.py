"""Fetch: batches from each wanted partition, now or when there are enough of them.

Consumers get what is committed, from the leader or from a follower near them (KIP-392); those of
isolation level READ_COMMITTED only up to the first transaction that is not decided, and with which
ones were aborted. Followers get all that the leader has, and by what they ask for they tell it how
much they have.
"""

from collections.abc import Awaitable, Mapping
from math import inf
from typing import NamedTuple

from headrace.broker.cluster.endpoints import HINTED, LeaderHint, leader_hint
from headrace.broker.fetch_purgatory import DelayedFetch
from headrace.broker.fetch_sessions import FetchPlan, ReadLimit, WantedPartition, replica_of
from headrace.broker.quorum.wire import METADATA_TOPIC_ID
from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import BrokerImage
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from headrace.protocol.records import scan_headers
from headrace.replication.leader import LeaderState
from headrace.replication.throttle import Throttle, is_throttled
from headrace.storage import aborted_index
from headrace.storage.files import Block
from headrace.storage.log import Log
from headrace.types import Buffer


def nearest_replica(
    leadership: LeaderState, offset: int, rack: str, brokers: Mapping[int, BrokerImage]
) -> int:
    """The id of the replica in `rack` that has the most, if it has `offset`; else the leader's.

    Only such are chosen as are alive and in sync, and the leader itself if it is in that rack.
    """
    leader_id = leadership.node_id
    nearest, most = leader_id, -1
    for broker_id in (leader_id, *leadership.followers):
        broker = brokers.get(broker_id)
        if broker is None or broker.fenced or broker.rack != rack:
            continue
        if broker_id == leader_id:
            return leader_id
        follower = leadership.followers[broker_id]
        if broker_id in leadership.isr and (
            max(most + 1, offset) <= follower.log_end_offset and follower.log_start_offset <= offset
        ):
            nearest, most = broker_id, follower.log_end_offset
    return nearest


_ANY_REPLICA_SINCE = 11
_TOPIC_IDS_SINCE = 13
_LEADER_HINTS_SINCE = 16
_READ_COMMITTED = 1


class _ColdRead(NamedTuple):
    """A read that would have to wait for the disk, to be done by a worker."""

    log: Log
    offset: int
    bytes_max: int
    limit: int
    at_least_one: bool
    committed_only: bool
    throttled: bool
    result: PartitionData


class _Round:
    """One pass over the wanted partitions; only the first one of a fetch tells of its follower."""

    def __init__(
        self, context: RequestContext, request: FetchRequest, plan: FetchPlan, *, first: bool
    ) -> None:
        self._context = context
        self._session = plan.session
        self._replica_id, self._replica_epoch = replica_of(request)
        self.is_follower = self._replica_id >= 0
        self._rack = "" if self.is_follower else request.rack_id
        self._first = first
        self._now_ms = context.node.clock.now_ms()
        self._limit = ReadLimit.HIGH_WATERMARK
        if self.is_follower:
            self._limit = ReadLimit.LOG_END
        elif request.isolation_level == _READ_COMMITTED:
            self._limit = ReadLimit.LAST_STABLE
        self._committed_only = self._limit is ReadLimit.LAST_STABLE
        self._purgatory = context.node.fetch_purgatory
        self._outgoing = context.node.outgoing
        self._bytes_left = min(
            request.max_bytes, context.node.config.fetch_max_bytes, self._outgoing.room_bytes
        )
        self._hints: dict[int, LeaderHint] = {}
        self.byte_count = 0
        self.urgent = False
        self._has_news = False
        self.throttled_s = 0.0
        self.cold: list[_ColdRead] = []
        self.partitions: list[tuple[WantedPartition, Partition]] = []
        self.results = [self._read(one) for one in plan.wanted]

    def _read(self, one: WantedPartition) -> PartitionData:
        topic = one.topic
        try:
            if self._context.version >= _TOPIC_IDS_SINCE:
                topic = self._context.node.replicas.name_of(one.topic_id) or ""
                if not topic:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            return self._read_partition(topic, one)
        except KafkaError as error:
            self.urgent = True
            result = PartitionData(
                partition_index=one.partition,
                error_code=error.code,
                high_watermark=-1,
                aborted_transactions=None,
                records=b"",
            )
            if error.code in HINTED and self._context.version >= _LEADER_HINTS_SINCE:
                self._hint(topic, result)
            return result

    def _read_partition(self, topic: str, one: WantedPartition) -> PartitionData:
        replicas = self._context.node.replicas
        is_follower = self.is_follower
        if is_follower or self._context.version < _ANY_REPLICA_SINCE:
            partition = replicas.leader_of(topic, one.partition)
        else:
            partition = replicas.replica_of(topic, one.partition)
        partition.check_epoch(one.leader_epoch)
        log = partition.log
        result = PartitionData(
            partition_index=one.partition,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._committed_only else None,
            records=b"",
        )
        diverges = one.last_fetched_epoch >= 0 and self._diverges(log, one, result)
        if is_follower and self._first and not diverges:
            self._note_follower(partition, one)
        # After that, because what the follower has may be what was waited for.
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.last_stable_offset
        one.limit = self._limit
        if self._committed_only:
            one.saw_stable(result.last_stable_offset, result.high_watermark)
        self.partitions.append((one, partition))
        if diverges or (self._rack and self._is_better_read_elsewhere(partition, one, result)):
            self.urgent = True
            return result
        limit = log.log_end_offset if is_follower else result.high_watermark
        if self._committed_only:
            limit = result.last_stable_offset
        if one.fetch_offset > limit and not partition.is_leader:
            if one.fetch_offset > log.log_end_offset:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "this replica is behind")
            return result
        throttled = is_follower and self._is_throttled(partition)
        if throttled and (wait_s := self._throttle().wait_s(self._context.node.clock.monotonic())):
            self.throttled_s = wait_s
            return result
        self._read_log(log, one, limit, throttled, result)
        if self._session is not None and one.fetch_offset == limit:
            self._settle(one, partition, result)
        return result

    def _read_log(
        self, log: Log, one: WantedPartition, limit: int, throttled: bool, result: PartitionData
    ) -> None:
        bytes_max = max(min(one.bytes_max, self._bytes_left), 0)
        at_least_one = self.byte_count == 0 and not self.cold
        if not bytes_max and not at_least_one:
            return  # There is no room; a reader of thousands must not cost a look at each file.
        found = log.read_cached(one.fetch_offset, bytes_max, limit, at_least_one=at_least_one)
        aborted: list[aborted_index.AbortedTransaction] | None = []
        if found is not None and found.records and self._committed_only:
            end = _end_of(found.records, one.fetch_offset)
            aborted = log.aborted_transactions_cached(one.fetch_offset, end)
        if found is None or aborted is None:
            cold = _ColdRead(
                log,
                one.fetch_offset,
                bytes_max,
                limit,
                at_least_one,
                self._committed_only,
                throttled,
                result,
            )
            self.cold.append(cold)
            self._bytes_left -= bytes_max
        elif found.records:
            self._take(result, found.records, aborted)
            self.byte_count += len(found.records)
            self._bytes_left -= len(found.records)
            if throttled:
                self._throttle().record(len(found.records), self._context.node.clock.monotonic())

    def _take(
        self,
        result: PartitionData,
        records: Buffer,
        aborted: list[aborted_index.AbortedTransaction],
    ) -> None:
        result.records = self._outgoing.hold(records)
        if aborted:
            result.aborted_transactions = [
                AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
                for one in aborted
            ]

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether a follower that is not in sync shares in the rate for moved replicas."""
        throttled = partition.config.leader_replication_throttled_replicas
        return (
            bool(throttled)
            and self._replica_id not in partition.isr
            and is_throttled(throttled, partition.name.partition, self._context.node.node_id)
        )

    def _throttle(self) -> Throttle:
        node = self._context.node
        rate = node.config.leader_replication_throttled_rate
        if node.leader_throttle.rate != rate:
            node.leader_throttle.change_rate(rate, node.clock.monotonic())
        return node.leader_throttle

    def _settle(self, one: WantedPartition, partition: Partition, result: PartitionData) -> None:
        """Leave a partition alone whose reader has it all, and knows that."""
        assert self._session is not None
        if (
            result.high_watermark == one.told_high_watermark
            and result.log_start_offset == one.told_log_start_offset
        ):
            if self.is_follower and self._replica_id not in partition.isr:
                # It is looked at in every fetch until it is in sync: what it said last may have
                # been overtaken by something that it said before, on another connection.
                self._purgatory.watch(partition, one)
            elif self._session.settle(one):
                self._purgatory.watch(partition, one)
        else:
            self._has_news = True

    def _note_follower(self, partition: Partition, one: WantedPartition) -> None:
        log = partition.log
        if log.log_start_offset <= one.fetch_offset <= log.log_end_offset:
            partition.follower_fetched(
                self._replica_id,
                self._replica_epoch,
                one.fetch_offset,
                self._now_ms,
                one.log_start_offset,
            )

    def _diverges(self, log: Log, one: WantedPartition, result: PartitionData) -> bool:
        """Whether the fetcher's log went another way than ours (KIP-595)."""
        epoch, end_offset = log.end_offset_for_epoch(one.last_fetched_epoch)
        if end_offset < 0 or (epoch == one.last_fetched_epoch and end_offset >= one.fetch_offset):
            return False
        result.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return True

    def _is_better_read_elsewhere(
        self, partition: Partition, one: WantedPartition, result: PartitionData
    ) -> bool:
        node = self._context.node
        if node.config.replica_selector_class is None or partition.leadership is None:
            return False
        nearest = nearest_replica(
            partition.leadership, one.fetch_offset, self._rack, node.store.image.brokers
        )
        if nearest == node.node_id:
            return False
        result.preferred_read_replica = nearest
        return True

    def _hint(self, topic: str, result: PartitionData) -> None:
        hint = leader_hint(self._context, topic, result.partition_index)
        if hint is not None:
            result.current_leader = LeaderIdAndEpoch(
                leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
            )
            self._hints[hint.leader_id] = hint

    def park(self, bytes_needed: int, timeout_s: float) -> DelayedFetch:
        """Wait for more than was read."""
        session = self._session
        if session is None:
            return self._purgatory.park(self.partitions, bytes_needed, timeout_s)
        delayed = self._purgatory.park_session(session, self.partitions, bytes_needed, timeout_s)
        if self._has_news and session.is_follower:
            delayed.hurry()
        return delayed

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        """Where the leaders are that refusals name."""
        return [
            NodeEndpoint(node_id=hint.leader_id, host=hint.host, port=hint.port, rack=hint.rack)
            for hint in self._hints.values()
        ]

    async def read_cold(self) -> None:
        """Do the reads that wait for the disk, in worker threads."""
        for cold in self.cold:
            try:
                records, aborted = await self._context.node.workers.read(_read_cold, cold)
            except KafkaError as error:
                cold.result.error_code = error.code
                continue
            self._take(cold.result, records, aborted)
            if cold.throttled:
                self._throttle().record(len(records), self._context.node.clock.monotonic())


def _read_cold(cold: _ColdRead) -> tuple[Block, list[aborted_index.AbortedTransaction]]:
    log, offset = cold.log, cold.offset
    found = log.read(offset, cold.bytes_max, cold.limit, at_least_one=cold.at_least_one)
    aborted = []
    if cold.committed_only and found.records:
        aborted = log.aborted_transactions(offset, _end_of(found.records, offset))
    return Block(found.records), aborted


def _end_of(records: Buffer, offset: int) -> int:
    """The offset behind the last whole batch, of which there may be none."""
    headers = scan_headers(records)
    return headers[-1].next_offset if headers else offset


def fetch(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    if request.topics and request.topics[0].topic_id == METADATA_TOPIC_ID:
        return context.node.quorum.fetch(context, request)
    try:
        now_ms = int(context.node.clock.monotonic() * 1000)
        plan = context.node.fetch_sessions.plan(request, now_ms)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    first = _Round(context, request, plan, first=True)
    if first.cold:
        return _answer_cold(first, plan)
    if (
        first.byte_count >= request.min_bytes
        or first.urgent
        or request.max_wait_ms <= 0
        or not (plan.session.partitions if plan.session is not None else first.partitions)
        or context.node.closing
    ):
        return plan.respond(first.results, first.endpoints)
    # Watched from this moment on, so that no append can slip by before the task below runs.
    delayed = first.park(
        request.min_bytes - first.byte_count,
        min(request.max_wait_ms / 1000, first.throttled_s or inf),
    )
    return _answer_delayed(context, request, plan, delayed)


async def _answer_cold(done: _Round, plan: FetchPlan) -> FetchResponse:
    await done.read_cold()
    return plan.respond(done.results, done.endpoints)


async def _answer_delayed(
    context: RequestContext, request: FetchRequest, plan: FetchPlan, delayed: DelayedFetch
) -> FetchResponse:
    await delayed.ready
    plan.look_again()
    second = _Round(context, request, plan, first=False)
    if second.cold:
        await second.read_cold()
    return plan.respond(second.results, second.endpoints)
