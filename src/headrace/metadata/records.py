"""Metadata records as bytes of the metadata log: frame version, type, version, then the fields."""

from headrace.errors import HeadraceError, ProtocolError
from headrace.metadata.features import METADATA_VERSION_MAX, record_version
from headrace.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.protocol.schema import Message, decode_message, encode_message
from headrace.protocol.varints import encode_uvarint, read_uvarint
from headrace.types import Buffer

FRAME_VERSION = 1

RECORD_TYPES: dict[int, type[Message]] = {
    record_type.api_key: record_type
    for record_type in (
        BrokerRegistrationChangeRecord,
        ConfigRecord,
        FeatureLevelRecord,
        FenceBrokerRecord,
        NoOpRecord,
        PartitionChangeRecord,
        PartitionRecord,
        ProducerIdsRecord,
        RegisterBrokerRecord,
        RemoveTopicRecord,
        TopicRecord,
        UnfenceBrokerRecord,
        UnregisterBrokerRecord,
    )
}


class MetadataError(HeadraceError):
    """A metadata log that cannot be replayed: corrupt, or written by a version that knows more."""


def encode_record(record: Message, metadata_version: int = METADATA_VERSION_MAX) -> bytes:
    """The value of a metadata log record, as it is written at a level of `metadata.version`."""
    version = record_version(type(record), metadata_version)
    head = b"".join(map(encode_uvarint, (FRAME_VERSION, record.api_key, version)))
    return head + encode_message(record, version)


def decode_record(value: Buffer) -> Message:
    """The inverse of `encode_record`; MetadataError for anything else."""
    try:
        frame_version, position = read_uvarint(value, 0)
        record_type, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except ProtocolError as error:
        raise MetadataError(f"metadata record without a head: {error}") from error
    if frame_version != FRAME_VERSION:
        raise MetadataError(f"metadata record has frame version {frame_version}, not 1")
    known = RECORD_TYPES.get(record_type)
    if known is None:
        raise MetadataError(f"metadata record has the unknown type {record_type}")
    try:
        return decode_message(known, version, memoryview(value)[position:])
    except ProtocolError as error:
        raise MetadataError(f"metadata record of type {known.__name__}: {error}") from error
