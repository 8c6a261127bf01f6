# The function of checksums.py that compaction calls without a Python call.

cdef unsigned int checksum_of(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end
) noexcept nogil
