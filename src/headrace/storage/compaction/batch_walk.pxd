# Functions of batch_walk.py that the passes of compaction call without a Python call.

cdef class RecordLayout:
    cdef Py_ssize_t body
    cdef Py_ssize_t after_time
    cdef Py_ssize_t key_at
    cdef long long time_delta
    cdef long long offset_delta
    cdef long long key_size
    cdef long long value_size

cdef long long load_number(
    const unsigned char* data, Py_ssize_t position, int size
) noexcept nogil
cdef Py_ssize_t read_record(
    RecordLayout record, const unsigned char* data, Py_ssize_t position, Py_ssize_t limit
) noexcept nogil
cdef Py_ssize_t plain_size(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t limit
) noexcept nogil
