"""Replica fetchers: fetches from leaders into the logs of their followers on this broker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.broker.cluster.channels import NodeChannel
from headrace.broker.cluster.endpoints import InterBrokerListener
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.replication.partition import Partition
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.errors import CorruptBatch, ErrorCode, HeadraceError, KafkaError, error_code
from headrace.net.addresses import Address
from headrace.protocol.batch import BatchHeader, check_batch, scan_headers
from headrace.protocol.messages import list_offsets, offset_for_leader_epoch
from headrace.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from headrace.replication.follower import (
    FetchAction,
    FetchDecision,
    FollowedPartition,
    FollowerFetchSession,
    FollowerState,
    PartitionKey,
    decide,
    decide_out_of_range,
    position_of,
    protect_committed,
)
from headrace.replication.throttle import Throttle, is_throttled
from headrace.storage.files import DiskFull
from headrace.tasks import TaskScope
from headrace.types import Buffer, TopicPartition

# One stream of fetches from one leader into the logs of its followers here.
#
# The next request is sent as soon as the last response is written, since its fetch offsets tell the
# leader that records are safe here.


logger = logging.getLogger(__name__)

_EARLIEST = -2
# The bytes after which the loop runs other tasks.
_BYTES_PER_TURN = 1_048_576
# The pause after a failed append: a full disk or damaged records take time to recover.
_TROUBLE_SECONDS = 1.0


@dataclass(slots=True)
class FetcherContext:
    """The parts that all fetchers share. `config` is replaced when a dynamic setting changes.

    `checkpoint` writes the start offsets of all logs, durably; `on_replicated` gets the topic and
    the bytes of appended records.
    """

    config: BrokerConfig
    store: MetadataStore
    clock: Clock
    throttle: Throttle
    checkpoint: Callable[[], Awaitable[object]]
    on_replicated: Callable[[str, int], None]

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration."""
        broker = self.store.image.brokers.get(self.config.node_id)
        return -1 if broker is None else broker.epoch

    def is_throttled(self, partition: Partition) -> bool:
        """Whether a partition is subject to `follower.replication.throttled.rate`."""
        throttled = partition.config.follower_replication_throttled_replicas
        return bool(throttled) and is_throttled(
            throttled, partition.name.partition, self.config.node_id
        )


class ReplicaFetcher:
    """Fetches some partitions from one leader, one request at a time.

    `on_turn` is called before each request, and may add partitions or remove them.
    """

    def __init__(
        self,
        source_id: int,
        link: NodeChannel,
        shared: FetcherContext,
        session: FollowerFetchSession,
        wait_ms: int,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self.follower = FollowerState(session)
        self.partitions: dict[PartitionKey, Partition] = {}
        # Whether a request is at the leader, and whether its response is being written.
        self.is_fetching = False
        self.is_writing = False
        self._source_id = source_id
        self._link = link
        self._shared = shared
        self._wait_ms = wait_ms
        self._on_turn = on_turn
        self._woken = asyncio.Event()
        self._is_failing = False
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskScope(f"replicas fetched from broker {source_id}")
        self._task: asyncio.Task[None] | None = None

    def add(self, followed: FollowedPartition, partition: Partition) -> None:
        """Fetch a partition from the next request on, beginning now if nothing else is fetched."""
        self.partitions[followed.key] = partition
        self.follower.add(followed)
        self._woken.set()
        if self._task is None:
            self._task = self._tasks.start(self._run())

    def remove(self, key: PartitionKey) -> tuple[FollowedPartition, Partition] | None:
        """Stop fetching a partition; records in flight for it are dropped."""
        followed = self.follower.remove(key)
        return None if followed is None else (followed, self.partitions.pop(key))

    def wake(self) -> None:
        """Begin the next turn now if there was no partition to fetch."""
        self._woken.set()

    def stop(self) -> asyncio.Task[None] | None:
        """End at once, and return the task to wait for, if any."""
        self._link.close()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def reconnect(self) -> None:
        """Close the connection, and begin anew on another."""
        self._link.close()

    async def _run(self) -> None:
        while True:
            self._on_turn()
            request = self._request()
            if not self.follower.fill(request, self._loop.time()):
                await self._sleep_until(self.follower.due)
                continue
            try:
                response = await self._send_fetch(request)
            except HeadraceError as error:
                self.follower.failed()
                self._note_failure(error)
                await asyncio.sleep(self._backoff_s)
                continue
            self.is_writing = True
            try:
                await self._handle_response(response)
            finally:
                self.is_writing = False
                del response  # Its memory can serve the next response.

    async def _sleep_until(self, due: float | None) -> None:
        """Wait until a time, or until a partition is added."""
        self._woken.clear()
        try:
            async with asyncio.timeout_at(due):
                await self._woken.wait()
        except TimeoutError:
            pass

    @property
    def _backoff_s(self) -> float:
        return self._shared.config.replica_fetch_backoff_ms / 1000

    @property
    def _timeout_s(self) -> float:
        return self._shared.config.replica_socket_timeout_ms / 1000

    def _request(self) -> FetchRequest:
        config = self._shared.config
        return FetchRequest(
            replica_id=config.node_id,
            replica_state=ReplicaState(
                replica_id=config.node_id, replica_epoch=self._shared.broker_epoch
            ),
            max_wait_ms=self._wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
        )

    async def _send_fetch(self, request: FetchRequest) -> FetchResponse:
        self.is_fetching = True
        try:
            response: FetchResponse = await self._link.ask(
                request, self._wait_ms / 1000 + self._timeout_s
            )
        finally:
            self.is_fetching = False
        if self._is_failing:
            self._is_failing = False
            logger.info("broker %d answers again", self._source_id)
        return response

    def _note_failure(self, error: HeadraceError) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("nothing can be fetched from broker %d: %s", self._source_id, error)

    async def _handle_response(self, response: FetchResponse) -> None:
        """Append the records of a response; returns when they are as durable as configured."""
        answers = self.follower.answered(response)
        if answers is None:
            code = error_code(response.error_code)
            if code not in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ):
                logger.warning("broker %d refuses fetches: %s", self._source_id, code.name)
                await asyncio.sleep(self._backoff_s)
            return
        flushes: dict[PartitionKey, asyncio.Future[None]] = {}
        out_of_range: list[FollowedPartition] = []
        taken, has_deleted = 0, False
        for followed, data in answers:
            log = self.partitions[followed.key].log
            verdict = decide(data, log)
            start_offset = log.log_start_offset
            if verdict.act is FetchAction.LOCATE:
                out_of_range.append(followed)
            elif verdict.act is not FetchAction.APPEND:
                self._apply_verdict(followed, verdict, data.error_code)
                if verdict.act is FetchAction.TRUNCATE:
                    await asyncio.sleep(0)
            elif (flushed := self._append(followed, data)) is not None:
                flushes[followed.key] = flushed
            has_deleted = has_deleted or log.log_start_offset > start_offset
            taken += len(data.records or b"")
            if taken >= _BYTES_PER_TURN:
                taken = 0
                await asyncio.sleep(0)
        if has_deleted:
            # The next fetch says that the records are gone, and DeleteRecords may be acknowledged:
            # they must not come back when this replica crashes, and leads later.
            await self._shared.checkpoint()
        if flushes:
            await asyncio.wait(flushes.values())
        for key, flushed in flushes.items():
            if flushed.exception() is not None:
                # The next fetch would acknowledge records that a crash may lose.
                self.follower.give_up(key)
        if out_of_range:
            await self._relocate(out_of_range)

    def _append(
        self, followed: FollowedPartition, data: PartitionData
    ) -> asyncio.Future[None] | None:
        partition = self.partitions[followed.key]
        try:
            records, headers = _whole_batches(data.records or b"", followed.leader_epoch)
            flushed = partition.append_replicated(
                records,
                headers,
                data.high_watermark,
                data.log_start_offset,
                self._shared.clock.now_ms(),
            )
        except (KafkaError, CorruptBatch) as error:
            self._write_failed(followed, error)
            return None
        self.follower.moved(followed.key, position_of(partition.log))
        if headers:
            self._shared.on_replicated(followed.topic, len(records))
        if headers and self._shared.is_throttled(partition):
            self._delay_if_throttled(followed, len(records), data.high_watermark)
        return flushed

    def _write_failed(self, followed: FollowedPartition, error: HeadraceError) -> None:
        partition = self.partitions[followed.key]
        logger.log(
            # Housekeeping logs a full disk, once for all partitions.
            logging.DEBUG if isinstance(partition.log.shortage, DiskFull) else logging.ERROR,
            "%s cannot follow broker %d: %s",
            partition.name,
            self._source_id,
            error,
        )
        self.follower.moved(followed.key, position_of(partition.log))
        if partition.log.offline is not None:
            self.follower.give_up(followed.key)
        else:
            self.follower.delay(followed.key, self._loop.time() + _TROUBLE_SECONDS)

    def _delay_if_throttled(
        self, followed: FollowedPartition, size: int, leader_high_watermark: int
    ) -> None:
        """Limit the rate of replicas that are being moved; replicas in sync are exempt."""
        now, throttle = self._loop.time(), self._shared.throttle
        throttle.record(size, now)
        wait_s = throttle.wait_s(now)
        if wait_s > 0 and followed.position.fetch_offset < leader_high_watermark:
            self.follower.delay(followed.key, now + wait_s)

    def _apply_verdict(
        self, followed: FollowedPartition, verdict: FetchDecision, error: int = 0
    ) -> None:
        """Act on a response without records: retry, give up, or truncate the log."""
        partition = self.partitions[followed.key]
        if verdict.act is FetchAction.GIVE_UP:
            self.follower.give_up(followed.key)
            return
        if verdict.act is FetchAction.RETRY:
            logger.debug("%s: %s", partition.name, error_code(error).name)
            self.follower.delay(followed.key, self._loop.time() + self._backoff_s)
            return
        verdict = protect_committed(
            verdict,
            partition.high_watermark,
            is_compacted="compact" in partition.config.cleanup_policy,
            may_lose_committed=partition.may_lose_committed,
        )
        if verdict.act is FetchAction.KEEP:
            partition.mark_diverged(verdict.offset)
            self.follower.give_up(followed.key)
            return
        asked = followed.position
        try:
            self._truncate(partition, verdict)
        except KafkaError as failure:
            self._write_failed(followed, failure)
            return
        self.follower.moved(followed.key, position_of(partition.log))
        if followed.position == asked:
            # The leader would give the same response at once.
            self.follower.delay(followed.key, self._loop.time() + self._backoff_s)

    def _truncate(self, partition: Partition, verdict: FetchDecision) -> None:
        """Remove records that the leader lacks; Partition logs it if some were committed."""
        log = partition.log
        is_empty = log.log_start_offset == log.log_end_offset
        logger.log(
            logging.DEBUG if is_empty else logging.INFO,
            "%s: broker %d leads in epoch %d; the log from %d to %d, last written in epoch %d, %s"
            " at %d",
            partition.name,
            self._source_id,
            partition.leader_epoch,
            log.log_start_offset,
            log.log_end_offset,
            log.latest_epoch,
            "begins anew" if verdict.act is FetchAction.RESTART else "is cut",
            verdict.offset,
        )
        if verdict.act is FetchAction.RESTART:
            partition.restart_at(verdict.offset)
        else:
            partition.truncate_to(verdict.offset)

    async def _relocate(self, out_of_range: list[FollowedPartition]) -> None:
        """Request the start and end of the leader's logs, and continue fetching within them."""
        try:
            starts, ends = (
                await self._request_starts(out_of_range),
                await self._request_ends(out_of_range),
            )
        except HeadraceError as error:
            self._note_failure(error)
            starts = ends = {}
        for followed in out_of_range:
            if self.follower.get(followed.key) is not followed:
                continue  # It was removed, or belongs to another leadership by now.
            name = followed.topic, followed.key.partition
            verdict = FetchDecision(FetchAction.RETRY)
            if name in starts and name in ends:
                log = self.partitions[followed.key].log
                verdict = decide_out_of_range(log, starts[name], ends[name])
            self._apply_verdict(followed, verdict)
            # Beginning a log anew takes an fsync, and thousands may have to.
            await asyncio.sleep(0)

    async def _request_starts(
        self, out_of_range: list[FollowedPartition]
    ) -> dict[tuple[str, int], int]:
        request = list_offsets.ListOffsetsRequest(
            replica_id=self._shared.config.node_id,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=followed.topic,
                    partitions=[
                        list_offsets.ListOffsetsPartition(
                            partition_index=followed.key.partition,
                            current_leader_epoch=followed.leader_epoch,
                            timestamp=_EARLIEST,
                        )
                    ],
                )
                for followed in out_of_range
            ],
        )
        answer: list_offsets.ListOffsetsResponse = await self._link.ask(request, self._timeout_s)
        return {
            (topic.name, partition.partition_index): partition.offset
            for topic in answer.topics
            for partition in topic.partitions
            if not partition.error_code and partition.offset >= 0
        }

    async def _request_ends(
        self, out_of_range: list[FollowedPartition]
    ) -> dict[tuple[str, int], int]:
        """The log end offsets of the leader, which are the end offsets of its own epoch."""
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            replica_id=self._shared.config.node_id,
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic=followed.topic,
                    partitions=[
                        offset_for_leader_epoch.OffsetForLeaderPartition(
                            partition=followed.key.partition,
                            current_leader_epoch=followed.leader_epoch,
                            leader_epoch=followed.leader_epoch,
                        )
                    ],
                )
                for followed in out_of_range
            ],
        )
        answer: offset_for_leader_epoch.OffsetForLeaderEpochResponse = await self._link.ask(
            request, self._timeout_s
        )
        return {
            (topic.topic, partition.partition): partition.end_offset
            for topic in answer.topics
            for partition in topic.partitions
            if not partition.error_code and partition.end_offset >= 0
        }


def _whole_batches(records: Buffer, leader_epoch: int) -> tuple[Buffer, list[BatchHeader]]:
    """The batches of a response, all checked; an incomplete last batch is left out."""
    headers = scan_headers(records)
    if not headers:
        return b"", headers
    for header in headers:
        check_batch(records, header, compacted=True)
        if header.leader_epoch > leader_epoch:
            raise CorruptBatch(
                f"a batch at offset {header.base_offset} was written in epoch"
                f" {header.leader_epoch}, after that of its leader, {leader_epoch}"
            )
    last = headers[-1]
    return memoryview(records)[: last.position + last.size], headers


# The fetchers of each leader, and which partitions they fetch, as leaders come and go.
#
# A fetch that finds nothing new is parked at the leader for a while, and a partition that is added
# then or is to be tried again would wait for its answer. So it is fetched in a second stream,
# without a session, until the first stream takes it over with its next request.


# How long a leader may park the fetch of newcomers: others may come meanwhile.
_NEWCOMERS_WAIT_MS = 50

NewLink = Callable[[Callable[[], Address | None], str], NodeChannel]
"""Makes a link from a function that returns the address, and a client id."""


class _SourceBroker:
    """A leader that is fetched from, by a steady stream and a stream for newcomers."""

    def __init__(self, source_id: int, shared: FetcherContext, new_link: NewLink) -> None:
        config = shared.config
        self.broker_epoch = -1
        self._source_id = source_id
        self._shared = shared
        self._listener = InterBrokerListener.of(config)
        self._steady = ReplicaFetcher(
            source_id,
            new_link(self._address, f"node-{config.node_id}-fetcher"),
            shared,
            FollowerFetchSession(),
            config.replica_fetch_wait_max_ms,
            self._balance_streams,
        )
        self._newcomers = ReplicaFetcher(
            source_id,
            new_link(self._address, f"node-{config.node_id}-fetcher"),
            shared,
            FollowerFetchSession(kept=False),
            min(_NEWCOMERS_WAIT_MS, config.replica_fetch_wait_max_ms),
            self._offer,
        )

    def __len__(self) -> int:
        return len(self._steady.partitions) + len(self._newcomers.partitions)

    def add(self, followed: FollowedPartition, partition: Partition) -> None:
        self.remove(followed.key)
        fetcher = self._newcomers if self._steady.is_fetching else self._steady
        fetcher.add(followed, partition)

    def remove(self, key: PartitionKey) -> None:
        self._steady.remove(key)
        self._newcomers.remove(key)

    def reconnect(self) -> None:
        self._steady.reconnect()
        self._newcomers.reconnect()

    def stop(self) -> list[asyncio.Task[None]]:
        tasks = (self._steady.stop(), self._newcomers.stop())
        return [task for task in tasks if task is not None]

    def _balance_streams(self) -> None:
        """Before a steady fetch: take over working newcomers, move delayed partitions out."""
        for key in self._steady.follower.delayed:
            _move(key, self._steady, self._newcomers)
        if self._newcomers.is_writing:
            return  # Its appends may not be flushed yet.
        for key in self._settled_newcomers():
            _move(key, self._newcomers, self._steady)

    def _settled_newcomers(self) -> list[PartitionKey]:
        """The newcomers that do not have to be retried."""
        delayed = frozenset(self._newcomers.follower.delayed)
        return [key for key in self._newcomers.partitions if key not in delayed]

    def _offer(self) -> None:
        """Before a fetch of newcomers: make the steady stream take over those that work.

        Without partitions to fetch the steady stream has no response that begins its next turn.
        """
        if not self._steady.partitions and self._settled_newcomers():
            self._steady.wake()

    def _address(self) -> Address | None:
        broker = self._shared.store.image.brokers.get(self._source_id)
        return None if broker is None else self._listener.address_of(broker)


def _move(key: PartitionKey, old: ReplicaFetcher, new: ReplicaFetcher) -> None:
    moved = old.remove(key)
    if moved is not None:
        new.add(*moved)


class _FetchAssignment(NamedTuple):
    source_id: int
    key: PartitionKey


class ReplicaFetchers:
    """The replica fetchers of a broker. Used on the event loop's thread only.

    Invariant: a partition is fetched from at most one broker, and a broker that nothing is fetched
    from has no task and no connection.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        clock: Clock,
        checkpoint: Callable[[], Awaitable[object]],
        new_link: NewLink = NodeChannel,
        on_replicated: Callable[[str, int], None] = lambda topic, size: None,
    ) -> None:
        throttle = Throttle(config.follower_replication_throttled_rate)
        self._new_link = new_link
        self._shared = FetcherContext(config, store, clock, throttle, checkpoint, on_replicated)
        self._sources: dict[int, _SourceBroker] = {}
        self._homes: dict[TopicPartition, _FetchAssignment] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    def follow(self, partition: Partition, topic_id: bytes) -> None:
        """Fetch a partition from its leader, in its epoch; stop fetching if it has no leader."""
        key = PartitionKey(topic_id, partition.name.partition)
        home = self._homes.get(partition.name)
        if home is not None and home != (partition.leader_id, key):
            self.forget(partition.name)
        if partition.leader_id < 0 or partition.log.offline is not None or self._stopped:
            self.forget(partition.name)
            return
        if home is None or home != (partition.leader_id, key):
            flushed = partition.flush_if_due(self._shared.clock.now_ms())
            if flushed is not None:
                # A fetch tells the leader that all records before its offset are durable here.
                epoch = partition.leader_epoch
                flushed.add_done_callback(
                    lambda done: self._follow_flushed(done, partition, topic_id, epoch)
                )
                return
        source = self._sources.get(partition.leader_id)
        if source is None:
            source = _SourceBroker(partition.leader_id, self._shared, self._new_link)
            source.broker_epoch = self._epoch_of(partition.leader_id)
            self._sources[partition.leader_id] = source
        self._homes[partition.name] = _FetchAssignment(partition.leader_id, key)
        source.add(self._followed(key, partition), partition)

    def _follow_flushed(
        self, flushed: asyncio.Future[None], partition: Partition, topic_id: bytes, epoch: int
    ) -> None:
        """Follow a partition once its log is flushed, unless it has changed meanwhile."""
        if flushed.cancelled() or flushed.exception() is not None or partition.log.closed:
            return
        if not partition.is_leader and partition.leader_epoch == epoch:
            self.follow(partition, topic_id)

    def forget(self, name: TopicPartition) -> None:
        """Stop fetching a partition; nothing is written to its log after that."""
        home = self._homes.pop(name, None)
        if home is None:
            return
        source = self._sources[home.source_id]
        source.remove(home.key)
        if not len(source):
            del self._sources[home.source_id]
            self._end(source)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._shared.config = config
        rate = config.follower_replication_throttled_rate
        if rate != self._shared.throttle.rate:
            self._shared.throttle.change_rate(rate, asyncio.get_running_loop().time())

    def brokers_changed(self) -> None:
        """Close connections to brokers that were restarted: the old connections may hang."""
        for source_id, source in self._sources.items():
            epoch = self._epoch_of(source_id)
            if epoch != source.broker_epoch:
                source.broker_epoch = epoch
                source.reconnect()

    async def stop(self) -> None:
        """Stop all fetching."""
        self._stopped = True
        self._homes.clear()
        for source in self._sources.values():
            self._end(source)
        self._sources.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, source: _SourceBroker) -> None:
        for task in source.stop():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _epoch_of(self, broker_id: int) -> int:
        broker = self._shared.store.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    def _followed(self, key: PartitionKey, partition: Partition) -> FollowedPartition:
        config, throttle = self._shared.config, self._shared.throttle
        bytes_max, delayed_until = config.replica_fetch_max_bytes, None
        if self._shared.is_throttled(partition):
            bytes_max = min(bytes_max, throttle.rate)
            now = asyncio.get_running_loop().time()
            wait_s = throttle.wait_s(now)
            delayed_until = now + wait_s if wait_s else None
        return FollowedPartition(
            key,
            partition.name.topic,
            partition.leader_epoch,
            position_of(partition.log),
            bytes_max,
            delayed_until,
        )
