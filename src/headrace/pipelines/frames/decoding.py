"""Decodes record values into columns, and separates records that do not fit the schema.

Rule: a value is decoded once, by one expression; the good rows and the bad ones are two selections
from its result, so that every record is in exactly one.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from headrace.pipelines.frames.errors import DecodeError, blaming
from headrace.pipelines.run.progress import (
    DEAD_LETTERS_METRIC,
    DEAD_LETTERS_REASONS,
    REASONS_MAX,
)
from headrace.pipelines.spec.model import BuildError, Decode, OnError, Pipeline, TopicSource

# JSON and CSV values decoded by Spark's own parsers, with a reason for each misfit.
#
# Rule: values that Spark's parsers tolerate are bad here: a field of another type, more or fewer
# fields than declared, and any text after the value.


_CORRUPT = "_corrupt"
_NOT_UTF8 = "not valid UTF-8"
_SHOWN_CHARACTERS = 60


class Parser(Protocol):
    """The part of decoding that depends on the format."""

    @property
    def schema(self) -> StructType:
        """The columns of a record."""

    def parsed(self, text: Column) -> Column:
        """The parsed struct that `record` and `misfit` need, or null for a null `text`."""

    def record(self, parsed: Column) -> Column:
        """The record of a parsed struct."""

    def misfit(self, text: Column, parsed: Column) -> Column:
        """Null if the text is a record of the schema, else the reason why not."""


@dataclass(frozen=True)
class TextFormat:
    """Values that are UTF-8 texts."""

    parser: Parser

    @property
    def record_type(self) -> StructType:
        return self.parser.schema

    def attempt(self, value: Column) -> Column:
        return self.parser.parsed(_text(value))

    def record(self, attempt: Column) -> Column:
        return self.parser.record(attempt)

    def reason(self, value: Column, attempt: Column) -> Column:
        return (
            F.when(value.isNull(), F.lit(None))
            .when(attempt.isNull(), F.lit(_NOT_UTF8))
            .otherwise(
                F.coalesce(
                    self.parser.misfit(_text(value), attempt),
                    *_required(self.parser.schema, self.parser.record(attempt)),
                )
            )
        )


@dataclass(frozen=True)
class JsonParser:
    """Parses a single JSON object. It is wrapped as a field of a larger object with a field after
    it, so that text behind the object is detected; Spark's parser stops at its end without an
    error.
    """

    schema: StructType
    options: Mapping[str, str]

    def parsed(self, text: Column) -> Column:
        return self._parsed(text, self.schema)

    def record(self, parsed: Column) -> Column:
        return parsed["record"]

    def misfit(self, text: Column, parsed: Column) -> Column:
        fits = parsed[_CORRUPT].isNull() & (parsed["end"] == 1) & parsed["record"].isNotNull()
        texts = self._parsed(text, _as_texts(self.schema))["record"]
        return F.when(
            ~F.coalesce(fits, F.lit(False)),
            F.coalesce(
                F.when(F.try_parse_json(text).isNull(), F.lit("not JSON")),
                F.when(~F.ltrim(text).startswith("{"), F.lit("not a JSON object")),
                _first_misfit(self.schema, texts, parsed["record"]),
                F.when(parsed["record"].isNull(), F.lit("more than one JSON object")),
                F.lit(f"not of the schema {self.schema.simpleString()}"),
            ),
        )

    def _parsed(self, text: Column, schema: StructType) -> Column:
        whole = F.concat(F.lit('{"record":'), text, F.lit(',"end":1}'))
        fields = [StructField("record", schema), StructField("end", IntegerType())]
        return F.from_json(whole, StructType([*fields, _CORRUPT_FIELD]), self._all_options())

    def _all_options(self) -> dict[str, str]:
        return dict(self.options) | _PERMISSIVE


@dataclass(frozen=True)
class CsvParser:
    """Parses one CSV line; a line break at its end is ignored."""

    schema: StructType
    options: Mapping[str, str]

    def parsed(self, text: Column) -> Column:
        return self._parsed(text, self.schema)

    def record(self, parsed: Column) -> Column:
        return parsed

    def misfit(self, text: Column, parsed: Column) -> Column:
        texts = self._parsed(text, _as_texts(self.schema))
        count = len(self.schema.fields)
        return F.coalesce(
            F.when(_line(text) == "", F.lit("empty")),
            F.when(
                parsed[_CORRUPT].isNotNull(),
                F.coalesce(
                    _first_misfit(self.schema, texts, parsed),
                    F.lit(f"not one line of {count} field{'s' if count > 1 else ''}"),
                ),
            ),
        )

    def _parsed(self, text: Column, schema: StructType) -> Column:
        columns = StructType([*schema.fields, _CORRUPT_FIELD])
        # The parser accepts a schema as text only; its SQL text survives any column name.
        return F.from_csv(_line(text), _ddl(columns), dict(self.options) | _PERMISSIVE)


_CORRUPT_FIELD = StructField(_CORRUPT, StringType())
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


def _text(value: Column) -> Column:
    return F.try_validate_utf8(value.cast("string"))


def _line(text: Column) -> Column:
    return F.rtrim(text, F.lit("\r\n"))


def _ddl(schema: StructType) -> str:
    return ", ".join(
        f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}" for field in schema
    )


def _as_texts(schema: StructType) -> StructType:
    return StructType([StructField(field.name, StringType()) for field in schema])


def _first_misfit(schema: StructType, texts: Column, record: Column) -> Column:
    """The first field that is in the value but not in the record, as a reason; null if there is
    none.

    The value is parsed a second time for this, with all fields as texts: only if it is bad.
    """

    def reason(texts: Column) -> Column:
        return F.coalesce(
            *(
                F.when(
                    texts[field.name].isNotNull() & record[field.name].isNull(),
                    F.concat(
                        F.lit(f"{field.name}: "),
                        F.substring(texts[field.name], 1, _SHOWN_CHARACTERS),
                        F.lit(f" is no {field.dataType.simpleString().upper()}"),
                    ),
                )
                for field in schema
            ),
            F.lit(None),
        )

    # A function of an element, so that the parser runs once and not once for each field.
    return F.transform(F.array(texts), reason)[0]


def _required(schema: StructType, record: Column) -> list[Column]:
    """A reason for each column that is declared NOT NULL and is null."""
    return [
        F.when(record[field.name].isNull(), F.lit(f"{field.name}: missing, and declared NOT NULL"))
        for field in schema
        if not field.nullable
    ]


KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
HEADER_PREFIX = "headrace."

_KINDS_TRACKED = 1024
_KIND_CHARACTERS = 100
# Reasons quote values; the kind of a reason leaves them out.
_QUOTING_REASONS = {
    r"(?s)^([^:]+): .* is no (\S+)$": "$1 is no $2",
    r"(?s)^not of the schema: .*$": "not of the schema",
    r"^its first byte is 0x[0-9a-f]{2}, and 0x00 in": "its first byte is not 0x00 as in",
    r"^written with schema -?\d+, which": "written with a schema which",
    r"^\d+ bytes follow": "bytes follow",
}

_ATTEMPT = "_headrace_attempt"
_REASON = "_headrace_reason"
_KIND = "_headrace_reason_kind"
_SCHEMA_FORM = 'write the schema as "id BIGINT, at TIMESTAMP"'
_OURS = ("mode", "columnNameOfCorruptRecord")


class ValueFormat(Protocol):
    """The decoder of values of one format and schema."""

    @property
    def record_type(self) -> StructType:
        """The columns of a record."""

    def attempt(self, value: Column) -> Column:
        """A struct with the record or the reason why there is none."""

    def record(self, attempt: Column) -> Column:
        """The record of an attempt; its fields are null for a null value."""

    def reason(self, value: Column, attempt: Column) -> Column:
        """The reason why the value is not a record; null if it is, or for a null value."""


def columns_to_read(decode: Decode) -> tuple[str, ...]:
    """The topic columns that `good_rows` needs, in the order of the data source."""
    if decode.format == "raw" and not decode.keep:
        return KAFKA_COLUMNS
    wanted = {"value", *decode.keep}
    if decode.format != "raw" and decode.on_error is OnError.FAIL:
        wanted |= {"topic", "partition", "offset"}
    return tuple(name for name in (*KAFKA_COLUMNS, HEADERS) if name in wanted)


DEAD_LETTER_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", HEADERS)


def good_rows(pipeline: Pipeline, source: TopicSource, records: DataFrame) -> DataFrame:
    """The columns of decodable records; others fail the query if the source demands it."""
    decode = source.decode
    kept = [F.col(name).alias(alias) for name, alias in decode.keep.items()]
    if decode.format == "raw":
        value = [] if "value" in decode.keep else [F.col("value")]
        return records.select(*value, *kept) if kept else records
    form = format_of(source)
    _refuse_equal_names(source, form)
    if "key" not in decode.keep:
        # A row of nulls is useless without the key of the deleted record.
        records = records.where(F.col("value").isNotNull())
    attempts = _attempts(records, form)
    record = form.record(F.col(_ATTEMPT))
    columns = [*(record[field.name].alias(field.name) for field in form.record_type), *kept]
    if decode.on_error is not OnError.FAIL:
        return attempts.where(F.col(_REASON).isNull()).select(*columns)
    row = F.when(F.col(_REASON).isNull(), F.struct(*columns)).otherwise(
        F.raise_error(_failure(pipeline, source))
    )
    return attempts.select(_walled(row).alias(_ATTEMPT)).select(f"{_ATTEMPT}.*")


def dead_letters(pipeline: Pipeline, source: TopicSource, records: DataFrame) -> DataFrame:
    """The undecodable records: original key and value, with the reason and the origin added to the
    headers. `records` has DEAD_LETTER_COLUMNS. Each batch counts them by kind of reason.
    """
    origin = {
        "reason": F.col(_REASON),
        "pipeline": F.lit(pipeline.name),
        "source": F.lit(source.name),
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("string"),
        "offset": F.col("offset").cast("string"),
        "timestamp": F.date_format("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"),
    }
    added = [
        F.struct(F.lit(HEADER_PREFIX + name).alias("key"), F.encode(text, "UTF-8").alias("value"))
        for name, text in origin.items()
    ]
    # Headers of an earlier decoding failure are replaced, if the record was sent again.
    own = F.filter(
        F.coalesce(F.col(HEADERS), F.array().cast("array<struct<key:string,value:binary>>")),
        lambda header: ~header["key"].startswith(HEADER_PREFIX),
    )
    bad = _attempts(records, format_of(source)).where(F.col(_REASON).isNotNull())
    bad = bad.withColumn(_KIND, reason_kind(F.col(_REASON)))
    # Exact as long as a batch has fewer kinds than are tracked, and bounded in any case.
    counts = F.expr(f"approx_top_k({_KIND}, {REASONS_MAX}, {_KINDS_TRACKED})")
    bad = bad.observe(DEAD_LETTERS_METRIC, counts.alias(DEAD_LETTERS_REASONS))
    return bad.select("key", "value", F.concat(own, F.array(*added)).alias(HEADERS))


def reason_kind(reason: Column) -> Column:
    """The reason without what it quotes of the value, so that equal mistakes count as one."""
    for pattern, kind in _QUOTING_REASONS.items():
        reason = F.regexp_replace(reason, pattern, kind)
    return F.substring(reason, 1, _KIND_CHARACTERS)


def format_of(source: TopicSource) -> ValueFormat:
    """The decoder of a source's values; BuildError for an unknown format."""
    decode = source.decode
    make = _FORMATS.get(decode.format)
    if make is None:
        raise _refusal(source, f"no format {decode.format!r}", f"use one of {', '.join(_FORMATS)}")
    if not decode.schema:
        raise _refusal(source, f"{decode.format} needs a schema", "declare one under decode")
    return make(source, decode.schema)


def _json(source: TopicSource, schema: str) -> ValueFormat:
    return TextFormat(JsonParser(_declared(source, schema), _options(source)))


def _csv(source: TopicSource, schema: str) -> ValueFormat:
    return TextFormat(CsvParser(_declared(source, schema), _options(source)))


def _avro(source: TopicSource, schema: str) -> ValueFormat:
    from headrace.pipelines.frames.avro import avro_format  # noqa: PLC0415 - needs fastavro

    return avro_format(source, schema)


_FORMATS: Mapping[str, Callable[[TopicSource, str], ValueFormat]] = {
    "json": _json,
    "csv": _csv,
    "avro": _avro,
}


def _declared(source: TopicSource, schema: str) -> StructType:
    with blaming(source.decode.place or source.place, f"source {source.name}", _SCHEMA_FORM):
        return declared_columns(schema)


def declared_columns(schema: str) -> StructType:
    """The columns of a declared schema: Spark's DDL, or its JSON form of a struct."""
    if schema.lstrip().startswith("{"):
        return StructType.fromJson(json.loads(schema))
    declared = DataType.fromDDL(schema)
    assert isinstance(declared, StructType), "text that is one type becomes one column"
    return declared


def _options(source: TopicSource) -> Mapping[str, str]:
    for name in source.decode.options:
        if name.lower() in {ours.lower() for ours in _OURS}:
            raise _refusal(source, f"option {name} is decided by on_error", "leave it out")
    return source.decode.options


def _refuse_equal_names(source: TopicSource, form: ValueFormat) -> None:
    names = [*form.record_type.names, *source.decode.keep.values()]
    lower = [name.lower() for name in names]
    doubled = [name for name in names if lower.count(name.lower()) > 1]
    if doubled:
        remedy = "give one another name, as in keep: {key: key_of_record}"
        raise _refusal(source, f"two columns are named {doubled[-1]}", remedy)


def _refusal(source: TopicSource, text: str, remedy: str) -> BuildError:
    return BuildError(source.decode.place or source.place, f"source {source.name}", text, remedy)


def _attempts(records: DataFrame, form: ValueFormat) -> DataFrame:
    value, attempt = F.col("value"), F.col(_ATTEMPT)
    tried = records.select("*", _walled(form.attempt(value)).alias(_ATTEMPT))
    return tried.withColumn(_REASON, form.reason(value, attempt))


def _walled(expression: Column) -> Column:
    """The expression, wrapped so that Spark evaluates it once and for every row.

    Otherwise Spark would push a filter on its result below it, and duplicate it in the filter. A
    generator's result is unknown before it has run, so no filter is pushed through it.
    """
    return F.explode_outer(F.array(expression))


def _failure(pipeline: Pipeline, source: TopicSource) -> Column:
    """The line that reports a DecodeError to the driver, in the form of a Python worker's error.

    It is such a line only when evaluated, not where a plan quotes this expression.
    """
    kind = f"{DecodeError.__module__}.{DecodeError.__qualname__}"
    line_break = F.char(F.lit(10))
    return F.concat(
        line_break,
        F.lit(f"{kind}: pipeline {pipeline.name}: source {source.name}: record "),
        F.concat_ws(
            "", F.col("topic"), F.lit("-"), F.col("partition"), F.lit("@"), F.col("offset")
        ),
        F.lit(f" is no {source.decode.format} of the declared schema: "),
        F.regexp_replace(F.col(_REASON), r"\s+", " "),
        F.lit("; correct the schema, or set on_error to dead-letter or drop"),
        line_break,
    )
