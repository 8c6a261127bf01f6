"""Records of `__consumer_offsets` as bytes: a key's type or a value's version, then the fields."""

from struct import Struct
from typing import TypeAlias, TypeVar

from headrace.coordinator.shard import Record
from headrace.errors import HeadraceError, ProtocolError
from headrace.protocol.decoder import decode
from headrace.protocol.messages.offsets_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace.protocol.schema import (
    RESPONSE_ELEMENTS_MAX,
    AnyMessage,
    encode_message,
    schema_of,
)
from headrace.types import ZERO_UUID

Key: TypeAlias = OffsetCommitKey | GroupMetadataKey
_Value = TypeVar("_Value", OffsetCommitValue, GroupMetadataValue)

_INT16 = Struct(">h")
_OFFSET_KEY = _INT16.pack(1)
_GROUP_KEY = _INT16.pack(2)

# Type 0 is how the first brokers wrote an offset; the fields are the same.
_KEY_TYPES: dict[int, type[OffsetCommitKey] | type[GroupMetadataKey]] = {
    0: OffsetCommitKey,
    1: OffsetCommitKey,
    2: GroupMetadataKey,
}

# The newest version that brokers since Kafka 2.1 read.
_VERSION = 3
# Only version 1 says when an offset expires, and only version 4 which topic id it belongs to.
_VERSION_WITH_EXPIRY = 1
_VERSION_WITH_TOPIC_ID = 4


class RecordError(HeadraceError):
    """A record that cannot be replayed: corrupt, or its value is of a version we do not know."""


def offset_record(
    group: str, topic: str, partition: int, value: OffsetCommitValue | None
) -> Record:
    """A committed offset, or the tombstone of one."""
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    encoded_key = _OFFSET_KEY + encode_message(key, 0)
    if value is None:
        return Record(encoded_key, None)
    version = _VERSION
    if value.expire_timestamp >= 0:
        version = _VERSION_WITH_EXPIRY
    elif value.topic_id != ZERO_UUID:
        version = _VERSION_WITH_TOPIC_ID
    return Record(encoded_key, _INT16.pack(version) + encode_message(value, version))


def group_record(group: str, value: GroupMetadataValue | None) -> Record:
    """A generation of a group, or the tombstone of the group."""
    key = _GROUP_KEY + encode_message(GroupMetadataKey(group=group), 0)
    if value is None:
        return Record(key, None)
    return Record(key, _INT16.pack(_VERSION) + encode_message(value, _VERSION))


def decode_key(key: bytes) -> Key | None:
    """What a record is about; None for a type that only a newer version knows."""
    known = _KEY_TYPES.get(leading_int16(key, "key"))
    if known is None:
        return None
    try:
        return decode_rest(known, 0, key)
    except ProtocolError as error:
        raise RecordError(f"key of {known.__name__}: {error}") from error


def decode_offset(value: bytes) -> OffsetCommitValue:
    """The value beside an OffsetCommitKey."""
    return _decode_value(OffsetCommitValue, value)


def decode_group(value: bytes) -> GroupMetadataValue:
    """The value beside a GroupMetadataKey."""
    return _decode_value(GroupMetadataValue, value)


def _decode_value(cls: type[_Value], value: bytes) -> _Value:
    version = leading_int16(value, f"value of {cls.__name__}")
    try:
        return decode_rest(cls, version, value)
    except ProtocolError as error:
        raise RecordError(f"value of {cls.__name__}, version {version}: {error}") from error


def decode_rest(cls: type[AnyMessage], version: int, data: bytes) -> AnyMessage:
    """Read what follows the first two bytes, in place: a log is loaded record by record."""
    message, end = decode(schema_of(cls, version), data, 2, RESPONSE_ELEMENTS_MAX)
    if end != len(data):
        raise ProtocolError(f"{len(data) - end} bytes left over")
    assert isinstance(message, cls)
    return message


def leading_int16(data: bytes, what: str) -> int:
    """The type of a key or the version of a value; RecordError if there is none."""
    if len(data) < 2:
        raise RecordError(f"{what} has {len(data)} bytes, too few for its version")
    number: int = _INT16.unpack_from(data)[0]
    return number
