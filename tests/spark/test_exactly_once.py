"""Rows that are written once, whatever runs again: tasks, batches, queries; on a real broker."""

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Literal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import headrace
from headrace.pipelines import sinks
from headrace.pipelines.datasource.delivery import SinkTask, WrittenRows, WrittenSpan, deliver
from headrace.pipelines.datasource.errors import SourceError
from headrace.pipelines.datasource.exactly_once import ExactlyOnce
from headrace.pipelines.datasource.write_options import WriteOptions, stream_write_options
from headrace.pipelines.spec.model import OutputMode, Pipeline, Sink, TopicSink, Trigger
from headrace.testing import Broker
from headrace.testing.time_limits import Deadline, scaled
from headrace.types import TopicPartition, uuid_text
from tests.spark.delivering import rows, write_batches
from tests.spark.pipelines import received

IsolationName = Literal["read_committed", "read_uncommitted"]

ROWS = pa.record_batch({"key": ["a", "b"], "value": ["1", "2"]})


def options(broker: Broker, **more: str) -> WriteOptions:
    return stream_write_options({"kafka.bootstrap.servers": broker.bootstrap_servers, **more})


def values(broker: Broker, topic: str) -> list[bytes | None]:
    """What a reader of committed records finds."""
    return sorted(record.value for record in received(broker, topic))


def attempt(
    broker: Broker, task: SinkTask, *topics: str, rows: pa.RecordBatch = ROWS
) -> WrittenRows:
    return deliver(ExactlyOnce(options(broker), task), [(topic, rows) for topic in topics])


def wait_for_rows(
    servers: str, topic: str, count: int, level: IsolationName = "read_committed"
) -> None:
    """Return when a topic of one partition has as many rows, which may be read."""
    deadline = Deadline(20)
    with headrace.Consumer(bootstrap_servers=servers, isolation_level=level) as consumer:
        first = TopicPartition(topic, 0)
        while consumer.end_offsets([first])[first] < count and not deadline.has_passed:
            time.sleep(0.05)


# -- tasks


def test_a_task_that_is_run_again_finds_its_rows_written(spark_broker: Broker) -> None:
    topic = spark_broker.create_topic()
    first = attempt(spark_broker, SinkTask("again", 0, 0, 0), topic)
    assert first.spans == {TopicPartition(topic, 0): WrittenSpan(2, 0, 1)}
    second = attempt(spark_broker, SinkTask("again", 0, 0, 1), topic)
    assert second == WrittenRows(SinkTask("again", 0, 0, 1), {}, rows_before=2)
    assert values(spark_broker, topic) == [b"1", b"2"]

    assert attempt(spark_broker, SinkTask("again", 1, 0, 0), topic).rows == 2
    # Somebody who is late, and a batch behind.
    assert attempt(spark_broker, SinkTask("again", 0, 0, 2), topic).rows == 0
    assert attempt(spark_broker, SinkTask("again", 1, 1, 0), topic).rows == 2
    assert attempt(spark_broker, SinkTask("another", 0, 0, 0), topic).rows == 2
    assert Counter(values(spark_broker, topic)) == {b"1": 4, b"2": 4}


def test_a_batch_counts_as_written_by_the_newest_of_its_topics(spark_broker: Broker) -> None:
    one, other = spark_broker.create_topic(), spark_broker.create_topic()
    attempt(spark_broker, SinkTask("topics", 0, 0, 0), one, other)
    attempt(spark_broker, SinkTask("topics", 1, 0, 0), other)
    for topic in (one, other):
        assert attempt(spark_broker, SinkTask("topics", 1, 0, 1), topic).rows == 0
    assert len(values(spark_broker, one)) == 2
    assert len(values(spark_broker, other)) == 4


def recreate(broker: Broker, topic: str) -> None:
    with headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic)


def test_rows_that_went_with_their_topic_are_written_again(spark_broker: Broker) -> None:
    topic = spark_broker.create_topic()
    attempt(spark_broker, SinkTask("recreated", 0, 0, 0), topic)
    recreate(spark_broker, topic)
    assert attempt(spark_broker, SinkTask("recreated", 0, 0, 1), topic).rows == 2
    assert values(spark_broker, topic) == [b"1", b"2"]


def test_a_batch_of_which_one_topic_was_created_again_is_refused(spark_broker: Broker) -> None:
    kept, recreated = spark_broker.create_topic(), spark_broker.create_topic()
    attempt(spark_broker, SinkTask("halves", 0, 0, 0), kept, recreated)
    recreate(spark_broker, recreated)
    with pytest.raises(SourceError, match=f"written to 2 topics.*others than {kept} were deleted"):
        attempt(spark_broker, SinkTask("halves", 0, 0, 1), kept, recreated)
    assert len(values(spark_broker, kept)) == 2
    assert values(spark_broker, recreated) == []


def test_of_two_attempts_at_once_the_older_one_writes_nothing(spark_broker: Broker) -> None:
    topic = spark_broker.create_topic()
    zombie = ExactlyOnce(options(spark_broker), SinkTask("two", 0, 0, 0))
    zombie.begin()
    zombie.send(topic, ROWS)
    assert attempt(spark_broker, SinkTask("two", 0, 0, 1), topic).rows == 2
    with pytest.raises(SourceError, match="another attempt of task 0 of batch 0 has taken over"):
        zombie.commit()
    zombie.abort()
    assert values(spark_broker, topic) == [b"1", b"2"]


def test_rows_of_a_task_that_fails_are_never_read(spark_broker: Broker) -> None:
    topic = spark_broker.create_topic()

    def failing() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield topic, ROWS
        raise KeyError("the query's own")

    with pytest.raises(KeyError, match="the query's own"):
        deliver(ExactlyOnce(options(spark_broker), SinkTask("fails", 0, 0, 0)), failing())
    # Nobody has to wait for the timeout of the transaction.
    assert values(spark_broker, topic) == []
    assert attempt(spark_broker, SinkTask("fails", 0, 0, 1), topic).rows == 2
    assert values(spark_broker, topic) == [b"1", b"2"]


def test_other_rows_than_before_are_refused(spark_broker: Broker) -> None:
    topic = spark_broker.create_topic()
    attempt(spark_broker, SinkTask("other", 0, 0, 0), topic)
    with pytest.raises(SourceError, match="has 1 rows, and had 2 when it was written: exactly"):
        attempt(spark_broker, SinkTask("other", 0, 0, 1), topic, rows=ROWS.slice(1))
    assert values(spark_broker, topic) == [b"1", b"2"]


def test_a_timeout_that_the_broker_does_not_allow_is_named(spark_broker: Broker) -> None:
    topic = spark_broker.create_topic()
    patient = options(spark_broker, **{"kafka.transaction.timeout.ms": str(2**31 - 1)})
    with pytest.raises(SourceError, match=r"lower kafka\.transaction\.timeout\.ms, or raise its"):
        deliver(ExactlyOnce(patient, SinkTask("patient", 0, 0, 0)), [(topic, ROWS)])


def test_rows_are_written_once_by_processes_that_are_killed_or_wake_up_late(
    spark_broker: Broker, tmp_path: Path
) -> None:
    """Each process takes over from the one before; those that were stopped go on beside it."""
    batches, rng = 30, Random(7)
    topic = spark_broker.create_topic(partitions=2)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([write_batches.__module__])
    arguments = (spark_broker.bootstrap_servers, topic, tmp_path, batches)
    asleep: list[BaseProcess] = []

    def run_for(patience_s: float) -> BaseProcess:
        process = processes.Process(target=write_batches, args=arguments, daemon=True)
        process.start()
        process.join(patience_s)
        return process

    try:
        for _ in range(15):
            process = run_for(0.05 + rng.random() * 0.3)
            if asleep and rng.random() < 0.3:
                signal_to(asleep.pop(), signal.SIGCONT)
            if rng.random() < 0.3:
                signal_to(process, signal.SIGSTOP)
                asleep.append(process)
            else:
                signal_to(process, signal.SIGKILL)
        for process in multiprocessing.active_children():
            if process not in asleep:
                signal_to(process, signal.SIGKILL)
        assert run_for(scaled(120)).exitcode == 0
        for process in asleep:
            signal_to(process, signal.SIGCONT)
            process.join(0.2)
    finally:
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
    wanted = [row for batch in range(batches) for task in range(2) for row in rows(batch, task)]
    assert Counter(values(spark_broker, topic)) == Counter(wanted)


def signal_to(process: BaseProcess, number: int) -> None:
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, number)


def test_a_task_that_takes_longer_than_its_transaction_may_is_told_so(
    spark_broker: Broker,
) -> None:
    topic = spark_broker.create_topic()
    hurried = options(spark_broker, **{"kafka.transaction.timeout.ms": "500"})
    slow = ExactlyOnce(hurried, SinkTask("slow", 0, 0, 0))
    slow.send(topic, ROWS)
    wait_for_rows(spark_broker.bootstrap_servers, topic, 2, "read_uncommitted")
    with headrace.Admin(bootstrap_servers=spark_broker.bootstrap_servers) as admin:
        # Brokers look for such transactions every ten seconds.
        deadline = Deadline(30)
        while "headrace-slow-0" in admin.list_transactions(states=["Ongoing"]):
            assert not deadline.has_passed
            time.sleep(0.1)
    with pytest.raises(
        SourceError, match=r"raise kafka\.transaction\.timeout\.ms, or have smaller"
    ):
        slow.commit()
    slow.abort()
    assert values(spark_broker, topic) == []


# -- queries


@pytest.fixture
def source(spark_broker: Broker) -> str:
    """A topic of two partitions with twenty numbers each, the even ones in the first."""
    topic = spark_broker.create_topic(partitions=2)
    with headrace.Producer(bootstrap_servers=spark_broker.bootstrap_servers) as producer:
        for number in range(40):
            producer.send(topic, str(number), key=str(number % 5), partition=number % 2)
    return topic


def stream(spark: SparkSession, broker: Broker, topic: str) -> DataFrame:
    """Its numbers, in two batches."""
    reader = spark.readStream.format("headrace")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    reader = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    return reader.load().selectExpr("string(key) AS key", "string(value) AS value")


def run(frame: DataFrame, broker: Broker, topic: str, to: Path, **more: str) -> None:
    writer = frame.writeStream.format("headrace").outputMode(more.pop("mode", "append"))
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer = writer.option("checkpointLocation", str(to)).option("topic", topic).options(**more)
    writer.trigger(availableNow=True).start().awaitTermination()


def forget_last_batch(checkpoint: Path) -> None:
    """As if the driver had died after the tasks of the batch were done, and before it noted so."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(("guarantee", "copies"), [("exactly-once", 1), ("at-least-once", 2)])
def test_a_batch_goes_on_where_some_of_its_tasks_have_failed(
    spark: SparkSession,
    spark_broker: Broker,
    source: str,
    tmp_path: Path,
    guarantee: str,
    copies: int,
) -> None:
    topic, flag = spark_broker.create_topic(), tmp_path / "flag"
    servers = spark_broker.bootstrap_servers

    @sf.udf("string")
    def late(value: str) -> str:
        if value == "1" and not flag.exists():
            wait_for_rows(servers, topic, 10)
            raise ValueError("not yet")
        return value

    def go_on() -> None:
        frame = stream(spark, spark_broker, source).withColumn("value", late("value"))
        run(frame, spark_broker, topic, tmp_path / topic, deliveryGuarantee=guarantee)

    with pytest.raises(PySparkException, match="not yet"):
        go_on()
    assert set(values(spark_broker, topic)) == {b"%d" % index for index in range(0, 20, 2)}
    flag.touch()
    go_on()
    expected = Counter(b"%d" % index for index in range(40))
    expected.update({b"%d" % index: copies - 1 for index in range(0, 20, 2)})
    assert Counter(values(spark_broker, topic)) == expected


def test_a_task_whose_rows_break_off_writes_none_of_them(
    spark: SparkSession, spark_broker: Broker, tmp_path: Path
) -> None:
    """To a writer in Python a query that fails looks as if it had no more rows."""
    source, topic = spark_broker.create_topic(), spark_broker.create_topic()
    count = 25_000
    with headrace.Producer(bootstrap_servers=spark_broker.bootstrap_servers) as producer:
        producer.send_arrow(source, pa.record_batch({"value": list(map(str, range(count)))}))
    flag = tmp_path / "flag"

    @sf.udf("string")
    def failing(value: str) -> str:
        if value == str(count - 1) and not flag.exists():
            raise ValueError("the last one")
        return value

    def go_on() -> None:
        reader = spark.readStream.format("headrace").option("subscribe", source)
        reader = reader.option("kafka.bootstrap.servers", spark_broker.bootstrap_servers)
        frame = reader.option("startingOffsets", "earliest").load()
        frame = frame.select(failing(sf.col("value").cast("string")).alias("value"))
        run(frame, spark_broker, topic, tmp_path / topic)

    with pytest.raises(PySparkException, match="the last one"):
        go_on()
    assert values(spark_broker, topic) == []
    flag.touch()
    go_on()
    found = sorted(int(value or b"") for value in values(spark_broker, topic))
    assert found == list(range(count))


def test_a_batch_that_was_done_is_not_written_again(
    spark: SparkSession, spark_broker: Broker, source: str, tmp_path: Path
) -> None:
    counts = stream(spark, spark_broker, source).groupBy("key").agg(sf.count("*").alias("count"))
    frame = counts.selectExpr("key", "string(count) AS value")
    topic = spark_broker.create_topic()
    run(frame, spark_broker, topic, tmp_path, mode="complete")
    once = values(spark_broker, topic)
    assert Counter(once) == {b"4": 5, b"8": 5}
    forget_last_batch(tmp_path)
    run(frame, spark_broker, topic, tmp_path, mode="complete")
    assert values(spark_broker, topic) == once


def test_a_batch_of_a_pipeline_in_any_mode_is_written_once(
    spark: SparkSession, spark_broker: Broker, source: str, tmp_path: Path
) -> None:
    topic = spark_broker.create_topic()
    broker = {"bootstrap.servers": spark_broker.bootstrap_servers}
    pipeline = Pipeline("counted", sources=(), sinks=(), broker=broker)
    sink = Sink("counts", "source", TopicSink(topic, key="key", value="count"), OutputMode.UPDATE)

    def update() -> None:
        frame = stream(spark, spark_broker, source).groupBy("key").count()
        now = Trigger(available_now=True)
        writer = sinks.writer(spark, pipeline, sink, frame, checkpoint=str(tmp_path), trigger=now)
        writer.start().awaitTermination()

    update()
    once = values(spark_broker, topic)
    assert Counter(once) == {b"4": 5, b"8": 5}
    forget_last_batch(tmp_path)
    update()
    assert values(spark_broker, topic) == once


def test_a_batch_write_with_a_name_is_written_once(
    spark: SparkSession, spark_broker: Broker
) -> None:
    topic = spark_broker.create_topic()
    frame = spark.range(0, 20, 1, 2).selectExpr("string(id) AS value")

    def write(version: int) -> None:
        writer = frame.write.format("headrace").mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", spark_broker.bootstrap_servers)
        writer.options(txnAppId=f"writer of {topic}", txnVersion=version).save()

    for version, written in ((3, 20), (3, 20), (2, 20), (4, 40)):
        write(version)
        assert len(values(spark_broker, topic)) == written


def test_who_watches_sees_which_batches_are_written(spark_broker: Broker) -> None:
    """A group for each task: its offset is the next batch, its metadata the last."""
    topic = spark_broker.create_topic()
    attempt(spark_broker, SinkTask("seen", 6, 3, 0), topic)
    with headrace.Admin(bootstrap_servers=spark_broker.bootstrap_servers) as admin:
        found = admin.group_offsets("headrace-seen-3")
        topic_id = uuid_text(admin.describe_topic(topic).topic_id)
    assert found.keys() == {TopicPartition(topic, 0)}
    (one,) = found.values()
    mark = {"batch": 6, "rows": 2, "topics": 1, "topic_id": topic_id}
    assert (one.offset, json.loads(one.metadata)) == (7, mark)
