"""Spark's rows: headrace's data source beside Spark's own Kafka connector, on one broker and topic.

    python -m bench.spark [--quick]

Both run in one session on two cores and take turns, after a warm-up, so that other load of the
machine affects both; the figures are medians over the rounds. A read counts the rows and sums up
the lengths of their values, so every value has to come to Spark; a write takes a cached DataFrame.
If the connector cannot be fetched, only headrace's is measured.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import headrace
from bench.load import create_topic
from bench.machine import warm_page_cache
from bench.process import BrokerProcess
from bench.report import Report
from headrace.pipelines.session import session
from tools.kafka_connector import ConnectorMissing, connector_jars

MB = 1_000_000
PARTITIONS = 2
OURS, THEIRS = "headrace", "kafka"
CONNECTOR = "Spark's connector"
# Rows of each size, to read and to write: about a second each, since every Spark query takes some
# tenths to start, independently of rows.
READ_ROWS = {100: 4_000_000, 1_000: 1_000_000}
WRITE_ROWS = {100: 1_000_000, 1_000: 300_000}
# The columns of an audit: whether every offset exists, and its time.
AUDIT = "offset,timestamp"
KEY_BYTES = 16
EMPTY_BATCHES = 12
QUERY_S_MAX = 60.0


class Bench:
    """The measurements on one broker and one session."""

    def __init__(
        self,
        spark: SparkSession,
        broker: BrokerProcess,
        report: Report,
        *,
        scale: float,
        rounds: int,
        formats: tuple[str, ...],
    ) -> None:
        self._spark = spark
        self._broker = broker
        self._report = report
        self._scale = scale
        self._rounds = rounds
        self._formats = formats

    def read(self, size: int) -> None:
        """Read through the broker, by headrace and the connector, and from the broker's files."""
        count = int(READ_ROWS[size] * self._scale)
        topic = f"read-{size}"
        create_topic(self._broker.address, topic, PARTITIONS)
        fill(self._broker.address, topic, size, count)
        jobs = {entry: self._counting(self._source(entry, topic), count) for entry in self._formats}
        scan = self._spark.read.format(OURS).option("path", self._broker.data_dir)
        jobs["scan"] = self._counting(scan.option("subscribe", topic).load(), count)
        jobs["audit"] = self._auditing(self._source(OURS, topic, columns=AUDIT), count)
        scan = scan.option("columns", AUDIT)
        jobs["audit scan"] = self._auditing(scan.option("subscribe", topic).load(), count)
        seconds = self._measured(jobs)
        for name, text in (
            (OURS, "read, headrace"),
            (THEIRS, f"read, {CONNECTOR}"),
            ("scan", "read, direct scan"),
            ("audit", f"read of {AUDIT}, headrace"),
            ("audit scan", f"read of {AUDIT}, direct scan"),
        ):
            self._fact(f"{text}, {_name(size)}", seconds.get(name), count, size)
        self._compare(f"read {_name(size)}", seconds, OURS, THEIRS, CONNECTOR, 1)
        broker_read = "the read through the broker"
        self._compare(f"direct scan {_name(size)}", seconds, "scan", OURS, broker_read, 3)
        self._compare(
            f"direct scan of {AUDIT}, {_name(size)}", seconds, "audit scan", "audit", broker_read, 3
        )

    def write(self, size: int) -> None:
        """Write the same rows by headrace and by the connector, to a topic each."""
        count = int(WRITE_ROWS[size] * self._scale)
        frame = rows(self._spark, size, count).cache()
        frame.count()
        jobs = {}
        for entry in self._formats:
            topic = f"write-{entry}-{size}"
            create_topic(self._broker.address, topic, PARTITIONS)
            jobs[entry] = self._writing(frame, entry, topic)
        seconds = self._measured(jobs)
        for name, text in ((OURS, "write, headrace"), (THEIRS, f"write, {CONNECTOR}")):
            self._fact(f"{text}, {_name(size)}", seconds.get(name), count, size)
        self._compare(f"write {_name(size)}", seconds, OURS, THEIRS, CONNECTOR, 1)
        frame.unpersist()

    def micro_batches(self, directory: Path) -> None:
        """Measure nearly empty micro-batches, from trigger to commit."""
        for entry in self._formats:
            topic = f"stream-{entry}"
            create_topic(self._broker.address, topic)
            durations = self._stream(entry, topic, directory / topic)
            name = "headrace" if entry == OURS else CONNECTOR
            self._report.fact(
                f"micro-batch of one row, trigger to commit, {name}",
                f"{median(durations):,.0f} ms ({min(durations):,.0f} to {max(durations):,.0f})",
            )

    def _stream(self, kind: str, topic: str, checkpoint: Path) -> list[int]:
        reader = self._spark.readStream.format(kind).options(**self._options(topic))
        query = (
            reader.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="0 seconds")
            .start()
        )
        durations: list[int] = []
        try:
            with headrace.Producer(bootstrap_servers=self._broker.address) as producer:
                for number in range(1, EMPTY_BATCHES + 1):
                    producer.send(topic, b"%d" % number).result()
                    durations.append(_duration_ms(query, number))
        finally:
            query.stop()
        return durations[2:]

    # -- parts

    def _options(self, topic: str, **more: str) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self._broker.address, "subscribe": topic}
        return given | more

    def _source(self, kind: str, topic: str, **more: str) -> DataFrame:
        return self._spark.read.format(kind).options(**self._options(topic, **more)).load()

    def _counting(self, frame: DataFrame, count: int) -> Callable[[], None]:
        def run() -> None:
            # A new query each time: Spark would reuse the task results of the same one.
            [(found, _)] = frame.selectExpr("count(1)", "sum(length(value))").collect()
            _expect(found, count)

        return run

    def _auditing(self, frame: DataFrame, count: int) -> Callable[[], None]:
        def run() -> None:
            query = frame.selectExpr("count(1)", "max(offset)", "min(timestamp)", "max(timestamp)")
            _expect(query.collect()[0][0], count)

        return run

    def _writing(self, frame: DataFrame, kind: str, topic: str) -> Callable[[], None]:
        writer = frame.write.format(kind).option("kafka.bootstrap.servers", self._broker.address)
        writer = writer.option("topic", topic).option("kafka.acks", "all").mode("append")
        return writer.save

    def _measured(self, jobs: dict[str, Callable[[], None]]) -> dict[str, float]:
        """The median seconds of each job; in every round all of them take turns."""
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        for number in range(self._rounds + 1):
            for name, job in jobs.items():
                began = time.perf_counter()
                job()
                if number:
                    seconds[name].append(time.perf_counter() - began)
        return {name: median(found) for name, found in seconds.items()}

    def _fact(self, name: str, seconds: float | None, count: int, size: int) -> None:
        if seconds is not None:
            text = f"{count / seconds:,.0f} rows/s, {count * size / seconds / MB:,.0f} MB/s"
            self._report.fact(name, text)

    def _compare(
        self,
        name: str,
        seconds: dict[str, float],
        ours: str,
        other: str,
        other_name: str,
        target: float,
    ) -> None:
        if other in seconds:
            self._report.times(name, seconds[other] / seconds[ours], other_name, target)


def fill(address: str, topic: str, size: int, count: int) -> None:
    """Write rows with a key, equally many to each partition, in batches like a busy producer's."""
    noise = Random(size).randbytes(MB + size)
    with headrace.Producer(bootstrap_servers=address, linger_ms=20) as producer:
        for start in range(0, count, 10_000):
            numbers = range(start, min(start + 10_000, count))
            values = [noise[number * 97 % MB :][:size] for number in numbers]
            keys = [b"%0*d" % (KEY_BYTES, number) for number in numbers]
            producer.send_arrow(topic, pa.record_batch({"key": keys, "value": values}))


def rows(spark: SparkSession, size: int, count: int) -> DataFrame:
    """Rows to write, equally many in each task."""
    return spark.range(0, count, numPartitions=PARTITIONS).selectExpr(
        f"cast(lpad(id, {KEY_BYTES}, '0') as binary) as key",
        f"cast(rpad(sha2(cast(id as string), 256), {size}, 'x') as binary) as value",
    )


def _duration_ms(query: Any, rows_read: int) -> int:
    """The duration of the micro-batch that brought the rows up to `rows_read`."""
    deadline = time.monotonic() + QUERY_S_MAX
    while time.monotonic() < deadline:
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        done = [entry for entry in query.recentProgress if entry["numInputRows"]]
        if sum(entry["numInputRows"] for entry in done) >= rows_read:
            return int(done[-1]["durationMs"]["triggerExecution"])
        time.sleep(0.005)
    raise SystemExit(f"{rows_read} rows were not read in {QUERY_S_MAX:.0f} s")


def _expect(found: int, count: int) -> None:
    if found != count:
        raise SystemExit(f"{found} rows instead of {count}")


def _name(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{size // 1000} KB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the load, one round")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("Spark on two cores: rows read from and written to one broker")
    formats: tuple[str, ...] = (OURS, THEIRS)
    config = {}
    try:
        config["spark.jars"] = ",".join(str(jar) for jar in connector_jars())
    except ConnectorMissing as error:
        formats = (OURS,)
        report.fact(CONNECTOR, f"not compared: {error}")
    scale, rounds = (0.2, 1) if options.quick else (1.0, 3)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        warm_page_cache(Path(directory), int(4_000 * MB * scale))
        spark = session("bench", master="local[2]", config=config)
        try:
            with BrokerProcess(Path(directory)) as broker:
                bench = Bench(spark, broker, report, scale=scale, rounds=rounds, formats=formats)
                for size in READ_ROWS:
                    bench.read(size)
                    bench.write(size)
                bench.micro_batches(Path(directory))
        finally:
            spark.stop()
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
