# Types of the attributes of the classes in accumulator.py, for the modules that are compiled.

from cpython.pythread cimport PyThread_type_lock

from headrace.client.producer.delivery cimport BatchDelivery

cdef class TopicBuffers:
    cdef str name
    cdef list buffers
    cdef long long count
    cdef long long sticky
    cdef long long turn

cdef class PartitionBuffer:
    cdef readonly object tp
    cdef public bint has_leader
    cdef public object queue
    cdef public long long batch_bytes_max
    cdef TopicBuffers topic
    cdef long long index
    cdef object builder
    cdef object append
    cdef BatchDelivery delivery
    cdef long long count
    cdef long long reserved
    cdef double opened_at
    cdef bint is_due
    cdef bint is_listed
    cdef object sealed

cdef class Buffers:
    cdef public object refusal
    cdef public object home
    cdef readonly long long used_bytes
    cdef readonly long long records
    cdef dict topics
    cdef object waiters
    cdef bint takes_turns
    cdef long long limit
    cdef dict _unsettled
    cdef PyThread_type_lock _lock
    cdef object _wake
    cdef object _now
    cdef object _choice
    cdef long long _batch_bytes_max
    cdef double _linger_s
    cdef double _delivery_s
    cdef bint _is_woken
    cdef bint _is_armed
    cdef bint _has_news
    cdef object _lingering
    cdef list _listed

    cdef void acquire(self) noexcept
    cdef void release(self) noexcept
    cdef long long pick(self, TopicBuffers topic) except? -1
    cdef open(self, PartitionBuffer buffer, timestamp, key, value, headers)
    cdef close_batch(self, PartitionBuffer buffer)
    cdef bint should_wake(self) except? -1
    cdef rouse(self)
    cdef _close(self, PartitionBuffer buffer)
    cdef _list(self, PartitionBuffer buffer)
    cdef list _grant(self)
    cdef _hurry(self)
