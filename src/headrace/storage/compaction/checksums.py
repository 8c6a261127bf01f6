# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""CRC-32C without the GIL, for loops over many batches in one call.

For a single batch the function of `protocol.batch` is faster, but it needs a Python call for each.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING

COMPILED = cython.compiled

_POLYNOMIAL = 0x82F63B78  # reflected
_SLICES = 8


def _make_tables() -> bytearray:
    """The eight tables of slicing-by-8: the k-th is for a byte that k more bytes follow."""
    rows = [[0] * 256 for _ in range(_SLICES)]
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        rows[0][byte] = value
    for index in range(1, _SLICES):
        for byte in range(256):
            before = rows[index - 1][byte]
            rows[index][byte] = (before >> 8) ^ rows[0][before & 255]
    array = bytearray(_SLICES * 256 * 4)
    numbers = memoryview(array).cast("I")
    for index, row in enumerate(rows):
        for byte, value in enumerate(row):
            numbers[index * 256 + byte] = value
    return array


@cython.cfunc
def _uint32s(array: bytearray) -> cython.p_uint:
    if cython.compiled:
        return cython.cast(cython.p_uint, PyByteArray_AS_STRING(array))
    else:
        return memoryview(array).cast("I")


_TABLE_ARRAY: bytearray = _make_tables()
if cython.compiled:
    _tables = cython.declare(cython.p_uint, _uint32s(_TABLE_ARRAY))
else:
    _tables = _uint32s(_TABLE_ARRAY)
_ONES = cython.declare(cython.uint, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _byte(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.uint:
    return data[position]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def checksum_of(
    data: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.uint:
    """The CRC-32C of data[start:end]; `checksums.pxd` exports it for calls without the GIL."""
    tables: cython.p_uint = _tables
    value: cython.uint = _ONES
    after: cython.uint
    position: cython.Py_ssize_t = start
    while end - position >= 8:
        value ^= (
            _byte(data, position)
            | (_byte(data, position + 1) << 8)
            | (_byte(data, position + 2) << 16)
            | (_byte(data, position + 3) << 24)
        )
        after = (
            tables[768 + _byte(data, position + 4)]
            ^ tables[512 + _byte(data, position + 5)]
            ^ tables[256 + _byte(data, position + 6)]
            ^ tables[_byte(data, position + 7)]
        )
        value = (
            tables[1792 + (value & 255)]
            ^ tables[1536 + ((value >> 8) & 255)]
            ^ tables[1280 + ((value >> 16) & 255)]
            ^ tables[1024 + (value >> 24)]
            ^ after
        )
        position += 8
    while position < end:
        value = (value >> 8) ^ tables[(value ^ _byte(data, position)) & 255]
        position += 1
    return value ^ _ONES


def checksum(data: bytes) -> int:
    """The CRC-32C of `data`, for tests."""
    return checksum_of(data, 0, len(data))
