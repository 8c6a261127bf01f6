"""The topic sink: SQL expressions over the rows make the columns that the data source writes."""

from typing import TYPE_CHECKING

from headrace.pipelines.datasource.write_options import Guarantee, stream_write_options
from headrace.pipelines.sinks.target import MicroBatch
from headrace.pipelines.spec.model import SourceLocation, SpecError, TopicSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

FORMAT = "headrace"
_WHOLE_ROW = "to_json(struct(*))"


class TopicTarget:
    """Topics, for the output modes in which Spark allows no streaming sink written in Python.

    Exactly once, like the streaming sink, unless the options say otherwise: each batch is a write
    with the name of the query and the batch's number.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Write the records of the batch."""
        options = self._options
        if stream_write_options(options).guarantee is Guarantee.EXACTLY_ONCE:
            options = options | {"txnAppId": batch.query, "txnVersion": str(batch.number)}
        frame.write.format(FORMAT).mode("append").options(**options).save()
        return True


def records(
    frame: "DataFrame", sink: TopicSink, name: str, place: SourceLocation | None
) -> "DataFrame":
    """The rows as records: a value, and the other given columns of the data source.

    Raises SpecError for an expression that does not fit the rows.
    """
    wanted = {
        "key": sink.key,
        "value": sink.value or _WHOLE_ROW,
        "headers": sink.headers,
        "partition": sink.partition,
        "timestamp": sink.timestamp,
        "topic": sink.topic_expression,
    }
    columns = [
        _column(frame, what, expression, f"sink {name}: {what}: {expression}", place)
        for what, expression in wanted.items()
        if expression is not None
    ]
    return frame.select(*columns)


def _column(
    frame: "DataFrame", what: str, expression: str, label: str, place: SourceLocation | None
) -> "Column":
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - Spark is there
    from pyspark.sql import functions  # noqa: PLC0415

    try:
        kind = frame.select(functions.expr(expression).alias(what)).schema[what].dataType
    except ParseException:
        raise SpecError(place, f"{label}: this is no SQL expression; correct it") from None
    except AnalysisException as error:
        reason = " ".join(str(error).partition(" SQLSTATE")[0].split())
        columns = ", ".join(frame.columns)
        raise SpecError(place, f"{label}: {reason}; the columns are {columns}") from None
    converted = _converted(what, functions.expr(expression), kind)
    if converted is None:
        wanted = "an array of structs (key, value), or a map of texts"
        text = f"{label}: headers are {wanted}, and this is {kind.simpleString()}; rewrite it"
        raise SpecError(place, text)
    return converted.alias(what)


def _converted(what: str, column: "Column", kind: "DataType") -> "Column | None":
    """The column with the type of the data source; None if it cannot be converted."""
    from pyspark.sql import functions, types  # noqa: PLC0415

    match what:
        case "partition":
            return column.cast("int")
        case "timestamp":
            return column.cast("timestamp")
        case "headers" if isinstance(kind, types.MapType):
            return functions.transform(
                functions.map_entries(column),
                lambda header: functions.struct(
                    header["key"].cast("string").alias("key"),
                    header["value"].cast("binary").alias("value"),
                ),
            )
        case "headers":
            element = kind.elementType if isinstance(kind, types.ArrayType) else None
            return column if isinstance(element, types.StructType) else None
    if isinstance(kind, types.StringType | types.BinaryType) and what != "topic":
        return column
    if isinstance(kind, types.StructType | types.ArrayType | types.MapType):
        return functions.to_json(column)
    return column.cast("string")


def options(sink: TopicSink, broker: dict[str, str]) -> dict[str, str]:
    """The options of the data source for this sink: the pipeline's broker, then its own."""
    topic = {"topic": sink.topic} if sink.topic is not None else {}
    return broker | topic | dict(sink.options)
