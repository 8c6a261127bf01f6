# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Partitioning of columns: hash the keys, group the rows, cut them into batches.

Rule: as in `column_encoder`, buffers are checked before the loops that need no GIL, and bad buffers
are a `ValueError`. Row numbers and partitions are int32 arrays.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.protocol.batch import HEADER_SIZE, byte_view

if cython.compiled:
    from cython.cimports.headrace.protocol.arrays import int32s
    from cython.cimports.headrace.protocol.column_encoder import (
        BoundRows,
        ColumnCells,
        Int32s,
        cell_size,
        number_size,
        prove,
        record_size,
        row_at,
        time_fits,
    )
    from cython.cimports.headrace.protocol.murmur2 import hash_of
else:
    from headrace.protocol.arrays import int32s
    from headrace.protocol.column_encoder import (
        BoundRows,
        ColumnCells,
        Int32s,
        cell_size,
        number_size,
        prove,
        record_size,
        row_at,
        time_fits,
    )
    from headrace.protocol.murmur2 import hash_of

COMPILED = cython.compiled

_HEADER_SIZE = cython.declare(cython.longlong, HEADER_SIZE)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)


@cython.cfunc
def _check_count(partition_count):
    if not 1 <= partition_count <= _INT32_MAX:
        raise ValueError(f"a topic has at least one partition, not {partition_count}")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash_keys(
    keys: ColumnCells,
    count: cython.Py_ssize_t,
    partition_count: cython.uint,
    partitions: cython.p_int,
) -> cython.void:
    row: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    digest: cython.uint
    for row in range(count):
        size = cell_size(keys, row)
        if size < 0:
            partitions[row] = -1
            continue
        start = keys.offsets[row]
        if cython.compiled:
            digest = hash_of(keys.data + start, size)
        else:
            digest = hash_of(keys.data[start : start + size], size)
        # As `murmur2.partition_for_key`: the sign bit is cleared, not negated.
        partitions[row] = cython.cast(cython.int, (digest & 0x7FFFFFFF) % partition_count)


def partitions_of_keys(keys, partition_count) -> bytearray:
    """The partition of each key of a `BinaryColumn`, by `murmur2.partition_for_key`.

    It is -1 where the key is null.
    """
    _check_count(partition_count)
    count: cython.Py_ssize_t = keys.length
    cells: ColumnCells = ColumnCells(keys, count)
    if not prove(cells, 0, count):
        raise ValueError("offsets of the keys do not fit their bytes of data")
    partitions = bytearray(count * 4)
    out: cython.p_int = int32s(partitions)
    modulus: cython.uint = partition_count
    with cython.nogil:
        _hash_keys(cells, count, modulus, out)
    return partitions


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_rows(
    partitions: cython.p_const_int,
    count: cython.Py_ssize_t,
    partition_count: cython.longlong,
    ends: cython.p_int,
) -> cython.Py_ssize_t:
    """Count the rows of partition p in ends[p + 1]; return the first invalid row, or -1."""
    row: cython.Py_ssize_t
    for row in range(count):
        if partitions[row] < 0 or partitions[row] >= partition_count:
            return row
        ends[partitions[row] + 1] += 1
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _place_rows(
    partitions: cython.p_const_int,
    count: cython.Py_ssize_t,
    next_places: cython.p_int,
    rows: cython.p_int,
) -> cython.void:
    row: cython.Py_ssize_t
    for row in range(count):
        rows[next_places[partitions[row]]] = cython.cast(cython.int, row)
        next_places[partitions[row]] += 1


def group_rows(partitions, partition_count) -> tuple:
    """The numbers of all rows ordered by partition, and the bounds of each partition's rows.

    Rows of a partition stay in order; the rows of partition p are at [bounds[p], bounds[p + 1]).
    """
    _check_count(partition_count)
    size: cython.Py_ssize_t = len(byte_view(partitions))
    count: cython.Py_ssize_t = size // 4
    if size % 4 or count > _INT32_MAX:
        raise ValueError(f"{size} bytes are no array of int32 numbers")
    given: Int32s = Int32s(partitions, count)
    places = bytearray((partition_count + 1) * 4)
    ends: cython.p_int = int32s(places)
    limit: cython.longlong = partition_count
    astray: cython.Py_ssize_t
    with cython.nogil:
        astray = _count_rows(given.at, count, limit, ends)
    if astray >= 0:
        raise ValueError(f"row {astray} has partition {given.at[astray]} of {partition_count}")
    partition: cython.Py_ssize_t
    for partition in range(limit):
        ends[partition + 1] += ends[partition]
    bounds: list = [ends[partition] for partition in range(limit + 1)]
    rows = bytearray(count * 4)
    out: cython.p_int = int32s(rows)
    with cython.nogil:
        _place_rows(given.at, count, ends, out)
    return rows, bounds


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _batch_end(
    rows: BoundRows,
    keys: ColumnCells,
    values: ColumnCells,
    names: ColumnCells,
    header_values: ColumnCells,
    start: cython.Py_ssize_t,
    bytes_max: cython.longlong,
) -> tuple[cython.Py_ssize_t, cython.longlong]:
    """The end of a batch of at least one record that begins at row `start`, and its size."""
    index: cython.Py_ssize_t
    row: cython.Py_ssize_t
    size: cython.longlong
    time_delta: cython.longlong
    total: cython.longlong = _HEADER_SIZE
    base: cython.longlong = rows.timestamps[row_at(rows, start)]
    for index in range(start, rows.end):
        row = row_at(rows, index)
        if not time_fits(base, rows.timestamps[row]):
            return index, total
        time_delta = rows.timestamps[row] - base
        size = record_size(rows, keys, values, names, header_values, row, index - start, time_delta)
        size += number_size(size)
        if total + size > bytes_max and index > start:
            return index, total
        total += size
    return rows.end, total


def cut_rows(
    timestamps,
    keys,
    values,
    headers,
    rows,
    start,
    end,
    bytes_max: cython.longlong,
    record_bytes_max: cython.longlong = 0,
    first_row: cython.Py_ssize_t = 0,
) -> tuple:
    """Cut rows into batches of at most `bytes_max` before compression.

    The arguments are those of `encode_columns`. Returns the starts of the batches, followed by
    `end`, and the size of each batch. A larger record gets a batch of its own, if that has at most
    `record_bytes_max`; otherwise a `ValueError` names its row, counted from `first_row`.
    """
    bounds: list = [start]
    sizes: list = []
    if start == end:
        return bounds, sizes
    chosen: BoundRows = BoundRows(start, end, timestamps, keys, values, headers, rows)
    key_cells: ColumnCells = chosen.keys
    value_cells: ColumnCells = chosen.values
    names: ColumnCells = chosen.names
    header_values: ColumnCells = chosen.header_values
    position: cython.Py_ssize_t = chosen.start
    cut: cython.Py_ssize_t
    size: cython.longlong
    while position < chosen.end:
        with cython.nogil:
            cut, size = _batch_end(
                chosen, key_cells, value_cells, names, header_values, position, bytes_max
            )
        if size > max(bytes_max, record_bytes_max):
            raise ValueError(
                f"row {row_at(chosen, position) + first_row} makes a batch of {size} bytes, "
                f"more than the {max(bytes_max, record_bytes_max)} that are allowed"
            )
        position = cut
        bounds.append(position)
        sizes.append(size)
    return bounds, sizes
