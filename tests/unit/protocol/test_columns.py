"""Columns: what Arrow sees of decoded batches, and batches made of Arrow's arrays."""

import struct
from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptBatch
from headrace.protocol.batch import HEADER_SIZE, crc32c, read_header, stamp_log_append_time
from headrace.protocol.column_decoder import decode_columns
from headrace.protocol.column_encoder import encode_columns
from headrace.protocol.columns import BinaryColumn, Columns, HeaderColumn
from headrace.protocol.compression import Compression
from headrace.protocol.records import decode_rows, encode_batch
from headrace.types import Buffer

HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

maybe_bytes = st.none() | st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3)
rows = st.tuples(st.integers(-(2**60), 2**60), maybe_bytes, maybe_bytes, header_lists)
row_lists = st.lists(rows, min_size=1, max_size=20)

ROWS: list[Any] = [
    (100, b"a", b"first", ()),
    (90, None, b"second", (("h", b"x"), ("n", None))),
    (110, b"", None, ()),
    (105, b"dd", b"", (("é", b""),)),
]


def wrap(buffer: Buffer | None) -> Any:
    """A pyarrow buffer over the same memory."""
    if buffer is None:
        return None
    return pa.py_buffer(buffer)


def arrow_binary(column: BinaryColumn, kind: Any = None) -> Any:
    buffers = [wrap(column.validity), wrap(column.offsets), wrap(column.data)]
    return pa.Array.from_buffers(kind or pa.binary(), column.length, buffers, column.null_count)


def arrow_headers(headers: HeaderColumn, length: int) -> Any:
    names = arrow_binary(headers.names, pa.string())
    pairs = pa.StructArray.from_arrays([names, arrow_binary(headers.values)], ["key", "value"])
    return pa.Array.from_buffers(
        HEADER_TYPE, length, [None, wrap(headers.offsets)], 0, children=[pairs]
    )


def arrow_table(columns: Columns) -> Any:
    """The columns as Arrow sees them, checked in full by Arrow itself."""
    size = columns.length
    table = pa.table(
        {
            "offset": pa.Array.from_buffers(pa.int64(), size, [None, wrap(columns.offsets)]),
            "timestamp": pa.Array.from_buffers(pa.int64(), size, [None, wrap(columns.timestamps)]),
            "key": arrow_binary(columns.keys),
            "value": arrow_binary(columns.values),
            "headers": arrow_headers(columns.headers, size),
        }
    )
    table.validate(full=True)
    return table


def table_rows(table: Any) -> list[Any]:
    return [
        (
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in table.to_pylist()
    ]


def expected(records: list[Any], base_offset: int = 0) -> list[Any]:
    return [
        (base_offset + index, timestamp, key, value, tuple(headers))
        for index, (timestamp, key, value, headers) in enumerate(records)
    ]


def column_of(values: Any) -> BinaryColumn:
    """The buffers of an Arrow binary or string array, which may be a slice of a longer one."""
    validity, offsets, data = values.buffers()
    return BinaryColumn(
        len(values),
        memoryview(offsets).cast("B")[values.offset * 4 :],
        b"" if data is None else data,
        validity,
        values.null_count,
        values.offset,
    )


def headers_of(values: Any) -> HeaderColumn:
    pairs = values.values
    return HeaderColumn(
        memoryview(values.buffers()[1]).cast("B")[values.offset * 4 :],
        column_of(pairs.field(0)),
        column_of(pairs.field(1)),
    )


# Decoding


@pytest.mark.parametrize("codec", list(Compression))
@given(batches=st.lists(row_lists, min_size=1, max_size=4))
def test_arrow_sees_the_records_of_all_batches(codec: Compression, batches: list[Any]) -> None:
    data = b""
    everything: list[Any] = []
    for records in batches:
        base_offset = len(everything)
        data += encode_batch(records, base_offset=base_offset, compression=codec)
        everything += expected(records, base_offset)
    columns = decode_columns(data)
    assert columns.length == len(everything)
    assert (columns.next_offset, columns.end_position) == (len(everything), len(data))
    assert table_rows(arrow_table(columns)) == everything


def test_arrow_wraps_the_columns_without_a_copy() -> None:
    columns = decode_columns(encode_batch(ROWS))
    values = arrow_binary(columns.values)
    assert values.to_pylist()[0] == b"first"
    assert isinstance(columns.values.data, bytearray)
    columns.values.data[:5] = b"FIRST"
    assert values.to_pylist()[0] == b"FIRST"


def test_null_bitmap_is_there_only_with_nulls() -> None:
    without = decode_columns(encode_batch([(1, b"k", b"v", ()), (2, b"", b"", ())]))
    assert (without.keys.validity, without.keys.null_count) == (None, 0)
    assert (without.values.validity, without.values.null_count) == (None, 0)
    columns = decode_columns(encode_batch([(1, None, b"v", ())] * 9 + [(1, b"k", None, ())]))
    assert (columns.keys.validity, columns.keys.null_count) == (b"\x00\x02", 9)
    assert (columns.values.validity, columns.values.null_count) == (b"\xff\x01", 1)


def test_empty_buffer_has_empty_columns() -> None:
    columns = decode_columns(b"", from_offset=7)
    assert (columns.length, columns.next_offset, columns.end_position) == (0, 7, 0)
    assert table_rows(arrow_table(columns)) == []


@pytest.mark.parametrize("from_offset", range(12))
def test_records_before_the_wanted_offset_are_dropped(from_offset: int) -> None:
    data = encode_batch(ROWS) + encode_batch(ROWS, base_offset=4, compression=Compression.ZSTD)
    columns = decode_columns(data, from_offset=from_offset)
    wanted = (expected(ROWS) + expected(ROWS, 4))[from_offset:]
    assert table_rows(arrow_table(columns)) == wanted
    assert (columns.next_offset, columns.end_position) == (max(8, from_offset), len(data))


def test_control_batches_are_skipped_but_move_the_next_offset() -> None:
    data = encode_batch(ROWS) + encode_batch(ROWS[:1], base_offset=4, control=True)
    columns = decode_columns(data)
    assert (columns.length, columns.next_offset, columns.end_position) == (4, 5, len(data))
    assert decode_columns(data, with_control=True).length == 5


def test_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    first = encode_batch(ROWS)
    data = bytes(first + encode_batch(ROWS, base_offset=4))
    for size in range(len(first), len(data)):
        columns = decode_columns(data[:size])
        assert (columns.length, columns.next_offset, columns.end_position) == (4, 4, len(first))
    columns = decode_columns(data, len(first))
    assert table_rows(arrow_table(columns)) == expected(ROWS, 4)
    assert decode_columns(data, 0, len(first)).length == 4


def test_log_append_time_is_the_timestamp_of_all_records_of_its_batch() -> None:
    batch = encode_batch(ROWS)
    stamp_log_append_time(batch, read_header(batch), 5000)
    table = arrow_table(decode_columns(batch + encode_batch(ROWS, base_offset=4)))
    assert table["timestamp"].to_pylist() == [5000] * 4 + [100, 90, 110, 105]


def test_offsets_of_a_compacted_batch_keep_their_gaps() -> None:
    table = arrow_table(decode_columns(compacted_batch(), from_offset=3))
    assert table["offset"].to_pylist() == [3, 9]


def compacted_batch() -> bytearray:
    """Four records at the offsets 0, 1, 3 and 9 of ten."""
    batch = encode_batch([(100, b"a", b"b", ())] * 4)
    size = (len(batch) - HEADER_SIZE) // 4
    for index, delta in enumerate([0, 1, 3, 9]):
        # Behind one byte each for the length, the attributes and the time delta.
        batch[HEADER_SIZE + index * size + 3] = delta * 2
    struct.pack_into(">i", batch, 23, 9)
    return renewed_crc(batch)


def renewed_crc(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def test_good_batches_come_before_the_error_of_a_corrupt_one() -> None:
    first = encode_batch(ROWS)
    second = encode_batch(ROWS, base_offset=4)
    second[-1] ^= 1
    columns = decode_columns(first + second)
    assert (columns.length, columns.next_offset, columns.end_position) == (4, 4, len(first))
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_columns(first + second, columns.end_position)
    headless = first + bytes(100)
    assert decode_columns(headless).end_position == len(first)


def test_decoding_stops_before_the_limit_but_takes_one_batch_at_least() -> None:
    batches = [encode_batch([(1, None, bytes(1000), ())], base_offset=n) for n in range(5)]
    data = b"".join(batches)
    body = len(batches[0]) - HEADER_SIZE
    for limit, count in [(1, 1), (2 * body - 1, 1), (2 * body, 2), (5 * body, 5), (1 << 40, 5)]:
        columns = decode_columns(data, total_bytes_max=limit)
        assert (columns.length, columns.next_offset) == (count, count)
        assert columns.end_position == count * len(batches[0])
    assert len(decode_rows(data)) == 5


def test_columns_that_are_not_wanted_have_no_rows() -> None:
    data = encode_batch(ROWS)
    whole = decode_columns(data)
    bare = decode_columns(data, with_keys=False, with_values=False, with_headers=False)
    assert bare.length == whole.length
    assert (bare.offsets, bare.timestamps) == (whole.offsets, whole.timestamps)
    assert bare.keys.length == bare.values.length == bare.headers.names.length == 0
    assert decode_columns(data, with_keys=False).values == whole.values
    assert decode_columns(data, with_values=False).headers == whole.headers
    assert decode_columns(data, with_headers=False).keys == whole.keys


def test_header_names_are_valid_strings_whatever_was_sent() -> None:
    batch = encode_batch([(1, None, None, (("ab", b"1"), ("c", None), ("é", b"2")))])
    batch[batch.index(b"ab")] = 0xFF
    columns = decode_columns(renewed_crc(batch))
    [row] = table_rows(arrow_table(columns))
    assert row[4] == (("\ufffdb", b"1"), ("c", None), ("é", b"2"))


# Encoding


@pytest.mark.parametrize("codec", list(Compression))
@given(records=row_lists)
def test_columns_make_the_batch_they_came_from(codec: Compression, records: list[Any]) -> None:
    options: dict[str, Any] = {
        "base_offset": 5,
        "leader_epoch": 2,
        "compression": codec,
        "producer_id": 7,
        "producer_epoch": 1,
        "base_sequence": 3,
        "transactional": True,
    }
    batch = encode_batch(records, **options)
    columns = decode_columns(batch)
    again = encode_columns(
        columns.timestamps, columns.keys, columns.values, columns.headers, **options
    )
    assert again == batch


@given(records=row_lists, data=st.data())
def test_rows_of_a_range_make_their_own_batch(records: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(start + 1, len(records)))
    columns = decode_columns(encode_batch(records))
    batch = encode_columns(
        columns.timestamps, columns.keys, columns.values, columns.headers, start, end
    )
    assert batch == encode_batch(records[start:end])


@given(records=row_lists, data=st.data())
def test_slices_of_arrow_arrays_are_encoded_without_a_copy(
    records: list[Any], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(start + 1, len(records)))
    timestamps = pa.array([row[0] for row in records], pa.int64())
    keys = pa.array([row[1] for row in records], pa.binary())[start:]
    values = pa.array([b"dropped"] + [row[2] for row in records], pa.binary())[1:][start:]
    headers = pa.array(
        [[{"key": name, "value": value} for name, value in row[3]] for row in records], HEADER_TYPE
    )[start:]
    batch = encode_columns(
        memoryview(timestamps.buffers()[1]).cast("B")[start * 8 :],
        column_of(keys),
        column_of(values),
        headers_of(headers),
        0,
        end - start,
    )
    assert batch == encode_batch(records[start:end])


def test_missing_columns_are_nulls_and_no_headers() -> None:
    batch = encode_columns(TIMES, None, None)
    assert [tuple(record) for record in decode_rows(batch)] == [
        (0, 1, None, None, ()),
        (1, 2, None, None, ()),
    ]


def int32s(*numbers: int) -> memoryview:
    return memoryview(array("i", numbers))


def binary(offsets: list[int], data: bytes = b"abc", **options: Any) -> BinaryColumn:
    return BinaryColumn(len(offsets) - 1, int32s(*offsets), data, **options)


TIMES = memoryview(array("q", [1, 2]))
FINE = binary([0, 1, 3])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((b"", FINE, FINE), id="no rows"),
        pytest.param((TIMES, FINE, FINE, None, 1, 1), id="an empty range"),
        pytest.param((TIMES, FINE, FINE, None, -1, 1), id="a negative row"),
        pytest.param((TIMES, FINE, FINE, None, 0, 3), id="more rows than timestamps"),
        pytest.param((TIMES, FINE, FINE, None, 0, 2**61), id="more rows than can be"),
        pytest.param((TIMES, binary([0, 1]), FINE), id="too few offsets"),
        pytest.param((TIMES, binary([0, 4, 4]), FINE), id="offset past the data"),
        pytest.param((TIMES, binary([2, 1, 3]), FINE), id="offsets step back"),
        pytest.param((TIMES, binary([-1, 1, 3]), FINE), id="negative offset"),
        pytest.param((TIMES, FINE, binary([0, 1, 3], validity=b"")), id="no validity bits"),
        pytest.param(
            (TIMES, FINE, binary([0, 1, 3], validity=b"\xff", validity_start=7)),
            id="too few validity bits",
        ),
        pytest.param(
            (TIMES, FINE, binary([0, 1, 3], validity=b"\xff", validity_start=2**63 - 1)),
            id="validity start past all bits",
        ),
        pytest.param(
            (TIMES, FINE, binary([0, 1, 3], validity=b"\xff", validity_start=-1)),
            id="negative validity start",
        ),
        pytest.param(
            (TIMES, FINE, FINE, HeaderColumn(int32s(0, 1, 3), FINE, FINE)),
            id="more headers than names",
        ),
        pytest.param(
            (TIMES, FINE, FINE, HeaderColumn(int32s(0, 2, 1), FINE, FINE)),
            id="header offsets step back",
        ),
        pytest.param(
            (TIMES, FINE, FINE, HeaderColumn(int32s(0, 1, 2), FINE, binary([0, 1]))),
            id="fewer header values than names",
        ),
        pytest.param(
            (
                TIMES,
                FINE,
                FINE,
                HeaderColumn(int32s(0, 1, 2), binary([0, 1, 3], validity=b"\x01"), FINE),
            ),
            id="header without a name",
        ),
    ],
)
def test_buffers_that_do_not_hold_the_rows_are_an_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        encode_columns(*arguments)


def test_cells_that_are_null_are_so_whatever_their_offsets_say() -> None:
    keys = binary([0, 1, 3], validity=b"\x01")
    batch = encode_columns(TIMES, keys, FINE)
    assert [(record.key, record.value) for record in decode_rows(batch)] == [
        (b"a", b"a"),
        (None, b"bc"),
    ]
