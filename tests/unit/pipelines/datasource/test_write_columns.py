"""Which columns can be written, and which rows go where."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.pipelines.datasource.errors import SinkError
from headrace.pipelines.datasource.writer import by_topic, check_columns

BYTES, TEXT, LONG = BinaryType(), StringType(), LongType()


def struct(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


HEADERS = ArrayType(struct(("key", TEXT), ("value", BYTES)))
VALUE = ("value", TEXT)


@pytest.mark.parametrize(
    "columns",
    [
        [("value", BYTES)],
        [("key", TEXT), ("value", BYTES)],
        [("timestamp", TimestampType()), ("partition", IntegerType()), ("topic", TEXT), VALUE],
        [("headers", HEADERS), VALUE, ("key", BYTES)],
        [("headers", ArrayType(struct(("value", TEXT), ("key", TEXT)))), VALUE],
    ],
)
def test_columns_of_a_kafka_sink_are_taken_in_any_order(
    columns: list[tuple[str, DataType]],
) -> None:
    check_columns(struct(*columns), "orders")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("key", TEXT)], "there is no column value, only key; make one, as in to_json(struct(*))"),
        ([VALUE, ("offset", LONG)], "column offset is none of those that a sink takes (key,"),
        ([VALUE, ("Key", TEXT)], "column Key is none of those"),
        ([VALUE, VALUE], "there are 2 columns value; keep one"),
        (
            [("value", struct(("a", LONG)))],
            "column value is struct<a:bigint>, and must be binary or string; use to_json(",
        ),
        ([VALUE, ("key", LONG)], "column key is bigint, and must be binary or string; use CAST("),
        ([VALUE, ("partition", LONG)], "column partition is bigint, and must be int; use CAST("),
        ([VALUE, ("topic", BYTES)], "column topic is binary, and must be string; use CAST("),
        ([VALUE, ("timestamp", LONG)], "column timestamp is bigint, and must be timestamp; use"),
        (
            [VALUE, ("headers", MapType(TEXT, BYTES))],
            "column headers is map<string,binary>, and must be"
            " array<struct<key:string,value:binary>>; use array(struct(",
        ),
        (
            [VALUE, ("headers", ArrayType(struct(("key", TEXT))))],
            "column headers is array<struct<key:string>>, and must be array<",
        ),
    ],
)
def test_other_columns_are_refused_with_a_remedy(
    columns: list[tuple[str, DataType]], said: str
) -> None:
    with pytest.raises(SinkError) as caught:
        check_columns(struct(*columns), "orders")
    assert said in str(caught.value)


def test_rows_need_a_topic_from_somewhere() -> None:
    with pytest.raises(SinkError, match="rows go to no topic; give option topic, or a column"):
        check_columns(struct(VALUE), None)
    check_columns(struct(VALUE, ("topic", TEXT)), None)


def rows(*topics: str | None) -> pa.RecordBatch:
    """Rows whose value is their number."""
    values = [str(number) for number in range(len(topics))]
    return pa.record_batch({"value": values, "topic": pa.array(topics, pa.string())})


def values(batch: pa.RecordBatch, topic: str | None = None) -> list[tuple[str, list[str]]]:
    return [(name, part["value"].to_pylist()) for name, part in by_topic(batch, topic)]


def test_rows_are_grouped_by_topic_in_their_order() -> None:
    batch = rows("b", "a", "b", "c", "a", "b")
    assert values(batch) == [("b", ["0", "2", "5"]), ("a", ["1", "4"]), ("c", ["3"])]
    assert values(batch.slice(1, 4)) == [("a", ["1", "4"]), ("b", ["2"]), ("c", ["3"])]
    assert values(batch, "z") == [("z", ["0", "1", "2", "3", "4", "5"])]
    assert values(batch.drop_columns(["topic"]), "z") == values(batch, "z")


def test_rows_of_one_topic_are_not_copied() -> None:
    batch = rows("a", "a")
    ((_, part),) = by_topic(batch, None)
    assert part["value"].buffers()[2].address == batch["value"].buffers()[2].address
    assert part.schema.names == ["value"]


def test_a_batch_without_rows_has_nothing_to_send() -> None:
    assert values(rows()) == []


@pytest.mark.parametrize("missing", [None, ""])
def test_a_row_without_a_topic_is_named(missing: str | None) -> None:
    batch = rows("a", "b", missing, missing).append_column("key", pa.array([b"k" * 100] * 4))
    with pytest.raises(SinkError) as caught:
        list(by_topic(batch, None, first_row=10_000))
    assert str(caught.value) == (
        f"row 10002 of a task (key b'{'k' * 58}..., value '2') has no topic;"
        " give every row one, or set option topic"
    )
