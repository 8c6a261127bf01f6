"""Records of `__transaction_state` as bytes, as Kafka writes them."""

from struct import Struct

from headrace.coordinator.records import RecordError, decode_rest, leading_int16
from headrace.coordinator.shard import Record
from headrace.coordinator.transactions.metadata import TransactionMetadata
from headrace.coordinator.transactions.values import Status
from headrace.errors import ProtocolError
from headrace.protocol.messages.transaction_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from headrace.protocol.schema import encode_message
from headrace.types import TopicPartition

_INT16 = Struct(">h")
_KEY_TYPE = 0
# What Kafka writes from transaction.version 1 on: the first one with room for other producer ids.
_VERSION = 1


def encode_transaction(transactional_id: str, metadata: TransactionMetadata | None) -> Record:
    """What is kept of a transactional id, or its tombstone."""
    message = TransactionLogKey(transactional_id=transactional_id)
    key = _INT16.pack(_KEY_TYPE) + encode_message(message, 0)
    if metadata is None:
        return Record(key, None)
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
    return Record(key, _INT16.pack(_VERSION) + encode_message(value, _VERSION))


def _by_topic(metadata: TransactionMetadata) -> list[PartitionsSchema] | None:
    if metadata.status is Status.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in metadata.partitions:
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]


def decode_key(key: bytes) -> str | None:
    """The transactional id of a record; None for a type that only a newer version knows."""
    if leading_int16(key, "key") != _KEY_TYPE:
        return None
    try:
        return decode_rest(TransactionLogKey, 0, key).transactional_id
    except ProtocolError as error:
        raise RecordError(f"key of TransactionLogKey: {error}") from error


def decode_transaction(value: bytes) -> TransactionMetadata:
    """The value beside a transactional id."""
    version = leading_int16(value, "value of TransactionLogValue")
    try:
        message = decode_rest(TransactionLogValue, version, value)
        status = Status(message.transaction_status)
    except (ProtocolError, ValueError) as error:
        raise RecordError(f"value of TransactionLogValue, version {version}: {error}") from error
    partitions = tuple(
        TopicPartition(one.topic, partition)
        for one in message.transaction_partitions or ()
        for partition in one.partition_ids
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
