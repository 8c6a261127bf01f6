"""The leader's side of the metadata log: fetches of the others, parked until there is news.

Rule: a fetch is answered with all that the log has, committed or not; only a record that the
replica then says it has counts.
"""

import asyncio

from headrace.broker.quorum import wire
from headrace.broker.quorum.driver import Driver
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.protocol.messages import fetch_snapshot as snapshots
from headrace.protocol.messages.fetch import FetchRequest as WireFetchRequest
from headrace.protocol.messages.fetch import FetchResponse as WireFetchResponse
from headrace.raft.values import FetchRequest, FetchResponse
from headrace.storage.metadata_snapshots import SnapshotId
from headrace.types import Buffer

_BYTES_MAX = 8 * 1024 * 1024


class Serving:
    """Answers fetches of the log and of snapshots. Used on the event loop's thread only."""

    def __init__(self, driver: Driver, wait_ms_max: int) -> None:
        self._driver = driver
        self._wait_ms_max = wait_ms_max

    async def fetch(self, message: WireFetchRequest) -> WireFetchResponse:
        """Answer at once if there is news for the replica, else when there is, or soon enough."""
        driver = self._driver
        try:
            request, max_bytes = wire.decode_fetch(message)
            self._check(message.cluster_id)
        except KafkaError as error:
            return WireFetchResponse(error_code=error.code)
        loop = asyncio.get_running_loop()
        due = loop.time() + min(max(message.max_wait_ms, 0), self._wait_ms_max) / 1000
        response, effects = driver.node.handle_fetch(request, driver.now_ms())
        driver.perform(effects)
        while True:
            if driver.is_down:
                return WireFetchResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
            records: Buffer = b""
            if response.records_follow:
                records = await self._read(request, max_bytes)
                response = driver.node.answer_fetch(request)
            if self._has_news(request, response, records) or loop.time() >= due:
                if not response.records_follow:
                    records = b""
                leader = driver.peers.address_of(response.leader_id)
                return wire.encode_fetched(response, records, leader)
            await self._wait_for_news(due - loop.time())
            response = driver.node.answer_fetch(request)

    @staticmethod
    def _has_news(request: FetchRequest, response: FetchResponse, records: Buffer) -> bool:
        return (
            not response.records_follow
            or len(records) > 0
            or response.high_watermark > request.high_watermark
        )

    async def _read(self, request: FetchRequest, max_bytes: int) -> Buffer:
        log = self._driver.log.log
        end = log.log_end_offset
        if request.offset >= end:
            return b""
        count = min(max(max_bytes, 1), _BYTES_MAX)
        try:
            found = log.read_cached(request.offset, count, end, at_least_one=True)
            if found is None:
                found = await self._driver.workers.read(
                    log.read, request.offset, count, end, at_least_one=True
                )
        except KafkaError:
            return b""  # Truncated or dropped meanwhile: the core says what to answer then.
        return found.records

    async def _wait_for_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._driver.news.wait()
        except TimeoutError:
            return

    async def fetch_snapshot(
        self, message: snapshots.FetchSnapshotRequest
    ) -> snapshots.FetchSnapshotResponse:
        """A piece of a snapshot."""
        driver = self._driver
        try:
            wanted = wire.decode_snapshot_fetch(message)
            self._check(message.cluster_id)
        except KafkaError as error:
            return snapshots.FetchSnapshotResponse(error_code=error.code)
        result = snapshots.FetchSnapshotResponsePartitionSnapshot(
            snapshot_id=snapshots.FetchSnapshotResponseSnapshotId(
                end_offset=wanted.snapshot_id.end_offset, epoch=wanted.snapshot_id.epoch
            ),
            current_leader=snapshots.LeaderIdAndEpoch(
                leader_id=driver.node.leader_id, leader_epoch=driver.node.epoch
            ),
            position=wanted.position,
            unaligned_records=b"",
        )
        code, effects = driver.node.handle_fetch_snapshot(
            message.replica_id, wanted.current_leader_epoch, driver.now_ms()
        )
        driver.perform(effects)
        if code is ErrorCode.NONE:
            code = await self._read_piece(wanted, message.max_bytes, result)
        result.error_code = code
        topic = snapshots.FetchSnapshotResponseTopicSnapshot(
            name=wire.METADATA_TOPIC, partitions=[result]
        )
        return snapshots.FetchSnapshotResponse(topics=[topic])

    async def _read_piece(
        self,
        wanted: snapshots.PartitionSnapshot,
        max_bytes: int,
        result: snapshots.FetchSnapshotResponsePartitionSnapshot,
    ) -> ErrorCode:
        store = self._driver.log.snapshots
        snapshot = SnapshotId(wanted.snapshot_id.end_offset, wanted.snapshot_id.epoch)
        if snapshot not in store.ids:
            return ErrorCode.SNAPSHOT_NOT_FOUND
        try:
            file = store.open(snapshot)
            result.size = file.size()
            if not 0 <= wanted.position < result.size:
                return ErrorCode.POSITION_OUT_OF_RANGE
            count = min(max(max_bytes, 1), _BYTES_MAX)
            result.unaligned_records = await self._driver.workers.read(
                file.read_at, wanted.position, count
            )
        except StorageError:
            return ErrorCode.SNAPSHOT_NOT_FOUND
        return ErrorCode.NONE

    def _check(self, cluster_id: str | None) -> None:
        check(self._driver, cluster_id)


def check_member(driver: Driver, cluster_id: str | None) -> None:
    """As `check`, for what can depose a leader: who asks must know which cluster it is in."""
    if cluster_id is None:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, "the request names no cluster")
    check(driver, cluster_id)


def check(driver: Driver, cluster_id: str | None) -> None:
    """KafkaError if a request of another node cannot be answered at all."""
    if driver.is_down:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this node takes no part any more")
    ours = driver.cluster_id
    if ours is not None and cluster_id is not None and cluster_id != ours:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is the cluster {ours}")
