"""kcat, the command-line client of Debian: an older librdkafka than confluent-kafka brings."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from headrace.protocol.apis import Api
from headrace.protocol.batch import scan_headers
from headrace.protocol.compression import Compression
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.testing.time_limits import scaled
from tests.integration.wire import Wire, create_topic, fetch
from tests.support import BrokerProcess

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS = 60.0

Kcat = Callable[..., bytes]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def kcat(broker: BrokerProcess) -> Kcat:
    """Run kcat against the broker; its standard output. That it is missing is a failure."""
    command = shutil.which("kcat")
    if command is None:
        pytest.fail("kcat is not installed: sudo apt-get install -y kcat")

    def run(*arguments: str, said: bytes = b"") -> bytes:
        done = subprocess.run(
            [command, "-b", broker.address, *arguments],
            input=said,
            capture_output=True,
            timeout=scaled(SECONDS),
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    return run


_numbers = count(1)


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"kcat-{next(_numbers)}"
    create_topic(broker.address, name, partitions=2)
    return name


def lines(number: int, size: int = 1) -> bytes:
    return b"".join(b"%d%s\n" % (index, b"x" * size) for index in range(number))


@pytest.mark.parametrize("codec", CODECS)
def test_what_kcat_writes_it_reads_in_every_codec(
    kcat: Kcat, broker: BrokerProcess, topic: str, codec: str
) -> None:
    said = lines(5_000, 100)
    kcat("-P", "-t", topic, "-p", "0", "-z", codec, said=said)
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q") == said
    with Wire(broker.address) as wire:
        served = {api_key.api_key for api_key in wire.ask(ApiVersionsRequest(), 0).api_keys}
        stored = {
            scan_header.compression
            for scan_header in scan_headers(bytes(fetch(wire, topic, 0).records))
        }
    expected = Compression[codec.upper()]
    if expected is Compression.LZ4 and Api.FIND_COORDINATOR not in served:
        # librdkafka takes a broker without group coordinators for one too old to know lz4.
        expected = Compression.NONE
    assert stored == {expected}


def test_keys_headers_and_times_come_back(kcat: Kcat, topic: str) -> None:
    before_ms = int(time.time() * 1000)
    kcat("-P", "-t", topic, "-p", "1", "-K", ":", "-H", "one=1", "-H", "two=", said=b"k:v\n")
    document = json.loads(kcat("-C", "-t", topic, "-p", "1", "-o", "0", "-e", "-q", "-J"))
    assert (document["key"], document["payload"]) == ("k", "v")
    assert document["headers"] == ["one", "1", "two", ""]
    assert (document["partition"], document["offset"]) == (1, 0)
    assert before_ms <= document["ts"] <= int(time.time() * 1000)


def test_null_values_come_back(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", "-Z", "-K", ":", said=b"gone:\n")
    shown = kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-f", "%k %S")
    assert shown == b"gone -1"


def test_a_file_becomes_one_message_of_a_megabyte(kcat: Kcat, topic: str, tmp_path: Path) -> None:
    # librdkafka counts its own limit a little more strictly than the broker counts its.
    content = bytes(range(256)) * 3_900
    path = tmp_path / "payload"
    path.write_bytes(content)
    kcat("-P", "-t", topic, "-p", "0", str(path))
    assert kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-D", "") == content


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_every_level_of_acknowledgement(kcat: Kcat, topic: str, acks: str) -> None:
    said = lines(1_000)
    kcat("-P", "-t", topic, "-p", "0", "-X", f"acks={acks}", said=said)
    assert kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-c", "1000") == said


def test_an_idempotent_producer(kcat: Kcat, topic: str) -> None:
    said = lines(2_000)
    kcat("-P", "-t", topic, "-p", "0", "-X", "enable.idempotence=true", said=said)
    assert kcat("-C", "-t", topic, "-p", "0", "-e", "-q") == said


def test_reading_begins_at_any_offset_counted_from_either_end(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", said=lines(100))

    def read(start: str) -> list[int]:
        shown = kcat("-C", "-t", topic, "-p", "0", "-o", start, "-e", "-q", "-f", "%o ")
        return [int(part) for part in shown.split()]

    assert read("beginning") == list(range(100))
    assert read("40") == list(range(40, 100))
    assert read("-10") == list(range(90, 100))
    assert read("end") == []


def test_offsets_are_found_by_time(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", said=lines(10))
    [first] = re.findall(rb"offset (-?\d+)", kcat("-Q", "-t", f"{topic}:0:1"))
    assert int(first) == 0
    shown = kcat("-C", "-t", topic, "-p", "0", "-o", "s@1", "-e", "-q", "-f", "%o ")
    assert [int(part) for part in shown.split()] == list(range(10))


def test_metadata_is_listed(kcat: Kcat, broker: BrokerProcess, topic: str) -> None:
    document = json.loads(kcat("-L", "-J", "-t", topic))
    assert document["brokers"] == [{"id": 1, "name": broker.address}]
    [described] = document["topics"]
    assert described["topic"] == topic
    assert described["partitions"] == [
        {"partition": number, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]}
        for number in (0, 1)
    ]
    assert topic.encode() in kcat("-L")


def test_keys_decide_the_partition(kcat: Kcat, topic: str) -> None:
    said = b"".join(b"key-%d:%d\n" % (number % 50, number) for number in range(1_000))
    kcat("-P", "-t", topic, "-K", ":", said=said)
    shown = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k %p\n")
    homes: dict[bytes, set[bytes]] = {}
    for line in shown.splitlines():
        key, partition = line.split()
        homes.setdefault(key, set()).add(partition)
    assert len(shown.splitlines()) == 1_000
    assert {len(partitions) for partitions in homes.values()} == {1}
    assert set().union(*homes.values()) == {b"0", b"1"}


def test_writing_to_a_topic_that_does_not_exist_creates_it(kcat: Kcat) -> None:
    kcat("-P", "-t", "kcat-new", said=b"first\n")
    assert kcat("-C", "-t", "kcat-new", "-o", "beginning", "-e", "-q") == b"first\n"
