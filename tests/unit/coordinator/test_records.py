"""Records of `__consumer_offsets` as Kafka writes them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.records import (
    RecordError,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
    offset_record,
)
from headrace.coordinator.shard import CoordinatorRecord
from headrace.protocol.messages.offsets_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)


def test_offset_has_the_bytes_that_kafka_gives_it() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9)
    assert offset_record("g", "t", 3, value) == CoordinatorRecord(
        bytes.fromhex("0001 0001 67 0001 74 00000003"),
        bytes.fromhex("0003 0000000000000005 00000002 0001 6d 0000000000000009"),
    )
    assert offset_record("g", "t", 3, None).value is None


def test_group_has_the_bytes_that_kafka_gives_it() -> None:
    value = GroupMetadataValue(
        protocol_type="c",
        generation=1,
        protocol="p",
        leader="l",
        current_state_timestamp=2,
        members=[
            MemberMetadata(
                member_id="l",
                client_id="x",
                client_host="h",
                rebalance_timeout=3,
                session_timeout=4,
                subscription=b"s",
                assignment=b"a",
            )
        ],
    )
    member = "0001 6c ffff 0001 78 0001 68 00000003 00000004 00000001 73 00000001 61"
    assert group_record("g", value) == CoordinatorRecord(
        bytes.fromhex("0002 0001 67"),
        bytes.fromhex(f"0003 0001 63 00000001 0001 70 0001 6c 0000000000000002 00000001 {member}"),
    )


@given(group=texts, topic=texts, partition=int32, offset=int64, epoch=int32, metadata=texts)
def test_offsets_are_read_as_they_were_written(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str
) -> None:
    value = OffsetCommitValue(offset=offset, leader_epoch=epoch, metadata=metadata)
    record = offset_record(group, topic, partition, value)
    assert decode_key(record.key) == OffsetCommitKey(group=group, topic=topic, partition=partition)
    assert record.value is not None
    assert decode_offset(record.value) == value


def test_groups_are_read_as_they_were_written() -> None:
    value = GroupMetadataValue(generation=3, protocol=None, leader=None)
    record = group_record("g", value)
    assert decode_key(record.key) == GroupMetadataKey(group="g")
    assert record.value is not None
    assert decode_group(record.value) == value


def test_the_oldest_type_of_offset_key_is_known() -> None:
    key = b"\x00\x00" + offset_record("g", "t", 1, None).key[2:]
    assert decode_key(key) == OffsetCommitKey(group="g", topic="t", partition=1)


def test_keys_of_newer_types_are_nothing_to_us() -> None:
    assert decode_key(b"\x00\x11anything") is None


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (b"", "key has 0 bytes, too few"),
        (b"\x00", "key has 1 bytes, too few"),
        (b"\x00\x01", "key of OffsetCommitKey"),
        (b"\x00\x02\x00\x05g", "key of GroupMetadataKey"),
        (b"\x00\x02\x00\x01gg", "1 bytes left over"),
    ],
)
def test_corrupt_keys_are_told_apart(key: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        decode_key(key)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "value of OffsetCommitValue has 0 bytes"),
        (b"\x00\x05", "version 5: OffsetCommitValue has versions 0 to 4"),
        (b"\x00\x03\x00", "value of OffsetCommitValue, version 3"),
    ],
)
def test_corrupt_values_are_told_apart(value: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        decode_offset(value)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_record_or_an_error(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        with suppress(RecordError):
            decode(data)
