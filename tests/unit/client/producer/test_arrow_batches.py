"""Arrow tables into batches: every kind of column, rows to partitions, and what is refused."""

from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.producer import arrow_batches
from headrace.client.producer.arrow_batches import ColumnBatch, plan_batches
from headrace.protocol.batch import read_header
from headrace.protocol.compression import Compression
from headrace.protocol.murmur2 import partition_for_key
from headrace.protocol.records import Record, decode_rows

NOW = 1_700_000_000_000
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADER_LIST = pa.list_(PAIR)
HEADERS = [[("a", b"1"), ("b", None)], None, [], [("é", b"")]]

maybe_bytes = st.none() | st.binary(max_size=30)


def no_sticky() -> int:
    raise AssertionError("no row of this table may go anywhere")


def plan(
    table: Any,
    partition_count: int = 3,
    sticky: Callable[[], int] = lambda: 1,
    batch_bytes_max: int = 10_000,
    **options: Any,
) -> list[ColumnBatch]:
    return list(
        plan_batches(
            table,
            partition_count=partition_count,
            sticky=sticky,
            batch_bytes_max=batch_bytes_max,
            now_ms=NOW,
            **options,
        )
    )


def records_of(batches: Sequence[ColumnBatch], partition: int | None = None) -> list[Record]:
    """What a broker would read of the batches for one partition, or of all."""
    records: list[Record] = []
    for batch in batches:
        if partition is None or batch.partition == partition:
            encoded = batch.encode()
            assert len(encoded) == batch.raw_bytes
            decoded = decode_rows(encoded)
            assert len(decoded) == batch.count
            records += decoded
    return records


def sent_values(table: Any, **options: Any) -> list[bytes | None]:
    return [record.value for record in records_of(plan(table, **options))]


def sent_headers(array: Any) -> list[Any]:
    table = pa.table({"value": pa.array(["v"] * len(array)), "headers": array})
    return [record.headers for record in records_of(plan(table))]


# Kinds of columns


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_binary()),
    ],
    ids=str,
)
def test_cells_of_every_kind_are_sent(kind: Any) -> None:
    cells = [b"first", None, b"", b"third" * 20, None, b"last"]
    whole = pa.array(cells, pa.binary())
    if pa.types.is_dictionary(kind):
        array = whole.cast(kind.value_type).dictionary_encode().cast(kind)
    else:
        array = whole.cast(pa.string()).cast(kind)
    assert array.type == kind
    for start, end in ((0, 6), (1, 6), (3, 5), (2, 3)):
        part = array[start:end]
        table = pa.table({"value": part, "key": part})
        records = records_of(plan(table, hash_keys=False))
        assert [record.value for record in records] == cells[start:end]
        assert [record.key for record in records] == cells[start:end]


def test_cells_of_a_fixed_size_are_sent() -> None:
    fixed = pa.array([b"aaaa", None, b"cccc"], pa.binary(4))
    assert sent_values(pa.table({"value": fixed[1:]})) == [None, b"cccc"]
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"i" * 16], pa.binary(16)))
    assert sent_values(pa.table({"value": ids})) == [b"i" * 16]


def test_cells_that_repeat_are_sent() -> None:
    runs = pa.compute.run_end_encode(pa.array(["a", "a", "b"]))
    assert sent_values(pa.table({"value": runs})) == [b"a", b"a", b"b"]


def test_column_of_nothing_but_null_is_sent() -> None:
    table = pa.table({"value": pa.nulls(2), "key": pa.nulls(2), "headers": pa.nulls(2)})
    [batch] = plan(table)
    assert decode_rows(batch.encode()) == [Record(0, NOW, None, None), Record(1, NOW, None, None)]


def test_large_offsets_are_counted_from_the_slice() -> None:
    big = pa.array([b"x" * 1000] * 10, pa.large_binary())
    assert sent_values(pa.table({"value": big[9:]})) == [b"x" * 1000]


@pytest.mark.parametrize(
    "kind",
    [
        HEADER_LIST,
        pa.large_list(PAIR),
        pa.list_view(PAIR),
        pa.large_list_view(PAIR),
        pa.map_(pa.string(), pa.binary()),
        pa.list_(pa.struct([("value", pa.large_string()), ("key", pa.string_view())])),
    ],
    ids=str,
)
def test_headers_of_every_kind_are_sent(kind: Any) -> None:
    pairs: list[Any] = HEADERS
    if not pa.types.is_map(kind):
        pairs = [row and [{"key": key, "value": value} for key, value in row] for row in HEADERS]
    expected = [tuple(row or ()) for row in HEADERS]
    whole = pa.array(pairs, kind)
    for start, end in ((0, 4), (1, 4), (3, 4), (1, 3)):
        assert sent_headers(whole[start:end]) == expected[start:end]


def test_null_list_has_no_headers_whatever_lies_there() -> None:
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], PAIR)
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), entries, mask=pa.array([True, False])
    )
    assert sent_headers(hidden) == [(), (("b", b"2"),)]


def test_headers_without_any_value_are_sent() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.null())]))
    assert sent_headers(pa.array([[{"key": "a", "value": None}]], kind)) == [(("a", None),)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_timestamps_of_every_unit_are_sent(unit: str, zone: str | None) -> None:
    times = pa.array([datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    array = times.cast(pa.timestamp(unit, "UTC")).cast(pa.int64()).cast(pa.timestamp(unit, zone))
    table = pa.table({"value": ["a", "b"], "timestamp": array})
    records = records_of(plan(table))
    assert [record.timestamp for record in records] == [1_714_979_289_000, NOW]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint16()], ids=str)
def test_numbers_are_milliseconds(kind: Any) -> None:
    table = pa.table({"value": ["a", "b", "c"], "timestamp": pa.array([1, 2, None], kind)})[1:]
    assert [record.timestamp for record in records_of(plan(table))] == [2, NOW]


def test_fractions_of_milliseconds_are_left_out() -> None:
    times = pa.array([1_999], pa.timestamp("us"))
    assert [
        r.timestamp for r in records_of(plan(pa.table({"value": ["a"], "timestamp": times})))
    ] == [1]


# Tables


def test_record_batch_and_table_are_the_same() -> None:
    batch = pa.record_batch({"value": ["a", "b"], "key": ["x", "y"]})
    table = pa.Table.from_batches([batch])
    assert [entry.encode() for entry in plan(batch)] == [entry.encode() for entry in plan(table)]


def test_whatever_gives_arrow_a_stream_is_a_table() -> None:
    class Frame:
        """As polars and pandas have them."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"value": ["a"]}).__arrow_c_stream__(requested_schema)

    assert sent_values(Frame()) == [b"a"]


def test_chunks_of_a_table_are_joined() -> None:
    chunked = pa.chunked_array([[f"{number}"] for number in range(20)])
    batches = plan(pa.table({"value": chunked}))
    assert len(batches) == 1
    assert [record.value for record in records_of(batches)] == [b"%d" % n for n in range(20)]


def test_large_chunks_of_a_table_stay_where_they_are() -> None:
    chunk = pa.array(["x" * 500] * 100)
    table = pa.table({"value": pa.chunked_array([chunk, chunk])})
    batches = plan(table, batch_bytes_max=10_000)
    assert sum(batch.count for batch in batches) == 200


def test_table_without_rows_makes_no_batch() -> None:
    for table in (
        pa.table({"value": pa.array([], pa.binary())}),
        pa.table(
            {"value": pa.chunked_array([], pa.string()), "key": pa.chunked_array([], pa.string())}
        ),
        pa.table({"value": ["a"]})[1:],
    ):
        assert plan(table, sticky=no_sticky) == []


def test_table_too_large_for_its_offsets_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "_PIECE_BYTES_MAX", 3000)
    values = [b"%05d" % number * 20 for number in range(100)]
    table = pa.table({"value": pa.array(values, pa.large_binary())})
    assert sent_values(table) == values
    dictionary = pa.table({"value": pa.array(values[:3] * 30).dictionary_encode()})
    assert sent_values(dictionary) == values[:3] * 30
    with pytest.raises(ValueError, match="row 70 "):
        plan(pa.table({"value": ["a" * 100] * 70 + ["b" * 20_000] + ["c" * 100] * 29}))


def test_where_a_record_came_from_is_left_out() -> None:
    table = pa.table({"topic": ["t"], "offset": [7], "value": ["v"]})
    assert sent_values(table) == [b"v"]


# Partitions


@given(keys=st.lists(st.binary(max_size=20), max_size=60), partition_count=st.integers(1, 9))
def test_keys_go_where_every_client_puts_them(keys: list[bytes], partition_count: int) -> None:
    values = [b"%d" % row for row in range(len(keys))]
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    batches = plan(table, partition_count, no_sticky, 300)
    for partition in range(partition_count):
        assert [(r.key, r.value) for r in records_of(batches, partition)] == [
            (key, value)
            for key, value in zip(keys, values, strict=True)
            if partition_for_key(key, partition_count) == partition
        ]


@given(
    rows=st.lists(st.tuples(maybe_bytes, st.none() | st.integers(0, 3), maybe_bytes), max_size=60),
    hash_keys=st.booleans(),
)
def test_partition_is_the_given_one_or_the_keys_or_any(rows: list[Any], hash_keys: bool) -> None:
    table = pa.table(
        {
            "key": pa.array([key for key, _, _ in rows], pa.binary()),
            "partition": pa.array([partition for _, partition, _ in rows], pa.int64()),
            "value": pa.array([value for _, _, value in rows], pa.binary()),
            "timestamp": pa.array(range(len(rows)), pa.int64()),
        }
    )
    # Batches that may go anywhere are told by a number no partition has.
    batches = plan(table, 4, lambda: 99, 300, hash_keys=hash_keys)
    assert {batch.partition for batch in batches} <= {0, 1, 2, 3, 99}
    for partition in (0, 1, 2, 3, 99):
        expected = []
        for number, (key, given_one, value) in enumerate(rows):
            hashed = partition_for_key(key, 4) if key is not None and hash_keys else 99
            if (hashed if given_one is None else given_one) == partition:
                expected.append((number, key, value))
        got = [(r.timestamp, r.key, r.value) for r in records_of(batches, partition)]
        assert got == expected


def test_rows_that_may_go_anywhere_ask_once_per_batch() -> None:
    answers = iter([2, 0, 1, 2, 0, 1])
    table = pa.table({"value": ["x" * 100] * 20})
    batches = plan(table, sticky=lambda: next(answers), batch_bytes_max=700)
    assert [batch.partition for batch in batches] == [2, 0, 1, 2][: len(batches)]
    assert [batch.count for batch in batches] == [5, 5, 5, 5]


def test_rows_that_may_go_anywhere_are_asked_about_when_their_turn_comes() -> None:
    asked: list[int] = []

    def sticky() -> int:
        asked.append(0)
        return 0

    batches = plan_batches(
        pa.table({"value": ["x" * 100] * 20}),
        partition_count=3,
        sticky=sticky,
        batch_bytes_max=700,
        now_ms=NOW,
    )
    assert asked == []
    next(batches)
    assert asked == [0]


def test_partitions_take_turns() -> None:
    table = pa.table({"value": ["x" * 100] * 30, "partition": [0, 1, 2] * 10})
    assert [batch.partition for batch in plan(table, batch_bytes_max=700)] == [0, 1, 2, 0, 1, 2]


def test_large_row_gets_a_batch_of_its_own() -> None:
    table = pa.table({"value": ["a", "b" * 5000, "c"]})
    batches = plan(table, batch_bytes_max=1000, record_bytes_max=6000)
    assert [batch.count for batch in batches] == [1, 1, 1]


# Batches


@pytest.mark.parametrize("codec", list(Compression))
def test_batch_is_made_as_a_builder_would(codec: Compression) -> None:
    [batch] = plan(pa.table({"value": ["a", "b"]}))
    encoded = batch.encode(
        compression=codec,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
        transactional=True,
    )
    header = read_header(encoded)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)
    assert header.is_transactional
    assert header.compression == codec
    assert [record.value for record in decode_rows(encoded)] == [b"a", b"b"]
    again = batch.encode(producer_id=8, producer_epoch=9, base_sequence=10)
    assert read_header(again).producer_id == 8


def test_batch_can_be_told_apart() -> None:
    [batch] = plan(pa.table({"value": ["a"]}))
    assert repr(batch) == "ColumnBatch(partition=1, count=1, raw_bytes=69)"


def test_buffers_are_used_where_they_lie() -> None:
    data = bytearray(b"abcdef")
    values = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(array("i", [0, 3, 6])), pa.py_buffer(data)]
    )
    [batch] = plan(pa.table({"value": values}))
    data[:3] = b"xyz"
    assert [record.value for record in decode_rows(batch.encode())] == [b"xyz", b"def"]


# What is refused


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ({"val": ["a"]}, ValueError, "no column 'value' among 'val'; rename"),
        ({}, ValueError, "no column 'value' among no columns"),
        ({"value": ["a"], "extra": [1]}, ValueError, "column 'extra' is none of value, key"),
        ({"value": [1]}, TypeError, "column 'value' has the type int64; cast it to binary"),
        ({"value": ["a"], "key": [1.5]}, TypeError, "column 'key' has the type double"),
        ({"value": [["a"]]}, TypeError, "column 'value' has the type list<item: string>"),
        ({"value": [{"a": 1}]}, TypeError, "column 'value' has the type struct<a: int64>"),
        ({"value": ["a"], "partition": ["0"]}, TypeError, "'partition' has the type string"),
        ({"value": ["a"], "partition": [3]}, ValueError, "'partition' has 3, .* are 0 to 2"),
        ({"value": ["a"], "partition": [-1]}, ValueError, "'partition' has -1"),
        ({"value": ["a"], "partition": [2**40]}, ValueError, "'partition' has 1099511627776"),
        ({"value": ["a"], "timestamp": ["now"]}, TypeError, "'timestamp' has the type string"),
        ({"value": ["a"], "timestamp": [1.5]}, TypeError, "'timestamp' has the type double"),
        ({"value": ["a"], "timestamp": [-5]}, ValueError, "'timestamp' has -5 ms"),
        (
            {"value": ["a"], "timestamp": pa.array([2**62], pa.timestamp("s"))},
            ValueError,
            "column 'timestamp'",
        ),
        ({"value": ["a"], "headers": ["h"]}, TypeError, "'headers' has the type string"),
        ({"value": ["a"], "headers": [["h"]]}, TypeError, "'headers' has the type list<"),
        ({"value": ["a"], "headers": [[{"k": "h", "value": "v"}]]}, TypeError, "give it as list<"),
        (
            {"value": ["a"], "headers": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8()))},
            TypeError,
            "column 'headers' has the type int8",
        ),
        ({"value": ["a"], "headers": pa.array([[None]], HEADER_LIST)}, ValueError, "without a key"),
        (
            {"value": ["a"], "headers": pa.array([[{"key": None}]], HEADER_LIST)},
            ValueError,
            "without a key",
        ),
        ({"value": ["a", "b" * 20_000]}, ValueError, "row 1 makes a batch of 20"),
    ],
)
def test_bad_table_is_refused_at_once(table: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plan_batches(
            pa.table(table),
            partition_count=3,
            sticky=no_sticky,
            batch_bytes_max=10_000,
            now_ms=NOW,
        )


def test_columns_of_one_name_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(ValueError, match="2 columns 'value'"):
        plan(twice)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(TypeError, match=r"RecordBatch or a pyarrow\.Table, not dict"):
        plan({"value": ["a"]})
