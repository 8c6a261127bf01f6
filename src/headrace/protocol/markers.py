"""Transaction markers: control batches of one record that end a transaction in a partition."""

from struct import Struct
from typing import NamedTuple

from headrace.errors import CorruptBatch, ProtocolError
from headrace.protocol.batch import BatchHeader
from headrace.protocol.messages.transaction_records import EndTxnMarker
from headrace.protocol.records import decode_rows, encode_batch
from headrace.protocol.schema import decode_message, encode_message
from headrace.types import Buffer

_KEY = Struct(">hh")  # Version and type.
_VERSION = Struct(">h")
_ABORT = 0
_COMMIT = 1


class Marker(NamedTuple):
    """The end of a transaction. `coordinator_epoch` is the transaction coordinator's epoch."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool


def encode_marker(marker: Marker, now_ms: int) -> bytearray:
    """The control batch of a marker, with base offset 0."""
    key = _KEY.pack(0, _COMMIT if marker.committed else _ABORT)
    value = _VERSION.pack(0) + encode_message(
        EndTxnMarker(coordinator_epoch=marker.coordinator_epoch), 0
    )
    return encode_batch(
        [(now_ms, key, value, ())],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(data: Buffer, header: BatchHeader) -> Marker | None:
    """The marker in a control batch; None if the control batch is of another kind or empty."""
    rows = decode_rows(data, header)
    if not rows:
        return None  # Compaction keeps the batch for its producer, without the record.
    key, value = rows[0].key, rows[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"the control record at offset {header.base_offset} has no type")
    kind = _KEY.unpack_from(key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    try:
        if value is None or len(value) < _VERSION.size:
            raise ProtocolError("it has no version")
        # Later versions, if there ever are any, begin with the fields of version 0.
        marker = decode_message(EndTxnMarker, 0, value[_VERSION.size : _VERSION.size + 4])
    except ProtocolError as error:
        raise CorruptBatch(f"the marker at offset {header.base_offset}: {error}") from error
    return Marker(
        header.producer_id, header.producer_epoch, marker.coordinator_epoch, kind == _COMMIT
    )
