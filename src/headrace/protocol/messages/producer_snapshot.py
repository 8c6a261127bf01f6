"""The file beside a segment that keeps producer state."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    uint32,
)


class ProducerEntry(Struct):
    producer_id: int = int64(default=0)
    epoch: int = int16(default=0)
    last_sequence: int = int32(default=0)
    last_offset: int = int64(default=0)
    offset_delta: int = int32(default=0)
    timestamp: int = int64(default=0)
    coordinator_epoch: int = int32(default=0)
    current_txn_first_offset: int = int64(default=0)


class ProducerSnapshot(Message, versions=(1, 1)):
    crc: int = uint32(default=0)
    producer_entries: list[ProducerEntry] = array(ProducerEntry, default=...)
