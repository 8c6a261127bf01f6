"""Codecs of metadata log records and control records, and the result of a command."""

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from headrace.errors import HeadraceError, ProtocolError
from headrace.metadata.features import METADATA_VERSION_MAX, record_version
from headrace.protocol.apis import encode_uvarint, read_uvarint
from headrace.protocol.batch import BatchHeader
from headrace.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.protocol.messages.quorum_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from headrace.protocol.records import Record, decode_rows, encode_batch
from headrace.protocol.schema import Message, decode_message, encode_message
from headrace.types import Buffer

FRAME_VERSION = 1

RECORD_TYPES: dict[int, type[Message]] = {
    record_type.api_key: record_type
    for record_type in (
        AccessControlEntryRecord,
        BrokerRegistrationChangeRecord,
        ClientQuotaRecord,
        ConfigRecord,
        DelegationTokenRecord,
        FeatureLevelRecord,
        FenceBrokerRecord,
        NoOpRecord,
        PartitionChangeRecord,
        PartitionRecord,
        ProducerIdsRecord,
        RegisterBrokerRecord,
        RemoveDelegationTokenRecord,
        RemoveAccessControlEntryRecord,
        RemoveTopicRecord,
        RemoveUserScramCredentialRecord,
        TopicRecord,
        UnfenceBrokerRecord,
        UnregisterBrokerRecord,
        UserScramCredentialRecord,
    )
}


class MetadataError(HeadraceError):
    """A metadata log that cannot be replayed: corrupt, or written by a newer version."""


def encode_record(record: Message, metadata_version: int = METADATA_VERSION_MAX) -> bytes:
    """Encode the value of a metadata log record for a level of `metadata.version`."""
    version = record_version(type(record), metadata_version)
    head = b"".join(map(encode_uvarint, (FRAME_VERSION, record.api_key, version)))
    return head + encode_message(record, version)


def decode_record(value: Buffer) -> Message:
    """Decode the value of a metadata log record; MetadataError if it is none."""
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


# Control records of the metadata log and its snapshots: leader changes, voters, header and footer.
#
# Rule: they belong to the quorum. A control batch changes no image; its header marks it as such.


_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")


class ControlType(IntEnum):
    """Kafka's numbers for the types of control records, part of their keys."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_TYPES: dict[type[Message], ControlType] = {
    LeaderChangeMessage: ControlType.LEADER_CHANGE,
    SnapshotHeaderRecord: ControlType.SNAPSHOT_HEADER,
    SnapshotFooterRecord: ControlType.SNAPSHOT_FOOTER,
    KRaftVersionRecord: ControlType.KRAFT_VERSION,
    VotersRecord: ControlType.KRAFT_VOTERS,
}
_MESSAGES = {int(number): message for message, number in _TYPES.items()}


def encode_control_batch(messages: Sequence[Message], now_ms: int) -> bytearray:
    """Encode a batch of control records, each at the version in its `version` field."""
    rows = []
    for message in messages:
        version: int = getattr(message, "version")  # noqa: B009 - all control records have it
        key = _KEY.pack(0, _TYPES[type(message)])
        rows.append((now_ms, key, encode_message(message, version), ()))
    return encode_batch(rows, control=True)


def decode_control_batch(data: Buffer, header: BatchHeader) -> list[Message]:
    """Decode the messages of a control batch, without those of unknown types."""
    messages = (decode_control_record(row) for row in decode_rows(data, header))
    return [message for message in messages if message is not None]


def decode_control_record(record: Record) -> Message | None:
    """Decode the message of a control record; None if its type is unknown."""
    if record.key is None or record.value is None or len(record.key) < _KEY.size:
        raise MetadataError(f"control record at offset {record.offset} has no type")
    known = _MESSAGES.get(_KEY.unpack_from(record.key)[1])
    if known is None:
        return None
    try:
        (version,) = _VERSION.unpack_from(record.value)
        return decode_message(known, version, record.value)
    except (ProtocolError, struct.error) as error:
        raise MetadataError(f"{known.__name__} at offset {record.offset}: {error}") from error


Response_co = TypeVar("Response_co", covariant=True)


@dataclass(frozen=True, slots=True)
class CommandResult(Generic[Response_co]):
    """Records to append as one batch, and the response to send once they are durable.

    Without records the response may be sent at once.
    """

    records: tuple[Message, ...]
    response: Response_co


def repeated_names(names: Iterable[str]) -> set[str]:
    """The names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}
