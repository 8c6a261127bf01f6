# Types of the attributes of the classes in key_table.py.

from headrace.storage.compaction.batch_walk cimport RecordLayout

cdef class KeyTable:
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t limit
    cdef Py_ssize_t count
    cdef unsigned long long _key_0
    cdef unsigned long long _key_1
    cdef unsigned long long* _words
    cdef unsigned long long[::1] _view

cdef bint put_key(
    KeyTable table, const unsigned char* data, Py_ssize_t start, Py_ssize_t size, long long offset
) noexcept nogil
cdef long long find_key(
    KeyTable table, const unsigned char* data, Py_ssize_t start, Py_ssize_t size
) noexcept nogil

cdef class KeyIndexer:
    cdef readonly long long next_offset
    cdef readonly bint is_full
    cdef KeyTable _table
    cdef RecordLayout _record
    cdef long long _from_offset
