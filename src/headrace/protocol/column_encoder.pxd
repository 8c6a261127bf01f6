# Functions of column_encoder.py that other modules call without a Python call.

cdef class Int32s:
    cdef const int* at
    cdef const int[::1] _view

cdef class ColumnCells:
    cdef bint absent
    cdef bint nullable
    cdef const int* offsets
    cdef const unsigned char* data
    cdef const unsigned char* bits
    cdef Py_ssize_t data_size
    cdef Py_ssize_t first_bit
    cdef long long total
    cdef Int32s _offsets
    cdef const unsigned char[::1] _data_view
    cdef const unsigned char[::1] _bits_view

cdef class BoundRows:
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef bint selected
    cdef bint has_headers
    cdef const int* selection
    cdef const long long* timestamps
    cdef const int* header_offsets
    cdef long long base_timestamp
    cdef long long max_timestamp
    cdef long long header_total
    cdef long long size_max
    cdef ColumnCells keys
    cdef ColumnCells values
    cdef ColumnCells names
    cdef ColumnCells header_values
    cdef Int32s _selection
    cdef Int32s _header_offsets
    cdef const long long[::1] _times_view
    cdef object _bind(self, object keys, object values, object headers, Py_ssize_t limit)

cdef long long number_size(long long number) noexcept nogil
cdef Py_ssize_t put_number(unsigned char* out, Py_ssize_t position, long long number) noexcept nogil
cdef bint prove(ColumnCells cells, Py_ssize_t start, Py_ssize_t end) noexcept nogil
cdef long long cell_size(ColumnCells cells, Py_ssize_t row) noexcept nogil
cdef Py_ssize_t row_at(BoundRows rows, Py_ssize_t index) noexcept nogil
cdef bint time_fits(long long base, long long timestamp) noexcept nogil
cdef long long record_size(
    BoundRows rows,
    ColumnCells keys,
    ColumnCells values,
    ColumnCells names,
    ColumnCells header_values,
    Py_ssize_t row,
    long long index,
    long long time_delta,
) noexcept nogil
