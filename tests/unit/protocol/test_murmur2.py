"""Keys go to the partition every other Kafka client sends them to."""

import random
import warnings

import confluent_kafka
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2

from headrace.protocol.murmur2 import murmur2, partition_for_key

with warnings.catch_warnings():
    # kafka-python loads its schemas in a way Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_is_what_the_java_client_computes(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


def test_hash_and_partition_agree_with_three_other_clients() -> None:
    rng = random.Random(2)
    for size in range(201):
        for _ in range(5):
            key = rng.randbytes(size)
            count = rng.randrange(1, 1000)
            assert murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key) & 0xFFFFFFFF
            assert murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key) & 0xFFFFFFFF
            assert partition_for_key(key, count) == confluent_kafka.murmur2(key, count)


def test_any_buffer_hashes_as_its_bytes() -> None:
    key = b"some key"
    assert murmur2(bytearray(key)) == murmur2(memoryview(key)) == murmur2(key)
    assert partition_for_key(memoryview(key), 7) == partition_for_key(key, 7)


@pytest.mark.parametrize("count", [0, -1])
def test_topic_without_partitions_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partition_for_key(b"key", count)
