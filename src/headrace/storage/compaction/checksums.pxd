# What record_filter.py shares with checksums.py, without a Python call.

cdef unsigned int checksum_of(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end
) noexcept nogil
