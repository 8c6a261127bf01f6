# The function of murmur2.py that partitioning.py calls without a Python call.

cdef unsigned int hash_of(const unsigned char* data, Py_ssize_t size) noexcept nogil
