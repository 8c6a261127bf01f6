# Types of the attributes of the classes in delivery.py, for the modules that are compiled.

cdef class BatchDelivery:
    cdef readonly object tp
    cdef public Py_ssize_t count
    cdef public object home
    cdef readonly bint is_settled
    cdef readonly bint is_done
    cdef readonly long long base_offset
    cdef readonly long long timestamp
    cdef readonly object error
    cdef readonly object record_errors
    cdef readonly list parts
    cdef readonly BatchDelivery parent
    cdef Py_ssize_t unfinished
    cdef object event
    cdef list callbacks
    cdef dict waiters

    cdef add(self, Future future, int kind, function)
    cdef _settle(self)

cdef class Future:
    cdef BatchDelivery delivery
    cdef long long index
    cdef long long timestamp
    cdef Py_ssize_t key_size
    cdef Py_ssize_t value_size

cdef attach(BatchDelivery delivery, Future future, on_delivery)

cdef Future new_future(
    BatchDelivery delivery,
    long long index,
    long long timestamp,
    Py_ssize_t key_size,
    Py_ssize_t value_size,
)
