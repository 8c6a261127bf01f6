# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hash murmur2 as Kafka's Java client computes it, to partition records by key."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

COMPILED = cython.compiled

# Typed variables, because compiled expressions take such literals for Python objects.
_SEED = cython.declare(cython.uint, 0x9747B28C)
_MULTIPLIER = cython.declare(cython.uint, 0x5BD1E995)
_WORD = cython.declare(cython.uint, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _byte(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.uint:
    return data[position]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def hash_of(data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.uint:
    """The hash of `size` bytes; `murmur2.pxd` exports it for `partitioning`."""
    # Masks keep the uncompiled form at 32 bits; in C they cost nothing.
    digest: cython.uint = _SEED ^ cython.cast(cython.uint, size & 0x7FFFFFFF)
    word: cython.uint
    position: cython.Py_ssize_t = 0
    while size - position >= 4:
        word = (
            _byte(data, position)
            | (_byte(data, position + 1) << 8)
            | (_byte(data, position + 2) << 16)
            | (_byte(data, position + 3) << 24)
        )
        word = (word * _MULTIPLIER) & _WORD
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _WORD
        digest = ((digest * _MULTIPLIER) & _WORD) ^ word
        position += 4
    if size - position == 3:
        digest ^= _byte(data, position + 2) << 16
    if size - position >= 2:
        digest ^= _byte(data, position + 1) << 8
    if size - position >= 1:
        digest = ((digest ^ _byte(data, position)) * _MULTIPLIER) & _WORD
    digest = ((digest ^ (digest >> 13)) * _MULTIPLIER) & _WORD
    return digest ^ (digest >> 15)


def murmur2(data) -> int:
    """The hash of `data` as a signed 32-bit number, as in Java."""
    key: bytes = data if type(data) is bytes else bytes(data)
    digest: cython.longlong = hash_of(key, len(key))
    return digest - 0x100000000 if digest > 0x7FFFFFFF else digest


def partition_for_key(key, partition_count: cython.longlong) -> int:
    """The partition of a record with a key, as Kafka's Java client computes it."""
    data: bytes = key if type(key) is bytes else bytes(key)
    if partition_count < 1:
        raise ValueError(f"a topic has at least one partition, not {partition_count}")
    digest: cython.longlong = hash_of(data, len(data))
    # Java's toPositive: the sign bit is cleared, not negated.
    return (digest & 0x7FFFFFFF) % partition_count
