# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The table of the last offset of every key, of a fixed size, and the pass that fills it."""

from __future__ import annotations

import mmap
from contextlib import suppress

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
    from cython.cimports.headrace.storage.compaction.batch_walk import (
        RecordLayout,
        load_number,
        plain_size,
        read_record,
    )
else:
    from headrace.storage.compaction.batch_walk import (
        RecordLayout,
        load_number,
        plain_size,
        read_record,
    )

# The table of the last offset of every key, of a fixed size.
#
# Rule: a key is identified by its 128-bit hash alone. The hash is SipHash-2-4 under a secret of the
# process, so collisions cannot be made on purpose, and by chance they do not happen.


COMPILED = cython.compiled

SECRET_SIZE = 16
SLOT_SIZE = 24  # Two words of hash, and the offset plus one: 0 is a free slot.

# Typed variables, because compiled expressions take such literals for Python objects.
_WORD = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_INIT_0 = cython.declare(cython.ulonglong, 0x736F6D6570736575)
_INIT_1 = cython.declare(cython.ulonglong, 0x646F72616E646F6D ^ 0xEE)  # 128 bits of result
_INIT_2 = cython.declare(cython.ulonglong, 0x6C7967656E657261)
_INIT_3 = cython.declare(cython.ulonglong, 0x7465646279746573)
_FINAL_LOW = cython.declare(cython.ulonglong, 0xEE)
_FINAL_HIGH = cython.declare(cython.ulonglong, 0xDD)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _byte(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.ulonglong:
    return data[position]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.ulonglong:
    return (
        _byte(data, position)
        | (_byte(data, position + 1) << 8)
        | (_byte(data, position + 2) << 16)
        | (_byte(data, position + 3) << 24)
        | (_byte(data, position + 4) << 32)
        | (_byte(data, position + 5) << 40)
        | (_byte(data, position + 6) << 48)
        | (_byte(data, position + 7) << 56)
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotated(word: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    # The mask keeps the uncompiled form at 64 bits; in C it costs nothing.
    return ((word << bits) | (word >> (64 - bits))) & _WORD


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _round(
    v0: cython.ulonglong, v1: cython.ulonglong, v2: cython.ulonglong, v3: cython.ulonglong
) -> tuple[cython.ulonglong, cython.ulonglong, cython.ulonglong, cython.ulonglong]:
    v0 = (v0 + v1) & _WORD
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 = (v2 + v3) & _WORD
    v3 = _rotated(v3, 16) ^ v2
    v0 = (v0 + v3) & _WORD
    v3 = _rotated(v3, 21) ^ v0
    v2 = (v2 + v1) & _WORD
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash(
    key_0: cython.ulonglong,
    key_1: cython.ulonglong,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> tuple[cython.ulonglong, cython.ulonglong]:
    """SipHash-2-4 with 128 bits of result."""
    v0: cython.ulonglong = _INIT_0 ^ key_0
    v1: cython.ulonglong = _INIT_1 ^ key_1
    v2: cython.ulonglong = _INIT_2 ^ key_0
    v3: cython.ulonglong = _INIT_3 ^ key_1
    low: cython.ulonglong
    word: cython.ulonglong
    turn: cython.int
    position: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + size - size % 8
    while position < end:
        word = _word(data, position)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    word = cython.cast(cython.ulonglong, size & 255) << 56
    while position < start + size:
        word |= _byte(data, position) << (8 * (position - end))
        position += 1
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _FINAL_LOW
    for turn in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _FINAL_HIGH
    for turn in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@cython.final
@cython.cclass
class KeyTable:
    """An open-addressing table from keys to offsets in `slots` slots, of which `limit` are used.

    The memory is an anonymous map: pages without keys take no memory. Huge pages are used where the
    system has them, since successive keys lie in different pages.
    """

    def __init__(self, slots: cython.Py_ssize_t, limit: cython.Py_ssize_t, secret: bytes) -> None:
        if not 0 < limit < slots:
            raise ValueError(f"{limit} keys in {slots} slots: one slot must stay free")
        if len(secret) != SECRET_SIZE:
            raise ValueError(f"a secret has {SECRET_SIZE} bytes, not {len(secret)}")
        self.slots = slots
        self.limit = limit
        self.count = 0
        self._key_0 = int.from_bytes(secret[:8], "little")
        self._key_1 = int.from_bytes(secret[8:], "little")
        memory = mmap.mmap(-1, slots * SLOT_SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # The kernel was built without huge pages.
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(memory).cast("Q")
        self._words = cython.address(self._view[0]) if cython.compiled else self._view

    def __len__(self) -> int:
        return self.count

    def put(self, key: bytes, offset: cython.longlong) -> bool:
        """Store `offset` for a key, if it is larger; False if the key is new and the table full."""
        return put_key(self, key, 0, len(key), offset)

    def get(self, key: bytes) -> int:
        """The largest offset stored for a key, or -1."""
        return find_key(self, key, 0, len(key))

    def digest(self, key: bytes) -> bytes:
        """The hash of a key, for tests."""
        low, high = _hash(self._key_0, self._key_1, key, 0, len(key))
        return int(low).to_bytes(8, "little") + int(high).to_bytes(8, "little")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _slot_of(table: KeyTable, low: cython.ulonglong, high: cython.ulonglong) -> cython.Py_ssize_t:
    """The index of the first word of a hash's slot, or of the free slot for it."""
    slot: cython.Py_ssize_t = cython.cast(
        cython.Py_ssize_t, low % cython.cast(cython.ulonglong, table.slots)
    )
    at: cython.Py_ssize_t = slot * 3
    # The loop ends, since a slot is always free.
    while table._words[at + 2] and (table._words[at] != low or table._words[at + 1] != high):
        slot += 1
        at += 3
        if slot == table.slots:
            slot = at = 0
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_key(
    table: KeyTable,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    offset: cython.longlong,
) -> cython.bint:
    """Do `KeyTable.put` without the GIL; `key_table.pxd` exports it."""
    low: cython.ulonglong
    high: cython.ulonglong
    low, high = _hash(table._key_0, table._key_1, data, start, size)
    at: cython.Py_ssize_t = _slot_of(table, low, high)
    value: cython.ulonglong = cython.cast(cython.ulonglong, offset) + 1
    if not table._words[at + 2]:
        if table.count >= table.limit:
            return False
        table.count += 1
        table._words[at] = low
        table._words[at + 1] = high
        table._words[at + 2] = value
    elif value > table._words[at + 2]:
        table._words[at + 2] = value
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_key(
    table: KeyTable,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.longlong:
    """Do `KeyTable.get` without the GIL; `key_table.pxd` exports it."""
    low: cython.ulonglong
    high: cython.ulonglong
    low, high = _hash(table._key_0, table._key_1, data, start, size)
    return cython.cast(cython.longlong, table._words[_slot_of(table, low, high) + 2]) - 1


# The first pass of compaction over record batches: index the last offset of every key.
#
# Rule: plain batches, not compressed and of no transaction, are indexed many at a time without the
# GIL. Before any other batch, and before a malformed batch, the pass stops, and the caller handles
# that batch alone.


_HEADER_SIZE = cython.declare(cython.Py_ssize_t, HEADER_SIZE)
_LAST_OFFSET_DELTA_AT = cython.declare(cython.Py_ssize_t, LAST_OFFSET_DELTA_AT)
_COUNT_AT = cython.declare(cython.Py_ssize_t, COUNT_AT)
_CORRUPT = cython.declare(cython.int, -1)


@cython.final
@cython.cclass
class KeyIndexer:
    """The first pass of compaction: index the keys from `from_offset` on until the table is full.

    The keys of all records in [from_offset, next_offset) are in the table.
    """

    def __init__(self, table: KeyTable, from_offset: cython.longlong) -> None:
        self._table = table
        self._record = RecordLayout()
        self._from_offset = from_offset
        self.next_offset = from_offset
        self.is_full = False

    def index_batches(self, chunk: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
        """Index the plain batches of [start, end); return the position of the first not indexed."""
        view: cython.const[cython.uchar][::1] = chunk
        data: cython.p_const_uchar = cython.address(view[0]) if cython.compiled else view
        assert end <= len(chunk), end
        with cython.nogil:
            start = _index_batches(self, self._table, self._record, data, start, end)
        return start

    def index_records(self, payload: object, header) -> None:
        """Index the records of one batch, given decompressed."""
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
            self.skip_batch(header)

    def skip_batch(self, header) -> None:
        """Continue behind a batch whose keys need not be indexed."""
        self.next_offset = max(self.next_offset, header.next_offset)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _index_batches(
    indexer: KeyIndexer,
    table: KeyTable,
    record: RecordLayout,
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
    indexer: KeyIndexer,
    table: KeyTable,
    record: RecordLayout,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    base_offset: cython.longlong,
    count: cython.longlong,
) -> cython.int:
    """Index records; return 0 if all were indexed, 1 if the table is full, -1 if malformed."""
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
