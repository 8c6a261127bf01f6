"""Fetch: batches from each requested partition, at once or when there are enough bytes.

Consumers get committed records, from the leader or from a follower near them (KIP-392); those of
isolation level READ_COMMITTED only up to the first open transaction, with a list of the aborted
transactions. Followers get all records of the leader, and their fetch offsets tell it how much they
have.
"""

from collections.abc import Awaitable, Mapping
from math import inf
from typing import NamedTuple

from headrace.broker.cluster.endpoints import HINTED, LeaderHint, leader_hint
from headrace.broker.fetch_purgatory import DelayedFetch
from headrace.broker.fetch_sessions import FetchIsolation, FetchPlan, SessionPartition, replica_of
from headrace.broker.quorum.wire import METADATA_TOPIC_ID
from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.errors import CorruptBatch, ErrorCode, KafkaError
from headrace.metadata.image import BrokerImage
from headrace.metrics import catalog
from headrace.protocol.batch import byte_view, check_batch, end_offset, first_encrypted
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from headrace.replication.leader import LeaderState
from headrace.replication.throttle import Throttle, is_throttled
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from headrace.security.authorization import ALLOW_ALL
from headrace.storage import aborted_index
from headrace.storage.files import Block
from headrace.storage.log import Log
from headrace.storage.log_segments import sound_headers
from headrace.types import Buffer


def nearest_replica(
    leadership: LeaderState, offset: int, rack: str, brokers: Mapping[int, BrokerImage]
) -> int:
    """The id of the replica in `rack` that has the most records, if it has `offset`; else the
    leader's.

    Only replicas that are alive and in sync are chosen, and the leader if it is in that rack.
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
# What one fetch may have decrypted on the event loop; more is for a worker thread.
_DECRYPTED_BYTES_MAX = 1 << 20


class _ColdRead(NamedTuple):
    """A read that would have to wait for the disk, and so is left to a worker."""

    topic: str
    log: Log
    offset: int
    bytes_max: int
    limit: int
    at_least_one: bool
    committed_only: bool
    throttled: bool
    for_client: bool
    result: PartitionData


class _FetchPass:
    """One pass over the partitions of a fetch; only the first records a follower's progress."""

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
        self._limit = FetchIsolation.HIGH_WATERMARK
        if self.is_follower:
            self._limit = FetchIsolation.LOG_END
        elif request.isolation_level == _READ_COMMITTED:
            self._limit = FetchIsolation.LAST_STABLE
        self._committed_only = self._limit is FetchIsolation.LAST_STABLE
        self._purgatory = context.node.fetch_purgatory
        self._outgoing = context.node.outgoing
        self._bytes_left = min(
            request.max_bytes, context.node.config.fetch_max_bytes, self._outgoing.available_bytes
        )
        self._hints: dict[int, LeaderHint] = {}
        # By topic, whether the sender may read it; None if nobody asks for rights.
        self._readable: dict[str, bool] | None = None if context.authorizer is ALLOW_ALL else {}
        self.byte_count = 0
        self._decrypted_bytes = 0
        self.answer_now = False
        self._has_news = False
        self.throttled_s = 0.0
        self.cold: list[_ColdRead] = []
        # The topics and fetch offsets of records that are read, for the traffic of topics.
        self._served: list[tuple[str, int, Buffer]] = []
        self._refused: list[str] = []
        self.partitions: list[tuple[SessionPartition, Partition]] = []
        self.results = [self._read(requested) for requested in plan.partitions]

    def _read(self, requested: SessionPartition) -> PartitionData:
        topic = requested.topic
        try:
            if self._context.version >= _TOPIC_IDS_SINCE:
                topic = self._context.node.replicas.name_of(requested.topic_id) or ""
                if not topic:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            if self._readable is not None and not self._may_read(topic, self._readable):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return self._read_partition(topic, requested)
        except KafkaError as error:
            self.answer_now = True
            self._refused.append(topic)
            result = PartitionData(
                partition_index=requested.partition,
                error_code=error.code,
                high_watermark=-1,
                aborted_transactions=None,
                records=b"",
            )
            if error.code in HINTED and self._context.version >= _LEADER_HINTS_SINCE:
                self._hint(topic, result)
            return result

    def _may_read(self, topic: str, readable: dict[str, bool]) -> bool:
        """Whether the sender may read a topic: a follower all of them, or none."""
        right = AclOperation.READ, AclResourceType.TOPIC, topic
        if self.is_follower:
            right = AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME
        allowed = readable.get(right[2])
        if allowed is None:
            allowed = readable[right[2]] = self._context.may(*right)
        return allowed

    def _read_partition(self, topic: str, requested: SessionPartition) -> PartitionData:
        replicas = self._context.node.replicas
        is_follower = self.is_follower
        if is_follower or self._context.version < _ANY_REPLICA_SINCE:
            partition = replicas.leader_of(topic, requested.partition)
        else:
            partition = replicas.replica_of(topic, requested.partition)
        partition.check_epoch(requested.leader_epoch)
        log = partition.log
        result = PartitionData(
            partition_index=requested.partition,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._committed_only else None,
            records=b"",
        )
        diverges = requested.last_fetched_epoch >= 0 and self._diverges(log, requested, result)
        if is_follower and self._first and not diverges:
            self._note_follower(partition, requested)
        # After the follower's offset was recorded, which may have advanced the high watermark.
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.last_stable_offset
        requested.limit = self._limit
        if self._committed_only:
            requested.note_stable_offset(result.last_stable_offset, result.high_watermark)
        self.partitions.append((requested, partition))
        if diverges or (self._rack and self._prefers_other_replica(partition, requested, result)):
            self.answer_now = True
            return result
        limit = log.log_end_offset if is_follower else result.high_watermark
        if self._committed_only:
            limit = result.last_stable_offset
        if requested.fetch_offset > limit and not partition.is_leader:
            if requested.fetch_offset > log.log_end_offset:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "this replica is behind")
            return result
        throttled = is_follower and self._is_throttled(partition)
        if throttled and (wait_s := self._throttle().wait_s(self._context.node.clock.monotonic())):
            self.throttled_s = wait_s
            return result
        self._read_log(partition, requested, limit, throttled, result)
        if self._session is not None and requested.fetch_offset == limit:
            self._watch_if_up_to_date(requested, partition, result)
        return result

    def _read_log(
        self,
        partition: Partition,
        requested: SessionPartition,
        limit: int,
        throttled: bool,
        result: PartitionData,
    ) -> None:
        log = partition.log
        bytes_max = max(min(requested.bytes_max, self._bytes_left), 0)
        at_least_one = self.byte_count == 0 and not self.cold
        if not bytes_max and not at_least_one:
            return  # The byte limit is reached; the remaining files need not be looked at.
        found = log.read_cached(requested.fetch_offset, bytes_max, limit, at_least_one=at_least_one)
        aborted: list[aborted_index.AbortedTransaction] | None = []
        if found is not None and found.records and self._committed_only:
            records, end = _sound_records(log, found.records, requested.fetch_offset)
            found = found._replace(records=records)
            aborted = log.aborted_transactions_cached(requested.fetch_offset, end)
        if found is None or aborted is None or not self._may_decrypt(found.records):
            cold = _ColdRead(
                partition.name.topic,
                log,
                requested.fetch_offset,
                bytes_max,
                limit,
                at_least_one,
                self._committed_only,
                throttled,
                not self.is_follower,
                result,
            )
            self.cold.append(cold)
            self._bytes_left -= bytes_max
        elif found.records:
            records = found.records
            if self.is_follower:
                # Replicas are copies: encrypted batches go to followers as they are.
                self._note_served(partition, requested.fetch_offset, records)
            else:
                records = log.decrypted(records, requested.fetch_offset)
            self._set_records(result, records, aborted)
            self._served.append((partition.name.topic, requested.fetch_offset, records))
            self.byte_count += len(records)
            self._bytes_left -= len(records)
            if throttled:
                self._throttle().record(len(records), self._context.node.clock.monotonic())

    def _may_decrypt(self, records: Buffer) -> bool:
        """Whether records are plain, or few enough to be decrypted on the event loop."""
        if self.is_follower or first_encrypted(records) < 0:
            return True
        self._decrypted_bytes += len(records)
        return self._decrypted_bytes <= _DECRYPTED_BYTES_MAX

    def _note_served(self, partition: Partition, offset: int, records: Buffer) -> None:
        """Check records that a follower got before and did not accept: they may be damaged."""
        if partition.served_offsets.get(self._replica_id) == offset:
            headers, error = sound_headers(records)
            try:
                for header in headers:
                    check_batch(records, header, compacted=True)
            except CorruptBatch as found:
                error = found
            if error is not None:
                partition.log.suspect(offset)
        partition.served_offsets[self._replica_id] = offset

    def _set_records(
        self,
        result: PartitionData,
        records: Buffer,
        aborted: list[aborted_index.AbortedTransaction],
    ) -> None:
        result.records = self._outgoing.hold(records)
        if aborted:
            result.aborted_transactions = [
                AbortedTransaction(
                    producer_id=transaction.producer_id, first_offset=transaction.first_offset
                )
                for transaction in aborted
            ]

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether a follower that is not in sync is subject to the throttle of moved replicas."""
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

    def _watch_if_up_to_date(
        self, requested: SessionPartition, partition: Partition, result: PartitionData
    ) -> None:
        """Skip a partition until it changes, if its reader has all records and offsets of it."""
        assert self._session is not None
        if (
            result.high_watermark == requested.sent_high_watermark
            and result.log_start_offset == requested.sent_log_start_offset
        ):
            if self.is_follower and self._replica_id not in partition.isr:
                # Read in every fetch until the follower is in sync: its latest fetch may have been
                # overtaken by an earlier fetch, on another connection.
                self._purgatory.watch(partition, requested)
            elif self._session.mark_up_to_date(requested):
                self._purgatory.watch(partition, requested)
        else:
            self._has_news = True

    def _note_follower(self, partition: Partition, requested: SessionPartition) -> None:
        log = partition.log
        if log.log_start_offset <= requested.fetch_offset <= log.log_end_offset:
            partition.follower_fetched(
                self._replica_id,
                self._replica_epoch,
                requested.fetch_offset,
                self._now_ms,
                requested.log_start_offset,
            )

    def _diverges(self, log: Log, requested: SessionPartition, result: PartitionData) -> bool:
        """Whether the fetcher's log diverges from ours (KIP-595); `result` gets the point."""
        epoch, end_offset = log.end_offset_for_epoch(requested.last_fetched_epoch)
        if end_offset < 0 or (
            epoch == requested.last_fetched_epoch and end_offset >= requested.fetch_offset
        ):
            return False
        result.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return True

    def _prefers_other_replica(
        self, partition: Partition, requested: SessionPartition, result: PartitionData
    ) -> bool:
        node = self._context.node
        if node.config.replica_selector_class is None or partition.leadership is None:
            return False
        nearest = nearest_replica(
            partition.leadership, requested.fetch_offset, self._rack, node.store.image.brokers
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
        """Park the fetch until more records are readable."""
        session = self._session
        if session is None:
            return self._purgatory.park(self.partitions, bytes_needed, timeout_s)
        delayed = self._purgatory.park_session(session, self.partitions, bytes_needed, timeout_s)
        if self._has_news and session.is_follower:
            delayed.wake_soon()
        return delayed

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        """The endpoints of the leaders that errors of partitions name."""
        return [
            NodeEndpoint(node_id=hint.leader_id, host=hint.host, port=hint.port, rack=hint.rack)
            for hint in self._hints.values()
        ]

    async def read_cold(self) -> None:
        """Do the reads that wait for the disk, in worker threads."""
        metrics = self._context.node.metrics
        metrics.counter(catalog.COLD_READS).value += len(self.cold)
        for cold in self.cold:
            metrics.counter(catalog.COLD_READ_BYTES).value += cold.bytes_max
            try:
                records, aborted = await self._context.node.workers.read(_read_cold, cold)
            except KafkaError as error:
                cold.result.error_code = error.code
                self._refused.append(cold.topic)
                continue
            if records:
                self._served.append((cold.topic, cold.offset, records))
            self._set_records(cold.result, records, aborted)
            if cold.throttled:
                self._throttle().record(len(records), self._context.node.clock.monotonic())

    def respond(self, plan: FetchPlan) -> FetchResponse:
        """The response, whose records are counted as the traffic of their topics."""
        traffic = self._context.node.traffic
        for topic, offset, records in self._served:
            counts = traffic.of(topic)
            if self.is_follower:
                counts.replication_bytes_out += len(records)
            else:
                counts.bytes_out += len(records)
                counts.messages_out += max(end_offset(records) - offset, 0)
        for topic in self._refused:
            traffic.of(topic).fetch_errors += 1
        return plan.respond(self.results, self.endpoints)


def _read_cold(cold: _ColdRead) -> tuple[Block, list[aborted_index.AbortedTransaction]]:
    log, offset = cold.log, cold.offset
    found = log.read(offset, cold.bytes_max, cold.limit, at_least_one=cold.at_least_one)
    records, aborted = found.records, []
    if cold.committed_only and records:
        records, end = _sound_records(log, records, offset)
        aborted = log.aborted_transactions(offset, end)
    if cold.for_client:
        records = log.decrypted(records, offset)
    return Block(records), aborted


def _sound_records(log: Log, records: Buffer, offset: int) -> tuple[Buffer, int]:
    """The sound batches before the first damaged one, and the offset behind the last of them.

    KafkaError if the first is damaged: the log is then suspected there.
    """
    headers, error = sound_headers(records)
    if error is not None:
        log.suspect(headers[-1].next_offset if headers else offset)
        if not headers:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        records = byte_view(records)[: headers[-1].position + headers[-1].size]
    return records, headers[-1].next_offset if headers else offset


def fetch(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    if request.topics and request.topics[0].topic_id == METADATA_TOPIC_ID:
        if not context.may(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME):
            return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return context.node.quorum.fetch(context, request)
    try:
        now_ms = int(context.node.clock.monotonic() * 1000)
        plan = context.node.fetch_sessions.plan(request, now_ms)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    first = _FetchPass(context, request, plan, first=True)
    if first.cold:
        return _answer_cold(first, plan)
    if (
        first.byte_count >= request.min_bytes
        or first.answer_now
        or request.max_wait_ms <= 0
        or not (plan.session.partitions if plan.session is not None else first.partitions)
        or context.node.closing
    ):
        return first.respond(plan)
    # Watched from now on, so that no append is missed before the task below runs.
    delayed = first.park(
        request.min_bytes - first.byte_count,
        min(request.max_wait_ms / 1000, first.throttled_s or inf),
    )
    return _answer_delayed(context, request, plan, delayed)


def throttled(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """The answer without records to a consumer that is above its quota.

    Its session goes on: the next fetch reads what this one would have read.
    """
    try:
        now_ms = int(context.node.clock.monotonic() * 1000)
        plan = context.node.fetch_sessions.plan(request, now_ms, opens=False)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    return FetchResponse(session_id=0 if plan.session is None else plan.session.id)


async def _answer_cold(done: _FetchPass, plan: FetchPlan) -> FetchResponse:
    await done.read_cold()
    return done.respond(plan)


async def _answer_delayed(
    context: RequestContext, request: FetchRequest, plan: FetchPlan, delayed: DelayedFetch
) -> FetchResponse:
    await delayed.ready
    plan.refresh()
    context.renew_authorizer()
    second = _FetchPass(context, request, plan, first=False)
    if second.cold:
        await second.read_cold()
    return second.respond(plan)
