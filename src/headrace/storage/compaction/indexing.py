# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The first pass of compaction over record batches: note the last offset of every key.

Rule: batches that are not compressed and of no transaction are gone through many at a time without
the GIL. Where one needs more than that, or is not what it should be, the pass stops before it, and
the caller takes it alone.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import CorruptBatch
from headrace.protocol.batch import (
    COUNT_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    byte_view,
)

if cython.compiled:
    from cython.cimports.headrace.storage.compaction.keys import KeyTable, put_key
    from cython.cimports.headrace.storage.compaction.walking import (
        Record,
        load_number,
        plain_size,
        read_record,
    )
else:
    from headrace.storage.compaction.keys import KeyTable, put_key
    from headrace.storage.compaction.walking import Record, load_number, plain_size, read_record

COMPILED = cython.compiled

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, HEADER_SIZE)
_LAST_OFFSET_DELTA_AT = cython.declare(cython.Py_ssize_t, LAST_OFFSET_DELTA_AT)
_COUNT_AT = cython.declare(cython.Py_ssize_t, COUNT_AT)
_CORRUPT = cython.declare(cython.int, -1)


@cython.final
@cython.cclass
class Indexer:
    """The first pass: every key from `from_offset` on goes into the table, until that is full.

    `next_offset` is how far the table reaches: every record between the two is in it.
    """

    def __init__(self, table: KeyTable, from_offset: cython.longlong) -> None:
        self._table = table
        self._record = Record()
        self._from_offset = from_offset
        self.next_offset = from_offset
        self.is_full = False

    def take(self, chunk: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
        """Note the plain batches of [start, end); the position of the first that is left."""
        view: cython.const[cython.uchar][::1] = chunk
        data: cython.p_const_uchar = cython.address(view[0]) if cython.compiled else view
        assert end <= len(chunk), end
        with cython.nogil:
            start = _index_batches(self, self._table, self._record, data, start, end)
        return start

    def take_records(self, payload: object, header) -> None:
        """Note the records of one batch, given decompressed."""
        view = byte_view(payload)
        outcome: cython.int = 0
        count: cython.longlong = header.record_count
        base_offset: cython.longlong = header.base_offset
        size: cython.Py_ssize_t = len(view)
        records: cython.const[cython.uchar][::1]
        data: cython.p_const_uchar
        if size:
            records = view
            data = cython.address(records[0]) if cython.compiled else records
            with cython.nogil:
                outcome = _index_records(
                    self, self._table, self._record, data, 0, size, base_offset, count
                )
        if outcome < 0 or (count and not size):
            raise CorruptBatch(f"the records of {header} are malformed")
        if not outcome:
            self.pass_over(header)

    def pass_over(self, header) -> None:
        """Go on behind a batch of which no key counts."""
        self.next_offset = max(self.next_offset, header.next_offset)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _index_batches(
    indexer: Indexer,
    table: KeyTable,
    record: Record,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t
    base_offset: cython.longlong
    next_offset: cython.longlong
    outcome: cython.int
    while not indexer.is_full:
        size = plain_size(data, position, limit)
        if size == 0:
            break
        base_offset = load_number(data, position, 8)
        next_offset = base_offset + load_number(data, position + _LAST_OFFSET_DELTA_AT, 4) + 1
        if next_offset > indexer._from_offset:
            outcome = _index_records(
                indexer,
                table,
                record,
                data,
                position + _HEADER_SIZE,
                position + size,
                base_offset,
                load_number(data, position + _COUNT_AT, 4),
            )
            if outcome:
                break
            indexer.next_offset = max(indexer.next_offset, next_offset)
        position += size
    return position


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _index_records(
    indexer: Indexer,
    table: KeyTable,
    record: Record,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base_offset: cython.longlong,
    count: cython.longlong,
) -> cython.int:
    """0 if all were noted, 1 if the table is full before, -1 if they are malformed."""
    offset: cython.longlong
    while count > 0:
        count -= 1
        position = read_record(record, data, position, limit)
        if position < 0:
            return _CORRUPT
        offset = base_offset + record.offset_delta
        if offset < indexer._from_offset or record.key_size < 0:
            continue
        if not put_key(table, data, record.key_at, record.key_size, offset):
            indexer.is_full = True
            indexer.next_offset = max(indexer.next_offset, offset)
            return 1
    return 0 if position == limit else _CORRUPT
