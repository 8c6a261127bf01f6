"""Avro as a format of values: the reader of `avro`, run by Spark's Python workers on Arrow."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructType

from headrace.pipelines.frames.avro import AvroReader
from headrace.pipelines.frames.avro_types import AvroSchemaError
from headrace.pipelines.frames.failures import BuildError
from headrace.pipelines.spec.model import TopicSource

_SCHEMA_IDS = "schemaIds"


@dataclass(frozen=True)
class AvroFormat:
    """Values that a reader reads."""

    reader: AvroReader
    record_type: StructType

    def attempt(self, value: Column) -> Column:
        reader = self.reader

        def decode(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return reader.results(values)

        # Its type hints know of no structs, which it takes all the same.
        decoder = arrow_udf(decode, reader.result_type)  # type: ignore[call-overload]
        decoded: Column = decoder(value)
        return decoded

    def record(self, attempt: Column) -> Column:
        return attempt["record"]

    def reason(self, value: Column, attempt: Column) -> Column:
        return attempt["reason"]


def avro_format(source: TopicSource, schema: str) -> AvroFormat:
    """The format of this source, whose schema is an Avro schema as JSON text."""
    place, part = source.decode.place or source.place, f"source {source.name}"
    for name in source.decode.options:
        if name != _SCHEMA_IDS:
            remedy = f"Avro has {_SCHEMA_IDS} only, for framing: confluent"
            raise BuildError(place, part, f"no option {name!r}", remedy)
    ids = source.decode.options.get(_SCHEMA_IDS, "")
    try:
        reader = AvroReader(
            schema,
            framed=source.decode.framing == "confluent",
            schema_ids=frozenset(int(text) for text in ids.split(",") if text.strip()),
        )
        return AvroFormat(reader, reader.record_type)
    except AvroSchemaError as error:
        raise BuildError(place, part, str(error), "correct the schema under decode") from error
    except ValueError:
        remedy = "write numbers and commas, as in '3,7'"
        raise BuildError(place, part, f"option {_SCHEMA_IDS} is {ids!r}", remedy) from None
