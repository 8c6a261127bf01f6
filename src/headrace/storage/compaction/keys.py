# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The last offset of every key, in memory of a fixed size.

Rule: a key is known by its 128 bit hash alone. The hash is SipHash-2-4 under a secret of the
process, so nobody can make keys that meet in it, and by chance it does not happen.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

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

    The memory is anonymous and mapped: pages that no key has touched take none. They are large ones
    where the system has them, since every key is looked for in another.
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
            with suppress(OSError):  # A kernel that was built without them.
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(memory).cast("Q")
        self._words = cython.address(self._view[0]) if cython.compiled else self._view

    def __len__(self) -> int:
        return self.count

    def put(self, key: bytes, offset: cython.longlong) -> bool:
        """Note a key at `offset`; false if it is new and the table is full."""
        return put_key(self, key, 0, len(key), offset)

    def get(self, key: bytes) -> int:
        """The largest offset a key was noted at, or -1."""
        return find_key(self, key, 0, len(key))

    def digest(self, key: bytes) -> bytes:
        """The hash a key is known by, for tests."""
        low, high = _hash(self._key_0, self._key_1, key, 0, len(key))
        return int(low).to_bytes(8, "little") + int(high).to_bytes(8, "little")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _slot_of(table: KeyTable, low: cython.ulonglong, high: cython.ulonglong) -> cython.Py_ssize_t:
    """Where a hash lies, or the free slot where it would: the number of its first word."""
    slot: cython.Py_ssize_t = cython.cast(
        cython.Py_ssize_t, low % cython.cast(cython.ulonglong, table.slots)
    )
    at: cython.Py_ssize_t = slot * 3
    # Ends, since a slot is always free.
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
    """See `KeyTable.put`; `keys.pxd` lets `filtering` call it without the GIL."""
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
    """See `KeyTable.get`."""
    low: cython.ulonglong
    high: cython.ulonglong
    low, high = _hash(table._key_0, table._key_1, data, start, size)
    return cython.cast(cython.longlong, table._words[_slot_of(table, low, high) + 2]) - 1
