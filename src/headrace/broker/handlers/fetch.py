"""Fetch: committed batches from each wanted partition, now or when there are enough of them."""

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

from headrace.broker.dispatch import handles
from headrace.broker.fetch_sessions import FetchPlan, WantedPartition
from headrace.broker.node import RequestContext
from headrace.broker.partition import Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.fetch import (
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from headrace.storage.files import Block
from headrace.storage.log import Log

_TOPIC_IDS_SINCE = 13
_READ_COMMITTED = 1
# However long a client asks to wait, its watchers must not outlive it for ever.
_WAIT_SECONDS_MAX = 300.0


class _ColdRead(NamedTuple):
    """A read that would have to wait for the disk, to be done by a worker."""

    log: Log
    offset: int
    bytes_max: int
    high_watermark: int
    at_least_one: bool
    result: PartitionData


class _Round:
    """One pass over the wanted partitions."""

    def __init__(self, context: RequestContext, request: FetchRequest, plan: FetchPlan) -> None:
        self._context = context
        self._committed_only = request.isolation_level == _READ_COMMITTED
        self._outgoing = context.node.outgoing
        self._bytes_left = min(
            request.max_bytes, context.node.config.fetch_max_bytes, self._outgoing.room_bytes
        )
        self.byte_count = 0
        self.failed = False
        self.cold: list[_ColdRead] = []
        self.partitions: list[Partition] = []
        self.results = [self._read(one) for one in plan.wanted]

    def _read(self, one: WantedPartition) -> PartitionData:
        try:
            return self._read_partition(one)
        except KafkaError as error:
            self.failed = True
            return PartitionData(
                partition_index=one.partition,
                error_code=error.code,
                high_watermark=-1,
                aborted_transactions=[] if self._committed_only else None,
                records=b"",
            )

    def _read_partition(self, one: WantedPartition) -> PartitionData:
        replicas = self._context.node.replicas
        topic = one.topic
        if self._context.version >= _TOPIC_IDS_SINCE:
            topic = replicas.name_of(one.topic_id) or ""
            if not topic:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = replicas.leader_of(topic, one.partition)
        partition.check_epoch(one.leader_epoch)
        log = partition.log
        result = PartitionData(
            partition_index=one.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.high_watermark,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._committed_only else None,
            records=b"",
        )
        self.partitions.append(partition)
        if one.last_fetched_epoch >= 0 and self._diverges(log, one, result):
            return result
        bytes_max = max(min(one.bytes_max, self._bytes_left), 0)
        at_least_one = self.byte_count == 0 and not self.cold
        watermark = partition.high_watermark
        found = log.read_cached(one.fetch_offset, bytes_max, watermark, at_least_one=at_least_one)
        if found is None:
            self.cold.append(
                _ColdRead(log, one.fetch_offset, bytes_max, watermark, at_least_one, result)
            )
            self._bytes_left -= bytes_max
        elif found.records:
            result.records = self._outgoing.hold(found.records)
            self.byte_count += len(found.records)
            self._bytes_left -= len(found.records)
        return result

    def _diverges(self, log: Log, one: WantedPartition, result: PartitionData) -> bool:
        """Whether the fetcher's log went another way than ours (KIP-595)."""
        epoch, end_offset = log.end_offset_for_epoch(one.last_fetched_epoch)
        if end_offset < 0 or (epoch == one.last_fetched_epoch and end_offset >= one.fetch_offset):
            return False
        result.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        self.failed = True
        return True

    async def read_cold(self) -> None:
        """Do the reads that wait for the disk, in worker threads."""
        for log, offset, bytes_max, watermark, at_least_one, result in self.cold:
            try:
                records = await self._context.node.workers.read(
                    _read_block, log, offset, bytes_max, watermark, at_least_one
                )
            except KafkaError as error:
                result.error_code = error.code
                continue
            result.records = self._outgoing.hold(records)


def _read_block(log: Log, offset: int, bytes_max: int, watermark: int, at_least_one: bool) -> Block:
    return Block(log.read(offset, bytes_max, watermark, at_least_one=at_least_one).records)


class _Parked:
    """A fetch that waits until its partitions have enough new bytes, or for long enough."""

    def __init__(self, partitions: list[Partition], bytes_needed: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self._partitions = partitions
        self._bytes_needed = bytes_needed
        self._timer = loop.call_later(seconds, self._release)
        self.ready.add_done_callback(lambda _: self._release())
        for partition in partitions:
            partition.watch(self, self._on_bytes)

    def _on_bytes(self, count: int) -> None:
        self._bytes_needed -= count
        if count < 0 or self._bytes_needed <= 0:
            self._release()

    def _release(self) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            partition.unwatch(self)
        if not self.ready.done():
            self.ready.set_result(None)


@handles(ApiKey.FETCH)
def fetch(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    try:
        plan = context.node.fetch_sessions.plan(request, context.node.clock.now_ms())
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    first = _Round(context, request, plan)
    if first.cold:
        return _answer_cold(first, plan)
    if (
        first.byte_count >= request.min_bytes
        or first.failed
        or request.max_wait_ms <= 0
        or not first.partitions
        or context.node.closing
    ):
        return plan.respond(first.results)
    # Watched from this moment on, so that no append can slip by before the task below runs.
    seconds = min(request.max_wait_ms / 1000, _WAIT_SECONDS_MAX)
    parked = _Parked(first.partitions, request.min_bytes - first.byte_count, seconds)
    return _answer_parked(context, request, plan, parked)


async def _answer_cold(done: _Round, plan: FetchPlan) -> FetchResponse:
    await done.read_cold()
    return plan.respond(done.results)


async def _answer_parked(
    context: RequestContext, request: FetchRequest, plan: FetchPlan, parked: _Parked
) -> FetchResponse:
    await parked.ready
    second = _Round(context, request, plan)
    if second.cold:
        await second.read_cold()
    return plan.respond(second.results)
