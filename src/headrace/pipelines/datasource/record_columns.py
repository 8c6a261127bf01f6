"""The columns of a topic, and record batches decoded into Arrow batches for Spark."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc
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

from headrace.client.consumer.arrow_columns import array_over, binary_array
from headrace.client.consumer.completed_fetch import spans_of
from headrace.pipelines.datasource.errors import SourceError
from headrace.protocol.batch import BatchHeader
from headrace.protocol.column_decoder import decode_columns
from headrace.protocol.columns import Columns, HeaderColumn
from headrace.types import Buffer, TopicPartition

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
    # Spark compares types by name: the items of a list are called "element".
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}

COLUMNS = tuple(_SPARK)


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of a row with these columns."""
    return StructType([StructField(name, _SPARK[name]) for name in columns])


@cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The exact Arrow schema of these columns, which Spark requires."""
    return pa.schema([(name, _ARROW[name]) for name in columns])


# Decoded columns as Arrow batches for Spark.
#
# Pure. Rule: buffers are wrapped without a copy. Only timestamps are computed, since Spark counts
# microseconds, and constant columns are made once and sliced.


_CREATE_TIME, _LOG_APPEND_TIME = 0, 1
_US_PER_MS = pa.scalar(1000, pa.int64())
_TIMESTAMP = pa.timestamp("us", tz="UTC")


class ColumnArrays:
    """Makes Arrow batches of the wanted columns of one partition."""

    def __init__(self, columns: tuple[str, ...], tp: TopicPartition, rows_max: int) -> None:
        self._schema = arrow_schema(columns)
        self._tp = tp
        self._rows_max = rows_max
        self._constants: dict[str, pa.Array] = {}
        makers: dict[str, Callable[[Columns, int], pa.Array]] = {
            "key": lambda found, _: binary_array(pa.binary(), found.keys),
            "value": lambda found, _: binary_array(pa.binary(), found.values),
            "topic": lambda found, _: self._repeated("topic", tp.topic, found.length),
            "partition": lambda found, _: self._repeated("partition", tp.partition, found.length),
            "offset": lambda found, _: array_over(pa.int64(), found.length, [None, found.offsets]),
            "timestamp": lambda found, _: self._microseconds(found),
            "timestampType": lambda found, kind: self._repeated(
                f"timestampType {kind}", kind, found.length
            ),
            "headers": lambda found, _: _headers(found.length, found.headers),
        }
        self._makers = [makers[name] for name in columns]

    def batches(
        self, found: Columns, end: int, *, is_log_append_time: bool
    ) -> Iterator[pa.RecordBatch]:
        """The rows before offset `end`, in several batches."""
        kind = _LOG_APPEND_TIME if is_log_append_time else _CREATE_TIME
        length = _rows_before(found, end)
        if length == 0:
            return
        whole = pa.RecordBatch.from_arrays(
            [make(found, kind) for make in self._makers], schema=self._schema
        )
        if length <= self._rows_max and length == found.length:
            yield whole
            return
        for begin in range(0, length, self._rows_max):
            yield whole.slice(begin, min(self._rows_max, length - begin))

    def _repeated(self, name: str, value: str | int, count: int) -> pa.Array:
        known = self._constants.get(name)
        if known is None or len(known) < count:
            kind = pa.string() if isinstance(value, str) else pa.int32()
            known = self._constants[name] = pa.repeat(pa.scalar(value, kind), count)
        return known.slice(0, count)

    def _microseconds(self, found: Columns) -> pa.Array:
        milliseconds = array_over(pa.int64(), found.length, [None, found.timestamps])
        try:
            return pc.multiply_checked(milliseconds, _US_PER_MS).view(_TIMESTAMP)
        except pa.ArrowInvalid:
            raise SourceError(
                f"{self._tp} has a record before offset {found.next_offset} with a time that Spark"
                " has no timestamp for",
                advice="leave the column timestamp out with the option columns",
            ) from None


def _rows_before(found: Columns, end: int) -> int:
    """The number of rows, which are in order, with an offset before `end`."""
    offsets = memoryview(found.offsets).cast("q")
    if not offsets or offsets[-1] < end:
        return found.length
    return bisect_left(offsets, end)


def _headers(count: int, headers: HeaderColumn) -> pa.Array:
    """A list for each record with headers, and null for one without, as in Spark's Kafka source."""
    kind = arrow_schema(("headers",)).field(0).type
    pairs = [binary_array(pa.string(), headers.names), binary_array(pa.binary(), headers.values)]
    entries = pa.StructArray.from_arrays(pairs, fields=list(kind.value_type))
    if not len(entries):
        return pa.nulls(count, kind)
    ends = array_over(pa.int32(), count + 1, [None, headers.offsets])
    present = pc.not_equal(ends[1:], ends[:-1])
    nulls = present.false_count
    buffers = [memoryview(present.buffers()[1]) if nulls else None, headers.offsets]
    return array_over(kind, count, buffers, nulls, children=[entries])


# From the batches of a response or a file to Arrow batches for Spark.
#
# Rule: both use the same code, so that a scan of files gives the same rows as a broker.


# The bytes decoded at once. Beyond it a batch of rows is not faster, only larger.
DECODED_BYTES = 4 * 1_048_576


class PartitionDecoder:
    """Decodes the wanted columns of one partition's records.

    `position` is that of the batch being decoded, or that failed.
    """

    def __init__(
        self, columns: tuple[str, ...], tp: TopicPartition, rows_max: int, *, check_crcs: bool
    ) -> None:
        self._arrays = ColumnArrays(columns, tp, rows_max)
        self._decode = partial(
            decode_columns,
            check_crcs=check_crcs,
            total_bytes_max=DECODED_BYTES,
            with_keys="key" in columns,
            with_values="value" in columns,
            with_headers="headers" in columns,
        )
        self.position = 0

    def batches(
        self, data: Buffer, headers: Sequence[BatchHeader], begin: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """The records with offsets in [begin, end) of some batches of `data`.

        Raises CorruptBatch, after the records before it.
        """
        wanted = (header for header in headers if header.base_offset < end)
        for is_append_time, alike in groupby(wanted, attrgetter("is_log_append_time")):
            for start, limit in spans_of(list(alike)):
                self.position = start
                while self.position < limit:
                    found = self._decode(data, self.position, limit, begin)
                    self.position = found.end_position
                    yield from self._arrays.batches(found, end, is_log_append_time=is_append_time)
