# Prefetch the cache lines of a short run of bytes that is read soon.
# A macro, because gcc optimizes away a function that only prefetches.

cdef extern from *:
    """
    #define HEADRACE_PREFETCH(start, end) \\
        do { \\
            __builtin_prefetch(start); \\
            __builtin_prefetch((start) + 64); \\
            __builtin_prefetch((end) - 1); \\
        } while (0)
    """
    void prefetch "HEADRACE_PREFETCH" (
        const unsigned char* start, const unsigned char* end
    ) noexcept nogil
