"""The result of fetching one partition: batches to read, then records as rows or columns."""

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import CorruptBatch
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, read_header, scan_headers
from headrace.protocol.columns import BinaryColumn, Columns, HeaderColumn
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.protocol.records import decode_rows
from headrace.types import Buffer

if TYPE_CHECKING:
    from headrace.protocol.consumer_records import ConsumerRecord

# The result of fetching one partition: the batches to read, and the offset to fetch next.
#
# Pure. Rule: only control records are decoded here; other records are decoded when polled.


# A control record's key is a version and a type, both int16.
_ABORT_MARKER = 0


class EpochStart(NamedTuple):
    """The first batch seen of a leader epoch."""

    offset: int
    epoch: int


class CompletedFetch:
    """The fetched bytes of a partition, and the byte ranges of the batches to deliver.

    `spans` are the ranges still to be read, the first of them begun at `position`. Invariant:
    `next_offset` lies behind every batch of the spans. A fetch may have nothing to read and still
    advance the position of its partition.
    """

    __slots__ = (
        "corrupt",
        "data",
        "epochs",
        "is_begun",
        "next_offset",
        "position",
        "record_count",
        "size",
        "spans",
    )

    def __init__(
        self,
        data: Buffer,
        headers: Sequence[BatchHeader],
        next_offset: int,
        corrupt: CorruptBatch | None = None,
        epochs: Sequence[EpochStart] = (),
    ) -> None:
        self.data = data
        self.size = len(data)
        self.spans = spans_of(headers)
        self.position = self.spans[0][0] if self.spans else 0
        # Whether reading has begun.
        self.is_begun = False
        self.next_offset = next_offset
        self.corrupt = corrupt
        # Of all its batches, including those that are not delivered.
        self.epochs = epochs
        self.record_count = sum(header.record_count for header in headers)

    def __repr__(self) -> str:
        return (
            f"<CompletedFetch: {self.size} bytes, read to {self.position}, next {self.next_offset}>"
        )

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last batch, or -1."""
        return self.epochs[-1].epoch if self.epochs else -1

    @property
    def is_read(self) -> bool:
        """Whether nothing is left to read, not even an error to report."""
        return not self.spans and self.corrupt is None

    def read_to(self, position: int) -> None:
        """Note that everything before a position has been read."""
        self.is_begun = True
        self.position = position
        while self.spans and self.spans[0][1] <= position:
            self.spans.popleft()
            if self.spans:
                self.position = max(position, self.spans[0][0])

    def offset_behind(self, position: int, next_offset: int) -> int:
        """The offset of the next record at a position, given the one that follows from the batches.

        At the end there may be batches that are not delivered, which are skipped.
        """
        is_last = len(self.spans) == 1 and position >= self.spans[0][1] and self.corrupt is None
        return max(next_offset, self.next_offset) if is_last else next_offset

    def detach(self) -> None:
        """Copy the bytes out of the response buffer, because the fetch may be kept for long."""
        self.data = bytes(self.data)


def spans_of(headers: Sequence[BatchHeader]) -> deque[tuple[int, int]]:
    """The byte ranges of batches, with adjacent ranges joined."""
    spans: deque[tuple[int, int]] = deque()
    for header in headers:
        start, end = header.position, header.position + header.size
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


class ReadableBatches(NamedTuple):
    """The batches of a response to deliver, and the state behind them.

    `end_position` is the end of the whole batches, including those not delivered, and `epochs` are
    the leader epochs of all these. `corrupt` is the error of the batch that begins there, if it is
    corrupt.
    """

    headers: list[BatchHeader]
    next_offset: int
    end_position: int
    corrupt: CorruptBatch | None
    epochs: Sequence[EpochStart] = ()


def completed_fetch_of(
    data: Buffer, position: int, aborted: Sequence[AbortedTransaction] | None = None
) -> CompletedFetch | None:
    """The batches of a Fetch response from `position` on; None if it holds no whole batch.

    `aborted` are the response's aborted transactions, with read_committed.
    """
    found = batches_of(data, position, aborted)
    return found and CompletedFetch(
        data, found.headers, found.next_offset, found.corrupt, found.epochs
    )


def batches_of(
    data: Buffer, position: int, aborted: Sequence[AbortedTransaction] | None = None
) -> ReadableBatches | None:
    """The headers of the batches as `completed_fetch_of` finds them, for callers that keep none."""
    headers, corrupt = _scan(data)
    if not headers and corrupt is None:
        return None
    # The first batch may begin, and even end, before the position: brokers send whole batches.
    wanted = [header for header in headers if header.next_offset > position]
    if aborted:
        wanted = _committed(data, wanted, aborted)
    next_offset, end = position, 0
    if headers:
        last = headers[-1]
        next_offset = max(position, last.next_offset)
        end = last.position + last.size
    seen = [header for header in wanted if not header.is_control]
    return ReadableBatches(seen, next_offset, end, corrupt, epochs_of(headers))


def epochs_of(headers: Sequence[BatchHeader]) -> list[EpochStart]:
    """The first offset of each leader epoch in consecutive batches."""
    if not headers:
        return []
    first = headers[0]
    epochs = [EpochStart(first.base_offset, first.leader_epoch)]
    if headers[-1].leader_epoch != first.leader_epoch:
        for header in headers:
            if header.leader_epoch != epochs[-1].epoch:
                epochs.append(EpochStart(header.base_offset, header.leader_epoch))
    return epochs


def _scan(data: Buffer) -> tuple[list[BatchHeader], CorruptBatch | None]:
    """The headers of the whole batches before the first corrupt one, and its error."""
    try:
        return scan_headers(data), None
    except CorruptBatch:
        return _scan_carefully(data)


def _scan_carefully(data: Buffer) -> tuple[list[BatchHeader], CorruptBatch | None]:
    headers: list[BatchHeader] = []
    position = 0
    while len(data) - position >= HEADER_SIZE:
        try:
            header = read_header(data, position)
        except CorruptBatch as error:
            return headers, error
        if header.size > len(data) - position:
            break
        headers.append(header)
        position += header.size
    return headers, None


def _committed(
    data: Buffer, headers: list[BatchHeader], aborted: Sequence[AbortedTransaction]
) -> list[BatchHeader]:
    """The batches that belong to no aborted transaction.

    A producer's transaction is aborted from the first offset listed up to its abort marker, after
    which the producer may begin another transaction.
    """
    to_come = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
    aborting: set[int] = set()
    committed: list[BatchHeader] = []
    for header in headers:
        while to_come and to_come[-1].first_offset <= header.last_offset:
            aborting.add(to_come.pop().producer_id)
        if header.is_control:
            if header.producer_id in aborting and _is_abort_marker(data, header):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            committed.append(header)
    return committed


def _is_abort_marker(data: Buffer, header: BatchHeader) -> bool:
    try:
        records = decode_rows(data, header)
    except CorruptBatch:
        return False
    key = records[0].key if records else None
    return key is not None and int.from_bytes(key[2:4], "big") == _ABORT_MARKER


# Records of one partition on their way to the application, as rows or as columns.
#
# Pure. Rule: the position follows from the delivered records, so it is stored only once.


class RecordRun:
    """Decoded records, of which those before `index` were delivered.

    `start` is the offset before the first record, `next_offset` the one behind the last, and
    `end_position` is the end of their batches in the fetch, -1 if it was already read to. `ready`
    counts the deserialized records; `stop` is how far iteration may go without another call, and
    `iterating` says that the application is processing the record before `index`. Invariant: index
    <= stop <= ready <= len(records).
    """

    __slots__ = (
        "end_position",
        "index",
        "iterating",
        "next_offset",
        "ready",
        "records",
        "start",
        "stop",
    )

    def __init__(
        self,
        records: "list[ConsumerRecord]",
        start: int,
        next_offset: int,
        end_position: int = -1,
    ) -> None:
        self.records = records
        self.start = start
        self.next_offset = next_offset
        self.end_position = end_position
        self.index = 0
        self.stop = 0
        self.ready = 0
        self.iterating = False

    @property
    def is_done(self) -> bool:
        """Whether all records were delivered."""
        return self.index >= len(self.records)

    @property
    def position(self) -> int:
        """The offset of the next record to deliver, as far as it is known."""
        index = self.index
        if index >= len(self.records):
            return self.next_offset
        return self.records[index - 1].offset + 1 if index else self.start

    @property
    def begun(self) -> int:
        """The offset of the record that iteration delivered last: the records before it are
        finished.
        """
        index = self.index
        return self.records[index - 1].offset if index else self.start


class ColumnRun:
    """Decoded columns, of which the rows before `index` were delivered."""

    __slots__ = ("_offsets", "columns", "end_position", "index", "next_offset", "start")

    def __init__(self, columns: Columns, start: int, next_offset: int, end_position: int) -> None:
        self.columns = columns
        self.start = start
        self.next_offset = next_offset
        self.end_position = end_position
        self.index = 0
        self._offsets = memoryview(columns.offsets).cast("q")

    @property
    def is_done(self) -> bool:
        """Whether all rows were delivered."""
        return self.index >= self.columns.length

    @property
    def position(self) -> int:
        """The offset of the next record to deliver, as far as it is known."""
        if self.index >= self.columns.length:
            return self.next_offset
        return self._offsets[self.index - 1] + 1 if self.index else self.start

    def next_rows(self, count: int) -> Columns:
        """The next rows, at most `count`. No copy is made if all fit."""
        begin, self.index = self.index, min(self.index + count, self.columns.length)
        if begin == 0 and self.is_done:
            return self.columns
        return slice_columns(self.columns, begin, self.index)


def slice_columns(columns: Columns, begin: int, end: int) -> Columns:
    """The rows [begin, end) as views of the same buffers."""
    headers = columns.headers
    return Columns(
        end - begin,
        memoryview(columns.offsets)[begin * 8 : end * 8],
        memoryview(columns.timestamps)[begin * 8 : end * 8],
        _slice_cells(columns.keys, begin, end),
        _slice_cells(columns.values, begin, end),
        HeaderColumn(
            memoryview(headers.offsets)[begin * 4 : (end + 1) * 4], headers.names, headers.values
        ),
        columns.next_offset,
        columns.end_position,
    )


def _slice_cells(column: BinaryColumn, begin: int, end: int) -> BinaryColumn:
    offsets: Buffer = memoryview(column.offsets)[begin * 4 : (end + 1) * 4]
    start = column.validity_start + begin
    nulls = _nulls(column.validity, start, end - begin) if column.validity is not None else 0
    return BinaryColumn(end - begin, offsets, column.data, column.validity, nulls, start)


def _nulls(validity: Buffer, start: int, count: int) -> int:
    """The number of clear bits among `count` bits from `start` on."""
    first, last = start >> 3, (start + count + 7) >> 3
    bits = int.from_bytes(validity[first:last], "little") >> (start & 7)
    return count - (bits & ((1 << count) - 1)).bit_count()
