"""What the driver asks of a real broker, called as Spark calls it but without Spark."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

import headrace
from headrace import TopicPartition
from headrace.pipelines.datasource.brokers import (
    SourceTopics,
    borrowed,
    close_idle,
    commit_progress,
)
from headrace.pipelines.datasource.errors import DataLoss, OptionError, SourceError
from headrace.pipelines.datasource.filters import OffsetFilter
from headrace.pipelines.datasource.offset_ranges import RangePartition
from headrace.pipelines.datasource.read_options import TOPIC_IDS, batch_options, stream_options
from headrace.pipelines.datasource.readers import SparkBatchReader, StreamReader, batch_ranges
from headrace.testing import Broker
from headrace.types import uuid_text

SECOND_MS = 1000


class Given:
    """A topic with ten records in each of two partitions, one a second."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic = broker.create_topic(partitions=2)
        self.tps = [TopicPartition(self.topic, number) for number in (0, 1)]
        self.readers: list[StreamReader] = []
        self.send(10)

    def send(self, count: int) -> None:
        with headrace.Producer(bootstrap_servers=self.broker.bootstrap_servers) as producer:
            for number in range(count):
                for tp in self.tps:
                    producer.send(
                        tp.topic,
                        bytes(100),
                        partition=tp.partition,
                        timestamp_ms=SECOND_MS * (number + 1),
                    )

    def admin(self) -> headrace.Admin:
        return headrace.Admin(bootstrap_servers=self.broker.bootstrap_servers)

    def texts(self, **given: object) -> dict[str, str]:
        texts = {name: str(value) for name, value in given.items()}
        if not {"subscribePattern", "assign"} & set(texts):
            texts.setdefault("subscribe", self.topic)
        return texts | {"kafka.bootstrap.servers": self.broker.bootstrap_servers}

    def each(self, *numbers: int) -> str:
        return json.dumps({self.topic: {str(n): number for n, number in enumerate(numbers)}})

    def planned(
        self, pruning: OffsetFilter | None = None, **given: object
    ) -> list[tuple[int, int]]:
        """The offsets of each partition that a batch reads."""
        options = batch_options(self.texts(**given))
        with borrowed(options.client) as link:
            ranges = batch_ranges(options, SourceTopics(options, link), pruning or OffsetFilter())
        return [(entry.start, entry.end) for entry in ranges]

    def stream(self, **given: object) -> StreamReader:
        self.readers.append(StreamReader(stream_options(self.texts(**given))))
        return self.readers[-1]

    def positions(self, offset: int) -> dict[str, Any]:
        """A position as a checkpoint has it."""
        with self.admin() as admin:
            topic_id = uuid_text(admin.describe_topic(self.topic).topic_id)
        return {self.topic: {"0": offset, "1": offset}, TOPIC_IDS: {self.topic: topic_id}}


@pytest.fixture
def given(spark_broker: Broker) -> Iterator[Given]:
    made = Given(spark_broker)
    yield made
    for reader in made.readers:
        reader.stop()
    close_idle()


def test_bounds_of_a_batch(given: Given) -> None:
    assert given.planned() == [(0, 10), (0, 10)]
    assert given.planned(startingOffsets=given.each(3, -2)) == [(3, 10), (0, 10)]
    assert given.planned(endingOffsets=given.each(3, -1)) == [(0, 3), (0, 10)]
    between = given.planned(startingTimestamp=2500, endingTimestamp=5000)
    assert between == [(2, 4), (2, 4)]
    assert given.planned(startingOffsetsByTimestamp=given.each(1, 9001)) == [(0, 10), (9, 10)]
    assert given.planned(endingTimestamp=99_000) == [(0, 10), (0, 10)]
    assert given.planned(assign=json.dumps({given.topic: [1]})) == [(0, 10)]
    assert given.planned(subscribePattern=f"{given.topic[:-1]}[{given.topic[-1]}]")
    late = given.planned(startingTimestamp=99_000, startingOffsetsByTimestampStrategy="latest")
    assert late == [(10, 10), (10, 10)]


def test_filters_narrow_a_batch(given: Given) -> None:
    assert given.planned(OffsetFilter(first_offset=4, end_offset=6)) == [(4, 6), (4, 6)]
    assert given.planned(OffsetFilter(since_ms=2500)) == [(2, 10), (2, 10)]
    assert given.planned(OffsetFilter(since_ms=99_000)) == [(10, 10), (10, 10)]
    reader = SparkBatchReader(batch_options(given.texts(minPartitions=4)))
    parts = [
        partition.range
        for partition in reader.partitions()
        if isinstance(partition, RangePartition)
    ]
    assert [(part.start, part.end) for part in parts] == [(0, 5), (5, 10)] * 2


def test_a_batch_that_cannot_be_read(given: Given) -> None:
    with pytest.raises(SourceError, match=r"-0, .*-1 has no record as young as option startingTim"):
        given.planned(startingTimestamp=99_000)
    with pytest.raises(OptionError, match="from offset 8 to 5; check startingOffsets"):
        given.planned(startingOffsets=given.each(8, 8), endingOffsets=given.each(5, 9))
    with pytest.raises(DataLoss, match="ends at offset 10, and was to be read up to 99"):
        given.planned(endingOffsets=given.each(99, 5))
    assert given.planned(endingOffsets=given.each(99, 5), failOnDataLoss=False)[0] == (0, 10)
    with pytest.raises(SourceError, match=r"partition .*-7 does not exist at .*; check assign"):
        given.planned(assign=json.dumps({given.topic: [7]}))
    with pytest.raises(SourceError, match="matches 'nothing-like-it'; subscribePattern must"):
        given.planned(subscribePattern="nothing-like-it")
    with pytest.raises(SourceError, match=r"does not exist at .*; create it with: headrace topics"):
        given.planned(subscribe="0123456789")
    with given.admin() as admin:
        admin.delete_records({given.tps[0]: 4})
    with pytest.raises(DataLoss, match="-0 begins at offset 4, and 1 was to be read"):
        given.planned(startingOffsets=given.each(1, 1))
    lenient = given.planned(startingOffsets=given.each(1, 1), failOnDataLoss=False)
    assert lenient == [(4, 10), (1, 10)]


def test_a_stream_within_bytes(given: Given) -> None:
    reader = given.stream(startingOffsets="earliest", maxBytesPerTrigger=500)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(500)
    end = reader.latestOffset(start, limit)
    offsets = {int(value) for value in end[given.topic].values()}
    # A record takes a little more than a hundred bytes on disk.
    assert offsets <= {1, 2}
    assert reader.reportLatestOffset() == given.positions(10)
    # A trigger that takes all has no limit.
    assert reader.latestOffset(start, ReadAllAvailable()) == given.positions(10)


def test_limits_that_spark_is_told(given: Given) -> None:
    assert given.stream().getDefaultReadLimit() == ReadAllAvailable()
    assert given.stream(minOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMinRows(5)
    both = given.stream(maxOffsetsPerTrigger=6, minOffsetsPerTrigger=5, maxBytesPerTrigger=10**6)
    assert both.getDefaultReadLimit() == ReadMaxRows(6)
    assert both.latestOffset(given.positions(0), ReadMaxRows(6)) == given.positions(3)


def test_a_group_sees_progress_and_can_be_moved(given: Given) -> None:
    group = f"{given.topic}-group"
    client = {"bootstrap.servers": given.broker.bootstrap_servers}
    reader = given.stream(groupId=group)
    assert reader.initialOffset() == given.positions(10)
    commit_progress(client, group, given.positions(4))
    commit_progress(client, group, {})
    moved = given.stream(groupId=group)
    assert moved.initialOffset() == given.positions(4)
    ignoring = given.stream(groupId=group, groupOffsets="ignore")
    assert ignoring.initialOffset() == given.positions(10)
    chosen = given.stream(groupId=group, startingOffsets="earliest")
    assert chosen.initialOffset() == given.positions(0)
    end = moved.latestOffset(given.positions(4), ReadAllAvailable())
    moved.commit(end)
    with given.admin() as admin:
        assert [entry.lag for entry in admin.group_progress([group])[group]] == [0, 0]


def test_a_stream_that_only_starts_reads_what_comes(given: Given) -> None:
    reader = given.stream()
    start = reader.initialOffset()
    given.send(1)
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start
    end = reader.latestOffset(start, limit)
    assert end == given.positions(11)
    ranges = [
        partition.range
        for partition in reader.partitions(start, end)
        if isinstance(partition, RangePartition)
    ]
    assert [(entry.start, entry.end) for entry in ranges] == [(10, 11), (10, 11)]
    rows = [row for partition in reader.partitions(start, end) for row in reader.read(partition)]
    assert sum(batch.num_rows for batch in rows) == 2
