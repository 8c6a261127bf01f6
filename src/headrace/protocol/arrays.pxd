# The functions of arrays.py, which compiled modules call without a Python call.

cdef unsigned char* uint8s(bytearray array)
cdef int* int32s(bytearray array)
cdef long long* int64s(bytearray array)
