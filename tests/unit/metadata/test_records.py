"""Metadata records as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.records import RECORD_TYPES, MetadataError, decode_record, encode_record
from headrace.protocol.messages import metadata_records
from headrace.protocol.messages.metadata_records import (
    PartitionChangeRecord,
    TopicRecord,
)
from headrace.protocol.schema import FieldSpec, Message, Struct

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def values_of(spec: FieldSpec) -> st.SearchStrategy[object]:
    one: st.SearchStrategy[object]
    if spec.kind == "struct":
        assert spec.struct is not None
        one = structs(spec.struct)
    elif spec.kind in INTEGERS:
        limit = 2 ** (INTEGERS[spec.kind] - 1)
        one = st.integers(-limit, limit - 1)
    else:
        one = {
            "bool": st.booleans(),
            "bytes": st.binary(max_size=20),
            "uint16": st.integers(0, 65_535),
            "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            "float64": st.floats(allow_nan=False),
            "uuid": st.binary(min_size=16, max_size=16),
        }[spec.kind]
    if spec.is_array:
        one = st.lists(one, max_size=3)
    return one if spec.nullable is None else st.none() | one


def structs(cls: type[Struct]) -> st.SearchStrategy[Struct]:
    return st.builds(cls, **{name: values_of(spec) for name, spec in cls.__specs__.items()})


any_record = st.one_of(*(structs(cls) for cls in RECORD_TYPES.values()))


@given(any_record)
def test_every_record_survives_the_log(record: Message) -> None:
    value = encode_record(record)
    assert decode_record(value) == record
    assert decode_record(memoryview(value)) == record


def test_every_record_type_of_the_tables_can_be_logged() -> None:
    declared = {
        value
        for value in vars(metadata_records).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    }
    assert set(RECORD_TYPES.values()) == declared


def test_a_topic_record_has_kafkas_bytes() -> None:
    record = TopicRecord(name="orders", topic_id=bytes(range(16)))
    expected = b"\x01\x02\x00" + b"\x07orders" + bytes(range(16)) + b"\x00"
    assert encode_record(record) == expected


def test_a_change_that_sets_only_the_leader_writes_only_the_leader() -> None:
    record = PartitionChangeRecord(partition_id=3, topic_id=bytes(16), leader=5)
    tagged = b"\x01" + b"\x01\x04\x00\x00\x00\x05"
    assert encode_record(record) == (b"\x01\x05\x02" + b"\x00\x00\x00\x03" + bytes(16) + tagged)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "cut short"),
        (b"\x01\x02", "cut short"),
        (b"\x02\x02\x00", "has frame version 2, not 1"),
        (b"\x01\x7f\x00", "has the unknown type 127"),
        (b"\x01\xff\xff\xff\xff\xff\x01", "more than five bytes"),
        (b"\x01\x02\x09", "TopicRecord has versions 0 to 0, not 9"),
        (b"\x01\x02\x00\x07ord", "of type TopicRecord"),
        (b"\x01\x14\x00\x00\x00", "of type NoOpRecord: 1 bytes left over"),
    ],
)
def test_a_value_that_is_no_record_is_refused(value: bytes, message: str) -> None:
    with pytest.raises(MetadataError, match=message):
        decode_record(value)


@given(any_record, st.data())
def test_a_record_cut_short_is_refused(record: Message, data: st.DataObject) -> None:
    value = encode_record(record)
    end = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(MetadataError):
        decode_record(value[:end])


@given(st.binary(max_size=60))
def test_random_bytes_are_a_record_or_an_error_and_nothing_else(value: bytes) -> None:
    try:
        record = decode_record(b"\x01" + value)
    except MetadataError:
        return
    assert type(record) in RECORD_TYPES.values()
