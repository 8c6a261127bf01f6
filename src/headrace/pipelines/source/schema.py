"""The columns of a topic: those of Spark's Kafka source, as Spark and as Arrow name them."""

from collections.abc import Sequence
from functools import cache

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_SPARK: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}
_ARROW: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    # Spark compares types by name: what a list holds is its "element".
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}

COLUMNS = tuple(_SPARK)


def spark_schema(columns: Sequence[str]) -> StructType:
    """What Spark is told of a row with these columns."""
    return StructType([StructField(name, _SPARK[name]) for name in columns])


@cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The same as Arrow has it, to the letter: Spark takes nothing else."""
    return pa.schema([(name, _ARROW[name]) for name in columns])
