"""The sink: rows of a DataFrame become records of topics.

Spark makes a writer on the driver, where its options and columns are checked, and sends it to the
tasks. What a task has written is told to the driver once all of it is acknowledged.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.pipelines.source.delivery import (
    AtLeastOnce,
    Delivery,
    Task,
    Written,
    current_task,
    deliver,
)
from headrace.pipelines.source.exactly_once import ExactlyOnce
from headrace.pipelines.source.input_end import require_all_rows
from headrace.pipelines.source.write_columns import by_topic, check_columns
from headrace.pipelines.source.write_failures import SinkError
from headrace.pipelines.source.write_options import (
    Guarantee,
    WriteOptions,
    batch_write_options,
    stream_write_options,
)

log = logging.getLogger("headrace.sink")


class Writer(DataSourceArrowWriter):
    """Writes the rows of a DataFrame once: `frame.write.format("headrace").mode("append")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError(
                "a topic cannot be overwritten;"
                ' use .mode("append"), and delete the topic or its records first if they must go'
            )
        self._options = batch_write_options(options)
        check_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task.

        In a function of foreachBatch Spark tells a batch's number too, but there may be several
        writes in it: none is named by that.
        """
        options = self._options
        return _write(
            options,
            replace(current_task(), query_id=options.app, batch_id=options.version),
            iterator,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every row is written."""
        log.info("written: %s", _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some tasks failed; what the others have written stays."""
        log.warning("failed, and written nevertheless: %s", _summary(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of every batch of a streaming query, in all output modes.

    The complete mode, which is what `overwrite` means here, sends the whole result with each batch:
    a compacted topic keeps the last.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = stream_write_options(options)
        check_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        return _write(self._options, current_task(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every row of the batch is written."""
        log.info("batch %d written: %s", batchId, _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Some tasks failed; what the others have written stays, and comes again."""
        log.warning("batch %d failed, and written nevertheless: %s", batchId, _summary(messages))


def _write(options: WriteOptions, task: Task, batches: Iterator[pa.RecordBatch]) -> Written:
    rows = _with_topics(options, batches)
    if options.guarantee is Guarantee.EXACTLY_ONCE:
        rows = _all_of(rows)
    return deliver(delivery(options, task), rows)


def delivery(options: WriteOptions, task: Task) -> Delivery:
    """What brings the rows of a task to the brokers as its options want it."""
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
    """The rows, with an error behind them if there should have been more."""
    yield from rows
    require_all_rows()


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """How many rows tasks have written to which topics; None is a task that failed."""
    done = [message for message in messages if isinstance(message, Written)]
    topics = sorted({where.topic for message in done for where in message.spans})
    rows = sum(message.rows for message in done)
    text = (
        f"{rows} rows by {len(done)} of {len(messages)} tasks to {', '.join(topics) or 'no topic'}"
    )
    before = sum(message.rows_before for message in done)
    return f"{text}, {before} rows were there before" if before else text
