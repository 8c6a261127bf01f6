# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The records that a consumer returns, decoded from what `record_scan` has checked.

Rule: a record costs one object, and one for each of key and value; topic and empty headers are
shared, numbers are kept as C numbers.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import CorruptBatch
from headrace.protocol.compression import EXPANDED_BYTES_MAX

if cython.compiled:
    from cython.cimports.headrace.protocol.record_scan import (
        BatchReader,
        RecordScan,
        cell_of,
        headers_of,
    )
else:
    from headrace.protocol.record_scan import BatchReader, RecordScan, cell_of, headers_of

COMPILED = cython.compiled

# The length up to which keys and values are shown in the repr of a record.
_SHOWN_MAX = 64


def _shown(cell) -> str:
    """The repr of a key or value, cut off if it is long."""
    if isinstance(cell, bytes | bytearray | str) and len(cell) > _SHOWN_MAX:
        unit = "characters" if isinstance(cell, str) else "bytes"
        return f"{cell[:_SHOWN_MAX]!r}... ({len(cell)} {unit})"
    text = repr(cell)
    return text if len(text) <= 4 * _SHOWN_MAX else f"{text[: 4 * _SHOWN_MAX]}..."


# Records are not tracked by the garbage collector, which would otherwise traverse all live records
# again and again. A record in a reference cycle with its own value is never freed.
@cython.final
@cython.no_gc
@cython.freelist(512)
@cython.cclass
class ConsumerRecord:
    """A record as an application reads it.

    `timestamp` is in milliseconds; `timestamp_type` is 0 if the producer set it, 1 if the log did
    when it appended. Key and value are bytes or None until a deserializer replaces them.
    """

    topic = cython.declare(str, visibility="readonly")
    partition = cython.declare(cython.int, visibility="readonly")
    leader_epoch = cython.declare(cython.int, visibility="readonly")
    offset = cython.declare(cython.longlong, visibility="readonly")
    timestamp = cython.declare(cython.longlong, visibility="readonly")
    timestamp_type = cython.declare(cython.int, visibility="readonly")
    key = cython.declare(object, visibility="public")
    value = cython.declare(object, visibility="public")
    headers = cython.declare(tuple, visibility="readonly")

    def __init__(
        self,
        topic,
        partition,
        offset,
        timestamp=-1,
        timestamp_type=0,
        key=None,
        value=None,
        headers=(),
        leader_epoch=-1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = tuple(headers)
        self.leader_epoch = leader_epoch

    def __reduce__(self):
        return ConsumerRecord, _fields(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, "
            f"offset={self.offset}, timestamp={self.timestamp}, "
            f"timestamp_type={self.timestamp_type}, key={_shown(self.key)}, "
            f"value={_shown(self.value)}, headers={_shown(self.headers)}, "
            f"leader_epoch={self.leader_epoch})"
        )


@cython.cfunc
def _fields(record: ConsumerRecord) -> tuple:
    return (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
        record.leader_epoch,
    )


@cython.cfunc
def _add_records(records: list, scan: RecordScan, topic: str, partition: cython.int):
    record: ConsumerRecord
    row: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    timestamp_type: cython.int = 1 if scan.is_log_append_time else 0
    leader_epoch: cython.int = scan.leader_epoch
    for row in range(scan.count):
        record = ConsumerRecord.__new__(ConsumerRecord)
        record.topic = topic
        record.partition = partition
        record.offset = scan._offsets[row]
        record.timestamp = scan._timestamps[row]
        record.timestamp_type = timestamp_type
        record.leader_epoch = leader_epoch
        record.key = cell_of(scan, scan.keys, row)
        record.value = cell_of(scan, scan.values, row)
        end = first + scan._header_counts[row]
        record.headers = headers_of(scan, first, end) if end > first else ()
        first = end
        records.append(record)


def decode_batches(
    buffer,
    topic: str,
    partition: cython.int,
    position: cython.Py_ssize_t = 0,
    end=None,
    from_offset: cython.longlong = 0,
    records_min: cython.Py_ssize_t = 1,
    max_bytes: cython.longlong = EXPANDED_BYTES_MAX,
    check_crcs: cython.bint = True,
) -> tuple:
    """Decode whole batches until there are `records_min` records, from `from_offset` on.

    Returns the records, and the position and the offset to continue at. Control batches are
    skipped, a partial batch ends the list. A corrupt batch that follows good ones is left for the
    next call, which raises `CorruptBatch`.
    """
    reader: BatchReader = BatchReader(
        buffer, position, end, from_offset, max_bytes, check_crcs, False
    )
    records: list = []
    scan: RecordScan
    while len(records) < records_min:
        try:
            scan = reader.read()
        except CorruptBatch:
            if not records:
                raise
            break
        if scan is None:
            break
        _add_records(records, scan, topic, partition)
    return records, reader.position, reader.next_offset


def decode_records(
    buffer,
    topic: str,
    partition: cython.int,
    position: cython.Py_ssize_t = 0,
    end=None,
    from_offset: cython.longlong = 0,
    max_bytes: cython.longlong = EXPANDED_BYTES_MAX,
    check_crcs: cython.bint = True,
) -> list:
    """The records of all whole batches in [position, end); CorruptBatch if any is corrupt."""
    reader: BatchReader = BatchReader(
        buffer, position, end, from_offset, max_bytes, check_crcs, False
    )
    records: list = []
    scan: RecordScan = reader.read()
    while scan is not None:
        _add_records(records, scan, topic, partition)
        scan = reader.read()
    return records
