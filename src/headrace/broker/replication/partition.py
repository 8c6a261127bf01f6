"""A partition of which this broker holds a replica: its log, its role, and who waits for what.

As leader it appends what producers send; a record is committed once the replicas that count have
it, and the leader's own copy is as durable as the topic asks for: in the page cache, or with
`flush.messages` flushed. As follower it takes what the leader has, and learns from it what is
committed.
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

from headrace.broker.replication.flush_queue import Flusher
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import RECOVERING
from headrace.metadata.image import NO_LEADER, PartitionImage
from headrace.protocol import records as batches
from headrace.protocol.compression import Compression
from headrace.protocol.markers import Marker, encode_marker
from headrace.protocol.record_scan import scan_batch
from headrace.protocol.records import BatchHeader
from headrace.replication.leader import HighWatermark, LeaderState
from headrace.storage.log import Appended, Log
from headrace.types import Buffer, TopicPartition

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
# Of more records than these it is only said that they are refused, to keep answers small.
_REASONS_MAX = 100


def admit(records: memoryview, config: TopicConfig, now_ms: int) -> tuple[BatchHeader, memoryview]:
    """The one batch of a produce request as it is to be stored."""
    headers = batches.validate(records, config.max_message_bytes)
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
        batches.stamp_max_timestamp(data, header, batches.check_records(data, header))
    bounds = _timestamp_bounds(config, now_ms)
    if "compact" in config.cleanup_policy or _may_be_out_of(bounds, header):
        _check_each_record(data, header, config, bounds)
    return header, data


class RecordsRefused(KafkaError):
    """Some records of a batch are not what their topic takes, so the batch is refused (KIP-467).

    `records` says why of each of them, by its place in the batch; None for some of very many.
    """

    def __init__(self, code: ErrorCode, detail: str, records: Mapping[int, str | None]) -> None:
        super().__init__(code, detail)
        self.records = records


class _Bounds(NamedTuple):
    """The times that a record may have, both included."""

    oldest: int
    newest: int


def _timestamp_bounds(config: TopicConfig, now_ms: int) -> _Bounds | None:
    if config.message_timestamp_type != "CreateTime":
        return None
    return _Bounds(
        now_ms - config.message_timestamp_before_max_ms,
        now_ms + config.message_timestamp_after_max_ms,
    )


def _may_be_out_of(bounds: _Bounds | None, header: BatchHeader) -> bool:
    """Whether the records have to be looked at; a header says only which timestamp is greatest."""
    return bounds is not None and (header.max_timestamp > bounds.newest or bounds.oldest > 0)


def _check_each_record(
    data: memoryview, header: BatchHeader, config: TopicConfig, bounds: _Bounds | None
) -> None:
    """Refuse records without a key in a compacted topic, which is a table, and wrong times."""
    scan = scan_batch(data, header, 0, batches.EXPANDED_BYTES_MAX)
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
                if timestamp != batches.NO_TIMESTAMP
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
    """The level a topic wants of its codec, None for the codec's default."""
    match codec:
        case Compression.GZIP:
            level, default = config.compression_gzip_level, -1
        case Compression.LZ4:
            # Kafka too takes its fast LZ4 for the default level, and the slow one for all others.
            level, default = config.compression_lz4_level, 9
        case Compression.ZSTD:
            level, default = config.compression_zstd_level, 3
        case _:
            return None
    return None if level == default else level


def _refusal(
    header: BatchHeader, keyless: set[int], mistimed: dict[int, int], bounds: _Bounds | None
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
    # As in Kafka: one wrong time decides on the code of the batch.
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
    """The batch under the topic's own codec, held to the same limits as what came."""
    size, bytes_max = 0, config.max_message_bytes
    if codec is Compression.NONE:
        # Known before the copy is made: what little came may expand to a great deal.
        size = batches.HEADER_SIZE + len(batches.record_bytes(records, header))
    if size <= bytes_max:
        data = memoryview(batches.recompress(records, header, codec, level=_level(config, codec)))
        size = len(data)
    if size > bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"stored with compression.type {codec.name.lower()} the batch would have {size} bytes,"
            f" and the limit is {bytes_max}",
        )
    header = batches.read_header(data)
    # A CRC says that these are the producer's bytes; now they are ours, and must be records.
    batches.check_records(data, header)
    return header, data


logger = logging.getLogger(__name__)

_NO_REPLICAS = PartitionImage((), (), NO_LEADER, leader_epoch=-1, partition_epoch=-1)


class IsrListener(Protocol):
    """Who proposes changes of the in-sync replicas: `broker.isr.IsrKeeper`."""

    def now_ms(self) -> int:
        """The time that followers are measured with, which never jumps."""

    def may_join(self, partition: "Partition", broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may enter the ISR of a partition."""

    def can_grow(self, partition: "Partition") -> None:
        """A follower of a partition has come so far that it can be proposed."""


class FetchListener(Protocol):
    """Where fetches wait for records: `broker.fetch_purgatory.FetchPurgatory`."""

    def appended(self, partition: "Partition", byte_count: int) -> None:
        """So many bytes were written by a leader."""

    def committed(self, partition: "Partition", byte_count: int) -> None:
        """So many bytes became committed."""

    def log_start_moved(self, partition: "Partition") -> None:
        """The log begins elsewhere."""

    def changed(self, partition: "Partition") -> None:
        """Whoever reads is to look again now: a role ended, or a disk failed."""


class _Waiter(NamedTuple):
    offset: int
    future: asyncio.Future[None]


_WAITS_FOR = attrgetter("offset")


class Partition:
    """Used on the event loop's thread only. It has no role until `lead` or `follow` is called.

    Its high watermark is `replication.leader.HighWatermark`: the leadership advances it, or what
    the leader that is followed says.
    """

    def __init__(
        self,
        name: TopicPartition,
        log: Log,
        config: TopicConfig,
        flusher: Flusher,
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
        self._flusher = flusher
        self._flush_wanted = False
        self._on_own_flush: Callable[[int], None] = partial(self._on_flushed, log, -1)
        self._uncommitted_bytes = 0
        # What the leader that is followed said last; -1 if it has not been heard of.
        self._leader_high_watermark = -1
        # Since an unclean election, until the log agrees with a leader's again.
        self._after_unclean_election = False
        # Why nothing is fetched and what to do, if the leader lacks committed records.
        self.diverged: str | None = None
        self._commit_waiters: deque[_Waiter] = deque()
        self._flush_waiters: deque[_Waiter] = deque()
        self._deletion_waiters: deque[_Waiter] = deque()
        # Set by itself while fetches wait for this partition.
        self.waiting_fetches: FetchListener | None = None

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are known to be committed."""
        return self._high_watermark.offset

    @property
    def image(self) -> PartitionImage:
        """The partition as the metadata log has it."""
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
        """Grows with every change of the partition in the metadata log."""
        if self.leadership is None:
            return self._image.partition_epoch
        return self.leadership.partition_epoch

    @property
    def is_caught_up(self) -> bool:
        """Whether this follower has all that its leader says is committed."""
        return 0 <= self._leader_high_watermark <= self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where those stop who read only what is committed, and of transactions only the decided.

        It is the high watermark unless a transaction keeps it back.
        """
        return self.log.last_stable_offset(self.high_watermark)

    # Roles.

    def lead(self, image: PartitionImage, now_ms: int) -> None:
        """Begin to lead in the epoch of `image`; KafkaError if the log cannot note that.

        The high watermark begins where this replica knew it to be.
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
        self._flush_wanted = self.log.flush_due(now_ms)
        self.leadership = LeaderState(
            node_id=image.leader,
            replicas=image.replicas,
            isr=image.isr,
            leader_epoch=image.leader_epoch,
            partition_epoch=image.partition_epoch,
            log_end_offset=end_offset,
            persisted_offset=self.high_watermark if self._flush_wanted else end_offset,
            high_watermark=self._high_watermark,
            now_ms=self._steady_ms(now_ms),
            min_insync_replicas=self.config.min_insync_replicas,
            lost_replicas=image.lost_replicas,
        )
        self.is_leader = True
        if self._flush_wanted:
            self._flusher.flush(self.log, self._on_own_flush)
        elif self.leadership.persisted(end_offset):
            self._release_committed()

    def follow(self, image: PartitionImage) -> None:
        """Follow the leader of `image`, or wait for one if it has none."""
        if self.is_leader or image.leader_epoch != self.leader_epoch:
            self._end_role(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is led elsewhere now"))
        self._image = image
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        self._note_recovery(image)

    def _note_recovery(self, image: PartitionImage) -> None:
        """Note an unclean election: the metadata says so until another replica is in sync."""
        if image.leader_recovery_state == RECOVERING:
            self._after_unclean_election = True

    def update(self, image: PartitionImage) -> None:
        """Follow a change that left the leadership as it is: of the ISR, of the replicas."""
        leadership = self.leadership
        if leadership is None:
            self._image = image
            self._note_recovery(image)
            return
        if image.partition_epoch < leadership.partition_epoch:
            return  # The controller's answer came sooner than its log.
        is_found = not set(self._image.lost_replicas) <= set(image.lost_replicas)
        self._image = image
        self.isr_changed(
            leadership.update(image.replicas, image.isr, image.partition_epoch, image.lost_replicas)
        )
        if is_found and self._isr_listener is not None:
            # It may have fetched all there is, and is not heard of again for a while.
            self._isr_listener.can_grow(self)

    def stop(self, error: KafkaError) -> None:
        """Let everybody who waits go: the partition is deleted, offline, moved or shut down."""
        self._end_role(error)

    def _end_role(self, error: KafkaError) -> None:
        self.is_leader = False
        self.leadership = None
        self._flush_wanted = False
        self._uncommitted_bytes = 0
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

    # What a leader does.

    def append(self, records: memoryview, now_ms: int) -> Appended:
        """Check one produced batch and write it; KafkaError says why it was refused."""
        header, data = admit(records, self.config, now_ms)
        return self._append(header, data, now_ms)

    def append_own(self, batch: bytearray, now_ms: int) -> Appended:
        """Write a batch the broker made itself, for an internal topic."""
        self.check_in_sync()
        return self._append(batches.read_header(batch), memoryview(batch), now_ms)

    def append_marker(self, marker: Marker, now_ms: int, transaction_version: int = 0) -> Appended:
        """Write what ends a transaction; KafkaError if its producer or coordinator is too old.

        Under `transaction_version` 2 a late marker of the transaction before is told apart.
        """
        self.check_in_sync()
        producers = self.log.producers
        producers.check_marker(marker, transaction_version)
        # Markers that are committed by now are no longer of interest to anybody.
        producers.transactions.first_unstable(self.high_watermark)
        batch = encode_marker(marker, now_ms)
        return self._append(batches.read_header(batch), memoryview(batch), now_ms)

    def _append(self, header: BatchHeader, data: memoryview, now_ms: int) -> Appended:
        leadership = self.leadership
        if leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        appended = log.append(data, [header], self.leader_epoch, now_ms)
        if appended.duplicate:
            return appended
        self._uncommitted_bytes += len(data)
        # Without followers nobody is measured, and to ask for the time takes a while.
        steady_ms = self._steady_ms(now_ms) if leadership.followers else now_ms
        leadership.appended(log.log_end_offset, steady_ms)
        if self._flush_wanted or log.flush_due(now_ms):
            self._flush_wanted = True
            self._flusher.flush(log, self._on_own_flush)
        elif leadership.persisted(log.log_end_offset):
            self._release_committed()
        if self.waiting_fetches is not None:
            self.waiting_fetches.appended(self, len(data))
        return appended

    def check_in_sync(self) -> None:
        """Refuse what asks for all replicas when there are fewer than `min.insync.replicas`.

        A topic with fewer replicas than that needs all of them.
        """
        count = len(self.isr)
        if count < self.config.min_insync_replicas and count < len(self._image.replicas):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"in sync are {list(self.isr)}, and min.insync.replicas is"
                f" {self.config.min_insync_replicas}",
            )

    def committed(self, last_offset: int) -> asyncio.Future[None] | None:
        """What to wait for until a record is committed; None if it is already.

        It fails when leadership ends first. With fewer in sync than `min.insync.replicas` it waits
        until there are enough.
        """
        if last_offset < self._high_watermark.offset:
            return None
        return _wait(self._commit_waiters, last_offset)

    def persisted(self, last_offset: int) -> asyncio.Future[None] | None:
        """What to wait for until the leader's own copy is durable enough (acks=1), if need be."""
        leadership = self.leadership
        if not self._flush_wanted or leadership is None:
            return None
        if last_offset < leadership.persisted_offset:
            return None
        return _wait(self._flush_waiters, last_offset)

    def deleted(self, offset: int) -> asyncio.Future[None] | None:
        """What to wait for until no replica in sync has records below `offset`, if need be."""
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
        """Note that a follower has all below `offset`, which is in its leader's log."""
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
            self._isr_listener.can_grow(self)
        if self._deletion_waiters:
            self._release_deletions(leadership)

    def isr_changed(self, has_committed: bool) -> None:
        """Let go who waited for replicas that count no more, or for records now committed."""
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

    # What a follower does.

    def append_replicated(
        self,
        data: Buffer,
        headers: Sequence[BatchHeader],
        leader_high_watermark: int,
        leader_log_start_offset: int,
        now_ms: int,
    ) -> asyncio.Future[None] | None:
        """Take what a leader sent: batches (or none), how far it is committed, where it begins.

        What is returned is to be awaited before the next fetch, which tells the leader that these
        records are safe here: the flush that `flush.messages` asks for.
        """
        if self.leadership is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is led here")
        log = self.log
        flushed = None
        if headers:
            log.producers.transactions.first_unstable(self.high_watermark)
            log.append_replicated(data, headers, now_ms)
            self._uncommitted_bytes += len(data)
            if log.flush_due(now_ms):
                flushed = asyncio.get_running_loop().create_future()
                flushed.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._flusher.flush(log, partial(_settle, flushed))
        self._leader_high_watermark = leader_high_watermark
        self._after_unclean_election = False
        self.set_high_watermark(leader_high_watermark)
        if leader_log_start_offset > log.log_start_offset:
            self.advance_log_start(min(leader_log_start_offset, log.log_end_offset))
        return flushed

    def set_high_watermark(self, offset: int) -> None:
        """Take a leader's high watermark, as far as this replica has the records."""
        if self._high_watermark.advance(offset, self.log.log_end_offset):
            self._release_committed()

    @property
    def may_lose_committed(self) -> bool:
        """Whether records that are committed may be removed, because a leader does not have them.

        An unclean election gave them up, or the topic is one where any election may do so.
        """
        return self._after_unclean_election or self.config.unclean_leader_election_enable

    def leader_lacks(self, offset: int) -> None:
        """Keep the log as it is: the leader has nothing of it from `offset` on."""
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
        """Remove what a leader does not have: every batch that reaches `offset` or beyond."""
        self.log.truncate_to(offset)
        self._truncated()

    def restart_at(self, offset: int) -> None:
        """Drop everything: what the leader has begins at `offset`."""
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark.log_start_moved(offset)
        self._truncated()

    def _truncated(self) -> None:
        self._uncommitted_bytes = 0
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

    # What both do.

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client that knows another leadership than this one (KIP-320)."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def advance_log_start(self, offset: int) -> None:
        """Hide the records below `offset`, and tell who reads."""
        self.log.advance_log_start(offset)
        self.log_start_moved()

    def log_start_moved(self) -> None:
        """Follow the log, which begins elsewhere now, and tell who reads."""
        self._high_watermark.log_start_moved(self.log.log_start_offset)
        if self.waiting_fetches is not None:
            self.waiting_fetches.log_start_moved(self)

    def reconfigure(self, config: TopicConfig) -> None:
        """Follow changed settings from the next append on."""
        self.config = config
        self.log.update_config(config)
        if self.leadership is not None and self.leadership.require(config.min_insync_replicas):
            self._release_committed()

    def replace_log(self, log: Log) -> None:
        """Go on with a log that has the same records in another data directory."""
        self.log = log
        self._on_own_flush = partial(self._on_flushed, log, self.leader_epoch)
        if self._flush_wanted:
            self._flusher.flush(log, self._on_own_flush)

    def _on_flushed(self, log: Log, leader_epoch: int, offset: int) -> None:
        leadership = self.leadership
        if leadership is None or leader_epoch != self.leader_epoch or log is not self.log:
            return  # It was asked for by a leadership that is over, or of a log that was moved.
        if offset < 0:
            self._fail_waiters(
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed to flush")
            )
            return
        if not self._flusher.is_flushing(self.log):
            # Nobody asked for another flush meanwhile, so what came since need not wait for one.
            self._flush_wanted = False
            offset = self.log.log_end_offset
        if self._flush_waiters:
            _release(self._flush_waiters, offset)
        if leadership.persisted(offset):
            self._release_committed()

    def _release_committed(self) -> None:
        """Let go who waited for records that are committed now: the high watermark has moved."""
        if self._commit_waiters:
            _release(self._commit_waiters, self._high_watermark.offset)
        committed_bytes, self._uncommitted_bytes = self._uncommitted_bytes, 0
        if self.waiting_fetches is not None:
            self.waiting_fetches.committed(self, committed_bytes)


def _wait(waiters: deque[_Waiter], offset: int) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # Who asked may be gone by then: an error that nobody looks at is no mistake.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    waiter = _Waiter(offset, future)
    if waiters and offset < waiters[-1].offset:
        # A repeated batch, which waits for the one that was appended before others.
        waiters.insert(bisect(waiters, offset, key=_WAITS_FOR), waiter)
    else:
        waiters.append(waiter)
    return future


def _release(waiters: deque[_Waiter], offset: int) -> None:
    """Let go who waits for a record below `offset`."""
    while waiters and waiters[0].offset < offset:
        future = waiters.popleft().future
        if not future.done():
            future.set_result(None)


def _settle(flushed: asyncio.Future[None], offset: int) -> None:
    if flushed.done():
        return
    if offset < 0:
        flushed.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed to flush"))
    else:
        flushed.set_result(None)
