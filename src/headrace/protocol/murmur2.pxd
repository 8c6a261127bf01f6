# What partitioning.py shares with murmur2.py, without a Python call.

cdef unsigned int hash_of(const unsigned char* data, Py_ssize_t size) noexcept nogil
