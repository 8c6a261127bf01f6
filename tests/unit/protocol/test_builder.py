"""A batch written record by record: the bytes of `encode_batch`, within a limit, or unchanged."""

import hashlib
import tracemalloc
from array import array
from collections.abc import Sequence
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.batch import HEADER_SIZE, validate
from headrace.protocol.builder import BatchBuilder
from headrace.protocol.compression import Compression
from headrace.protocol.record_scan import check_records
from headrace.protocol.records import encode_batch

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

Row = tuple[int, Any, Any, Sequence[tuple[str, Any]]]

ROWS: list[Row] = [
    (1_700_000_000_000, b"key", b"value", ()),
    (1_700_000_000_005, None, b"no key", (("trace", b"1"), ("empty", b""), ("null", None))),
    (1_699_999_999_990, b"", None, ()),
    (1_700_000_000_001, b"k" * 200, b"v" * 5000, [("ключ", b"\x00\xff")]),
]

maybe_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=10), maybe_bytes), max_size=3)
rows_of_any_time = st.lists(
    st.tuples(st.integers(-(2**62), 2**62 - 1), maybe_bytes, maybe_bytes, header_lists),
    min_size=1,
    max_size=40,
)


def filled(rows: Sequence[Row], size_bytes_max: int = 1_000_000) -> BatchBuilder:
    builder = BatchBuilder(size_bytes_max)
    for row in rows:
        assert builder.append(*row)
    return builder


# What is written


@given(rows=rows_of_any_time)
def test_batch_is_the_one_encoded_from_columns(rows: list[Row]) -> None:
    builder = filled(rows)
    batch = builder.finish(producer_id=7, producer_epoch=2, base_sequence=5, transactional=True)
    options = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5, "transactional": True}
    assert batch == encode_batch(rows, **options)  # type: ignore[arg-type]
    assert builder.count == len(rows)
    assert builder.size_bytes == len(batch)
    assert builder.base_timestamp == rows[0][0]
    assert builder.max_timestamp == max(row[0] for row in rows)


@pytest.mark.parametrize("codec", list(Compression))
def test_batch_is_compressed(codec: Compression) -> None:
    assert filled(ROWS).finish(compression=codec) == encode_batch(ROWS, compression=codec)


def test_compression_level_is_passed_on() -> None:
    rows = [(0, None, bytes(index % 7 for index in range(4000)), ())]
    batch = filled(rows).finish(compression=Compression.GZIP, level=1)
    assert batch == encode_batch(rows, compression=Compression.GZIP, level=1)
    assert batch != encode_batch(rows, compression=Compression.GZIP, level=9)


def test_both_builds_write_the_same_bytes() -> None:
    batch = filled(ROWS).finish(producer_id=1, producer_epoch=0, base_sequence=0)
    expected = "5fd864d8299efbc1e36feebe3fdb9dcd47c1395220ac46975d2404986257ccfc"
    assert hashlib.sha256(batch).hexdigest() == expected


def test_broker_takes_what_was_built() -> None:
    batch = filled(ROWS).finish(producer_id=1, producer_epoch=0, base_sequence=0)
    [header] = validate(batch)
    assert check_records(batch, header) == 1_700_000_000_005


@pytest.mark.parametrize("codec", list(Compression))
def test_aiokafka_reads_what_was_built(codec: Compression) -> None:
    batch = filled(ROWS).finish(compression=codec)
    read = aiokafka_records.DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    assert [
        (record.timestamp, record.key, record.value, tuple(record.headers)) for record in read
    ] == [(timestamp, key, value, tuple(headers)) for timestamp, key, value, headers in ROWS]


def test_any_buffer_is_a_key_or_a_value() -> None:
    builder = BatchBuilder(1000)
    builder.append(
        1, bytearray(b"key"), memoryview(b"-value-")[1:-1], [("h", memoryview(array("B", [1, 2])))]
    )
    builder.append(1, memoryview(b"kxexyx")[::2], b"value")
    expected = encode_batch(
        [(1, b"key", b"value", [("h", b"\x01\x02")]), (1, b"key", b"value", ())]
    )
    assert builder.finish() == expected


def test_changing_a_buffer_afterwards_changes_nothing() -> None:
    value = bytearray(b"before")
    builder = BatchBuilder(1000)
    builder.append(1, None, value)
    value[:] = b"after!"
    assert builder.finish() == encode_batch([(1, None, b"before", ())])


def test_no_headers_may_be_said_in_any_way() -> None:
    builder = BatchBuilder(1000)
    ways: list[Any] = [(), [], None]
    for headers in ways:
        builder.append(1, b"k", b"v", headers)
    builder.append(1, b"k", b"v")
    assert builder.finish() == encode_batch([(1, b"k", b"v", ())] * 4)


# Sizes


@given(rows=rows_of_any_time, size_bytes_max=st.integers(0, 4000))
def test_records_are_taken_while_they_fit(rows: list[Row], size_bytes_max: int) -> None:
    builder = BatchBuilder(size_bytes_max)
    taken: list[Row] = []
    for row in rows:
        before = builder.size_bytes
        size = builder.append(*row)
        assert builder.size_bytes == before + size
        wanted = len(encode_batch([*taken, row]))
        assert (size > 0) == (not taken or wanted <= size_bytes_max)
        if size:
            taken.append(row)
    assert builder.finish() == encode_batch(taken)


def test_empty_builder_takes_a_record_of_any_size() -> None:
    builder = BatchBuilder(100)
    assert builder.append(1, None, b"v" * 100_000) > 100_000
    assert builder.append(1, None, None) == 0
    assert builder.count == 1


def test_size_includes_the_header() -> None:
    assert BatchBuilder(100).size_bytes == HEADER_SIZE


# Again and anew


def test_batch_may_be_finished_again_under_other_numbers() -> None:
    builder = filled(ROWS)
    first = builder.finish(producer_id=1, producer_epoch=0, base_sequence=0)
    first[:] = bytes(len(first))
    again = builder.finish(producer_id=2, producer_epoch=3, base_sequence=4)
    assert again == encode_batch(ROWS, producer_id=2, producer_epoch=3, base_sequence=4)
    assert builder.append(1, None, b"more")
    assert builder.finish() == encode_batch([*ROWS, (1, None, b"more", ())])


def test_cleared_builder_is_as_new() -> None:
    builder = filled(ROWS)
    builder.clear()
    assert (builder.count, builder.size_bytes) == (0, HEADER_SIZE)
    assert (builder.base_timestamp, builder.max_timestamp) == (-1, -1)
    with pytest.raises(ValueError, match="at least one record"):
        builder.finish()
    builder.append(*ROWS[2])
    assert builder.finish() == encode_batch([ROWS[2]])


def test_memory_is_let_go() -> None:
    tracemalloc.start()
    try:
        builder = BatchBuilder(1 << 22)
        empty = tracemalloc.get_traced_memory()[0]
        value = bytes(1000)
        for _ in range(3000):
            builder.append(1, None, value)
        assert tracemalloc.get_traced_memory()[0] - empty > 3_000_000
        builder.clear()
        assert tracemalloc.get_traced_memory()[0] - empty < 20_000
    finally:
        tracemalloc.stop()


def test_full_batch_takes_no_more_memory_than_it_may() -> None:
    tracemalloc.start()
    try:
        builder = BatchBuilder(300_000)
        empty = tracemalloc.get_traced_memory()[0]
        while builder.append(1, None, bytes(1000)):
            pass
        assert tracemalloc.get_traced_memory()[1] - empty < 600_000
        assert tracemalloc.get_traced_memory()[0] - empty < 340_000
    finally:
        tracemalloc.stop()


# What is refused


@pytest.mark.parametrize(
    ("record", "error", "text"),
    [
        ((1.5, None, None), TypeError, "a timestamp must be int, not float"),
        (("1", None, None), TypeError, "a timestamp must be int, not str"),
        ((None, None, None), TypeError, "a timestamp must be int, not NoneType"),
        ((INT64_MAX + 1, None, None), ValueError, "is no int64"),
        ((INT64_MIN - 1, None, None), ValueError, "is no int64"),
        ((INT64_MIN, None, None), ValueError, "too far from the batch's first"),
        ((1, "key", None), TypeError, "key must be bytes or None, not str"),
        ((1, None, 5), TypeError, "value must be bytes or None, not int"),
        ((1, None, [1]), TypeError, "value must be bytes or None, not list"),
        ((1, None, b"v", 5), TypeError, "not iterable"),
        ((1, None, b"v", [("name",)]), ValueError, "unpack"),
        ((1, None, b"v", [(b"name", b"")]), TypeError, "header's name must be str, not bytes"),
        ((1, None, b"v", [("name", "x")]), TypeError, "header 'name' must be bytes or None"),
        ((1, None, b"v", [("good", b"x"), ("\ud800", b"x")]), ValueError, "surrogates"),
    ],
)
def test_bad_record_is_refused_and_leaves_the_batch_as_it_was(
    record: Any, error: type[Exception], text: str
) -> None:
    builder = filled(ROWS)
    before = builder.size_bytes
    with pytest.raises(error, match=text):
        builder.append(*record)
    assert (builder.count, builder.size_bytes) == (len(ROWS), before)
    assert builder.finish() == encode_batch(ROWS)


@pytest.mark.parametrize("base", [INT64_MIN, -1, 0, 1, INT64_MAX])
def test_timestamps_may_be_as_far_apart_as_a_delta_reaches(base: int) -> None:
    builder = BatchBuilder(1000)
    builder.append(base, None, None)
    for timestamp in (INT64_MIN, -1, 0, 1, INT64_MAX):
        if INT64_MIN <= timestamp - base <= INT64_MAX:
            assert builder.append(timestamp, None, None)
        else:
            with pytest.raises(ValueError, match="too far"):
                builder.append(timestamp, None, None)


def test_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        BatchBuilder(100).finish()


def test_codec_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no compression codec"):
        filled(ROWS).finish(compression=9)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_the_last_time_the_records_are_given_away(codec: Compression) -> None:
    builder = filled(ROWS)
    expected = builder.finish(compression=codec, producer_id=1, producer_epoch=0, base_sequence=0)
    given = builder.finish(
        compression=codec, producer_id=1, producer_epoch=0, base_sequence=0, last=True
    )
    assert given == expected
    assert builder.count == 0
    builder.append(*ROWS[0])
    assert builder.finish() == filled(ROWS[:1]).finish()
    assert given == expected
