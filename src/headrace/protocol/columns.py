"""Records as columns: the buffers of Arrow arrays, without Arrow.

pyarrow can wrap these buffers with `pa.py_buffer` without a copy: int64 and int32 arrays in the
machine's byte order, raw bytes, and validity bitmaps with the least significant bit first.
"""

from array import array
from typing import NamedTuple

from headrace.types import Buffer


class BinaryColumn(NamedTuple):
    """The buffers of an Arrow `binary` (or `string`) array.

    Cell i is data[offsets[i]:offsets[i + 1]]; it is null where `validity` has the bit
    `validity_start + i` clear.
    """

    length: int
    offsets: Buffer  # int32, length + 1 of them
    data: Buffer
    validity: Buffer | None = None  # None: no nulls
    null_count: int = 0
    validity_start: int = 0  # the bit of row 0, for a slice of a longer array


class HeaderColumn(NamedTuple):
    """The buffers of an Arrow `list<struct<key: string, value: binary>>` array, no list null.

    Record i has the headers [offsets[i], offsets[i + 1]).
    """

    offsets: Buffer  # int32, one more than the number of records
    names: BinaryColumn
    values: BinaryColumn


class Columns(NamedTuple):
    """The records of a fetch, in offset order.

    `end_position` is where decoding stopped in the buffer: after the last whole batch, unless a
    limit or a corrupt batch came first. `next_offset` is the offset to read on from.
    """

    length: int
    offsets: Buffer  # int64
    timestamps: Buffer  # int64, milliseconds
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn
    next_offset: int
    end_position: int


def utf8_column(column: BinaryColumn) -> BinaryColumn:
    """A column for Arrow's `string`: invalid UTF-8 is replaced, as Kafka's Java client does."""
    data = bytes(column.data)
    if data.isascii():
        return column
    ends = memoryview(column.offsets).cast("i")
    cells = [
        data[ends[index] : ends[index + 1]].decode(errors="replace").encode()
        for index in range(column.length)
    ]
    offsets = array("i", [0])
    for cell in cells:
        offsets.append(offsets[-1] + len(cell))
    return column._replace(offsets=bytearray(offsets), data=bytearray(b"".join(cells)))
