"""Waiting on a lock so that Ctrl-C ends it whenever it comes.

Python runs a signal's handler between instructions, or when a wait is interrupted. A signal that
comes after the last instruction and before the wait does neither: giving up the interpreter lock
can take milliseconds, and then the wait goes on until its end. So long waits are made of short
ones on the main thread, the only one where handlers run.
"""

import threading
import time
from collections.abc import Callable

# How late Ctrl-C can be noticed.
GLANCE_S = 0.1


def wait_in_parts(wait: Callable[[float | None], bool], timeout_s: float | None) -> bool:
    """Whether what is waited for came in time; `wait` waits so many seconds, or for ever."""
    if threading.current_thread() is not threading.main_thread():
        return wait(timeout_s)
    if timeout_s is not None and timeout_s <= GLANCE_S:
        return wait(timeout_s)
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while not wait(min(GLANCE_S, max(deadline - time.monotonic(), 0.0))):
        if time.monotonic() >= deadline:
            return False
    return True
