# Types of the attributes of the classes in message_codec.py, for compiled modules.

cdef class Field:
    cdef readonly str name
    cdef int kind
    cdef bint is_array
    cdef bint nullable
    cdef bint compact
    cdef int tag
    cdef object schema
    cdef object default
    cdef bint fresh

cdef class Schema:
    cdef readonly object cls
    cdef list fields
    cdef dict tagged
    cdef list absent
    cdef readonly bint flexible
