"""A replica of a partition on this broker: its log, its role, and requests that wait.

As leader it appends the batches of producers; a record is committed once the replicas in sync have
it, and the leader's own copy is as durable as the topic demands: in the page cache, or with
`flush.messages` flushed. As follower it appends the batches of the leader, and takes over its high
watermark.
"""

import asyncio
import logging
import os
from bisect import bisect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple, Protocol

from headrace.broker.replication.flush_queue import FlushQueue
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import RECOVERING
from headrace.metadata.image import NO_LEADER, PartitionImage
from headrace.protocol.batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
    stamp_max_timestamp,
    validate,
)
from headrace.protocol.compression import EXPANDED_BYTES_MAX, Compression, recompress, record_bytes
from headrace.protocol.markers import Marker, encode_marker
from headrace.protocol.record_scan import check_records, scan_batch
from headrace.replication.leader import HighWatermark, LeaderState
from headrace.storage.log import AppendResult, Log
from headrace.types import Buffer, TopicPartition

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
# The most refused records of a batch with a reason of their own, to keep responses small.
_REASONS_MAX = 100


def admit(records: memoryview, config: TopicConfig, now_ms: int) -> tuple[BatchHeader, memoryview]:
    """Check the batch of a produce request, and return it in the form to be stored."""
    headers = validate(records, config.max_message_bytes)
    header = headers[0]
    if len(headers) != 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a partition takes one batch per request")
    if header.is_transactional and not header.has_producer:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transaction needs a producer id")
    data = records
    codec = _CODECS.get(config.compression_type)
    if codec is not None and codec != header.compression:
        header, data = _recompress(records, header, codec, config)
    if header.lacks_max_timestamp:
        stamp_max_timestamp(data, header, check_records(data, header))
    bounds = _timestamp_bounds(config, now_ms)
    if "compact" in config.cleanup_policy or _may_be_out_of(bounds, header):
        _check_each_record(data, header, config, bounds)
    return header, data


class RecordsRefused(KafkaError):
    """Some records of a batch break rules of their topic, so the batch is refused (KIP-467).

    `records` has the reason of each by its index in the batch; None for some of very many.
    """

    def __init__(self, code: ErrorCode, detail: str, records: Mapping[int, str | None]) -> None:
        super().__init__(code, detail)
        self.records = records


class _TimestampBounds(NamedTuple):
    """The first and the last timestamp that a record may have."""

    oldest: int
    newest: int


def _timestamp_bounds(config: TopicConfig, now_ms: int) -> _TimestampBounds | None:
    if config.message_timestamp_type != "CreateTime":
        return None
    return _TimestampBounds(
        now_ms - config.message_timestamp_before_max_ms,
        now_ms + config.message_timestamp_after_max_ms,
    )


def _may_be_out_of(bounds: _TimestampBounds | None, header: BatchHeader) -> bool:
    """Whether each record must be checked: a header only has the greatest timestamp."""
    return bounds is not None and (header.max_timestamp > bounds.newest or bounds.oldest > 0)


def _check_each_record(
    data: memoryview, header: BatchHeader, config: TopicConfig, bounds: _TimestampBounds | None
) -> None:
    """Refuse records without a key in a compacted topic, and timestamps out of bounds."""
    scan = scan_batch(data, header, 0, EXPANDED_BYTES_MAX)
    keyless: set[int] = set()
    if "compact" in config.cleanup_policy and scan.keys.nulls:
        sizes = memoryview(scan.keys.sizes).cast("i")
        keyless = {index for index, size in enumerate(sizes) if size < 0}
    mistimed: dict[int, int] = {}
    if bounds is not None:
        times = memoryview(scan.timestamps).cast("q")
        if min(times) < bounds.oldest or max(times) > bounds.newest:
            mistimed = {
                index: timestamp
                for index, timestamp in enumerate(times)
                if timestamp != NO_TIMESTAMP
                and not bounds.oldest <= timestamp <= bounds.newest
                and index not in keyless
            }
    if keyless or mistimed:
        raise _refusal(header, keyless, mistimed, bounds)
    if bounds is not None and header.max_timestamp > bounds.newest:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the batch says that its greatest timestamp is {header.max_timestamp}, which none of"
            " its records has",
        )


def _level(config: TopicConfig, codec: Compression) -> int | None:
    """The compression level that a topic sets; None for the default of the codec."""
    match codec:
        case Compression.GZIP:
            level, default = config.compression_gzip_level, -1
        case Compression.LZ4:
            # As in Kafka: the fast LZ4 for the default level, the slow LZ4 for all others.
            level, default = config.compression_lz4_level, 9
        case Compression.ZSTD:
            level, default = config.compression_zstd_level, 3
        case _:
            return None
    return None if level == default else level


def _refusal(
    header: BatchHeader,
    keyless: set[int],
    mistimed: dict[int, int],
    bounds: _TimestampBounds | None,
) -> RecordsRefused:
    records: dict[int, str | None] = {}
    for index in sorted(keyless | mistimed.keys()):
        if len(records) >= _REASONS_MAX:
            records[index] = None
        elif index in keyless:
            records[index] = "it has no key, and a compacted topic needs one"
        else:
            assert bounds is not None
            records[index] = (
                f"its timestamp {mistimed[index]} is not between {bounds.oldest} and"
                f" {bounds.newest}, which message.timestamp.before.max.ms and after.max.ms allow"
            )
    # As in Kafka: a single invalid timestamp decides the error code of the batch.
    code = ErrorCode.INVALID_TIMESTAMP if mistimed else ErrorCode.INVALID_RECORD
    first = next(iter(records))
    detail = (
        f"{len(records)} of {header.record_count} records are refused, the first of them"
        f" record {first}: {records[first]}"
    )
    return RecordsRefused(code, detail, records)


def _recompress(
    records: memoryview, header: BatchHeader, codec: Compression, config: TopicConfig
) -> tuple[BatchHeader, memoryview]:
    """The batch under the codec of the topic, within the same limits as a produced batch."""
    size, bytes_max = 0, config.max_message_bytes
    if codec is Compression.NONE:
        # Known before the copy is made: a small batch may expand to many times its size.
        size = HEADER_SIZE + len(record_bytes(records, header))
    if size <= bytes_max:
        data = memoryview(recompress(records, header, codec, level=_level(config, codec)))
        size = len(data)
    if size > bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"stored with compression.type {codec.name.lower()} the batch would have {size} bytes,"
            f" and the limit is {bytes_max}",
        )
    header = read_header(data)
    # The CRC of the producer no longer covers these bytes, so its records are checked.
    check_records(data, header)
    return header, data


logger = logging.getLogger(__name__)

_NO_REPLICAS = PartitionImage((), (), NO_LEADER, leader_epoch=-1, partition_epoch=-1)


class IsrListener(Protocol):
    """The proposer of ISR changes: `broker.replication.isr_proposals.IsrProposer`."""

    def now_ms(self) -> int:
        """The time for measuring followers, which never jumps."""

    def may_join(self, partition: "Partition", broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may enter the ISR of a partition."""

    def propose_soon(self, partition: "Partition") -> None:
        """Propose an ISR soon: a follower of the partition has caught up enough."""


class FetchListener(Protocol):
    """The fetches that wait for records: `broker.fetch_purgatory.FetchPurgatory`."""

    def appended(self, partition: "Partition", byte_count: int) -> None:
        """Count bytes that the leader appended."""

    def committed(self, partition: "Partition", byte_count: int) -> None:
        """Count bytes that were committed."""

    def log_start_moved(self, partition: "Partition") -> None:
        """Note that the log start offset has moved."""

    def changed(self, partition: "Partition") -> None:
        """Wake all fetches of a partition: its role ended, or its disk failed."""


class _AckWaiter(NamedTuple):
    offset: int
    future: asyncio.Future[None]


_WAITS_FOR = attrgetter("offset")


class Partition:
    """A replica of a partition on this broker. Used on the event loop's thread only.

    It has no role until `lead` or `follow` is called. Its high watermark, a
    `replication.leader.HighWatermark`, is advanced by its leadership or by the leader it follows.
    """

    def __init__(
        self,
        name: TopicPartition,
        log: Log,
        config: TopicConfig,
        flusher: FlushQueue,
        high_watermark: int = 0,
        *,
        isr: IsrListener | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.config = config
        self._high_watermark = HighWatermark(
            high_watermark, log.log_start_offset, log.log_end_offset
        )
        self.is_leader = False
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.leadership: LeaderState | None = None
        self._image = _NO_REPLICAS
        self._isr_listener = isr
        self._flush_queue = flusher
        self._flush_pending = False
        self._on_own_flush: Callable[[int], None] = partial(self._on_flushed, log, -1)
        self._uncommitted_bytes = 0
        # The high watermark in the last response of the leader; -1 before the first.
        self._leader_high_watermark = -1
        # Since an unclean election, until the log agrees with a leader's again.
        self._after_unclean_election = False
        # The reason why fetching stopped, and the advice, if the leader lacks committed records.
        self.diverged: str | None = None
        self._commit_waiters: deque[_AckWaiter] = deque()
        self._flush_waiters: deque[_AckWaiter] = deque()
        self._deletion_waiters: deque[_AckWaiter] = deque()
        # As leader: the offset of the records last sent to each follower.
        self.served_offsets: dict[int, int] = {}
        # Set by the purgatory while fetches wait for this partition.
        self.waiting_fetches: FetchListener | None = None

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are known to be committed."""
        return self._high_watermark.offset

    @property
    def image(self) -> PartitionImage:
        """The partition in the metadata image."""
        return self._image

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as committed in the metadata log."""
        return self._image.isr if self.leadership is None else self.leadership.isr

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._image.replicas

    @property
    def partition_epoch(self) -> int:
        """The partition epoch, which grows with every change in the metadata log."""
        if self.leadership is None:
            return self._image.partition_epoch
        return self.leadership.partition_epoch

    @property
    def is_caught_up(self) -> bool:
        """Whether this follower has all records that its leader reports as committed."""
        return 0 <= self._leader_high_watermark <= self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end offset for READ_COMMITTED consumers: below it all transactions have ended.

        It is the high watermark unless an open transaction keeps it back.
        """
        return self.log.last_stable_offset(self.high_watermark)

    # Roles.

    def lead(self, image: PartitionImage, now_ms: int) -> None:
        """Begin to lead in the epoch of `image`; KafkaError if the log cannot record it.

        The high watermark starts at its value known to this replica.
        """
        if self.is_leader and image.leader_epoch == self.leader_epoch:
            self.update(image)
            return
        self.log.start_epoch(image.leader_epoch)
        self._end_role(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another leadership began"))
        self._image = image
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        end_offset = self.log.log_end_offset
        self._on_own_flush = partial(self._on_flushed, self.log, image.leader_epoch)
        self._flush_pending = self.log.flush_due(now_ms)
        self.leadership = LeaderState(
            node_id=image.leader,
            replicas=image.replicas,
            isr=image.isr,
            leader_epoch=image.leader_epoch,
            partition_epoch=image.partition_epoch,
            log_end_offset=end_offset,
            persisted_offset=self.high_watermark if self._flush_pending else end_offset,
            high_watermark=self._high_watermark,
            now_ms=self._steady_ms(now_ms),
            min_insync_replicas=self.config.min_insync_replicas,
            lost_replicas=image.lost_replicas,
        )
        self.is_leader = True
        if self._flush_pending:
            self._flush_queue.flush(self.log, self._on_own_flush)
        elif self.leadership.persisted(end_offset):
            self._release_committed()

    def follow(self, image: PartitionImage) -> None:
        """Follow the leader of `image`, or wait if it has no leader."""
        if self.is_leader or image.leader_epoch != self.leader_epoch:
            self._end_role(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is led elsewhere now"))
        self._image = image
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        self._note_recovery(image)

    def _note_recovery(self, image: PartitionImage) -> None:
        """Note an unclean election: the metadata has it until another replica is in sync."""
        if image.leader_recovery_state == RECOVERING:
            self._after_unclean_election = True

    def update(self, image: PartitionImage) -> None:
        """Apply a change that keeps the leadership: of the ISR, of the replicas."""
        leadership = self.leadership
        if leadership is None:
            self._image = image
            self._note_recovery(image)
            return
        if image.partition_epoch < leadership.partition_epoch:
            return  # The controller's response came sooner than its log.
        is_found = not set(self._image.lost_replicas) <= set(image.lost_replicas)
        self._image = image
        self.isr_changed(
            leadership.update(image.replicas, image.isr, image.partition_epoch, image.lost_replicas)
        )
        if is_found and self._isr_listener is not None:
            # That replica may have fetched everything, and not fetch again for a while.
            self._isr_listener.propose_soon(self)

    def stop(self, error: KafkaError) -> None:
        """End the role, and fail all waits: the partition is deleted, moved, offline or closed."""
        self._end_role(error)

    def _end_role(self, error: KafkaError) -> None:
        self.is_leader = False
        self.leadership = None
        self.served_offsets.clear()
        self._flush_pending = False
        self._uncommitted_bytes = self._bytes_above_high_watermark()
        self._leader_high_watermark = -1
        self.diverged = None
        self._fail_waiters(error)

    def _fail_waiters(self, error: KafkaError) -> None:
        for waiters in (self._commit_waiters, self._flush_waiters, self._deletion_waiters):
            while waiters:
                waiter = waiters.popleft()
                if not waiter.future.done():
                    waiter.future.set_exception(error)
        if self.waiting_fetches is not None:
            self.waiting_fetches.changed(self)

    # As leader.

    def append(self, records: memoryview, now_ms: int) -> AppendResult:
        """Check a produced batch and append it; KafkaError if it is refused."""
        header, data = admit(records, self.config, now_ms)
        return self._append(header, data, now_ms)

    def append_own(self, batch: bytearray, now_ms: int) -> AppendResult:
        """Append a batch of the broker itself, for an internal topic."""
        self.check_in_sync()
        return self._append(read_header(batch), memoryview(batch), now_ms)

    def append_marker(
        self, marker: Marker, now_ms: int, transaction_version: int = 0
    ) -> AppendResult:
        """Append a transaction marker; KafkaError if its producer or coordinator is fenced.

        Under `transaction_version` 2 a late marker of the transaction before is recognized.
        """
        self.check_in_sync()
        producers = self.log.producers
        producers.check_marker(marker, transaction_version)
        # Markers that are committed by now need not be tracked any more.
        producers.transactions.first_unstable(self.high_watermark)
        batch = encode_marker(marker, now_ms)
        return self._append(read_header(batch), memoryview(batch), now_ms)

    def _append(self, header: BatchHeader, data: memoryview, now_ms: int) -> AppendResult:
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        appended = log.append(data, [header], self.leader_epoch, now_ms)
        if appended.duplicate:
            return appended
        self._uncommitted_bytes += len(data)
        # Only followers are measured with the steady time, which is slow to read.
        steady_ms = self._steady_ms(now_ms) if leadership.followers else now_ms
        leadership.appended(log.log_end_offset, steady_ms)
        if self._flush_pending or log.flush_due(now_ms):
            self._flush_pending = True
            self._flush_queue.flush(log, self._on_own_flush)
        elif leadership.persisted(log.log_end_offset):
            self._release_committed()
        if self.waiting_fetches is not None:
            self.waiting_fetches.appended(self, len(data))
        return appended

    def check_in_sync(self) -> None:
        """NOT_ENOUGH_REPLICAS if there are fewer in sync than `min.insync.replicas`.

        A topic with fewer replicas than that needs all of them.
        """
        count = len(self.isr)
        if count < self.config.min_insync_replicas and count < len(self._image.replicas):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"in sync are {list(self.isr)}, and min.insync.replicas is"
                f" {self.config.min_insync_replicas}",
            )

    def when_committed(self, last_offset: int) -> asyncio.Future[None] | None:
        """A future that ends when a record is committed; None if it is already.

        It fails when leadership ends first. With fewer in sync than `min.insync.replicas` it waits
        until there are enough.
        """
        if last_offset < self._high_watermark.offset:
            return None
        return _wait(self._commit_waiters, last_offset)

    def when_persisted(self, last_offset: int) -> asyncio.Future[None] | None:
        """A future that ends when the leader's own copy is durable enough; None if it is."""
        leadership = self.leadership
        if not self._flush_pending or leadership is None:
            return None
        if last_offset < leadership.persisted_offset:
            return None
        return _wait(self._flush_waiters, last_offset)

    def when_deleted(self, offset: int) -> asyncio.Future[None] | None:
        """A future that ends when no replica in sync has records below `offset`; None if so."""
        if self.leadership is None or self.leadership.low_watermark >= offset:
            return None
        return _wait(self._deletion_waiters, offset)

    def follower_fetched(
        self,
        replica_id: int,
        replica_epoch: int,
        offset: int,
        now_ms: int,
        log_start_offset: int = -1,
    ) -> None:
        """Note that a follower has all records below `offset`, which is within this log."""
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leadership.fetched(
            replica_id,
            replica_epoch,
            offset,
            log_start_offset,
            self._steady_ms(now_ms),
            self._may_join,
        ):
            self._release_committed()
        if leadership.joining and self._isr_listener is not None and leadership.can_grow():
            self._isr_listener.propose_soon(self)
        if self._deletion_waiters:
            self._release_deletions(leadership)

    def isr_changed(self, has_committed: bool) -> None:
        """End waits for replicas that left the ISR, and for records committed thereby."""
        if has_committed:
            self._release_committed()
        if self._deletion_waiters and self.leadership is not None:
            self._release_deletions(self.leadership)

    def _release_deletions(self, leadership: LeaderState) -> None:
        waiters, self._deletion_waiters = self._deletion_waiters, deque()
        for waiter in waiters:
            if waiter.future.done():
                continue
            if waiter.offset <= leadership.low_watermark:
                waiter.future.set_result(None)
            else:
                self._deletion_waiters.append(waiter)

    def _steady_ms(self, now_ms: int) -> int:
        return now_ms if self._isr_listener is None else self._isr_listener.now_ms()

    def _may_join(self, broker_id: int, broker_epoch: int) -> bool:
        listener = self._isr_listener
        return listener is None or listener.may_join(self, broker_id, broker_epoch)

    # As follower.

    def append_replicated(
        self,
        data: Buffer,
        headers: Sequence[BatchHeader],
        leader_high_watermark: int,
        leader_log_start_offset: int,
        now_ms: int,
    ) -> asyncio.Future[None] | None:
        """Append batches of the leader, or none, and apply its high watermark and log start.

        The returned future, of the flush that `flush.messages` demands, is to be awaited before the
        next fetch, which tells the leader that these records are safe here.
        """
        if self.leadership is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is led here")
        log = self.log
        flushed = None
        if headers:
            log.producers.transactions.first_unstable(self.high_watermark)
            log.append_replicated(data, headers, now_ms)
            self._uncommitted_bytes += len(data)
            flushed = self.flush_if_due(now_ms)
        self._leader_high_watermark = leader_high_watermark
        self._after_unclean_election = False
        self.set_high_watermark(leader_high_watermark)
        if leader_log_start_offset > log.log_start_offset:
            self.advance_log_start(min(leader_log_start_offset, log.log_end_offset))
        return flushed

    def flush_if_due(self, now_ms: int) -> asyncio.Future[None] | None:
        """Begin the flush that `flush.messages` or `flush.ms` demands; None if none is due."""
        if not self.log.flush_due(now_ms):
            return None
        flushed = asyncio.get_running_loop().create_future()
        flushed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._flush_queue.flush(self.log, partial(_end_flush, flushed))
        return flushed

    def set_high_watermark(self, offset: int) -> None:
        """Take over a leader's high watermark, up to the end of this log."""
        if self._high_watermark.advance(offset, self.log.log_end_offset):
            self._release_committed()

    @property
    def may_lose_committed(self) -> bool:
        """Whether committed records may be removed, because the leader does not have them.

        That is so after an unclean election, and always in a topic that allows such elections.
        """
        return self._after_unclean_election or self.config.unclean_leader_election_enable

    def mark_diverged(self, offset: int) -> None:
        """Stop following: the leader lacks the committed records from `offset` on."""
        log = self.log
        self.diverged = (
            f"records from offset {offset} to {self.high_watermark} are committed, and broker"
            f" {self.leader_id}, which leads in epoch {self.leader_epoch}, does not have them. They"
            " are kept here, and nothing is fetched: see that a replica that has them leads. To"
            " give them up, stop this broker, run `headrace log strays set-aside"
            f" {os.path.dirname(log.directory)} {self.name}` and start it again"
        )
        logger.error("%s: %s", self.name, self.diverged)

    def truncate_to(self, offset: int) -> None:
        """Remove records that the leader does not have: every batch that reaches `offset`."""
        self.log.truncate_to(offset)
        self._truncated()

    def restart_at(self, offset: int) -> None:
        """Drop all records: the log of the leader begins at `offset`."""
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark.log_start_moved(offset)
        self._truncated()

    def _truncated(self) -> None:
        self._uncommitted_bytes = self._bytes_above_high_watermark()
        end_offset = self.log.log_end_offset
        if lost := self._high_watermark.truncated(end_offset):
            logger.error(
                "%s: committed records from offset %d to %d were removed, since the leader of epoch"
                " %d does not have them",
                self.name,
                end_offset,
                end_offset + lost,
                self.leader_epoch,
            )

    # In both roles.

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client with an older or a newer leader epoch (KIP-320)."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def advance_log_start(self, offset: int) -> None:
        """Hide the records below `offset`, and notify waiting fetches."""
        self.log.advance_log_start(offset)
        self.log_start_moved()

    def log_start_moved(self) -> None:
        """Apply a new log start offset, and notify waiting fetches."""
        self._high_watermark.log_start_moved(self.log.log_start_offset)
        if self.waiting_fetches is not None:
            self.waiting_fetches.log_start_moved(self)

    def reconfigure(self, config: TopicConfig) -> None:
        """Apply changed settings from the next append on."""
        self.config = config
        self.log.update_config(config)
        if self.leadership is not None and self.leadership.set_min_insync_replicas(
            config.min_insync_replicas
        ):
            self._release_committed()

    def replace_log(self, log: Log) -> None:
        """Continue with a log that has the same records in another data directory."""
        self.log = log
        self._on_own_flush = partial(self._on_flushed, log, self.leader_epoch)
        if self._flush_pending:
            self._flush_queue.flush(log, self._on_own_flush)

    def _on_flushed(self, log: Log, leader_epoch: int, offset: int) -> None:
        leadership = self.leadership
        if leadership is None or leader_epoch != self.leader_epoch or log is not self.log:
            return  # A flush of a past leadership, or of a log that was moved.
        if offset < 0:
            self._fail_waiters(
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed to flush")
            )
            return
        if not self._flush_queue.is_flushing(self.log):
            # No other flush is due, so records that came meanwhile need not wait for it.
            self._flush_pending = False
            offset = self.log.log_end_offset
        if self._flush_waiters:
            _release(self._flush_waiters, offset)
        if leadership.persisted(offset):
            self._release_committed()

    def _bytes_above_high_watermark(self) -> int:
        """An upper bound of the bytes in the log that are not known to be committed.

        A new leader finds such records in its log: waiting consumers must be woken when they are
        committed, though nothing is appended then.
        """
        high_watermark = self.high_watermark
        if self.log.log_end_offset <= high_watermark:
            return 0
        byte_count = 0
        for segment in reversed(self.log.segments):
            byte_count += segment.size
            if segment.base_offset <= high_watermark:
                break
        return byte_count

    def _release_committed(self) -> None:
        """End waits for records that are committed now: the high watermark has moved."""
        high_watermark = self._high_watermark.offset
        if self._commit_waiters:
            _release(self._commit_waiters, high_watermark)
        committed_bytes, self._uncommitted_bytes = self._uncommitted_bytes, 0
        if high_watermark != self.log.log_end_offset:
            committed_bytes -= self._note_uncommitted(high_watermark, committed_bytes)
        if self.waiting_fetches is not None:
            self.waiting_fetches.committed(self, committed_bytes)

    def _note_uncommitted(self, high_watermark: int, byte_count: int) -> int:
        """Note which of the last appended bytes wait for the next commit; return their number.

        0 if it is not known. All count again then: a fetch that is woken too soon waits on, and a
        fetch that is not woken would wait for its timeout.
        """
        left_bytes = self.log.bytes_from(high_watermark)
        self._uncommitted_bytes = byte_count if left_bytes is None else left_bytes
        return left_bytes or 0


def _wait(waiters: deque[_AckWaiter], offset: int) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # The request may be gone by then: an exception that is never retrieved is no bug.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    waiter = _AckWaiter(offset, future)
    if waiters and offset < waiters[-1].offset:
        # A repeated batch waits for its first append, which came before others.
        waiters.insert(bisect(waiters, offset, key=_WAITS_FOR), waiter)
    else:
        waiters.append(waiter)
    return future


def _release(waiters: deque[_AckWaiter], offset: int) -> None:
    """End waits for records below `offset`."""
    while waiters and waiters[0].offset < offset:
        future = waiters.popleft().future
        if not future.done():
            future.set_result(None)


def _end_flush(flushed: asyncio.Future[None], offset: int) -> None:
    if flushed.done():
        return
    if offset < 0:
        flushed.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed to flush"))
    else:
        flushed.set_result(None)
