"""Avro values by `fastavro`, since Spark's own package has no Avro in it.

Rule: a value is its schema's to the last byte or it is bad, and the reason goes beside it.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from headrace.pipelines.frames.avro_types import Schema, avro_schema, spark_type

_FRAME = struct.Struct(">bI")
_ENDS_EARLY = "it ends too early"
_UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError, SchemaResolutionError)

Record = dict[str, Any]


@dataclass(frozen=True)
class AvroReader:
    """Reads values of one schema, given as its JSON text.

    With `framed`, a value starts as Confluent's serializers write it: a zero byte and the number
    of its schema in the registry, which must be one of `schema_ids` if there are any.
    """

    schema: str
    framed: bool = False
    schema_ids: frozenset[int] = frozenset()

    @property
    def record_type(self) -> StructType:
        """The columns of a record."""
        return spark_type(avro_schema(self.schema))

    @property
    def result_type(self) -> StructType:
        """What a value becomes: a record or a reason, and neither where there is no value."""
        return StructType(
            [StructField("record", self.record_type), StructField("reason", StringType())]
        )

    def results(self, values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """The values as arrays of `result_type`."""
        schema = avro_schema(self.schema)
        kind = to_arrow_type(self.record_type, timezone="UTC")
        for array in values:
            read = [self.read(value, schema) for value in array.to_pylist()]
            records, reasons = _arrow_records(read, kind)
            yield pa.StructArray.from_arrays(
                [records, pa.array(reasons, pa.string())], names=["record", "reason"]
            )

    def read(self, value: bytes | None, schema: Schema) -> tuple[Record | None, str | None]:
        """The record a value holds, or why it holds none. `schema` is this reader's, parsed."""
        if value is None:
            return None, None
        stream = BytesIO(value)
        reason = self._unframed(stream, value) if self.framed else None
        if reason:
            return None, reason
        try:
            record = fastavro.schemaless_reader(stream, schema, None)
        except EOFError:
            return None, _ENDS_EARLY
        except _UNREADABLE as error:
            early = stream.tell() == len(value) and isinstance(error, IndexError)
            return None, _ENDS_EARLY if early else f"not of the schema: {error}"
        rest = len(value) - stream.tell()
        if rest:
            return None, f"{rest} bytes follow what the schema describes"
        assert isinstance(record, dict)
        return record, None

    def _unframed(self, stream: BytesIO, value: bytes) -> str | None:
        """Step over the framing; why that cannot be done, if so."""
        if len(value) < _FRAME.size:
            return "shorter than the five bytes of Confluent's framing"
        magic, schema_id = _FRAME.unpack(stream.read(_FRAME.size))
        if magic:
            return f"its first byte is {value[0]:#04x}, and 0x00 in Confluent's framing"
        if self.schema_ids and schema_id not in self.schema_ids:
            return f"written with schema {schema_id}, which is not among the schemaIds declared"
        return None


def _arrow_records(
    read: Sequence[tuple[Record | None, str | None]], kind: pa.DataType
) -> tuple[pa.Array, list[str | None]]:
    """The records as one array and the reasons beside it.

    What Avro can carry and a column cannot, a decimal of too many digits say, is found only here:
    then each record is tried alone, so that one costs no other.
    """
    records, reasons = [record for record, _ in read], [reason for _, reason in read]
    try:
        return pa.array(records, kind), reasons
    except (pa.ArrowException, OverflowError):
        pass
    for at, record in enumerate(records):
        try:
            pa.array([record], kind)
        except (pa.ArrowException, OverflowError) as error:
            records[at], reasons[at] = None, f"not of the schema: {error}"
    return pa.array(records, kind), reasons
