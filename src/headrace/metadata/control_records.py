"""Control records of the metadata log and its snapshots: who leads, who votes, where one ends.

Rule: they are the quorum's. A batch of them changes no image, and is told by its header.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum

from headrace.errors import ProtocolError
from headrace.metadata.records import MetadataError
from headrace.protocol.messages.quorum_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from headrace.protocol.records import BatchHeader, Record, decode_rows, encode_batch
from headrace.protocol.schema import Message, decode_message, encode_message
from headrace.types import Buffer

_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")


class ControlType(IntEnum):
    """Kafka's numbers, which stand in the key of a control record."""

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
    """A batch of control records; each message's `version` field says how it is written."""
    rows = []
    for message in messages:
        version: int = getattr(message, "version")  # noqa: B009 - every one of these has it
        key = _KEY.pack(0, _TYPES[type(message)])
        rows.append((now_ms, key, encode_message(message, version), ()))
    return encode_batch(rows, control=True)


def decode_control_batch(data: Buffer, header: BatchHeader) -> list[Message]:
    """The messages of a control batch, without those of types that are not known here."""
    messages = (decode_control_record(row) for row in decode_rows(data, header))
    return [message for message in messages if message is not None]


def decode_control_record(record: Record) -> Message | None:
    """What a control record says; None if its type is not known here."""
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
