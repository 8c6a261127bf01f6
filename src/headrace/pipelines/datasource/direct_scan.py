"""Direct scan: the segments of a data directory, read in parallel and without a broker."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.client.consumer.completed_fetch import batches_of
from headrace.client.list_offsets import NOTHING
from headrace.errors import ConfigError, CorruptBatch, KafkaError, StorageError
from headrace.options import suggestion
from headrace.pipelines.datasource.brokers import FoundPartitions, SourceTopics
from headrace.pipelines.datasource.errors import LossHandling, SourceError
from headrace.pipelines.datasource.filters import spark_pushes_filters
from headrace.pipelines.datasource.offset_ranges import OffsetRange, Offsets, parallelism
from headrace.pipelines.datasource.read_options import EARLIEST, LATEST, ReadOptions, listed
from headrace.pipelines.datasource.readers import (
    FilteringBatchReader,
    SparkBatchReader,
    batch_ranges,
)
from headrace.pipelines.datasource.record_columns import PartitionDecoder
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, read_header, scan_headers
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.security.keyring import Keyring
from headrace.storage.files import File, FileMissing
from headrace.storage.key_sources import read_keyring
from headrace.storage.stored_logs import (
    FILES,
    AbortedRange,
    SegmentExtent,
    StoredLog,
    current_logs,
    encryption_of,
    open_stored,
)
from headrace.types import Buffer, TopicPartition

# Prefix of internal topics, which are only read if named.
_INTERNAL = "__"


class StoredTopics(SourceTopics):
    """The topics of a read, with each log as it was when first looked up."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.path is not None
        self._options = options
        self._keyring = _keyring(options)
        found = current_logs(path.strip() for path in options.path.split(","))
        self._directories = {tp: path for tp, (path, _) in found.items()}
        self._starts: Offsets = {tp: start for tp, (_, start) in found.items()}
        self._logs: dict[TopicPartition, StoredLog] = {}

    def log(self, topic: str, partition: int) -> StoredLog:
        """The log of a partition."""
        tp = TopicPartition(topic, partition)
        if tp not in self._logs:
            self._logs[tp] = open_stored(
                tp, self._directories[tp], self._starts.get(tp, 0), self._keyring
            )
        return self._logs[tp]

    def find(self) -> FoundPartitions:
        """The partitions the options select."""
        options = self._options
        there = sorted(self._directories)
        if options.topics:
            names = {tp.topic for tp in there}
            missing = tuple(name for name in options.topics if name not in names)
            return FoundPartitions(tuple(tp for tp in there if tp.topic in options.topics), missing)
        if options.assigned:
            absent = tuple(str(tp) for tp in options.assigned if tp not in self._directories)
            return FoundPartitions(tuple(tp for tp in there if tp in options.assigned), absent)
        pattern = re.compile(options.pattern if options.pattern is not None else ".*")
        return FoundPartitions(
            tuple(
                tp
                for tp in there
                if not tp.topic.startswith(_INTERNAL) and pattern.fullmatch(tp.topic)
            )
        )

    def require(self) -> FoundPartitions:
        """The result of `find`; SourceError if a named partition or every partition is missing."""
        found = self.find()
        if found.missing:
            raise self.missing(found.missing)
        if not found.partitions:
            what = "log" if self._options.pattern is None else "topic that subscribePattern matches"
            raise SourceError(
                f"{self._options.path} holds no {what}",
                advice=(
                    "it must be a data directory of a broker (log.dirs), as this machine sees it"
                ),
            )
        return found

    def missing(self, names: tuple[str, ...]) -> SourceError:
        """The error for missing topics or partitions."""
        known = {tp.topic for tp in self._directories} | {str(tp) for tp in self._directories}
        advice = suggestion(names[0], known) or "; see whether it is in another of the log.dirs"
        return SourceError(f"{self._options.path} holds no log of {listed(names)}{advice}")

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        return {tp: _offset(self.log(*tp), asked) for tp, asked in wanted.items()}


def _keyring(options: ReadOptions) -> Keyring:
    """The keys of encrypted topics, as this machine finds them."""
    try:
        return read_keyring(options.encryption_key_source)
    except ConfigError as error:
        raise SourceError(f"option encryptionKeySource: {error.reason}") from None


def _offset(log: StoredLog, asked: int) -> int:
    """The offset at an end of a log, or at a time."""
    if asked == EARLIEST:
        return log.start_offset
    if asked == LATEST:
        return log.end_offset
    record = log.find_timestamp(asked)
    return NOTHING if record is None else record.offset


# Direct scan: the segments of a data directory, read in parallel and without a broker.
#
# Rule: the planner decides which bytes of which files are read, and tasks read just these. If the
# broker deletes some in between it is a DataLoss, as with a read through the broker.


_KEYS_ADVICE = "The option encryptionKeySource says where a direct scan finds keys"
# The bytes of one task: large enough to be worth a task, and small enough that the last task does
# not take long.
SPLIT_BYTES_MIN = 8 * 1_048_576
SPLIT_BYTES_MAX = 128 * 1_048_576
# Tasks for each core, so that a slow task does not delay the whole.
SPLITS_PER_CORE = 2


@dataclass(frozen=True)
class ScanPartition(InputPartition):
    """The input of one task: the records of a range that lie in an extent of a segment."""

    range: OffsetRange
    extent: SegmentExtent
    aborted: tuple[AbortedRange, ...] = ()


class ScanReader(SparkBatchReader):
    """The reader behind `spark.read` where the option `path` is given."""

    def partitions(self) -> list[InputPartition]:
        """The inputs of all tasks, in the order of topics, partitions and offsets."""
        options = self._options
        try:
            topics = StoredTopics(options)
            ranges = batch_ranges(options, topics, self._pruning)
            return list(splits(options, topics, ranges, parallelism()))
        except KafkaError as error:
            raise SourceError(f"{error.detail}. {_KEYS_ADVICE}") from None
        except CorruptBatch as error:
            raise SourceError(
                f"{error}; if the broker is stopped, starting it cuts a torn end off; else see"
                " `headrace log dump`, and read around it with startingOffsets and endingOffsets"
            ) from None
        except StorageError as error:
            raise SourceError(
                f"{error}; option path must name data directories that Spark can read here"
            ) from None

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""

        # For an empty read Spark passes a partition of its own.
        if not isinstance(partition, ScanPartition):
            return iter(())
        return read_scan(self._options, partition)


class FilteringScanReader(ScanReader, FilteringBatchReader):
    """A ScanReader that skips partitions and offsets excluded by the query's filters."""


def scan_reader(options: ReadOptions) -> DataSourceReader:
    """The reader for this process: with filter pushdown if Spark uses it."""
    return FilteringScanReader(options) if spark_pushes_filters(options) else ScanReader(options)


def splits(
    options: ReadOptions, topics: StoredTopics, ranges: Sequence[OffsetRange], cores: int
) -> list[ScanPartition]:
    """The ranges as extents of files, in pieces for this number of cores."""
    committed_only = options.client["isolation.level"] == "read_committed"
    if committed_only:
        ranges = [_decided(topics, range_) for range_ in ranges]
    wanted = [range_ for range_ in ranges if range_.start < range_.end]
    whole = [
        extent
        for range_ in wanted
        for extent in topics.log(range_.topic, range_.partition).extents(range_.start, range_.end)
    ]
    total = sum(extent.limit - extent.position for extent in whole)
    share = min(max(total // (cores * SPLITS_PER_CORE), SPLIT_BYTES_MIN), SPLIT_BYTES_MAX)
    if options.min_partitions is not None:
        share = min(share, max(total // options.min_partitions, 1))
    found = []
    for range_ in wanted:
        log = topics.log(range_.topic, range_.partition)
        aborted = tuple(log.aborted(range_.start, range_.end)) if committed_only else ()
        found += [
            ScanPartition(range_, extent, aborted)
            for extent in log.extents(range_.start, range_.end, share)
        ]
    return found


def _decided(topics: StoredTopics, extent: OffsetRange) -> OffsetRange:
    """The part of a range before any open transaction."""
    stable = topics.log(extent.topic, extent.partition).last_stable_offset()
    return replace(extent, end=max(min(extent.end, stable), extent.start))


BLOCK_BYTES = 4 * 1_048_576


def read_scan(options: "ReadOptions", wanted: "ScanPartition") -> Iterator[pa.RecordBatch]:
    """The records of the range that lie in the bytes of one extent, in their order."""
    yield from _ExtentScan(options, wanted).batches()


class _ExtentScan:
    """One pass through one extent."""

    def __init__(self, options: "ReadOptions", wanted: "ScanPartition") -> None:
        self._wanted = wanted
        self._range = wanted.range
        self._path, self._position, self._limit, self._file_size = wanted.extent
        self._encryption = encryption_of(
            TopicPartition(self._range.topic, self._range.partition),
            os.path.dirname(self._path),
            _keyring(options),
        )
        self._losses = LossHandling(fail=options.fail_on_data_loss)
        self._decoder = PartitionDecoder(
            options.columns,
            TopicPartition(self._range.topic, self._range.partition),
            options.max_batch_rows,
            check_crcs=True,
        )
        # All rows are copied out of it before the next block is read.
        self._block = bytearray(min(BLOCK_BYTES, self._limit - self._position))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records, block by block."""
        try:
            file = FILES.open(self._path)
        except FileMissing:
            self._lose("it is deleted")
            return
        if self._file_size not in (None, file.size()):
            self._lose("it was compacted since the scan was planned; plan it again")
            return
        offset = self._range.start
        while self._position < self._limit and offset < self._range.end:
            data = self._read_block(file)
            if data is None:
                return
            found = batches_of(data, offset, self._aborted_from(data))
            if found is None:
                self._make_room(data)
                continue
            readable, headers = self._opened(data, found.headers)
            try:
                yield from self._decoder.batches(readable, headers, offset, self._range.end)
            except CorruptBatch as error:
                raise self._corrupt(self._decoder.position, error) from None
            if found.corrupt is not None:
                raise self._corrupt(found.end_position, found.corrupt)
            offset = found.next_offset
            self._position += found.end_position

    def _opened(
        self, data: memoryview, headers: Sequence[BatchHeader]
    ) -> tuple[Buffer, Sequence[BatchHeader]]:
        """Batches of a block, decrypted if one of them is encrypted."""
        if not any(header.is_encrypted for header in headers):
            return data, headers
        opened = bytearray()
        for header in headers:
            if header.is_encrypted:
                try:
                    opened += self._encryption.decrypt_batch(data, header)
                except KafkaError as error:
                    raise SourceError(f"{error.detail}. {_KEYS_ADVICE}") from None
                except CorruptBatch as error:
                    raise self._corrupt(header.position, error) from None
            else:
                opened += data[header.position : header.position + header.size]
        return opened, scan_headers(opened)

    def _read_block(self, file: File) -> memoryview | None:
        """The next bytes of the segment; None if they were deleted."""
        size = min(len(self._block), self._limit - self._position)
        data = memoryview(self._block)[:size]
        if file.read_into(self._position, data) == size:
            return data
        self._lose(f"it ends before position {self._limit}")
        return None

    def _aborted_from(self, data: memoryview) -> list[AbortedTransaction]:
        """The aborted transactions that overlap a block."""
        if not self._wanted.aborted:
            return []
        try:
            first = read_header(data, 0).base_offset
        except CorruptBatch:
            return []
        return [
            AbortedTransaction(
                producer_id=transaction.producer_id, first_offset=transaction.first_offset
            )
            for transaction in self._wanted.aborted
            if transaction.last_offset >= first
        ]

    def _make_room(self, data: memoryview) -> None:
        """Enlarge the block buffer for a batch that does not fit it."""
        size = read_header(data, 0).size if len(data) >= HEADER_SIZE else HEADER_SIZE
        if not len(data) < size <= self._limit - self._position:
            error = CorruptBatch(f"a batch of {size} bytes is cut short")
            raise self._corrupt(0, error)
        self._block = bytearray(size)

    def _corrupt(self, position: int, error: CorruptBatch) -> SourceError:
        return SourceError(
            f"{self._path} at position {self._position + position}: {error}",
            advice=(
                "look at it with `headrace log dump`, and read around it with startingOffsets and"
                " endingOffsets"
            ),
        )

    def _lose(self, reason: str) -> None:
        """Report a file that cannot be read, and skip it if losses are allowed."""
        scanned = self._range
        self._losses.report(
            f"{scanned.topic}-{scanned.partition}: {self._path} cannot be read any more: {reason}"
        )
