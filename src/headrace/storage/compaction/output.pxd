# Types of the attributes of CompactionOutput, and functions that record_filter.py calls without the GIL.

cdef class CompactionOutput:
    cdef readonly bytearray data
    cdef readonly Py_ssize_t used
    cdef readonly Py_ssize_t capacity
    cdef readonly long long position
    cdef readonly long long max_timestamp
    cdef readonly long long max_timestamp_offset
    cdef unsigned char* bytes
    cdef bytearray _entry_array
    cdef long long* _entries
    cdef Py_ssize_t _entry_count
    cdef long long _interval
    cdef long long _since_entry

cdef void copy_bytes(
    unsigned char* to, Py_ssize_t at, const unsigned char* data, Py_ssize_t start, Py_ssize_t size
) noexcept nogil
cdef void put_batch(
    CompactionOutput output, const unsigned char* data, Py_ssize_t position, Py_ssize_t size
) noexcept nogil
cdef void put_empty(
    CompactionOutput output, const unsigned char* data, Py_ssize_t position
) noexcept nogil
cdef void put_changed(
    CompactionOutput output,
    const unsigned char* data,
    Py_ssize_t position,
    Py_ssize_t size,
    long long count,
    long long max_timestamp,
    bint sets_horizon,
    long long horizon_ms,
) noexcept nogil
