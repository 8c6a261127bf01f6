"""Reading the bytes of a segment in a worker: a file in, Arrow batches out."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.client.consumer.chunks import batches_of
from headrace.errors import CorruptBatch
from headrace.pipelines.source.decoding import Decoder
from headrace.pipelines.source.failures import SourceError
from headrace.pipelines.source.losses import Losses
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.protocol.records import HEADER_SIZE, read_header
from headrace.storage.files import File, FileMissing
from headrace.storage.stored import FILES
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.pipelines.source.options import ReadOptions
    from headrace.pipelines.source.scan import ScanPartition

BLOCK_BYTES = 4 * 1_048_576


def read_scan(options: "ReadOptions", wanted: "ScanPartition") -> Iterator[pa.RecordBatch]:
    """The records of the range that lie in the bytes of one extent, in their order."""
    yield from _Scan(options, wanted).batches()


class _Scan:
    """One pass through one extent."""

    def __init__(self, options: "ReadOptions", wanted: "ScanPartition") -> None:
        self._wanted = wanted
        self._range = wanted.range
        self._path, self._position, self._limit, self._file_size = wanted.extent
        self._losses = Losses(fail=options.fail_on_data_loss)
        self._decoder = Decoder(
            options.columns,
            TopicPartition(self._range.topic, self._range.partition),
            options.max_batch_rows,
            check_crcs=True,
        )
        # Everything is copied out of it before the next block comes.
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
            try:
                yield from self._decoder.batches(data, found.headers, offset, self._range.end)
            except CorruptBatch as error:
                raise self._corrupt(self._decoder.position, error) from None
            if found.corrupt is not None:
                raise self._corrupt(found.end_position, found.corrupt)
            offset = found.next_offset
            self._position += found.end_position

    def _read_block(self, file: File) -> memoryview | None:
        """What comes next; None if it is not there any more."""
        size = min(len(self._block), self._limit - self._position)
        data = memoryview(self._block)[:size]
        if file.read_into(self._position, data) == size:
            return data
        self._lose(f"it ends before position {self._limit}")
        return None

    def _aborted_from(self, data: memoryview) -> list[AbortedTransaction]:
        """The aborted transactions that reach into a block."""
        if not self._wanted.aborted:
            return []
        try:
            first = read_header(data, 0).base_offset
        except CorruptBatch:
            return []
        return [
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in self._wanted.aborted
            if one.last_offset >= first
        ]

    def _make_room(self, data: memoryview) -> None:
        """Have the next block hold the batch that this one holds the beginning of."""
        size = read_header(data, 0).size if len(data) >= HEADER_SIZE else HEADER_SIZE
        if not len(data) < size <= self._limit - self._position:
            error = CorruptBatch(f"a batch of {size} bytes is cut short")
            raise self._corrupt(0, error)
        self._block = bytearray(size)

    def _corrupt(self, position: int, error: CorruptBatch) -> SourceError:
        return SourceError(
            f"{self._path} at position {self._position + position}: {error}; look at it with"
            " `headrace log dump`, and read around it with startingOffsets and endingOffsets"
        )

    def _lose(self, reason: str) -> None:
        """Pass over a file, if that is allowed."""
        one = self._range
        self._losses.report(
            f"{one.topic}-{one.partition}: {self._path} cannot be read any more: {reason}"
        )
