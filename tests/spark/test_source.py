"""Topics as DataFrames: batches, streams, and what may happen to a topic meanwhile."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace import TopicPartition
from headrace.pipelines.datasource.read_options import TOPIC_IDS
from headrace.testing import Broker
from headrace.testing.time_limits import Deadline, scaled

JANUARY_MS = 1_767_225_600_000
WAIT_S = 120.0

Row = tuple[str, int, int, bytes | None, bytes | None, int]


@pytest.fixture(scope="module")
def admin(spark_broker: Broker) -> Iterator[headrace.Admin]:
    with headrace.Admin(bootstrap_servers=spark_broker.bootstrap_servers) as made:
        yield made


@pytest.fixture(scope="module")
def producer(spark_broker: Broker) -> Iterator[headrace.Producer]:
    with headrace.Producer(bootstrap_servers=spark_broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def read(spark: SparkSession, spark_broker: Broker) -> Callable[..., DataFrame]:
    """A batch read with options."""

    def frame(**given: object) -> DataFrame:
        return (
            spark.read.format("headrace")
            .option("kafka.bootstrap.servers", spark_broker.bootstrap_servers)
            .options(**{name: str(value) for name, value in given.items()})
            .load()
        )

    return frame


@pytest.fixture
def stream(spark: SparkSession, spark_broker: Broker) -> Callable[..., DataFrame]:
    """A streaming read with options."""

    def frame(**given: object) -> DataFrame:
        return (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", spark_broker.bootstrap_servers)
            .options(**{name: str(value) for name, value in given.items()})
            .load()
        )

    return frame


def send(producer: headrace.Producer, topic: str, partition: int, numbers: range) -> None:
    """A record for each number, a second apart; every fifth has no value."""
    for number in numbers:
        producer.send(
            topic,
            None if number % 5 == 4 else f"value {number}",
            key=f"key {number}",
            headers=[("number", str(number).encode())],
            partition=partition,
            timestamp_ms=JANUARY_MS + 1000 * number,
        )
    producer.flush()


def rows_by_client(broker: Broker, *topics: str) -> list[Row]:
    """Every record there is, as a consumer sees it."""
    with headrace.Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        mine = [TopicPartition(t, p) for t in topics for p in consumer.partitions_for(t) or ()]
        consumer.assign(mine)
        consumer.seek_to_beginning(*mine)
        left = sum(consumer.end_offsets(mine).values()) - sum(
            consumer.beginning_offsets(mine).values()
        )
        found: list[Row] = []
        while len(found) < left:
            found += [
                (
                    record.topic,
                    record.partition,
                    record.offset,
                    record.key,
                    record.value,
                    record.timestamp,
                )
                for record in consumer.poll(timeout_ms=1000)
            ]
    return sorted(found)


def rows_of(frame: DataFrame) -> list[Row]:
    """The same of a DataFrame."""
    return sorted(
        (
            row.topic,
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.millis,
        )
        for row in frame.selectExpr(
            "topic", "partition", "offset", "key", "value", "unix_millis(timestamp) AS millis"
        ).collect()
    )


def fetched(frame: DataFrame) -> int:
    """How many rows the data source gave for a DataFrame that was collected."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.head().metrics().apply("numOutputRows").value())


def test_a_batch_has_the_rows_a_consumer_sees(
    read: Callable[..., DataFrame], spark_broker: Broker, producer: headrace.Producer
) -> None:
    one, other = (spark_broker.create_topic(partitions=2) for _ in range(2))
    for partition in (0, 1):
        send(producer, one, partition, range(10 * partition, 30))
        send(producer, other, partition, range(5))
    rows = rows_by_client(spark_broker, one, other)
    assert len(rows) == 60
    frame = read(subscribe=f"{one},{other}", minPartitions=6)
    assert rows_of(frame) == rows
    assert frame._jdf.rdd().getNumPartitions() >= 6
    part = read(
        assign=json.dumps({one: [1]}),
        startingOffsets=json.dumps({one: {"1": 5}}),
        endingOffsets=json.dumps({one: {"1": 8}}),
        columns="offset,timestampType",
        includeHeaders=True,
    )
    assert [
        (row.offset, row.timestampType, row.headers[0].key, bytes(row.headers[0].value))
        for row in part.orderBy("offset").collect()
    ] == [(n, 0, "number", str(10 + n).encode()) for n in (5, 6, 7)]
    late = read(
        subscribe=one,
        startingTimestamp=JANUARY_MS + 12_500,
        endingTimestamp=JANUARY_MS + 20_000,
    )
    assert rows_of(late) == [
        row for row in rows if row[0] == one and 13_000 <= row[5] - JANUARY_MS < 20_000
    ]


def test_filters_prune_what_is_fetched(
    spark: SparkSession,
    read: Callable[..., DataFrame],
    spark_broker: Broker,
    producer: headrace.Producer,
) -> None:
    one, other = (spark_broker.create_topic(partitions=2) for _ in range(2))
    for topic in (one, other):
        for partition in (0, 1):
            send(producer, topic, partition, range(20))
    # The last record of a partition is older than those before.
    send(producer, one, 0, range(1))
    noon = datetime.fromtimestamp(JANUARY_MS / 1000 + 15, UTC).isoformat()
    both = f"{one},{other}"
    frame = read(subscribe=both, pushFilters=True)
    cases = [
        (f"topic = '{one}' AND partition IN (0, 7)", 21, 21),
        (f"topic != '{one}' AND offset >= 4 AND offset < 7", 6, 6),
        (f"topic = '{one}' AND timestamp >= TIMESTAMP '{noon}'", 10, 11),
        (f"topic = '{one}' AND timestamp < TIMESTAMP '{noon}'", 31, 41),
    ]
    for condition, matching, most in cases:
        pruned = frame.where(condition)
        assert len(pruned.collect()) == matching, condition
        assert fetched(pruned) == most, condition
    # Spark would go on with what the last filter left, so filters are pushed on request only.
    plain = read(subscribe=both)
    assert plain.where(cases[2][0]).count() == cases[2][1]
    assert plain.count() == 81
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        whole = read(subscribe=both, pushFilters=True).where(cases[2][0])
        assert len(whole.collect()) == cases[2][1]
        assert fetched(whole) == 81
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_read_that_cannot_be_says_what_to_do(
    spark: SparkSession, read: Callable[..., DataFrame], spark_broker: Broker
) -> None:
    topic = spark_broker.create_topic()
    with pytest.raises(PySparkException, match=r"did you mean startingOffsets\?"):
        read(subscribe=topic, startingOffset="earliest")
    with pytest.raises(PySparkException, match=rf"does not exist at .*; did you mean {topic}\?"):
        read(subscribe=f"{topic}x").collect()
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "500"}
    with pytest.raises(PySparkException, match=r"Unreachable: .*127\.0\.0\.1:1"):
        spark.read.format("headrace").options(subscribe=topic, **nowhere).load().collect()


class Lake:
    """A stream into files, run again and again from one checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._files = str(directory / "lake")
        self._checkpoint = str(directory / "checkpoint")

    def run(self, frame: DataFrame) -> StreamingQuery:
        """Read what is there now."""
        query = (
            frame.writeStream.format("parquet")
            .option("path", self._files)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(int(scaled(WAIT_S)))
        return query

    def rows(self) -> list[Row]:
        return rows_of(self._spark.read.parquet(self._files))


def lags(admin: headrace.Admin, group: str) -> list[int | None]:
    return [entry.lag for entry in admin.group_progress([group])[group]]


def test_available_now_with_limits_growth_and_losses(
    spark: SparkSession,
    stream: Callable[..., DataFrame],
    spark_broker: Broker,
    producer: headrace.Producer,
    admin: headrace.Admin,
    tmp_path: Path,
) -> None:
    topic = spark_broker.create_topic(partitions=2)
    group = f"{topic}-readers"
    lake = Lake(spark, tmp_path)
    given = {"subscribe": topic, "startingOffsets": "earliest", "groupId": group}

    send(producer, topic, 0, range(30))
    send(producer, topic, 1, range(10))
    query = lake.run(stream(**given, maxOffsetsPerTrigger=20, minOffsetsPerTrigger=15))
    assert [entry.numInputRows for entry in query.recentProgress] == [20, 20]
    assert lake.rows() == rows_by_client(spark_broker, topic)
    assert lags(admin, group) == [0, 0]

    admin.create_partitions({topic: 3})
    send(producer, topic, 2, range(5))
    send(producer, topic, 0, range(30, 40))
    assert lags(admin, group) == [10, 0]
    lake.run(stream(**given))
    rows = rows_by_client(spark_broker, topic)
    assert lake.rows() == rows
    assert lags(admin, group) == [0, 0, 0]

    send(producer, topic, 0, range(40, 50))
    admin.delete_records({TopicPartition(topic, 0): 45})
    with pytest.raises(StreamingQueryException) as lost:
        lake.run(stream(**given))
    assert f"DataLoss: {topic}-0 begins at offset 45, and 40 was to be read" in str(lost.value)
    assert "set failOnDataLoss to false" in str(lost.value)
    lake.run(stream(**given, failOnDataLoss=False))
    left = [row for row in rows_by_client(spark_broker, topic) if row[:2] == (topic, 0)]
    rows = sorted({*rows, *left})
    assert lake.rows() == rows

    admin.delete_topic(topic)
    lake.run(stream(**given, failOnDataLoss=False))
    assert lake.rows() == rows


def test_a_running_query_follows_the_topic(
    spark: SparkSession,
    stream: Callable[..., DataFrame],
    spark_broker: Broker,
    producer: headrace.Producer,
    admin: headrace.Admin,
    tmp_path: Path,
) -> None:
    topic = spark_broker.create_topic()
    send(producer, topic, 0, range(10))
    query = (
        stream(subscribe=topic, columns="partition,offset", groupId=topic)
        .writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )

    def seen() -> set[tuple[int, int]]:
        return {(row.partition, row.offset) for row in spark.table("followed").collect()}

    def wait_until_seen(wanted: set[tuple[int, int]]) -> None:
        deadline = Deadline(WAIT_S)
        while seen() != wanted:
            assert not deadline.has_passed, f"{seen()} is not {wanted}: {query.exception()}"
            query.processAllAvailable()

    query.processAllAvailable()
    # Where "latest" is has been written down before anything was read.
    stored = (tmp_path / "offsets" / "0").read_text().splitlines()[-1]
    position = json.loads(stored)
    assert position[topic] == {"0": 10}
    assert list(position[TOPIC_IDS]) == [topic]
    send(producer, topic, 0, range(10, 13))
    admin.create_partitions({topic: 2})
    send(producer, topic, 1, range(2))
    wait_until_seen({(0, 10), (0, 11), (0, 12), (1, 0), (1, 1)})
    progress = query.lastProgress
    assert progress is not None
    assert json.loads(progress.sources[0].latestOffset) == {
        topic: {"0": 13, "1": 2},
        TOPIC_IDS: position[TOPIC_IDS],
    }
    assert lags(admin, topic) == [0, 0]
    admin.delete_topic(topic)
    with pytest.raises(StreamingQueryException, match=f"DataLoss: {topic}-0 is gone"):
        query.awaitTermination(int(scaled(WAIT_S)))
