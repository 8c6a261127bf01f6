"""Real clients: nothing lost, nothing reordered within a partition, every byte the same."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api
from headrace.protocol.batch import scan_headers
from headrace.protocol.compression import Compression
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.records import encode_batch
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.clients import (
    CLIENTS,
    CODECS,
    EARLIEST,
    LATEST,
    SECONDS,
    Client,
    ConfluentClient,
    Received,
    Refused,
    ToSend,
)
from tests.integration.wire import Wire, fetch

MESSAGE_BYTES_MAX = 1_048_588  # The default of max.message.bytes, for a batch with its header.
HOUR_MS = 3_600_000


def varied_records(seed: str, *, null_headers: bool = True) -> list[ToSend]:
    """Records with every shape a client can give them, the same on every run."""
    rng = Random(seed)
    now_ms = int(time.time() * 1000)
    keys = (None, b"", b"k", "ключ".encode(), rng.randbytes(300))
    values = (None, b"", b"v", bytes(5000), rng.randbytes(20_000), "значение".encode())
    headers: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
        (),
        (("one", b"1"),),
        (
            ("twice", b"first"),
            ("twice", b"second"),
            ("empty", b""),
            ("null", None if null_headers else b""),
        ),
        (("имя", rng.randbytes(1000)),),
    )
    cells = [(keys[number % len(keys)], values[number % len(values)]) for number in range(120)]
    return [
        ToSend(
            # Two of the clients refuse a record that has neither.
            key=b"tombstone" if key is None and value is None else key,
            value=value,
            headers=headers[number % len(headers)],
            # Not in order: a record's time is its producer's business.
            timestamp_ms=now_ms - rng.randrange(HOUR_MS),
            partition=number % 2,
        )
        for number, (key, value) in enumerate(cells)
    ]


def content(records: Iterable[ToSend | Received]) -> dict[int, list[tuple[object, ...]]]:
    """What was in the records, in order, for each partition."""
    found: dict[int, list[tuple[object, ...]]] = defaultdict(list)
    for record in records:
        found[record.partition].append(
            (record.key, record.value, record.headers, record.timestamp_ms)
        )
    return found


def assert_contiguous(records: Sequence[Received], first: int = 0) -> None:
    offsets: dict[int, list[int]] = defaultdict(list)
    for record in records:
        offsets[record.partition].append(record.offset)
    for found in offsets.values():
        assert found == list(range(first, first + len(found)))


def numbered(count: int, *, partitions: int = 1, first: int = 0) -> list[ToSend]:
    return [
        ToSend(b"%d" % number, partition=number % partitions)
        for number in range(first, first + count)
    ]


def value_of_batch_size(size: int) -> bytes:
    """The value whose record, alone in a batch, makes it exactly that large."""
    overhead = len(encode_batch([(0, None, bytes(size - 100), ())])) - (size - 100)
    value = Random(size).randbytes(size - overhead)
    assert len(encode_batch([(0, None, value, ())])) == size
    return value


def assert_stored_with(codec: str, client: Client, topic: str) -> None:
    """Every client may fall back to no compression in silence: look at what was stored."""
    with Wire(client.address) as wire:
        served = {api_key.api_key for api_key in wire.ask(ApiVersionsRequest(), 0).api_keys}
        # Partition 1 has the values that can be compressed; a client leaves others as they are.
        headers = scan_headers(bytes(fetch(wire, topic, 0, partition=1).records))
    expected = Compression[codec.upper()]
    if isinstance(client, ConfluentClient) and Api.FIND_COORDINATOR not in served:
        # librdkafka takes a broker without group coordinators for one too old to know lz4.
        expected = Compression.NONE if expected is Compression.LZ4 else expected
    codecs = {header.compression for header in headers}
    assert expected in codecs
    assert codecs <= {Compression.NONE, expected}


@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_writes_every_client_reads(
    client: Client, codec: str, topic: str, connect: Callable[[type[Client]], Client]
) -> None:
    sent = varied_records(f"{client.name}{codec}", null_headers=client.sends_null_headers)
    client.create_topic(topic, partitions=2)
    placed = client.send(topic, sent, codec=codec)
    assert sorted(placed) == [(partition, at) for partition in (0, 1) for at in range(60)]
    assert_stored_with(codec, client, topic)
    for kind in CLIENTS:
        reader = client if kind is type(client) else connect(kind)
        received = reader.read(topic, {0: EARLIEST, 1: EARLIEST}, len(sent))
        assert_contiguous(received)
        assert content(received) == content(sent), kind.name


@pytest.mark.parametrize("codec", CODECS)
def test_messages_from_one_byte_to_a_megabyte(client: Client, codec: str, topic: str) -> None:
    rng = Random(codec)
    sizes = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000]
    sent = [ToSend(rng.randbytes(size)) for size in sizes]
    client.create_topic(topic)
    client.send(topic, sent, codec=codec)
    received = client.read(topic, {0: EARLIEST}, len(sent))
    assert [record.value for record in received] == [record.value for record in sent]


def test_a_batch_of_exactly_the_largest_size_is_taken_and_one_byte_more_is_refused(
    client: Client, topic: str
) -> None:
    client.create_topic(topic)
    largest = value_of_batch_size(MESSAGE_BYTES_MAX)
    assert client.send(topic, [ToSend(largest)]) == [(0, 0)]
    with pytest.raises(Refused) as refused:
        client.send(topic, [ToSend(largest + b"!")])
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.send(topic, [ToSend(b"next")]) == [(0, 1)]
    received = client.read(topic, {0: EARLIEST}, 2)
    assert [record.value for record in received] == [largest, b"next"]


def test_nothing_is_lost_or_reordered_within_a_partition(client: Client, topic: str) -> None:
    sent = numbered(6_000, partitions=3)
    client.create_topic(topic, partitions=3)
    placed = client.send(topic, sent)
    assert placed == [(number % 3, number // 3) for number in range(len(sent))]
    received = client.read(topic, dict.fromkeys(range(3), EARLIEST), len(sent))
    assert_contiguous(received)
    for partition in range(3):
        values = [int(record.value or b"") for record in received if record.partition == partition]
        assert values == list(range(partition, len(sent), 3))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_level_of_acknowledgement_keeps_every_record(
    client: Client, acks: int | str, topic: str
) -> None:
    sent = numbered(500)
    client.create_topic(topic)
    client.send(topic, sent, acks=acks)
    received = client.read(topic, {0: EARLIEST}, len(sent))
    assert_contiguous(received)
    assert [record.value for record in received] == [record.value for record in sent]


def test_an_idempotent_producer_keeps_order(client: Client, topic: str) -> None:
    sent = numbered(3_000)
    client.create_topic(topic)
    assert client.send(topic, sent, idempotent=True) == [(0, at) for at in range(len(sent))]
    received = client.read(topic, {0: EARLIEST}, len(sent))
    assert [record.value for record in received] == [record.value for record in sent]


def test_reading_begins_at_any_offset(client: Client, topic: str) -> None:
    client.create_topic(topic)
    client.send(topic, numbered(500))
    for offset in (0, 1, 250, 499):
        received = client.read(topic, {0: offset}, 500 - offset)
        assert_contiguous(received, first=offset)
        assert received[0].value == b"%d" % offset


def test_reading_begins_at_a_time(client: Client, topic: str) -> None:
    begin_ms = int(time.time() * 1000) - HOUR_MS
    sent = [
        ToSend(b"%d" % number, timestamp_ms=begin_ms + number * 10, partition=number % 2)
        for number in range(400)
    ]
    client.create_topic(topic, partitions=2)
    client.send(topic, sent)
    at = client.offsets_at(topic, 2, begin_ms + 1_001)
    # The first record of partition 0 not before that time is number 102, of partition 1 101.
    assert at == {0: 51, 1: 50}
    received = client.read(topic, at, 299)
    assert {int(record.value or b"") for record in received} == set(range(101, 400))
    assert client.offsets_at(topic, 2, begin_ms - 1) == {0: 0, 1: 0}
    after_all = client.offsets_at(topic, 2, begin_ms + HOUR_MS)
    # Kafka has no such offset; librdkafka calls it the end.
    assert after_all in ({0: -1, 1: -1}, {0: 200, 1: 200})


def test_reading_from_the_latest_offset_sees_only_what_comes_afterwards(
    client: Client, topic: str, connect: Callable[[type[Client]], Client]
) -> None:
    client.create_topic(topic)
    client.send(topic, numbered(50))
    writer = connect(CLIENTS[0])
    received: list[Received] = []
    deadline = Deadline(SECONDS)
    with client.reader(topic, {0: LATEST}) as reader:
        written = 50
        # Written until one arrives: a consumer says nowhere when it has found the end.
        while not received:
            assert not deadline.has_passed
            writer.send(topic, numbered(1, first=written))
            written += 1
            received += reader.poll(0.2)
        writer.send(topic, numbered(20, first=written))
        written += 20
        while received[-1].offset < written - 1:
            assert not deadline.has_passed
            received += reader.poll(1.0)
    assert received[0].offset >= 50
    assert_contiguous(received, first=received[0].offset)
    assert received[-1].value == b"%d" % (written - 1)


def test_a_record_that_arrives_while_a_consumer_waits_wakes_it_at_once(
    client: Client, topic: str, connect: Callable[[type[Client]], Client]
) -> None:
    client.create_topic(topic)
    client.send(topic, numbered(1))
    writer = connect(CLIENTS[0])
    with client.reader(topic, {0: EARLIEST}, wait_ms=20_000) as reader:
        reader.take(1)
        sent_at: list[float] = []

        def write_later() -> None:
            # By now the consumer's next fetch waits at the broker.
            time.sleep(0.3)
            sent_at.append(time.monotonic())
            writer.send(topic, numbered(1, first=1))

        thread = threading.Thread(target=write_later)
        thread.start()
        [woken] = reader.take(1)
        arrived_at = time.monotonic()
        thread.join()
    assert woken.value == b"1"
    assert arrived_at - sent_at[0] < scaled(5), "it slept on instead of waking up"


def test_a_consumer_of_many_partitions_follows_them_all(client: Client, topic: str) -> None:
    partitions = 12
    rng = Random(topic)
    client.create_topic(topic, partitions=partitions)
    ends = dict.fromkeys(range(partitions), 0)
    with client.reader(topic, dict.fromkeys(range(partitions), EARLIEST)) as reader:
        for number in range(8):
            # Some partitions are silent for a while, then speak: what a fetch session is about.
            chosen = rng.sample(range(partitions), 3)
            sent = [ToSend(b"%d" % number, partition=entry) for entry in chosen for _ in range(5)]
            client.send(topic, sent)
            received = reader.take(len(sent))
            for partition in chosen:
                offsets = [
                    position.offset for position in received if position.partition == partition
                ]
                assert offsets == list(range(ends[partition], ends[partition] + 5))
                ends[partition] += 5


def test_writing_to_a_topic_that_does_not_exist_creates_it(client: Client, topic: str) -> None:
    client.send(topic, numbered(10))
    assert client.topics()[topic] == 1
    assert len(client.read(topic, {0: EARLIEST}, 10)) == 10


def test_a_topic_that_was_deleted_and_made_again_is_empty(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    client.send(topic, numbered(100, partitions=2))
    client.delete_topic(topic)
    assert topic not in client.topics()
    client.create_topic(topic, partitions=3)
    assert client.topics()[topic] == 3
    assert client.bounds(topic, 0) == (0, 0)
    assert client.send(topic, [ToSend(b"new")]) == [(0, 0)]
    [received] = client.read(topic, {0: EARLIEST}, 1)
    assert received.value == b"new"


def test_clients_learn_of_partitions_that_were_added(client: Client, topic: str) -> None:
    client.create_topic(topic)
    client.send(topic, numbered(10))
    client.add_partitions(topic, 4)
    assert client.topics()[topic] == 4
    assert client.send(topic, [ToSend(b"new", partition=3)]) == [(3, 0)]
    assert len(client.read(topic, dict.fromkeys(range(4), EARLIEST), 11)) == 11
    with pytest.raises(Refused) as refused:
        client.add_partitions(topic, 2)
    assert refused.value.code == ErrorCode.INVALID_PARTITIONS


def test_deleted_records_are_gone_and_the_rest_is_there(client: Client, topic: str) -> None:
    client.create_topic(topic)
    client.send(topic, numbered(100))
    assert client.delete_records(topic, 40) == 40
    assert client.bounds(topic) == (40, 100)
    received = client.read(topic, {0: EARLIEST}, 60)
    assert_contiguous(received, first=40)
    with pytest.raises(Refused) as refused:
        client.delete_records(topic, 101)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_settings_of_a_topic_are_told_changed_and_obeyed(client: Client, topic: str) -> None:
    client.create_topic(topic, configs={"retention.ms": "7200000"})
    settings = client.topic_settings(topic)
    assert settings["retention.ms"] == "7200000"
    assert settings["max.message.bytes"] == str(MESSAGE_BYTES_MAX)
    assert settings["cleanup.policy"] == "delete"
    assert client.send(topic, [ToSend(bytes(5_000))]) == [(0, 0)]
    # The older way to change settings replaces them all; giving both suits either way.
    client.alter_topic(topic, {"max.message.bytes": "2000", "retention.ms": "7200000"})
    settings = client.topic_settings(topic)
    assert settings["max.message.bytes"] == "2000"
    assert settings["retention.ms"] == "7200000"
    with pytest.raises(Refused) as refused:
        client.send(topic, [ToSend(bytes(5_000))])
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_topic_cannot_be_created_twice_or_under_an_illegal_name(
    client: Client, topic: str
) -> None:
    client.create_topic(topic)
    with pytest.raises(Refused) as refused:
        client.create_topic(topic)
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(Refused) as refused:
        client.create_topic("no spaces")
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(Refused) as refused:
        client.delete_topic("there-is-none")
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_every_client_sees_the_same_cluster(connect: Callable[[type[Client]], Client]) -> None:
    clusters = [connect(kind).cluster() for kind in CLIENTS]
    assert {cluster_id for cluster_id, _ in clusters} == {clusters[0][0]}
    assert [brokers for _, brokers in clusters] == [[1]] * len(CLIENTS)


def test_times_of_arrival_replace_those_of_the_producer(client: Client, topic: str) -> None:
    client.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    client.send(topic, [ToSend(b"v", timestamp_ms=before_ms - HOUR_MS)], codec="gzip")
    after_ms = int(time.time() * 1000)
    [received] = client.read(topic, {0: EARLIEST}, 1)
    assert before_ms <= received.timestamp_ms <= after_ms


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_a_codec_of_its_own_is_read_by_every_client(
    stored: str, topic: str, connect: Callable[[type[Client]], Client]
) -> None:
    clients = [connect(kind) for kind in CLIENTS]
    sent = varied_records(stored, null_headers=False)
    clients[0].create_topic(topic, partitions=2, configs={"compression.type": stored})
    for number, client in enumerate(clients):
        client.send(topic, sent, codec=CODECS[number + 1])
    for client in clients:
        received = client.read(topic, {0: EARLIEST, 1: EARLIEST}, len(sent) * len(clients))
        assert content(received) == content(sent * len(clients)), client.name
