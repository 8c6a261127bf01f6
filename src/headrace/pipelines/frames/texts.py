"""JSON and CSV values by Spark's own parsers, with a reason for each that does not fit.

Rule: what Spark's parsers forgive is bad here: a field of another type, more or fewer fields than
declared, and anything after the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

_CORRUPT = "_corrupt"
_NOT_UTF8 = "not valid UTF-8"
_SHOWN_CHARACTERS = 60


class Parser(Protocol):
    """What differs between the formats."""

    @property
    def schema(self) -> StructType:
        """The columns of a record."""

    def parsed(self, text: Column) -> Column:
        """A struct with what `record` and `misfit` need, or null where `text` is."""

    def record(self, parsed: Column) -> Column:
        """The record in it."""

    def misfit(self, text: Column, parsed: Column) -> Column:
        """Null if the text is a record of the schema, else why not."""


@dataclass(frozen=True)
class TextFormat:
    """Values that are texts in UTF-8."""

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
    """One object. It is parsed as a field of a larger one with a field after it, so that what
    follows the object in the value is seen; Spark's parser stops at its end and says nothing."""

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
    """One line; a line break at its end is not part of it."""

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
        # The parser takes a schema as text only; its SQL text survives any column name.
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
    """The first field that the value has and the record lacks, as a reason; null if there is none.

    The value is parsed a second time for this, all its fields as texts: only where it is bad.
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
    """A reason for each column that is declared NOT NULL and has nothing."""
    return [
        F.when(record[field.name].isNull(), F.lit(f"{field.name}: missing, and declared NOT NULL"))
        for field in schema
        if not field.nullable
    ]
