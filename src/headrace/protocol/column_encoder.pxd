# What builder.py shares with column_encoder.py: the numbers of a record, without a Python call.

cdef long long number_size(long long number) noexcept nogil
cdef Py_ssize_t put_number(unsigned char* out, Py_ssize_t position, long long number) noexcept nogil
