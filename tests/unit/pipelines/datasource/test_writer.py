"""The life of a task's rows, and what is told about it, without Spark and without a broker."""

import logging
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headrace.pipelines.datasource.delivery import (
    AtLeastOnce,
    SinkTask,
    WrittenRows,
    WrittenSpan,
    deliver,
)
from headrace.pipelines.datasource.errors import SourceError
from headrace.pipelines.datasource.exactly_once import ExactlyOnce
from headrace.pipelines.datasource.write_options import batch_write_options, stream_write_options
from headrace.pipelines.datasource.writer import BatchWriter, StreamWriter, delivery
from headrace.types import TopicPartition

TASK = SinkTask("query", 7, 2, 0)
SCHEMA = StructType([StructField("value", StringType())])
WRITTEN = WrittenRows(
    TASK,
    {TopicPartition("a", 0): WrittenSpan(3, 10, 12), TopicPartition("b", 1): WrittenSpan(1, 0, 0)},
)


class Told:
    """A delivery that keeps what it is told, and fails where it is asked to."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.calls: list[str] = []

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, rows: pa.RecordBatch) -> None:
        self._call(f"send {rows.num_rows} to {topic}")

    def commit(self) -> WrittenRows:
        self._call("commit")
        return WRITTEN

    def abort(self) -> None:
        self._call("abort")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.failing and name.startswith(self.failing):
            raise SourceError(name)


ROWS = [("a", pa.record_batch({"value": ["1", "2"]})), ("b", pa.record_batch({"value": ["3"]}))]


def test_rows_are_sent_and_committed() -> None:
    told = Told()
    assert deliver(told, ROWS) is WRITTEN
    assert told.calls == ["begin", "send 2 to a", "send 1 to b", "commit"]


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        ("begin", ["begin"]),
        ("send 2", ["begin", "send 2 to a", "abort"]),
        ("commit", ["begin", "send 2 to a", "send 1 to b", "commit", "abort"]),
    ],
)
def test_what_fails_is_aborted_and_raised(failing: str, calls: list[str]) -> None:
    told = Told(failing)
    with pytest.raises(SourceError, match=failing):
        deliver(told, ROWS)
    assert told.calls == calls


def test_the_outcome_of_a_batch_is_logged_on_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.sink")
    writer = StreamWriter({"topic": "a"}, SCHEMA, overwrite=True)
    writer.commit([WRITTEN, pickle.loads(pickle.dumps(WRITTEN))], 7)
    writer.abort([None, WRITTEN], 8)
    writer.commit([WRITTEN, WrittenRows(TASK, {}, rows_before=6)], 9)
    once = BatchWriter({"topic": "a"}, SCHEMA, overwrite=False)
    once.commit([])
    once.abort([None])
    assert [record.message for record in caplog.records] == [
        "batch 7 written: 8 rows by 2 of 2 tasks to a, b",
        "batch 8 failed, and written nevertheless: 4 rows by 1 of 2 tasks to a, b",
        "batch 9 written: 4 rows by 2 of 2 tasks to a, b, 6 rows were there before",
        "written: 0 rows by 0 of 0 tasks to no topic",
        "failed, and written nevertheless: 0 rows by 0 of 1 tasks to no topic",
    ]


def test_a_topic_is_not_overwritten_by_a_batch() -> None:
    with pytest.raises(SourceError, match="a topic cannot be overwritten"):
        BatchWriter({"topic": "a"}, SCHEMA, overwrite=True)


def test_writers_travel_to_executors() -> None:
    writer = pickle.loads(pickle.dumps(StreamWriter({"topic": "a"}, SCHEMA, overwrite=False)))
    assert isinstance(writer, StreamWriter)


def test_options_choose_the_delivery() -> None:
    assert isinstance(delivery(stream_write_options({}), TASK), ExactlyOnce)
    assert isinstance(delivery(batch_write_options({}), TASK), AtLeastOnce)


def test_a_task_without_rows_needs_no_broker() -> None:
    nobody = stream_write_options({"kafka.bootstrap.servers": "127.0.0.1:1"})
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    assert deliver(ExactlyOnce(nobody, TASK), [("a", empty)]) == WrittenRows(TASK, {})
