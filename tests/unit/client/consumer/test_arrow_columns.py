"""Decoded columns as Arrow sees them: one batch, without copies where there is one partition."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.consumer.arrow_columns import arrow_schema, to_arrow
from headrace.client.consumer.completed_fetch import slice_columns
from headrace.client.producer.arrow_batches import plan_batches
from headrace.protocol.column_decoder import decode_columns
from headrace.protocol.columns import Columns
from headrace.protocol.compression import Compression
from headrace.protocol.records import decode_rows, encode_batch
from headrace.types import TopicPartition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ROWS: list[Any] = [
    (100, b"a", b"first", ()),
    (90, None, b"second", (("h", b"x"), ("n", None))),
    (110, b"", None, ()),
    (105, b"dd", b"", (("é", b""),)),
]

maybe_bytes = st.none() | st.binary(max_size=30)
header_lists = st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3)
row_lists = st.lists(
    st.tuples(st.integers(0, 2**40), maybe_bytes, maybe_bytes, header_lists),
    min_size=1,
    max_size=25,
)


def decoded(rows: list[Any], base_offset: int = 0, **options: Any) -> Columns:
    return decode_columns(encode_batch(rows, base_offset=base_offset, **options))


def expected(tp: TopicPartition, rows: list[Any], base_offset: int = 0) -> list[Any]:
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": base_offset + index,
            "timestamp": EPOCH + timedelta(milliseconds=timestamp),
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": content} for name, content in headers],
        }
        for index, (timestamp, key, value, headers) in enumerate(rows)
    ]


def test_schema_is_what_the_documentation_says() -> None:
    assert arrow_schema().names == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    ]
    assert arrow_schema().field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert arrow_schema().field("topic").type == pa.dictionary(pa.int32(), pa.string())


def test_nothing_is_an_empty_batch_of_the_same_schema() -> None:
    batch = to_arrow([])
    batch.validate(full=True)
    assert (batch.num_rows, batch.schema) == (0, arrow_schema())


@given(rows=row_lists, codec=st.sampled_from(Compression))
def test_batch_has_the_records_of_a_partition(rows: list[Any], codec: Compression) -> None:
    tp = TopicPartition("orders", 3)
    batch = to_arrow([(tp, decoded(rows, 40, compression=codec))])
    batch.validate(full=True)
    assert batch.schema == arrow_schema()
    assert batch.to_pylist() == expected(tp, rows, 40)


@given(rows=row_lists, data=st.data())
def test_batch_has_the_records_of_a_slice(rows: list[Any], data: Any) -> None:
    begin = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(begin, len(rows)))
    tp = TopicPartition("t", 0)
    batch = to_arrow([(tp, slice_columns(decoded(rows), begin, end))])
    batch.validate(full=True)
    assert batch.to_pylist() == expected(tp, rows)[begin:end]


@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "ü"]), st.integers(0, 3), row_lists, st.integers(0, 9)
        ),
        max_size=5,
    )
)
def test_pieces_follow_each_other(pieces: list[Any]) -> None:
    given_pieces = []
    wanted = []
    for topic, partition, rows, skipped in pieces:
        tp = TopicPartition(topic, partition)
        begin = min(skipped, len(rows))
        given_pieces.append((tp, slice_columns(decoded(rows), begin, len(rows))))
        wanted += expected(tp, rows)[begin:]
    batch = to_arrow(given_pieces)
    batch.validate(full=True)
    assert batch.schema == arrow_schema()
    assert batch.to_pylist() == wanted


def test_columns_of_one_partition_are_not_copied() -> None:
    columns = decoded([(1, b"k", b"value" * 100, ())] * 9)
    batch = to_arrow([(TopicPartition("t", 0), columns)])
    column = batch.column("value")
    assert column.buffers()[2].address == pa.py_buffer(columns.values.data).address
    assert batch.column("offset").buffers()[1].address == pa.py_buffer(columns.offsets).address


@pytest.mark.parametrize("count", [0, 1, 4])
def test_what_was_read_can_be_sent_on(count: int) -> None:
    batch = to_arrow([(TopicPartition("t", 2), decoded(ROWS))])[:count]
    batches = list(
        plan_batches(batch, partition_count=3, sticky=lambda: 0, batch_bytes_max=10_000, now_ms=0)
    )
    assert [batch.partition for batch in batches] == [2] * bool(count)
    sent = [tuple(record) for batch in batches for record in decode_rows(batch.encode())]
    assert sent == [(offset, *row) for offset, row in enumerate(ROWS[:count])]
