# cython: language_level=3
"""Numbers in the memory of byte arrays, for loops that need no GIL.

Rule: the caller keeps the array alive and its size unchanged while it uses the numbers.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING

COMPILED = cython.compiled


@cython.cfunc
def uint8s(array: bytearray) -> cython.p_uchar:
    """The bytes of an array."""
    if cython.compiled:
        return cython.cast(cython.p_uchar, PyByteArray_AS_STRING(array))
    else:
        return array


@cython.cfunc
def int32s(array: bytearray) -> cython.p_int:
    """The int32 numbers in an array."""
    if cython.compiled:
        return cython.cast(cython.p_int, PyByteArray_AS_STRING(array))
    else:
        return memoryview(array).cast("i")


@cython.cfunc
def int64s(array: bytearray) -> cython.p_longlong:
    """The int64 numbers in an array."""
    if cython.compiled:
        return cython.cast(cython.p_longlong, PyByteArray_AS_STRING(array))
    else:
        return memoryview(array).cast("q")
