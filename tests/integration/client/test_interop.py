"""Our client and the others on one broker: what one writes the other reads, key by key.

That every client reads what headrace writes record by record, and the reverse, for every codec and
every shape of record, is shown in `test_clients.py`, where headrace is one of the clients.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow
import pytest
from confluent_kafka import Consumer, Producer

import headrace
from headrace.protocol.batch import scan_headers
from headrace.protocol.compression import Compression
from headrace.testing.time_limits import Deadline
from tests.integration.clients import (
    CLIENTS,
    CODECS,
    EARLIEST,
    SECONDS,
    Client,
    HeadraceClient,
    Received,
    ToSend,
)
from tests.integration.wire import Wire, fetch
from tests.support import BrokerProcess

Connect = Callable[[type[Client]], Client]

OTHERS = tuple(kind for kind in CLIENTS if kind is not HeadraceClient)
KEYS = 100_000
PARTITIONS = 12
# Larger than a batch of any client, smaller than the largest message of the broker.
BIG_BYTES = 900_000


@pytest.fixture
def ours(connect: Connect) -> HeadraceClient:
    client = connect(HeadraceClient)
    assert isinstance(client, HeadraceClient)
    return client


@pytest.fixture(params=OTHERS, ids=lambda kind: kind.name)
def theirs(request: pytest.FixtureRequest, connect: Connect) -> Client:
    return connect(request.param)


def random_keys() -> list[bytes]:
    """All lengths from 0 to 64, all bytes, no key twice."""
    rng = Random(2026)
    keys = {rng.randbytes(rng.randrange(65)): None for _ in range(KEYS + 10_000)}
    chosen = list(keys)[:KEYS]
    assert len(chosen) == KEYS
    assert {len(key) for key in chosen} == set(range(65))
    return chosen


def placed_by_key(ours: HeadraceClient, topic: str, count: int) -> dict[bytes, int]:
    """The partition of each key, as the broker has it."""
    found: dict[bytes, int] = {}
    read = 0
    deadline = Deadline(SECONDS)
    with ours.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([headrace.TopicPartition(topic, index) for index in range(PARTITIONS)])
        while read < count:
            assert not deadline.has_passed, f"{read} of {count} keys were read in time"
            batch = consumer.poll_arrow(1_000, max_records=50_000)
            keys, partitions = batch["key"].to_pylist(), batch["partition"].to_pylist()
            found.update(zip(keys, partitions, strict=True))
            read += batch.num_rows
    assert len(found) == count
    return found


def test_each_of_100_000_keys_has_one_partition_for_librdkafka_and_for_us(
    ours: HeadraceClient, topic: str
) -> None:
    keys = random_keys()
    theirs, rows, columns = (f"{topic}-{name}" for name in ("theirs", "rows", "columns"))
    for name in (theirs, rows, columns):
        ours.create_topic(name, partitions=PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": ours.address,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "queue.buffering.max.messages": 2 * KEYS,
        }
    )
    for key in keys:
        producer.produce(theirs, b"", key)
    assert producer.flush(SECONDS) == 0
    with ours.producer() as producer_of_ours:
        futures = [producer_of_ours.send(rows, b"", key=key) for key in keys]
        values = pyarrow.array([b""] * KEYS, pyarrow.binary())
        table = pyarrow.table({"key": pyarrow.array(keys, pyarrow.binary()), "value": values})
        sent = producer_of_ours.send_arrow(columns, table).result(SECONDS)
        claimed = {
            key: future.result(SECONDS).partition for key, future in zip(keys, futures, strict=True)
        }
    assert sum(batch.count for batch in sent) == KEYS
    wanted = placed_by_key(ours, theirs, KEYS)
    assert set(wanted.values()) == set(range(PARTITIONS))
    assert claimed == wanted
    assert placed_by_key(ours, rows, KEYS) == wanted
    assert placed_by_key(ours, columns, KEYS) == wanted


def test_records_without_a_key_are_spread_by_both(ours: HeadraceClient, topic: str) -> None:
    ours.create_topic(topic, partitions=PARTITIONS)
    with ours.producer(batch_size=1_000, linger_ms=0) as producer:
        futures = [producer.send(topic, bytes(100)) for _ in range(2_000)]
        used = {future.result(SECONDS).partition for future in futures}
    assert len(used) > 1


def big_records(seed: str) -> list[ToSend]:
    """Random, so that no codec makes them small, and one that every codec makes small."""
    rng = Random(seed)
    return [
        ToSend(rng.randbytes(BIG_BYTES), b"random"),
        ToSend(bytes(BIG_BYTES), b"zeros", (("size", b"%d" % BIG_BYTES),)),
        ToSend(b"", None),
        ToSend(None, b"tombstone"),
    ]


def shape(records: list[Received] | list[ToSend]) -> list[tuple[object, ...]]:
    return [(record.key, record.value, record.headers) for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_big_values_pass_both_ways(
    ours: HeadraceClient, theirs: Client, codec: str, topic: str
) -> None:
    ours.create_topic(topic)
    sent = big_records(f"{theirs.name}{codec}")
    ours.send(topic, sent, codec=codec, idempotent=True)
    theirs.send(topic, sent, codec=codec)
    for client in (ours, theirs):
        received = client.read(topic, {0: EARLIEST}, 2 * len(sent))
        assert shape(received) == shape(sent) * 2, client.name


def table_of(records: list[ToSend]) -> pyarrow.Table:
    headers = pyarrow.list_(
        pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    )
    rows: list[dict[str, Any]] = [
        {
            "partition": record.partition,
            "timestamp": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in records
    ]
    schema = pyarrow.schema(
        [
            ("partition", pyarrow.int32()),
            ("timestamp", pyarrow.timestamp("ms", tz="UTC")),
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("headers", headers),
        ]
    )
    return pyarrow.Table.from_pylist(rows, schema)


def records_of(batch: pyarrow.RecordBatch) -> list[tuple[object, ...]]:
    return [
        (
            row["partition"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
            int(row["timestamp"].timestamp() * 1000 + 0.5),
        )
        for row in batch.to_pylist()
    ]


def varied(seed: str, *, null_headers: bool) -> list[ToSend]:
    rng = Random(seed)
    now_ms = int(time.time() * 1000)
    nothing = None if null_headers else b""
    records = [
        ToSend(
            value=rng.choice([None, b"", b"v", rng.randbytes(200), bytes(3_000)]),
            key=rng.choice([b"", b"k", rng.randbytes(30)]),
            headers=rng.choice([(), (("h", b"1"),), (("h", b"2"), ("h", nothing), ("", b""))]),
            timestamp_ms=now_ms - rng.randrange(3_600_000),
            partition=number % 2,
        )
        for number in range(300)
    ]
    return [*records, ToSend(b"keyless", None, timestamp_ms=now_ms)]


def by_partition(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """In the order of each partition, whichever came first."""
    return sorted(rows, key=lambda row: row[0])


def plain(records: list[ToSend] | list[Received]) -> list[tuple[Any, ...]]:
    return [
        (record.partition, record.key, record.value, record.headers, record.timestamp_ms)
        for record in records
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_columns_that_we_send_are_records_that_they_read(
    ours: HeadraceClient, theirs: Client, codec: str, topic: str
) -> None:
    ours.create_topic(topic, partitions=2)
    sent = varied(f"columns {theirs.name} {codec}", null_headers=True)
    with ours.producer(compression_type=codec) as producer:
        batches = producer.send_arrow(topic, table_of(sent)).result(SECONDS)
    assert sum(batch.count for batch in batches) == len(sent)
    assert_stored_with(codec, ours.address, topic)
    received = theirs.read(topic, {0: EARLIEST, 1: EARLIEST}, len(sent))
    assert by_partition(plain(received)) == by_partition(plain(sent))


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_they_send_are_columns_that_we_read(
    ours: HeadraceClient, theirs: Client, codec: str, topic: str
) -> None:
    ours.create_topic(topic, partitions=2)
    sent = varied(f"rows {theirs.name} {codec}", null_headers=theirs.sends_null_headers)
    theirs.send(topic, sent, codec=codec)
    received: list[tuple[Any, ...]] = []
    deadline = Deadline(SECONDS)
    with ours.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([headrace.TopicPartition(topic, index) for index in range(2)])
        while len(received) < len(sent):
            assert not deadline.has_passed, f"{len(received)} of {len(sent)} arrived in time"
            received += records_of(consumer.poll_arrow(1_000))
    assert by_partition(received) == by_partition(plain(sent))


def assert_stored_with(codec: str, address: str, topic: str) -> None:
    with Wire(address) as wire:
        stored = bytes(fetch(wire, topic, 0, partition=1).records)
    assert {header.compression for header in scan_headers(stored)} == {Compression[codec.upper()]}


def test_our_consumer_and_that_of_librdkafka_share_a_topic_as_one_group(
    shared_broker: BrokerProcess, topic: str
) -> None:
    partitions = 6
    with headrace.Admin(bootstrap_servers=shared_broker.address) as admin:
        admin.create_topic(topic, partitions)
    theirs = Consumer(
        {
            "bootstrap.servers": shared_broker.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 200,
        }
    )
    theirs.subscribe([topic])
    with headrace.Consumer(
        topic,
        bootstrap_servers=shared_broker.address,
        group_id=topic,
        auto_offset_reset="earliest",
        partition_assignment_strategy="range",
        heartbeat_interval_ms=200,
    ) as consumer:
        deadline = Deadline(SECONDS)
        while not (len(theirs.assignment()) == len(consumer.assignment()) == partitions // 2):
            assert not deadline.has_passed, (theirs.assignment(), consumer.assignment())
            theirs.poll(0.05)
            consumer.poll(50)
        with headrace.Producer(bootstrap_servers=shared_broker.address) as producer:
            for number in range(600):
                producer.send(topic, b"%d" % number, partition=number % partitions)
        values: list[bytes | None] = []
        ours_too = theirs_too = 0
        while len(values) < 600:
            assert not deadline.has_passed, f"{len(values)} of 600 arrived in time"
            records = consumer.poll(100)
            messages = theirs.consume(100, timeout=0.1)
            values += [record.value for record in records]
            values += [message.value() for message in messages]
            ours_too += len(records)
            theirs_too += len(messages)
        theirs.close()
    assert sorted(int(value or b"") for value in values) == list(range(600))
    assert ours_too == theirs_too == 300
