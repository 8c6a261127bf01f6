"""Codecs of the records of `__consumer_offsets` and `__transaction_state`, as Kafka has them."""

from collections.abc import Mapping
from struct import Struct
from typing import TypeAlias, TypeVar

from headrace.coordinator.shard import CoordinatorRecord
from headrace.coordinator.transactions.transaction_metadata import (
    TransactionMetadata,
    TransactionStatus,
)
from headrace.errors import HeadraceError, ProtocolError
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from headrace.protocol.messages.offsets_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace.protocol.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from headrace.protocol.schema import (
    RESPONSE_ELEMENTS_MAX,
    AnyMessage,
    Message,
    encode_message,
    schema_of,
)
from headrace.types import ZERO_UUID, TopicPartition

ConsumerGroupKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerGroupValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)
Key: TypeAlias = OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey
_Value = TypeVar("_Value", bound=Message)

_INT16 = Struct(">h")
_OFFSET_KEY = _INT16.pack(1)
_GROUP_KEY = _INT16.pack(2)

# The records of a group whose coordinator assigns (KIP-848).
_CONSUMER_GROUP_VALUES: Mapping[type[ConsumerGroupKey], type[ConsumerGroupValue]] = {
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}

# Type 0 is the offset key of the first Kafka brokers; the fields are the same.
_KEY_TYPES: Mapping[int, type[Key]] = {
    0: OffsetCommitKey,
    1: OffsetCommitKey,
    2: GroupMetadataKey,
    **{key.api_key: key for key in _CONSUMER_GROUP_VALUES},
}
# The only version of their values so far; later fields of them are tagged.
_CONSUMER_GROUP_VERSION = 0

# The newest version that all brokers since Kafka 2.1 can read.
_VERSION = 3
# Only version 1 has the expiry of an offset, and only version 4 the topic id.
_VERSION_WITH_EXPIRY = 1
_VERSION_WITH_TOPIC_ID = 4


class RecordError(HeadraceError):
    """A record that cannot be replayed: corrupt, or with a value of an unknown version."""


def offset_record(
    group: str, topic: str, partition: int, value: OffsetCommitValue | None
) -> CoordinatorRecord:
    """Encode a committed offset, or its tombstone."""
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    encoded_key = _OFFSET_KEY + encode_message(key, 0)
    if value is None:
        return CoordinatorRecord(encoded_key, None)
    version = _VERSION
    if value.expire_timestamp >= 0:
        version = _VERSION_WITH_EXPIRY
    elif value.topic_id != ZERO_UUID:
        version = _VERSION_WITH_TOPIC_ID
    return CoordinatorRecord(encoded_key, _INT16.pack(version) + encode_message(value, version))


def group_record(group: str, value: GroupMetadataValue | None) -> CoordinatorRecord:
    """Encode a generation of a group, or the tombstone of the group."""
    key = _GROUP_KEY + encode_message(GroupMetadataKey(group=group), 0)
    if value is None:
        return CoordinatorRecord(key, None)
    return CoordinatorRecord(key, _INT16.pack(_VERSION) + encode_message(value, _VERSION))


def consumer_group_record(
    key: ConsumerGroupKey, value: ConsumerGroupValue | None
) -> CoordinatorRecord:
    """Encode a record of a consumer group, or its tombstone."""
    encoded_key = _INT16.pack(key.api_key) + encode_message(key, 0)
    if value is None:
        return CoordinatorRecord(encoded_key, None)
    version = _CONSUMER_GROUP_VERSION
    return CoordinatorRecord(encoded_key, _INT16.pack(version) + encode_message(value, version))


def decode_consumer_group(key: ConsumerGroupKey, value: bytes) -> ConsumerGroupValue:
    """Decode the value of a record of a consumer group."""
    return _decode_value(_CONSUMER_GROUP_VALUES[type(key)], value)


def decode_key(key: bytes) -> Key | None:
    """Decode the key of a `__consumer_offsets` record; None if its type is unknown."""
    known = _KEY_TYPES.get(leading_int16(key, "key"))
    if known is None:
        return None
    try:
        return decode_rest(known, 0, key)
    except ProtocolError as error:
        raise RecordError(f"key of {known.__name__}: {error}") from error


def decode_offset(value: bytes) -> OffsetCommitValue:
    """Decode the value of a record with an OffsetCommitKey."""
    return _decode_value(OffsetCommitValue, value)


def decode_group(value: bytes) -> GroupMetadataValue:
    """Decode the value of a record with a GroupMetadataKey."""
    return _decode_value(GroupMetadataValue, value)


def _decode_value(cls: type[_Value], value: bytes) -> _Value:
    version = leading_int16(value, f"value of {cls.__name__}")
    try:
        return decode_rest(cls, version, value)
    except ProtocolError as error:
        raise RecordError(f"value of {cls.__name__}, version {version}: {error}") from error


def decode_rest(cls: type[AnyMessage], version: int, data: bytes) -> AnyMessage:
    """Decode the message after the first two bytes, without a copy of the rest."""
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


_TRANSACTION_KEY_TYPE = 0
# The version that Kafka writes since transaction.version 1: the first with next and previous ids.
_TRANSACTION_VERSION = 1


def encode_transaction(
    transactional_id: str, metadata: TransactionMetadata | None
) -> CoordinatorRecord:
    """Encode the metadata of a transactional id, or its tombstone."""
    message = TransactionLogKey(transactional_id=transactional_id)
    key = _INT16.pack(_TRANSACTION_KEY_TYPE) + encode_message(message, 0)
    if metadata is None:
        return CoordinatorRecord(key, None)
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.status),
        transaction_partitions=_by_topic(metadata),
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    )
    return CoordinatorRecord(
        key, _INT16.pack(_TRANSACTION_VERSION) + encode_message(value, _TRANSACTION_VERSION)
    )


def _by_topic(metadata: TransactionMetadata) -> list[PartitionsSchema] | None:
    if metadata.status is TransactionStatus.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in metadata.partitions:
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]


def decode_transaction_key(key: bytes) -> str | None:
    """Decode the transactional id of a record's key; None if its type is unknown."""
    if leading_int16(key, "key") != _TRANSACTION_KEY_TYPE:
        return None
    try:
        return decode_rest(TransactionLogKey, 0, key).transactional_id
    except ProtocolError as error:
        raise RecordError(f"key of TransactionLogKey: {error}") from error


def decode_transaction(value: bytes) -> TransactionMetadata:
    """Decode the metadata of a transactional id."""
    version = leading_int16(value, "value of TransactionLogValue")
    try:
        message = decode_rest(TransactionLogValue, version, value)
        status = TransactionStatus(message.transaction_status)
    except (ProtocolError, ValueError) as error:
        raise RecordError(f"value of TransactionLogValue, version {version}: {error}") from error
    partitions = tuple(
        TopicPartition(topic.topic, partition)
        for topic in message.transaction_partitions or ()
        for partition in topic.partition_ids
    )
    return TransactionMetadata(
        status=status,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        timeout_ms=message.transaction_timeout_ms,
        updated_ms=message.transaction_last_update_timestamp_ms,
        start_ms=message.transaction_start_timestamp_ms,
        partitions=partitions,
        previous_producer_id=message.previous_producer_id,
        next_producer_id=message.next_producer_id,
        client_version=message.client_transaction_version,
    )
