"""Records of one partition on their way to the application, as rows or as columns.

Pure. Rule: the position follows from what was handed out, so there is one truth about it.
"""

from typing import TYPE_CHECKING

from headrace.protocol.columns import BinaryColumn, Columns, HeaderColumn
from headrace.types import Buffer

if TYPE_CHECKING:
    from headrace.protocol.consumer_records import ConsumerRecord


class Rows:
    """Decoded records, of which those before `index` were handed out.

    `start` is the offset before the first of them, `next_offset` the one behind the last, and
    `end_position` is where their batches end in the chunk they came from, -1 if that is settled.
    `ready` counts the deserialized ones; `stop` is how far iteration may go by itself, and
    `iterating` says that the application has the record before `index` in its hands.
    Invariant: index <= stop <= ready <= len(records).
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
        """Whether everything was handed out."""
        return self.index >= len(self.records)

    @property
    def position(self) -> int:
        """The offset of the next record the application gets, as far as it is known."""
        index = self.index
        if index >= len(self.records):
            return self.next_offset
        return self.records[index - 1].offset + 1 if index else self.start

    @property
    def begun(self) -> int:
        """The offset of the record that iteration handed out last: those before it are done."""
        index = self.index
        return self.records[index - 1].offset if index else self.start


class Slices:
    """Decoded columns, of which the rows before `index` were handed out."""

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
        """Whether everything was handed out."""
        return self.index >= self.columns.length

    @property
    def position(self) -> int:
        """The offset of the next record the application gets, as far as it is known."""
        if self.index >= self.columns.length:
            return self.next_offset
        return self._offsets[self.index - 1] + 1 if self.index else self.start

    def next_rows(self, count: int) -> Columns:
        """At most so many rows more; all of them cost nothing."""
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
    """How many of `count` bits from `start` on are clear."""
    first, last = start >> 3, (start + count + 7) >> 3
    bits = int.from_bytes(validity[first:last], "little") >> (start & 7)
    return count - (bits & ((1 << count) - 1)).bit_count()
