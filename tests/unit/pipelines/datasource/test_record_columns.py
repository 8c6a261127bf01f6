"""Columns that were decoded become the batches that Spark takes, without a copy where possible."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from headrace.errors import CorruptBatch
from headrace.pipelines.datasource.errors import SourceError
from headrace.pipelines.datasource.record_columns import (
    COLUMNS,
    ColumnArrays,
    PartitionDecoder,
    arrow_schema,
)
from headrace.protocol.batch import scan_headers, stamp_log_append_time
from headrace.protocol.column_decoder import decode_columns
from headrace.protocol.records import encode_batch
from headrace.types import TopicPartition

TP = TopicPartition("orders", 3)
TIME_MS = 1_700_000_000_123
ROWS = [
    (TIME_MS, b"k0", b"v0", ()),
    (TIME_MS + 1, None, b"v1", (("a", b"1"), ("a", None))),
    (TIME_MS + 2, b"", None, ()),
    (-1, b"k3", b"", (("é", b""),)),
]


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


def read(
    columns: tuple[str, ...] = COLUMNS, rows_max: int = 10, end: int = 100, begin: int = 0
) -> list[pa.RecordBatch]:
    found = decode_columns(encode_batch(ROWS, base_offset=7), from_offset=begin)
    return list(ColumnArrays(columns, TP, rows_max).batches(found, end, is_log_append_time=False))


def test_every_column_has_what_the_record_has() -> None:
    [batch] = read()
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(COLUMNS))
    found = batch.to_pylist()
    assert [row["key"] for row in found] == [b"k0", None, b"", b"k3"]
    assert [row["value"] for row in found] == [b"v0", b"v1", None, b""]
    assert {row["topic"] for row in found} == {"orders"}
    assert {row["partition"] for row in found} == {3}
    assert [row["offset"] for row in found] == [7, 8, 9, 10]
    assert found[0]["timestamp"] == datetime.fromtimestamp(TIME_MS / 1000, UTC)
    assert found[3]["timestamp"] == datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    assert {row["timestampType"] for row in found} == {0}


def test_a_record_without_headers_has_null_for_them() -> None:
    [batch] = read(("headers",))
    batch.validate(full=True)
    assert [row["headers"] for row in batch.to_pylist()] == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        [{"key": "é", "value": b""}],
    ]


def test_a_time_that_spark_cannot_have_is_told_with_a_remedy() -> None:
    found = decode_columns(encode_batch([(2**62, None, b"", ())]))
    arrays = ColumnArrays(("offset", "timestamp"), TP, 10)
    with pytest.raises(SourceError, match=r"orders-3 has a record before offset 1 .*columns"):
        list(arrays.batches(found, 1, is_log_append_time=False))


def test_no_headers_at_all_are_all_null() -> None:
    found = decode_columns(encode_batch(ROWS[:1] * 9))
    [batch] = ColumnArrays(("headers",), TP, 10).batches(found, 9, is_log_append_time=False)
    batch.validate(full=True)
    assert batch.column(0).null_count == 9


@pytest.mark.parametrize("rows_max", [1, 2, 3, 4, 5])
def test_batches_have_no_more_rows_than_asked_for(rows_max: int) -> None:
    batches = read(rows_max=rows_max)
    assert max(batch.num_rows for batch in batches) <= rows_max
    assert rows(batches) == rows(read())
    for batch in batches:
        batch.validate(full=True)


@pytest.mark.parametrize(
    ("begin", "end", "expected"), [(8, 10, [8, 9]), (0, 7, []), (10, 99, [10])]
)
def test_only_offsets_of_the_range_come(begin: int, end: int, expected: list[int]) -> None:
    assert [row["offset"] for row in rows(read(begin=begin, end=end))] == expected


def test_columns_come_in_the_order_asked_for() -> None:
    [batch] = read(("offset", "value"))
    assert batch.schema.names == ["offset", "value"]


def test_the_kind_of_timestamp_follows_the_batch() -> None:
    stamped = bytearray(encode_batch(ROWS[:2], base_offset=2))
    [header] = scan_headers(stamped)
    stamp_log_append_time(stamped, header, TIME_MS + 50)
    data = encode_batch(ROWS[:2]) + stamped + encode_batch(ROWS[:1], base_offset=4)
    decoder = PartitionDecoder(("offset", "timestampType"), TP, 10, check_crcs=True)
    found = rows(list(decoder.batches(data, scan_headers(data), 0, 9)))
    assert [row["timestampType"] for row in found] == [0, 0, 1, 1, 0]
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4]


def test_what_comes_before_a_corrupt_batch_is_decoded_and_its_position_told() -> None:
    good = encode_batch(ROWS)
    bad = bytearray(encode_batch(ROWS, base_offset=4))
    bad[-1] ^= 1
    data = bytes(good + bad)
    decoder = PartitionDecoder(("offset",), TP, 10, check_crcs=True)
    batches = decoder.batches(data, scan_headers(data), 0, 99)
    assert next(batches).num_rows == 4
    with pytest.raises(CorruptBatch):
        next(batches)
    assert decoder.position == len(good)
