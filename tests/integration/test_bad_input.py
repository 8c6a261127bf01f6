"""Hostile and broken peers: each gets its error code or a closed connection and one log line.

After every test the same broker must serve a normal client, hold the data it held before, and not
have grown.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from struct import pack, pack_into
from typing import Any

import psutil
import pytest

from headrace.errors import ErrorCode, error_code
from headrace.protocol.apis import (
    Api,
    decode_response,
    encode_request,
    served_versions,
)
from headrace.protocol.batch import HEADER_SIZE, crc32c
from headrace.protocol.compression import Compression
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.records import Record, encode_batch
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.wire import (
    FETCH_BY_NAME,
    PRODUCE_BY_NAME,
    Wire,
    create_topic,
    fetch,
    is_serving,
    list_offset,
    produce,
    produce_request,
    read_all,
)
from tests.support import BrokerProcess

NOW_MS = int(time.time() * 1000)
FRAME_BYTES_MAX = 100 * 1024 * 1024
MB = 1_000_000
GROWTH_BYTES_MAX = 150 * MB
STORED = "stored"


class Guarded:
    """A broker with some records in it, and what must be true of it at any time."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.address = broker.address
        create_topic(self.address, STORED)
        with Wire(self.address) as wire:
            rows = [(NOW_MS, b"key", b"value %d" % number, ()) for number in range(100)]
            assert produce(wire, STORED, encode_batch(rows)).error_code == 0
        self._records: list[Record] = read_all(self.address, STORED)
        self._process = psutil.Process(broker.pid)
        self._memory = self.memory()
        # Connected all the time: what others do must not disturb it.
        self._bystander = Wire(self.address)

    def memory(self) -> int:
        return int(self._process.memory_info().rss)

    def check(self) -> None:
        assert is_serving(self.address)
        response = self._bystander.ask(MetadataRequest(topics=None))
        assert STORED in {topic.name for topic in response.topics}
        assert read_all(self.address, STORED) == self._records
        growth = self.memory() - self._memory
        assert growth < GROWTH_BYTES_MAX, f"the broker grew by {growth / MB:.0f} MB"
        assert "internal error" not in self.broker.log_text
        self.broker.check_log()

    def close(self) -> None:
        self._bystander.close()


@pytest.fixture(scope="module")
def guarded_broker(shared_broker: BrokerProcess) -> Iterator[Guarded]:
    guarded = Guarded(shared_broker)
    yield guarded
    guarded.close()


@pytest.fixture
def guarded(guarded_broker: Guarded) -> Iterator[Guarded]:
    yield guarded_broker
    guarded_broker.check()


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def request_head(api_key: int, version: int, client_id: bytes = b"x") -> bytes:
    return pack(">hhih", api_key, version, 1, len(client_id)) + client_id


def metadata_frame(version: int, body: bytes) -> bytes:
    tags = b"\0" if version >= 9 else b""
    return framed(request_head(Api.METADATA, version) + tags + body)


NOT_REQUESTS = {
    "a frame of -1 bytes": pack(">i", -1),
    "a frame of the most negative length": pack(">i", -(2**31)),
    "a frame one byte past the limit": pack(">i", FRAME_BYTES_MAX + 1),
    "a frame of the largest length": pack(">i", 2**31 - 1),
    "an empty frame": framed(b""),
    "a header of seven bytes": framed(bytes(7)),
    "a header without a client id": framed(bytes(8)),
    "a client id longer than the frame": framed(pack(">hhih", 18, 0, 1, 5000) + b"short"),
    "a client id that is not text": framed(request_head(18, 0, b"\xff\xfe")),
    "an unknown API key": framed(request_head(999, 0)),
    "a negative API key": framed(request_head(-1, 0)),
    "an API of controllers": framed(request_head(52, 0)),
    "a version that was removed": framed(request_head(Api.PRODUCE, 2)),
    "a version from the future": framed(request_head(Api.FETCH, 99)),
    "a negative version": framed(request_head(Api.METADATA, -1)),
    "a version Kafka hides": framed(request_head(Api.INIT_PRODUCER_ID, 6)),
    "no body": framed(request_head(Api.METADATA, 1)),
    "an array of two thousand million": metadata_frame(8, b"\x7f\xff\xff\xff\0\0\0"),
    "an array of a negative count": metadata_frame(8, b"\xff\xff\xff\xfe\0\0\0"),
    "a compact array of four thousand million": metadata_frame(12, b"\xff\xff\xff\xff\x0f\0\0\0"),
    "a varint that does not end": metadata_frame(12, b"\xff" * 20),
    "a string longer than the frame": metadata_frame(8, b"\0\0\0\1\x7f\xff" + b"a" * 10),
    "a topic name that is not text": metadata_frame(8, b"\0\0\0\1\0\2\xff\xfe\0\0\0"),
    "a million tiny elements": metadata_frame(8, pack(">i", 10**6) + b"\0\0" * 10**6 + b"\0\0\0"),
    "header tags without end": framed(request_head(Api.METADATA, 12) + b"\xff\xff\xff\xff\x0f"),
    "a header tag longer than the frame": framed(
        request_head(Api.METADATA, 12) + b"\1\0\xff\xff\xff\x07" + b"a"
    ),
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS handshake": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "Produce with acks=0 to nowhere": b"".join(
        encode_request(
            produce_request("no-such-topic", encode_batch([(0, None, b"", ())]), acks=0),
            PRODUCE_BY_NAME,
            1,
            None,
        )
    ),
}


@pytest.mark.parametrize("name", NOT_REQUESTS)
def test_bytes_that_are_no_request_close_their_connection_with_one_log_line(
    guarded: Guarded, name: str
) -> None:
    with Wire(guarded.address) as wire:
        wire.send_bytes(NOT_REQUESTS[name])
        assert wire.closed_by_peer()
    [line] = lines_about(guarded.broker, wire.local_address)
    assert "closed connection" in line
    guarded.check()
    assert lines_about(guarded.broker, wire.local_address) == [line]


def test_replies_that_are_owed_are_sent_before_a_bad_request_closes_the_connection(
    guarded: Guarded,
) -> None:
    with Wire(guarded.address) as wire:
        wire.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
        wire.send_bytes(framed(request_head(999, 0)))
        assert wire.receive().error_code == 0
        assert wire.closed_by_peer()


def test_a_peer_that_leaves_in_the_middle_of_a_frame_is_forgotten(guarded: Guarded) -> None:
    whole = b"".join(encode_request(MetadataRequest(topics=None), 12, 1, "cut"))
    for size in range(1, len(whole)):
        with Wire(guarded.address) as wire:
            wire.send_bytes(whole[:size])
    with Wire(guarded.address) as wire:
        wire.send_bytes(whole[:-1])
        wire.finish_sending()
        assert wire.closed_by_peer()


def test_random_bytes_of_any_length_do_no_harm(guarded: Guarded) -> None:
    rng = Random(20)
    for number in range(300):
        data = rng.randbytes(rng.choice((1, 4, 10, 100, 5000)))
        with Wire(guarded.address) as wire:
            wire.send_bytes(data if number % 2 else framed(data))
            wire.finish_sending()
            while wire.read_frame() is not None:
                pass


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_a_client_from_the_future_is_told_in_the_oldest_form_what_it_may_ask(
    guarded: Guarded, version: int
) -> None:
    assert version not in range(*served_versions(Api.API_VERSIONS))
    with Wire(guarded.address) as wire:
        wire.send_bytes(framed(request_head(Api.API_VERSIONS, version) + b"\0unknown to us"))
        frame = wire.read_frame()
        assert frame is not None
        correlation_id, response = decode_response(Api.API_VERSIONS, 0, frame)
        assert correlation_id == 1
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        # The connection lives on: the client asks again in a version both have.
        is_retried = wire.ask(ApiVersionsRequest(), 0)
        assert is_retried.error_code == 0
        assert response.api_keys == is_retried.api_keys


def edited(batch: bytes | bytearray, layout: str, position: int, value: int) -> bytearray:
    """A batch with one field of its header changed, and a CRC that fits again."""
    changed = bytearray(batch)
    pack_into(layout, changed, position, value)
    return sealed(changed)


def sealed(batch: bytearray) -> bytearray:
    pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def good_batch(*, timestamp: int = NOW_MS, compression: int = 0, **options: Any) -> bytearray:
    rows = [(timestamp, b"key", b"value %d" % number, ()) for number in range(3)]
    return bytearray(encode_batch(rows, compression=compression, **options))


def payload_batch(payload: bytes, compression: int) -> bytearray:
    """A batch that holds anything at all where its compressed records should be."""
    batch = good_batch()[:HEADER_SIZE] + payload
    pack_into(">i", batch, 8, len(batch) - 12)
    return edited(batch, ">h", 21, compression)


def with_bad_crc() -> bytearray:
    batch = good_batch()
    batch[-1] ^= 1
    return batch


CORRUPT = ErrorCode.CORRUPT_MESSAGE
INVALID = ErrorCode.INVALID_RECORD
BAD_BATCHES: dict[str, tuple[Callable[[], bytes | bytearray], ErrorCode]] = {
    "a bad CRC": (with_bad_crc, CORRUPT),
    "an old message format": (lambda: edited(good_batch(), ">b", 16, 1), INVALID),
    "a message format from the future": (lambda: edited(good_batch(), ">b", 16, 3), INVALID),
    "more records than offsets": (lambda: edited(good_batch(), ">i", 57, 4), INVALID),
    "fewer records than offsets": (lambda: edited(good_batch(), ">i", 57, 2), INVALID),
    "a negative count": (lambda: edited(good_batch(), ">i", 57, -3), CORRUPT),
    "a negative last offset": (lambda: edited(good_batch(), ">i", 23, -1), CORRUPT),
    "a length that is too small": (lambda: edited(good_batch(), ">i", 8, 10), CORRUPT),
    "a negative length": (lambda: edited(good_batch(), ">i", 8, -1), CORRUPT),
    "a length past the end": (lambda: edited(good_batch(), ">i", 8, 1000), CORRUPT),
    "half a header": (lambda: good_batch()[:30], CORRUPT),
    "half a batch": (lambda: good_batch()[:-10], CORRUPT),
    "a byte too many": (lambda: good_batch() + b"\0", CORRUPT),
    "no batch at all": (lambda: b"", INVALID),
    "two batches": (lambda: good_batch() + good_batch(), INVALID),
    "a control batch": (lambda: edited(good_batch(), ">h", 21, 0x20), INVALID),
    "a base offset of its own": (lambda: edited(good_batch(), ">q", 0, 5), INVALID),
    "a codec that does not exist": (
        lambda: edited(good_batch(), ">h", 21, 7),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "log append time from a producer": (
        lambda: edited(good_batch(), ">h", 21, 0x08),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    "a time two hours ahead": (
        lambda: good_batch(timestamp=NOW_MS + 7_200_000),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    "a transaction without an id": (
        lambda: edited(
            good_batch(producer_id=5, producer_epoch=0, base_sequence=0), ">h", 21, 0x10
        ),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a producer without a sequence": (
        lambda: good_batch(producer_id=5, producer_epoch=0, base_sequence=-1),
        INVALID,
    ),
    "more than the largest batch": (
        lambda: encode_batch([(NOW_MS, None, bytes(1_100_000), ())]),
        ErrorCode.MESSAGE_TOO_LARGE,
    ),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_answered_with_its_code_and_not_written(guarded: Guarded, name: str) -> None:
    make, code = BAD_BATCHES[name]
    with Wire(guarded.address) as wire:
        refused = produce(wire, STORED, make())
        assert (error_code(refused.error_code), refused.base_offset) == (code, -1)
        assert refused.error_message
        # `guarded` checks that nothing was written; the connection is as good as before.
        assert list_offset(wire, STORED, -1) == 100


def test_one_bad_batch_does_not_fail_its_neighbours(guarded: Guarded, topic: str) -> None:
    create_topic(guarded.address, topic, partitions=3)
    with Wire(guarded.address) as wire:
        requests = [
            produce_request(topic, with_bad_crc() if partition == 1 else good_batch())
            for partition in range(3)
        ]
        request = requests[0]
        for partition in (1, 2):
            [data] = requests[partition].topic_data[0].partition_data
            data.index = partition
            request.topic_data[0].partition_data.append(data)
        [answered] = wire.ask(request, PRODUCE_BY_NAME).responses
        codes = [
            partition_response.error_code for partition_response in answered.partition_responses
        ]
        assert codes == [0, ErrorCode.CORRUPT_MESSAGE, 0]


def test_writes_to_what_does_not_exist_are_refused(guarded: Guarded) -> None:
    with Wire(guarded.address) as wire:
        for topic, partition in (("no-such-topic", 0), (STORED, 1), (STORED, -1), ("", 0)):
            refused = produce(wire, topic, good_batch(), partition=partition)
            assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for acks in (7, -2, 2):
            refused = produce(wire, STORED, good_batch(), acks=acks)
            assert refused.error_code == ErrorCode.INVALID_REQUIRED_ACKS


ILLEGAL_NAMES = ["", ".", "..", "a/b", "../../etc", "a b", "a\0b", "naïve", "x" * 250, "a\nb"]


@pytest.mark.parametrize("name", ILLEGAL_NAMES)
def test_illegal_topic_names_are_refused_everywhere(guarded: Guarded, name: str) -> None:
    before = log_directories(guarded.broker.data_dir)
    with Wire(guarded.address) as wire:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        [created] = wire.ask(CreateTopicsRequest(topics=[topic])).topics
        assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        [described] = wire.ask(request).topics
        assert described.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        [deleted] = wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])).responses
        assert deleted.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert log_directories(guarded.broker.data_dir) == before


def log_directories(data_dir: Path) -> list[str]:
    """The names of the logs in a data directory, without its files: checkpoints come and go."""
    return sorted(entry.name for entry in data_dir.iterdir() if entry.is_dir())


@pytest.mark.parametrize("version", [2, 5, 7])
def test_a_name_that_barely_fits_its_field_is_refused_like_a_shorter_one(
    guarded: Guarded, version: int
) -> None:
    name = "\1" * 32_000
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    with Wire(guarded.address) as wire:
        [created] = wire.ask(CreateTopicsRequest(topics=[topic]), version).topics
    assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_compressed_garbage_is_refused_where_the_broker_must_read_it(
    guarded: Guarded, codec: Compression, topic: str
) -> None:
    create_topic(guarded.address, topic, compression_type="uncompressed")
    garbage = Random(codec).randbytes(1000)
    good = good_batch(compression=codec)
    with Wire(guarded.address) as wire:
        for payload in (garbage, bytes(good[HEADER_SIZE:-5]), garbage[:1]):
            refused = produce(wire, topic, payload_batch(payload, codec))
            assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
        assert list_offset(wire, topic, -1) == 0
        assert produce(wire, topic, good).error_code == 0


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_batch_that_decompresses_to_no_records_is_refused_where_the_broker_must_read_it(
    guarded: Guarded, codec: Compression, topic: str
) -> None:
    other = Compression.ZSTD if codec is Compression.GZIP else Compression.GZIP
    create_topic(guarded.address, topic, compression_type=other.name.lower())
    template = good_batch(compression=codec)
    nonsense = encode_batch([(NOW_MS, None, bytes(100), ())], compression=codec)
    batch = template[:HEADER_SIZE] + nonsense[HEADER_SIZE:]
    pack_into(">i", batch, 8, len(batch) - 12)
    with Wire(guarded.address) as wire:
        refused = produce(wire, topic, sealed(batch))
        assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
        assert list_offset(wire, topic, -1) == 0


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_decompression_bomb_is_refused_and_takes_bounded_memory(
    guarded: Guarded, codec: Compression, topic: str
) -> None:
    create_topic(guarded.address, topic, compression_type="uncompressed")
    # Snappy cannot squeeze more than that into a batch of the largest size.
    expanded_mb = 20 if codec is Compression.SNAPPY else 120
    bomb = encode_batch([(NOW_MS, None, bytes(expanded_mb * MB), ())], compression=codec)
    assert len(bomb) < 1_048_588
    with Wire(guarded.address) as wire:
        for _ in range(5):
            assert produce(wire, topic, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert list_offset(wire, topic, -1) == 0


def test_slow_peers_that_announce_large_frames_take_little_memory(guarded: Guarded) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(Wire(guarded.address)) for _ in range(200)]
        for number, wire in enumerate(slow):
            # Some say only how much is to come, some a little of it, some not even that much.
            said = (4, 2, 10, 1004)[number % 4]
            wire.send_bytes((pack(">i", FRAME_BYTES_MAX) + bytes(1000))[:said])
        guarded.check()
        before = guarded.memory()
        with Wire(guarded.address) as wire:
            large = encode_batch([(NOW_MS, None, bytes(1_000_000), ())])
            assert produce(wire, "no-such-topic", large).error_code != 0
        assert guarded.memory() - before < 20 * MB


def test_consumers_that_do_not_read_take_bounded_memory(
    start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = start_broker()
    create_topic(broker.address, topic)
    with Wire(broker.address) as wire:
        large = encode_batch([(NOW_MS, None, bytes(1_000_000), ())])
        for _ in range(50):
            assert produce(wire, topic, large).error_code == 0
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    with ExitStack() as stack:
        for _ in range(30):
            # Each asks for all there is, several times, and reads none of it.
            wire = stack.enter_context(Wire(broker.address))
            wanted = FetchPartition(partition_max_bytes=50 * MB)
            request = FetchRequest(
                max_bytes=50 * MB, topics=[FetchTopic(topic=topic, partitions=[wanted])]
            )
            for _ in range(10):
                wire.send(request, FETCH_BY_NAME)
        with Wire(broker.address) as wire:
            # Those who read are served meanwhile: one batch is brought, however much is held.
            begin = time.monotonic()
            assert len(fetch(wire, topic, 0).records) >= len(large)
            assert time.monotonic() - begin < scaled(10)
        # 268 MB of answers, of the 1,500 that were asked for; the allocator may hold as much again.
        assert process.memory_info().rss - before < 536 * MB
    # Most is given back at once. How much the allocator keeps for the next time depends on what
    # happens to lie above it.
    wait_until(lambda: process.memory_info().rss - before < 200 * MB)
    assert len(read_all(broker.address, topic)) == 50


def test_slow_peers_do_not_keep_others_from_sending_large_requests(
    start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = start_broker(**{"queued.max.request.bytes": "10000000"})
    create_topic(broker.address, topic)
    with ExitStack() as stack:
        for _ in range(100):
            slow = stack.enter_context(Wire(broker.address))
            slow.send_bytes(pack(">i", FRAME_BYTES_MAX) + b"a little")
        wire = stack.enter_context(Wire(broker.address))
        large = encode_batch([(NOW_MS, None, bytes(1_000_000), ())])
        for _ in range(3):
            assert produce(wire, topic, large).error_code == 0


def test_a_large_frame_is_held_once_and_then_given_back(guarded: Guarded) -> None:
    body = request_head(Api.METADATA, 8) + pack(">i", 0) + b"\0\0\0"
    padded = body + bytes(60 * MB)
    with Wire(guarded.address) as wire:
        wire.send_bytes(framed(padded))
        assert wire.read_frame() is not None


def test_more_connections_than_allowed_are_refused_and_counted_in_the_log(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**{"max.connections": "3"})
    with ExitStack() as stack:
        for _ in range(3):
            wire = stack.enter_context(Wire(broker.address))
            assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        for _ in range(5):
            with Wire(broker.address) as refused:
                assert refused.closed_by_peer()
        # One line for the first, and those of the next seconds together: a flood fills no disk.
        wait_until(lambda: "refused 1 connections: max.connections is reached" in broker.log_text)
        assert broker.log_text.count("max.connections is reached") == 1
        assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
    wait_until(lambda: connects(broker.address))


def test_one_address_cannot_take_every_connection(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**{"max.connections.per.ip": "2"})
    with Wire(broker.address) as one, Wire(broker.address) as two:
        for wire in (one, two):
            assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        with Wire(broker.address) as refused:
            assert refused.closed_by_peer()
    wait_until(lambda: connects(broker.address))


def test_a_silent_connection_is_closed_and_one_in_use_is_not(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**{"connections.max.idle.ms": "1000"})
    with Wire(broker.address) as silent, Wire(broker.address) as busy:
        assert silent.ask(ApiVersionsRequest(), 0).error_code == 0
        deadline = Deadline(20)
        while not silent.closed_within(0.2):
            assert not deadline.has_passed
            assert busy.ask(ApiVersionsRequest(), 0).error_code == 0
        assert len(lines_about(broker, silent.local_address)) == 1
        assert busy.ask(ApiVersionsRequest(), 0).error_code == 0


def lines_about(broker: BrokerProcess, address: str) -> list[str]:
    """What the log says about a connection, once it has said something."""

    def found() -> list[str]:
        lines = broker.log_text.splitlines()
        return [line for line in lines if f"{address}:" in line]

    wait_until(lambda: bool(found()))
    return found()


def connects(address: str) -> bool:
    try:
        return is_serving(address)
    except (TimeoutError, AssertionError, OSError):
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = Deadline(10)
    while not condition():
        assert not deadline.has_passed
        time.sleep(0.01)
