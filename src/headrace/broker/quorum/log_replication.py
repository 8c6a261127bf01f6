"""Replication of the metadata log: the follower's fetches, and the leader's responses."""

import asyncio
import logging

from headrace.broker.quorum import wire
from headrace.broker.quorum.raft_driver import FetchedBatches, RaftDriver
from headrace.errors import CorruptBatch, ErrorCode, HeadraceError, KafkaError, StorageError
from headrace.metadata.snapshot import SnapshotContent
from headrace.protocol.messages import fetch_snapshot as snapshots
from headrace.protocol.messages.fetch import FetchRequest as WireFetchRequest
from headrace.protocol.messages.fetch import FetchResponse as WireFetchResponse
from headrace.raft.divergence import CommittedRecordsLost
from headrace.raft.messages import FetchRequest, FetchResponse, OffsetAndEpoch, Voters
from headrace.storage.metadata_log import SnapshotId, SnapshotPart
from headrace.types import Buffer

# The follower's side of the metadata log: one fetch at a time, or a snapshot piece by piece.
#
# Rule: the offset of a fetch promises that all records before it are on disk, so the next fetch is
# sent only when no flush is under way.


logger = logging.getLogger(__name__)

_FETCH_BYTES = 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_SHORTAGE_SECONDS = 1.0


class MetadataLogFetcher:
    """Fetches the metadata log from the node that the core names. For the loop's thread only.

    Invariant: `_task` is the fetch in flight. Once its response has come `_applying` is true, and
    it is neither cancelled nor followed by another fetch until its records are on disk.
    """

    def __init__(self, driver: RaftDriver, *, max_wait_ms: int, request_seconds: float) -> None:
        self._driver = driver
        self._max_wait_ms = max_wait_ms
        self._request_seconds = request_seconds
        self._task: asyncio.Task[None] | None = None
        self._applying = False
        self._snapshot: OffsetAndEpoch | None = None
        driver.fetch_if_due = self.fetch_if_due
        driver.on_snapshot = self._note_snapshot

    def fetch_if_due(self) -> None:
        """Begin the fetch that the core has due, if any; it replaces an obsolete fetch."""
        driver = self._driver
        if self._applying or driver.is_flushing:
            return
        due_fetch = driver.node.next_fetch(driver.now_ms())
        if due_fetch is not None:
            if self._task is not None:
                self._task.cancel()
            self._task = driver.spawn(self._fetch(*due_fetch))

    def _note_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        self._snapshot = snapshot

    async def _fetch(self, node_id: int, request: FetchRequest) -> None:
        driver = self._driver
        message = wire.encode_fetch(request, driver.cluster_id, self._max_wait_ms, _FETCH_BYTES)
        seconds = self._max_wait_ms / 1000 + self._request_seconds
        try:
            async with asyncio.timeout(seconds):
                answer = await driver.peers.link(node_id, "quorum-fetch").ask(message, seconds)
            response, records, addresses = wire.decode_fetched(answer)
            fetched = None
            if response.records_follow and records:
                fetched = FetchedBatches(*driver.log.checked(records))
        except (HeadraceError, TimeoutError) as error:
            if isinstance(error, CorruptBatch):
                logger.error(
                    "node %d sent records that are not of a metadata log: %s", node_id, error
                )
            self._task = None
            driver.request_failed(node_id, request, error)
            return
        driver.peers.learn(response.leader_id, addresses.get(response.leader_id))
        self._applying = True
        try:
            await self._apply_response(node_id, request, response, fetched)
        finally:
            self._applying = False
            self._task = None
        driver.schedule_next()

    async def _apply_response(
        self,
        node_id: int,
        request: FetchRequest,
        response: FetchResponse,
        fetched: FetchedBatches | None,
    ) -> None:
        driver = self._driver
        if response.diverging is not None:
            # The files must not be truncated during a flush.
            await driver.wait_until_flushed()
        try:
            effects = driver.node.answered(node_id, request, response, driver.now_ms())
        except CommittedRecordsLost as error:
            driver.fail(error)
            return
        driver.perform(effects, fetched)
        if driver.first_high_watermark is None and response.high_watermark >= 0:
            driver.first_high_watermark = response.high_watermark
            driver.on_change()
        await driver.wait_until_flushed()
        if driver.is_short:
            await asyncio.sleep(_SHORTAGE_SECONDS)
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and not driver.is_down:
            await self._fetch_snapshot(node_id, snapshot)

    async def _fetch_snapshot(self, node_id: int, target: OffsetAndEpoch) -> None:
        driver = self._driver
        snapshot = SnapshotId(target.offset, target.epoch)
        logger.info("fetching the metadata snapshot %s from node %d", snapshot, node_id)
        part: SnapshotPart | None = None
        try:
            part = await driver.workers.flush(driver.log.snapshots.begin, snapshot)
            await self._fetch_pieces(node_id, target, part)
            voters = await driver.workers.flush(_finish, part)
        except (HeadraceError, TimeoutError) as error:
            logger.warning("the metadata snapshot %s was not fetched: %s", snapshot, error)
            if part is not None:
                await driver.workers.flush(_discard, part)
            if not driver.is_down:
                driver.perform(driver.node.snapshot_failed(driver.now_ms()))
            return
        await driver.wait_until_flushed()
        if driver.is_down or driver.node.wanted_snapshot != target:
            # Its sender leads no more, and the log of this node may have the committed records. The
            # snapshot is valid all the same, but only useful with a log that it fits.
            await driver.workers.flush(driver.log.snapshots.remove, snapshot)
            return
        try:
            driver.log.begin_at(snapshot)
            driver.voter_history[:] = [] if voters is None else [(target.offset - 1, voters)]
        except HeadraceError as error:
            driver.fail(error)
            return
        driver.perform(driver.node.snapshot_installed(target, voters, driver.now_ms()))
        driver.on_change()

    async def _fetch_pieces(self, node_id: int, target: OffsetAndEpoch, part: SnapshotPart) -> None:
        driver = self._driver
        link = driver.peers.link(node_id, "quorum-fetch")
        while True:
            message = wire.encode_snapshot_fetch(
                target,
                part.size,
                replica_id=driver.node_id,
                epoch=driver.node.epoch,
                cluster_id=driver.cluster_id,
                max_bytes=_PIECE_BYTES,
            )
            async with asyncio.timeout(self._request_seconds):
                answer = await link.ask(message, self._request_seconds)
            piece = wire.decode_snapshot_piece(answer)
            if driver.is_down or driver.node.wanted_snapshot != target:
                raise StorageError("it is not wanted any more")
            data = piece.unaligned_records or b""
            if piece.position != part.size or (not data and part.size < piece.size):
                raise StorageError(f"position {piece.position} came instead of {part.size}")
            await driver.workers.flush(part.append, data)
            driver.node.snapshot_piece(driver.now_ms())
            driver.schedule_next()
            if part.size >= piece.size:
                return


def _finish(part: SnapshotPart) -> Voters | None:
    """Check that the snapshot is sound and complete, rename it, and return its voters."""
    content = SnapshotContent(part.read())
    part.finish()
    return None if content.voters is None else wire.voters_in(content.voters)


def _discard(part: SnapshotPart) -> None:
    try:
        part.discard()
    except StorageError as error:
        logger.warning("a partly fetched metadata snapshot cannot be deleted: %s", error)


# The leader's side of the metadata log: fetches of other nodes, parked until there are new records.
#
# Rule: a fetch is answered with all records of the log, committed or not. A record counts as
# replicated only when a later fetch of the replica begins behind it.


_BYTES_MAX = 8 * 1024 * 1024


class MetadataLogServer:
    """Answers fetches of the log and of snapshots. Used on the event loop's thread only."""

    def __init__(self, driver: RaftDriver, wait_ms_max: int) -> None:
        self._driver = driver
        self._wait_ms_max = wait_ms_max

    async def fetch(self, message: WireFetchRequest) -> WireFetchResponse:
        """Respond when there are records or a new high watermark, or at the end of the wait."""
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
            return b""  # Truncated or deleted meanwhile: the core decides on the response.
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
        """Respond with a piece of a snapshot."""
        driver = self._driver
        try:
            requested = wire.decode_snapshot_fetch(message)
            self._check(message.cluster_id)
        except KafkaError as error:
            return snapshots.FetchSnapshotResponse(error_code=error.code)
        result = snapshots.FetchSnapshotResponsePartitionSnapshot(
            snapshot_id=snapshots.FetchSnapshotResponseSnapshotId(
                end_offset=requested.snapshot_id.end_offset, epoch=requested.snapshot_id.epoch
            ),
            current_leader=snapshots.LeaderIdAndEpoch(
                leader_id=driver.node.leader_id, leader_epoch=driver.node.epoch
            ),
            position=requested.position,
            unaligned_records=b"",
        )
        code, effects = driver.node.handle_fetch_snapshot(
            message.replica_id, requested.current_leader_epoch, driver.now_ms()
        )
        driver.perform(effects)
        if code is ErrorCode.NONE:
            code = await self._read_piece(requested, message.max_bytes, result)
        result.error_code = code
        topic = snapshots.FetchSnapshotResponseTopicSnapshot(
            name=wire.METADATA_TOPIC, partitions=[result]
        )
        return snapshots.FetchSnapshotResponse(topics=[topic])

    async def _read_piece(
        self,
        requested: snapshots.PartitionSnapshot,
        max_bytes: int,
        result: snapshots.FetchSnapshotResponsePartitionSnapshot,
    ) -> ErrorCode:
        store = self._driver.log.snapshots
        snapshot = SnapshotId(requested.snapshot_id.end_offset, requested.snapshot_id.epoch)
        if snapshot not in store.ids:
            return ErrorCode.SNAPSHOT_NOT_FOUND
        try:
            file = store.open(snapshot)
            result.size = file.size()
            if not 0 <= requested.position < result.size:
                return ErrorCode.POSITION_OUT_OF_RANGE
            count = min(max(max_bytes, 1), _BYTES_MAX)
            result.unaligned_records = await self._driver.workers.read(
                file.read_at, requested.position, count
            )
        except StorageError:
            return ErrorCode.SNAPSHOT_NOT_FOUND
        return ErrorCode.NONE

    def _check(self, cluster_id: str | None) -> None:
        check_request(self._driver, cluster_id)


def check_voter_request(driver: RaftDriver, cluster_id: str | None) -> None:
    """As `check_request`, for requests that can depose a leader: they must name the cluster."""
    if cluster_id is None:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, "the request names no cluster")
    check_request(driver, cluster_id)


def check_request(driver: RaftDriver, cluster_id: str | None) -> None:
    """KafkaError if a request of another node cannot be answered at all."""
    if driver.is_down:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this node takes no part any more")
    ours = driver.cluster_id
    if ours is not None and cluster_id is not None and cluster_id != ours:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is the cluster {ours}")
