# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The second pass of compaction: keeps the latest record of every key, drops old tombstones.

Rule: as in `key_table`, plain batches are filtered many at a time without the GIL, and the others
one at a time by the caller. Offsets, producers and sequences of a batch never change.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import CorruptBatch
from headrace.protocol.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CONTROL_BIT,
    COUNT_AT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    byte_view,
)

if cython.compiled:
    from cython.cimports.headrace.protocol.arrays import int64s, uint8s
    from cython.cimports.headrace.protocol.column_encoder import number_size, put_number
    from cython.cimports.headrace.storage.compaction.batch_walk import (
        RecordLayout,
        load_number,
        plain_size,
        read_record,
    )
    from cython.cimports.headrace.storage.compaction.key_table import KeyTable, find_key
    from cython.cimports.headrace.storage.compaction.output import (
        CompactionOutput,
        copy_bytes,
        put_batch,
        put_changed,
        put_empty,
    )
else:
    from headrace.protocol.arrays import int64s, uint8s
    from headrace.protocol.column_encoder import number_size, put_number
    from headrace.storage.compaction.batch_walk import (
        RecordLayout,
        load_number,
        plain_size,
        read_record,
    )
    from headrace.storage.compaction.key_table import KeyTable, find_key
    from headrace.storage.compaction.output import (
        CompactionOutput,
        copy_bytes,
        put_batch,
        put_changed,
        put_empty,
    )

COMPILED = cython.compiled

# The records that remain of a batch: none, all, or some of them.
NOTHING = 0
EVERYTHING = 1
SOMETHING = 2

_NOTHING = cython.declare(cython.int, NOTHING)
_EVERYTHING = cython.declare(cython.int, EVERYTHING)
_SOMETHING = cython.declare(cython.int, SOMETHING)
_CORRUPT = cython.declare(cython.int, -1)

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, HEADER_SIZE)
_ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, ATTRIBUTES_AT)
_LAST_OFFSET_DELTA_AT = cython.declare(cython.Py_ssize_t, LAST_OFFSET_DELTA_AT)
_BASE_TIMESTAMP_AT = cython.declare(cython.Py_ssize_t, BASE_TIMESTAMP_AT)
_COUNT_AT = cython.declare(cython.Py_ssize_t, COUNT_AT)

_CONTROL = cython.declare(cython.longlong, CONTROL_BIT)
_DELETE_HORIZON = cython.declare(cython.longlong, DELETE_HORIZON_BIT)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)

# A record has at least its length and six more numbers; a new timestamp may add so many bytes.
_RECORD_SIZE_MIN = cython.declare(cython.Py_ssize_t, 7)
_RECORD_GROWTH_MAX = cython.declare(cython.Py_ssize_t, 14)


@cython.final
@cython.cclass
class RecordFilter:
    """The second pass of compaction: writes the remaining records of batches to `output`.

    Records from `table_end` on are kept, and of the others those without a later record of their
    key in the table. A tombstone is kept until the delete horizon of its batch, which becomes
    `horizon_ms` if it has none yet. A batch whose last offset is in `kept_offsets`, which are
    sorted, is never dropped, even if it has no records left.
    """

    def __init__(
        self,
        table: KeyTable,
        output: CompactionOutput,
        table_end: cython.longlong,
        now_ms: cython.longlong,
        horizon_ms: cython.longlong,
        kept_offsets: list,
    ) -> None:
        self._table = table
        self._output = output
        self._record = RecordLayout()
        self._table_end = table_end
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._kept_array = bytearray(8 * len(kept_offsets))
        self._kept_offsets = int64s(self._kept_array)
        self._kept_count = len(kept_offsets)
        index: cython.Py_ssize_t
        for index in range(self._kept_count):
            self._kept_offsets[index] = kept_offsets[index]
        self._marks_array = bytearray()
        self._kept_records = bytearray()
        self.records_read = self.records_kept = 0

    def is_kept(self, last_offset: cython.longlong) -> bool:
        """Whether the batch with that last offset stays, even if it is empty."""
        return _is_kept(self, last_offset)

    def filter_batches(
        self,
        chunk: object,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        last_at: cython.Py_ssize_t,
    ) -> int:
        """Filter the plain batches of [start, end); return the position of the first not filtered.

        It also stops before a batch for which the output has no room. The batch that ends at
        `last_at` is never dropped.
        """
        view: cython.const[cython.uchar][::1] = chunk
        data: cython.p_const_uchar = cython.address(view[0]) if cython.compiled else view
        assert end <= len(chunk), end
        self._set_marks((end - start) // _RECORD_SIZE_MIN)
        with cython.nogil:
            start = _filter_batches(
                self, self._table, self._output, self._record, data, start, end, last_at
            )
        return start

    @cython.cfunc
    def _set_marks(self, count: cython.Py_ssize_t):
        if len(self._marks_array) <= count:
            self._marks_array = bytearray(count + 1)
        self._marks = uint8s(self._marks_array)

    def filter_records(
        self, payload: object, header, discard: cython.bint, wants_horizon: cython.bint
    ) -> int:
        """Filter the decompressed records of one batch; return NOTHING, EVERYTHING or SOMETHING.

        With `discard` none remain. A delete horizon is set if a tombstone remains, or for a marker
        with `wants_horizon`.
        """
        view = byte_view(payload)
        left: cython.int = _NOTHING
        size: cython.Py_ssize_t = len(view)
        count: cython.longlong = header.record_count
        base_offset: cython.longlong = header.base_offset
        base_timestamp: cython.longlong = header.base_timestamp
        attributes: cython.longlong = header.attributes
        records: cython.const[cython.uchar][::1]
        data: cython.p_const_uchar
        if count > size // _RECORD_SIZE_MIN:
            raise CorruptBatch(f"{size} bytes cannot hold the records of {header}")
        self._set_marks(count)
        if size:
            records = view
            data = cython.address(records[0]) if cython.compiled else records
            with cython.nogil:
                left = _mark_kept(
                    self,
                    self._table,
                    self._record,
                    data,
                    0,
                    size,
                    base_offset,
                    base_timestamp,
                    attributes,
                    count,
                    discard,
                    wants_horizon,
                )
        if left < 0:
            raise CorruptBatch(f"the records of {header} are malformed")
        return left

    def kept_records(self, payload: object, header) -> memoryview:
        """The records of `payload` that the last `filter_records` kept, until the next call."""
        size: cython.Py_ssize_t = len(payload)
        room: cython.Py_ssize_t = size + header.record_count * _RECORD_GROWTH_MAX
        base_timestamp: cython.longlong = header.base_timestamp
        if len(self._kept_records) < room:
            self._kept_records = bytearray(room)
        out: cython.p_uchar = uint8s(self._kept_records)
        records: cython.const[cython.uchar][::1] = byte_view(payload)
        data: cython.p_const_uchar = cython.address(records[0]) if cython.compiled else records
        with cython.nogil:
            size = _copy_kept(self, self._record, out, 0, data, 0, size, base_timestamp)
        return memoryview(self._kept_records)[:size]

    def put(
        self, chunk: object, header, left: cython.int, body: object = b"", into: object = None
    ) -> None:
        """Write the batch of the last `filter_records` to the output; `body` are its records.

        The batch is in `chunk`; `body` is used if some of its records remain. `into` is another
        output than that of all batches.
        """
        output: CompactionOutput = self._output if into is None else into
        position: cython.Py_ssize_t = header.position
        view: cython.const[cython.uchar][::1] = chunk
        data: cython.p_const_uchar = cython.address(view[0]) if cython.compiled else view
        size: cython.Py_ssize_t = len(body)
        at: cython.Py_ssize_t = output.used + _HEADER_SIZE
        if left == _EVERYTHING:
            size = header.size
            assert size <= output.capacity - output.used, size
            put_batch(output, data, position, size)
            return
        assert at + size <= output.capacity, size
        if left == _NOTHING:
            put_empty(output, data, position)
        else:
            output.data[at : at + size] = body
            _put_kept(self, output, data, position, size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_kept(rules: RecordFilter, last_offset: cython.longlong) -> cython.bint:
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = rules._kept_count
    middle: cython.Py_ssize_t
    while low < high:
        middle = (low + high) // 2
        if rules._kept_offsets[middle] < last_offset:
            low = middle + 1
        else:
            high = middle
    return low < rules._kept_count and rules._kept_offsets[low] == last_offset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _filter_batches(
    rules: RecordFilter,
    table: KeyTable,
    output: CompactionOutput,
    record: RecordLayout,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    last_at: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t
    count: cython.longlong
    base_offset: cython.longlong
    base_timestamp: cython.longlong
    records_at: cython.Py_ssize_t
    records_end: cython.Py_ssize_t
    left: cython.int
    while True:
        size = plain_size(data, position, limit)
        if size == 0:
            break
        count = load_number(data, position + _COUNT_AT, 4)
        if (
            count > (size - _HEADER_SIZE) // _RECORD_SIZE_MIN
            or size + count * _RECORD_GROWTH_MAX > output.capacity - output.used
        ):
            break
        base_offset = load_number(data, position, 8)
        base_timestamp = load_number(data, position + _BASE_TIMESTAMP_AT, 8)
        left = _mark_kept(
            rules,
            table,
            record,
            data,
            position + _HEADER_SIZE,
            position + size,
            base_offset,
            base_timestamp,
            load_number(data, position + _ATTRIBUTES_AT, 2),
            count,
            False,
            False,
        )
        if left < 0:
            break
        if left == _EVERYTHING:
            put_batch(output, data, position, size)
        elif left == _SOMETHING:
            records_at = output.used + _HEADER_SIZE
            records_end = _copy_kept(
                rules,
                record,
                output.bytes,
                records_at,
                data,
                position + _HEADER_SIZE,
                position + size,
                base_timestamp,
            )
            _put_kept(rules, output, data, position, records_end - records_at)
        elif position + size == last_at or _is_kept(
            rules, base_offset + load_number(data, position + _LAST_OFFSET_DELTA_AT, 4)
        ):
            put_empty(output, data, position)
        position += size
    return position


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _mark_kept(
    rules: RecordFilter,
    table: KeyTable,
    record: RecordLayout,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    attributes: cython.longlong,
    count: cython.longlong,
    discard: cython.bint,
    wants_horizon: cython.bint,
) -> cython.int:
    """Mark the records that remain; return how many as `filter_records`, or -1 if malformed."""
    offset: cython.longlong
    stays: cython.bint
    index: cython.longlong
    kept: cython.longlong = 0
    has_horizon: cython.bint = attributes & _DELETE_HORIZON != 0
    expired: cython.bint = has_horizon and base_timestamp <= rules._now_ms
    rules._left_max_timestamp = _INT64_MIN
    rules._sets_horizon = wants_horizon and not has_horizon
    for index in range(count):
        position = read_record(record, data, position, limit)
        if position < 0:
            return _CORRUPT
        offset = base_offset + record.offset_delta
        if discard:
            stays = False
        elif attributes & _CONTROL or offset >= rules._table_end:
            stays = True
        elif record.key_size < 0 or (record.value_size < 0 and expired):
            stays = False
        else:
            stays = offset >= find_key(table, data, record.key_at, record.key_size)
            if stays and record.value_size < 0 and not has_horizon:
                rules._sets_horizon = True
        rules._marks[index] = stays
        if stays:
            kept += 1
            rules._left_max_timestamp = max(
                rules._left_max_timestamp, base_timestamp + record.time_delta
            )
    if position != limit:
        return _CORRUPT
    rules.records_read += count
    rules.records_kept += kept
    rules._left_count = kept
    rules._marked_count = count
    if kept == 0:
        return _NOTHING
    return _EVERYTHING if kept == count and not rules._sets_horizon else _SOMETHING


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_kept(
    rules: RecordFilter,
    record: RecordLayout,
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
) -> cython.Py_ssize_t:
    """Copy the marked records, with new time deltas if a horizon is set; return their end."""
    start: cython.Py_ssize_t
    index: cython.longlong
    time_delta: cython.longlong
    for index in range(rules._marked_count):
        start = position
        position = read_record(record, data, position, limit)
        if not rules._marks[index]:
            continue
        if not rules._sets_horizon:
            copy_bytes(out, at, data, start, position - start)
            at += position - start
            continue
        time_delta = base_timestamp + record.time_delta - rules._horizon_ms
        at = put_number(out, at, 1 + number_size(time_delta) + (position - record.after_time))
        out[at] = data[record.body]
        at = put_number(out, at + 1, time_delta)
        copy_bytes(out, at, data, record.after_time, position - record.after_time)
        at += position - record.after_time
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_kept(
    rules: RecordFilter,
    output: CompactionOutput,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    put_changed(
        output,
        data,
        position,
        size,
        rules._left_count,
        rules._left_max_timestamp,
        rules._sets_horizon,
        rules._horizon_ms,
    )
