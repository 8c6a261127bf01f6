# Types of the attributes of RecordFilter.

from headrace.storage.compaction.key_table cimport KeyTable
from headrace.storage.compaction.output cimport CompactionOutput
from headrace.storage.compaction.batch_walk cimport RecordLayout

cdef class RecordFilter:
    cdef readonly long long records_read
    cdef readonly long long records_kept
    cdef KeyTable _table
    cdef CompactionOutput _output
    cdef RecordLayout _record
    cdef long long _table_end
    cdef long long _now_ms
    cdef long long _horizon_ms
    cdef bytearray _kept_array
    cdef long long* _kept_offsets
    cdef Py_ssize_t _kept_count
    cdef bytearray _marks_array
    cdef unsigned char* _marks
    cdef bytearray _kept_records
    # Of the batch that was filtered last.
    cdef bint _sets_horizon
    cdef long long _left_max_timestamp
    cdef long long _left_count
    cdef long long _marked_count
    cdef _set_marks(self, Py_ssize_t count)
