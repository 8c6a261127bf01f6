# Types of the attributes of Indexer.

from headrace.storage.compaction.keys cimport KeyTable
from headrace.storage.compaction.walking cimport Record

cdef class Indexer:
    cdef readonly long long next_offset
    cdef readonly bint is_full
    cdef KeyTable _table
    cdef Record _record
    cdef long long _from_offset
