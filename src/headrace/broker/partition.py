"""A partition this broker leads: its log, how far it is committed, and who waits for that.

With one replica a record is committed once it is as durable as its topic asks for: when it is in
the page cache, or with `flush.messages` when the fsync that it made due has ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.flusher import Flusher
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol import records as batches
from headrace.protocol.compression import Compression
from headrace.protocol.records import BatchHeader
from headrace.storage.log import Appended, Log
from headrace.types import TopicPartition

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class _CommitWaiter(NamedTuple):
    offset: int
    future: asyncio.Future[None]


class Partition:
    """Used on the event loop's thread only.

    Invariant: `high_watermark` never decreases and never passes the log end offset.
    """

    def __init__(
        self,
        name: TopicPartition,
        log: Log,
        leader_epoch: int,
        config: TopicConfig,
        flusher: Flusher,
    ) -> None:
        self.name = name
        self.log = log
        self.leader_epoch = leader_epoch
        self.config = config
        # What a crash left in the log is what its only replica has: all of it is committed.
        self.high_watermark = log.log_end_offset
        self._flusher = flusher
        self._flush_wanted = False
        self._uncommitted_bytes = 0
        self._commit_waiters: deque[_CommitWaiter] = deque()
        self._watchers: dict[object, Callable[[int], None]] = {}

    def append(self, records: memoryview, now_ms: int) -> Appended:
        """Check one produced batch and write it; KafkaError says why it was refused."""
        header, data = self._admit(records, now_ms)
        return self._append(header, data, now_ms)

    def append_own(self, batch: bytearray, now_ms: int) -> Appended:
        """Write a batch the broker made itself, for an internal topic."""
        return self._append(batches.read_header(batch), memoryview(batch), now_ms)

    def _append(self, header: BatchHeader, data: memoryview, now_ms: int) -> Appended:
        appended = self.log.append(data, [header], self.leader_epoch, now_ms)
        if not appended.duplicate:
            self._uncommitted_bytes += len(data)
            if self._flush_wanted or self.log.flush_due(now_ms):
                self._flush_wanted = True
                self._flusher.flush(self.log, self._on_flushed)
            else:
                self._commit_to(self.log.log_end_offset)
        return appended

    def committed(self, last_offset: int) -> asyncio.Future[None] | None:
        """What to wait for until a record is committed; None if it is already."""
        if last_offset < self.high_watermark:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commit_waiters.append(_CommitWaiter(last_offset, future))
        return future

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client that knows another leadership than this one (KIP-320)."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def watch(self, watcher: object, on_bytes: Callable[[int], None]) -> None:
        """Tell `on_bytes` how many bytes became committed, or -1 when no more will."""
        self._watchers[watcher] = on_bytes

    def unwatch(self, watcher: object) -> None:
        self._watchers.pop(watcher, None)

    def reconfigure(self, config: TopicConfig) -> None:
        """Follow changed settings from the next append on."""
        self.config = config
        self.log.update_config(config)

    def close(self, error: KafkaError) -> None:
        """Let everybody who waits go: the partition is deleted, offline or shut down."""
        while self._commit_waiters:
            waiter = self._commit_waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error)
        for on_bytes in tuple(self._watchers.values()):
            on_bytes(-1)

    def _admit(self, records: memoryview, now_ms: int) -> tuple[BatchHeader, memoryview]:
        """The one batch of a produce request as it is to be stored."""
        config = self.config
        headers = batches.validate(records, config.max_message_bytes)
        header = headers[0]
        if len(headers) != 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a partition takes one batch per request")
        if header.is_transactional:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not available yet")
        data = records
        codec = _CODECS.get(config.compression_type)
        if codec is not None and codec != header.compression:
            header, data = _recompress(records, header, codec, config.max_message_bytes)
        if header.lacks_max_timestamp:
            batches.stamp_max_timestamp(data, header, batches.check_records(data, header))
        if config.message_timestamp_type == "CreateTime":
            self._check_timestamps(header, now_ms)
        return header, data

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        newest = header.max_timestamp
        if newest > now_ms + self.config.message_timestamp_after_max_ms or (
            0 <= header.base_timestamp < now_ms - self.config.message_timestamp_before_max_ms
        ):
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                "a timestamp is outside message.timestamp.before.max.ms and after.max.ms",
            )

    def _on_flushed(self, offset: int) -> None:
        if offset < 0:
            self.close(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk failed to flush"))
            return
        if not self._flusher.is_flushing(self.log):
            # Nobody asked for another flush meanwhile, so what came since need not wait for one.
            self._flush_wanted = False
            offset = self.log.log_end_offset
        self._commit_to(offset)

    def _commit_to(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        waiters = self._commit_waiters
        while waiters and waiters[0].offset < offset:
            waiter = waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_result(None)
        committed_bytes, self._uncommitted_bytes = self._uncommitted_bytes, 0
        if self._watchers:
            for on_bytes in tuple(self._watchers.values()):
                on_bytes(committed_bytes)


def _recompress(
    records: memoryview, header: BatchHeader, codec: Compression, bytes_max: int
) -> tuple[BatchHeader, memoryview]:
    """The batch under the topic's own codec, held to the same limits as what came."""
    size = 0
    if codec is Compression.NONE:
        # Known before the copy is made: what little came may expand to a great deal.
        size = batches.HEADER_SIZE + len(batches.record_bytes(records, header))
    if size <= bytes_max:
        data = memoryview(batches.recompress(records, header, codec))
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
