# Types of the attributes of the classes in record_scan.py, and functions that decode cells.

cdef class CellPositions:
    cdef readonly bytearray starts  # int32
    cdef readonly bytearray sizes  # int32, -1 is null
    cdef readonly long long total
    cdef readonly long long nulls
    cdef int* _starts
    cdef int* _sizes

cdef class RecordScan:
    cdef readonly object payload
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly long long max_timestamp
    cdef readonly long long leader_epoch
    cdef readonly bint is_log_append_time
    cdef readonly bytearray offsets  # int64
    cdef readonly bytearray timestamps  # int64
    cdef readonly long long header_count
    cdef readonly bytearray header_counts  # int32
    cdef readonly CellPositions keys
    cdef readonly CellPositions values
    cdef readonly CellPositions names
    cdef readonly CellPositions header_values
    cdef const unsigned char* _data
    cdef long long _base_offset
    cdef long long _last_offset_delta
    cdef long long _base_timestamp
    cdef long long _time_delta_min
    cdef long long _time_delta_max
    cdef long long _from_offset
    cdef long long* _offsets
    cdef long long* _timestamps
    cdef int* _header_starts
    cdef int* _header_counts
    cdef bytearray _header_start_array
    cdef const unsigned char[::1] _view

cdef class BatchReader:
    cdef readonly Py_ssize_t position
    cdef readonly long long next_offset
    cdef object _view
    cdef Py_ssize_t _limit
    cdef long long _from_offset
    cdef long long _max_bytes
    cdef bint _check_crcs
    cdef bint _with_control

cdef object cell_of(RecordScan scan, CellPositions cells, Py_ssize_t index)
cdef tuple headers_of(RecordScan scan, Py_ssize_t first, Py_ssize_t end)
