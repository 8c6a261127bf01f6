"""What this process uses of the machine: CPU time, memory, open files, threads.

Rule: nothing is read that takes longer the more the process uses, except by `open_files` on a
kernel that does not count them, which is why it is called on a worker thread.
"""

import os
import resource
import threading

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = "/proc/self/statm"
_DESCRIPTORS = "/proc/self/fd"
_KIB = 1024


def cpu_seconds() -> float:
    """User and system time of this process since its start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    """The memory of this process that is in RAM; where that is unknown, the most that ever was."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def open_files() -> int:
    """The open files and sockets of this process; -1 where that is not known."""
    try:
        # Linux counts them here since 6.2; the directory has no size in earlier versions.
        return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))
    except OSError:
        return -1


def open_files_max() -> int:
    """The most files that this process may have open; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def threads() -> int:
    """The threads of this process that Python knows."""
    return threading.active_count()
