"""The text files beside the logs, byte for byte as Kafka writes them."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.checkpoints import (
    MetaProperties,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta,
    encode_offsets,
    encode_partition_metadata,
    has_meta_checksum,
)
from headrace.types import TopicPartition

TOPIC_ID = bytes(range(16))
META = MetaProperties("4L6g3nShT-eMCtK--X86sw", 3, TOPIC_ID)

topics = st.text("abcXYZ019._-", min_size=1, max_size=20)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


def test_offsets_are_a_version_a_count_and_a_line_each() -> None:
    offsets = {TopicPartition("orders", 1): 7, TopicPartition("orders", 0): 12345678901}
    assert encode_offsets(offsets) == b"0\n2\norders 0 12345678901\norders 1 7\n"
    assert encode_offsets({}) == b"0\n0\n"
    assert decode_offsets(b"0\n1\na.b-c_d 3 9\n") == {TopicPartition("a.b-c_d", 3): 9}


@given(st.dictionaries(partitions, st.integers(0, 2**63 - 1)))
def test_offsets_are_read_back(offsets: dict[TopicPartition, int]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


def test_epochs_are_a_line_each() -> None:
    assert encode_epochs([(0, 0), (4, 120)]) == b"0\n2\n0 0\n4 120\n"
    assert decode_epochs(b"0\n2\n0 0\n4 120\n") == [(0, 0), (4, 120)]


@pytest.mark.parametrize("data", [b"0\n2\n4 0\n4 5\n", b"0\n2\n4 5\n5 4\n", b"0\n1\n-1 0\n"])
def test_epochs_out_of_order_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_epochs(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n0\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 1 2\n",
        b"0\n1\na 0 -1\n",
        b"0\n1\na 0 1_0\n",
        b"0\n1\na +0 1\n",
        b"\x00" * 40,
        b"\xff\xfe",
    ],
)
def test_damaged_offsets_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_offsets(data)


@given(st.binary(max_size=60) | st.text("0123456789 \nab-", max_size=40).map(str.encode))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes) -> None:
    for decode in (decode_offsets, decode_epochs, decode_partition_metadata, decode_meta):
        with suppress(ValueError):
            decode(data)


def test_partition_metadata_names_the_topic() -> None:
    data = encode_partition_metadata(TOPIC_ID)
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert decode_partition_metadata(data) == TOPIC_ID
    for damaged in (b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n", b"version: 0\n"):
        with pytest.raises(ValueError):
            decode_partition_metadata(damaged)


def test_meta_properties_are_those_of_kafka() -> None:
    assert encode_meta(META).splitlines()[1:] == [
        b"cluster.id=4L6g3nShT-eMCtK--X86sw",
        b"directory.id=AAECAwQFBgcICQoLDA0ODw",
        b"node.id=3",
        b"version=1",
        b"headrace.checksum=a49cbfa9",
    ]
    assert decode_meta(encode_meta(META)) == META
    of_kafka = b"".join(encode_meta(META).splitlines(keepends=True)[:-1])
    assert decode_meta(of_kafka) == META
    assert has_meta_checksum(encode_meta(META)) and not has_meta_checksum(of_kafka)
    assert decode_meta(b"# a comment\n\nother = x\n" + encode_meta(META)) == META


@pytest.mark.parametrize("line", [b"cluster.id", b"directory.id", b"node.id", b"version"])
def test_meta_properties_without_one_are_refused(line: bytes) -> None:
    lines = [part for part in encode_meta(META).splitlines() if not part.startswith(line)]
    with pytest.raises(ValueError, match=line.decode()):
        decode_meta(b"\n".join(lines))


def test_no_flipped_bit_of_meta_properties_is_believed() -> None:
    data = encode_meta(META)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with suppress(ValueError):
            assert decode_meta(bytes(flipped)) == META, bytes(flipped)


def test_the_clean_shutdown_marker_is_json() -> None:
    assert json.loads(encode_clean_shutdown(5)) == {"version": 0, "brokerEpoch": 5}
    assert decode_clean_shutdown(encode_clean_shutdown(5)) == 5
    with pytest.raises(ValueError, match="not a broker epoch"):
        decode_clean_shutdown(b'{"brokerEpoch": "5"}')
