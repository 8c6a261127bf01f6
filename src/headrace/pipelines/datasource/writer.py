"""The sink: writes rows of a DataFrame as records of topics."""

import logging
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BufferedReader, BufferedRWPair
from pathlib import PurePath
from types import FrameType

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.serializers import SpecialLengths
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.pipelines.datasource.delivery import (
    AtLeastOnce,
    SinkTask,
    TaskDelivery,
    WrittenRows,
    current_task,
    deliver,
)
from headrace.pipelines.datasource.errors import SinkError
from headrace.pipelines.datasource.exactly_once import ExactlyOnce
from headrace.pipelines.datasource.write_options import (
    Guarantee,
    WriteOptions,
    batch_write_options,
    stream_write_options,
)

# Whether a task's stream of rows is complete, or ended early by a failure.
#
# Spark passes rows to a Python writer as an Arrow stream. If the query fails, or its Java process
# dies, the stream ends early, at the end of a batch that looks complete: a writer would commit only
# a part of its rows. Behind the last row of a complete stream Spark writes a marker number. It is
# for Spark to read, after the writer has returned; here it is only peeked at.


_COMPLETE = struct.pack("!i", SpecialLengths.END_OF_STREAM)
# The names of the stream in Spark's worker: since 4.3, and before.
_NAMES = ("input_data_stream", "infile")


def require_all_rows() -> None:
    """Raise SinkError unless this worker's stream of rows is complete."""
    stream = _input_stream(sys._getframe())
    if stream is None:
        raise SinkError(
            "this version of Spark does not let a sink see whether all rows have come, without"
            " which they cannot be written exactly once",
            advice=(
                "set deliveryGuarantee to at-least-once,"
                " or use the version of Spark that docs/spark.md names"
            ),
        )
    # Waits for a byte or the end of the stream; Spark sends the number in one piece.
    found = stream.peek(len(_COMPLETE))[: len(_COMPLETE)]
    if not found or not _COMPLETE.startswith(found):
        raise SinkError("the query failed before all rows of the task had come; nothing is written")


def _input_stream(frame: FrameType | None) -> BufferedReader | BufferedRWPair | None:
    """The input stream, found in the frame of Spark's worker, as there is no API for it."""
    while frame is not None:
        if PurePath(frame.f_code.co_filename).parts[-2:] == ("pyspark", "worker.py"):
            for name in _NAMES:
                found = frame.f_locals.get(name)
                if isinstance(found, BufferedReader | BufferedRWPair):
                    return found
        frame = frame.f_back
    return None


_SHOWN_MAX = 60


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise SinkError for a schema that cannot be written, with advice."""
    names = schema.fieldNames()
    known = ", ".join(_COLUMNS)
    for name in names:
        if name not in _COLUMNS:
            raise SinkError(
                f"column {name} is none of those that a sink takes ({known});"
                " drop it, or put it into value"
            )
        if names.count(name) > 1:
            raise SinkError(f"there are {names.count(name)} columns {name}", advice="keep one")
    if "value" not in names:
        raise SinkError(
            f"there is no column value, only {', '.join(names) or 'none at all'};"
            " make one, as in to_json(struct(*)) AS value"
        )
    if topic is None and "topic" not in names:
        raise SinkError("rows go to no topic", advice="give option topic, or a column topic")
    for column in schema.fields:
        is_fit, wanted, remedy = _COLUMNS[column.name]
        if not is_fit(column.dataType):
            raise SinkError(
                f"column {column.name} is {column.dataType.simpleString()}, and must be {wanted};"
                f" use {remedy}"
            )


def _is_cell(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_int(kind: DataType) -> bool:
    return isinstance(kind, IntegerType)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    types = {part.name: part.dataType for part in kind.elementType.fields}
    return types.keys() == {"key", "value"} and _is_text(types["key"]) and _is_cell(types["value"])


_HEADERS = "array<struct<key:string,value:binary>>"
_COLUMNS: dict[str, tuple[Callable[[DataType], bool], str, str]] = {
    "key": (_is_cell, "binary or string", "CAST(... AS STRING) AS key"),
    "value": (_is_cell, "binary or string", "to_json(struct(*)) AS value"),
    "headers": (_are_headers, _HEADERS, "array(struct('name' AS key, ... AS value)) AS headers"),
    "partition": (_is_int, "int", "CAST(... AS INT) AS partition"),
    "topic": (_is_text, "string", "CAST(... AS STRING) AS topic"),
    "timestamp": (_is_time, "timestamp", "CAST(... AS TIMESTAMP) AS timestamp"),
}


def by_topic(
    batch: pa.RecordBatch, topic: str | None, first_row: int = 0
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch grouped by topic, in their order within it.

    `first_row` counts the rows before, for the message about a row without a topic. A batch for a
    single topic is passed on without a copy; another is copied once, however many topics it has.
    """
    if "topic" not in batch.schema.names:
        assert topic is not None, "checked with the schema"
        yield topic, batch
        return
    rows = batch.drop_columns(["topic"])
    if topic is not None:
        yield topic, rows
        return
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    _check_topics(batch, topics, names, first_row)
    if len(names) == 1:
        yield names[0], rows
        return
    # This sort is stable.
    rows = rows.take(pc.array_sort_indices(topics.indices))
    counts = {
        entry["values"]: entry["counts"] for entry in pc.value_counts(topics.indices).to_pylist()
    }
    start = 0
    for code, name in enumerate(names):
        yield name, rows.slice(start, counts[code])
        start += counts[code]


def _check_topics(
    batch: pa.RecordBatch, topics: pa.Array, names: list[str], first_row: int
) -> None:
    if not topics.null_count and "" not in names:
        return
    column = batch.column("topic")
    is_missing = pc.fill_null(pc.equal(column, pa.scalar("", column.type)), True)
    row = pc.index(is_missing, True).as_py()
    shown = [
        f"{name} {_short(batch.column(name)[row].as_py())}"
        for name in ("key", "value")
        if name in batch.schema.names
    ]
    raise SinkError(
        f"row {first_row + row} of a task ({', '.join(shown)}) has no topic;"
        " give every row one, or set option topic"
    )


def _short(value: bytes | str | None) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


# The sink: writes rows of a DataFrame as records of topics.
#
# Spark makes a writer on the driver, where its options and columns are checked, and sends it to the
# tasks. A task reports its written rows to the driver once all are acknowledged.


log = logging.getLogger("headrace.sink")


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame once: `frame.write.format("headrace").mode("append")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError(
                "a topic cannot be overwritten;"
                ' use .mode("append"), and delete the topic or its records first if they must go'
            )
        self._options = batch_write_options(options)
        check_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write the rows of one task.

        In a function of foreachBatch Spark has a batch number too, but the function may make
        several writes: so the number names none of them.
        """
        options = self._options
        return _write(
            options,
            replace(current_task(), query_id=options.app, batch_id=options.version),
            iterator,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the written rows of all tasks."""
        log.info("written: %s", _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log a failed write: rows of the successful tasks stay written."""
        log.warning("failed, and written nevertheless: %s", _summary(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of every batch of a streaming query, in all output modes.

    In complete mode, for which `overwrite` is set, each batch writes the whole result: a compacted
    topic keeps the last.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = stream_write_options(options)
        check_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write the rows of one task."""
        return _write(self._options, current_task(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the written rows of the batch."""
        log.info("batch %d written: %s", batchId, _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log a failed batch: rows of successful tasks stay written, and will be written again."""
        log.warning("batch %d failed, and written nevertheless: %s", batchId, _summary(messages))


def _write(options: WriteOptions, task: SinkTask, batches: Iterator[pa.RecordBatch]) -> WrittenRows:
    rows = _with_topics(options, batches)
    if options.guarantee is Guarantee.EXACTLY_ONCE:
        rows = _all_of(rows)
    return deliver(delivery(options, task), rows)


def delivery(options: WriteOptions, task: SinkTask) -> TaskDelivery:
    """The delivery of a task's rows, chosen by the options."""
    if options.guarantee is Guarantee.EXACTLY_ONCE:
        return ExactlyOnce(options, task)
    return AtLeastOnce(options, task)


def _with_topics(
    options: WriteOptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    first_row = 0
    for batch in batches:
        yield from by_topic(batch, options.topic, first_row)
        first_row += batch.num_rows


def _all_of(rows: Iterator[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows; raises SinkError at the end if the stream is incomplete."""
    yield from rows
    require_all_rows()


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """The rows that tasks have written, by topic; None stands for a failed task."""
    done = [message for message in messages if isinstance(message, WrittenRows)]
    topics = sorted({where.topic for message in done for where in message.spans})
    rows = sum(message.rows for message in done)
    text = (
        f"{rows} rows by {len(done)} of {len(messages)} tasks to {', '.join(topics) or 'no topic'}"
    )
    before = sum(message.rows_before for message in done)
    return f"{text}, {before} rows were there before" if before else text
