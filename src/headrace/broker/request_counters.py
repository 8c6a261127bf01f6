# cython: language_level=3
"""Counters of the requests of an API at a listener: bytes and times, in one call for each request.

Compiled: a broker that answers 40,000 requests of one message a second has 25 microseconds for
each, of which counting in Python took one.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

COMPILED = cython.compiled


@cython.final
@cython.cclass
class RequestCounters:
    """Bytes and sums of times; the times by range are counted in lists of the caller's.

    A list has the number of times up to each bound, and one more for those above the last.
    """

    received_bytes = cython.declare(cython.longlong, visibility="readonly")
    sent_bytes = cython.declare(cython.longlong, visibility="readonly")
    queue_s = cython.declare(cython.double, visibility="readonly")
    handler_s = cython.declare(cython.double, visibility="readonly")
    total_s = cython.declare(cython.double, visibility="readonly")
    _bounds: list
    _queue_counts: list
    _handler_counts: list
    _total_counts: list

    def __init__(self, bounds, queue_counts, handler_counts, total_counts) -> None:
        self._bounds = [float(bound) for bound in bounds]
        self.received_bytes = self.sent_bytes = 0
        self.queue_s = self.handler_s = self.total_s = 0.0
        self._queue_counts = queue_counts
        self._handler_counts = handler_counts
        self._total_counts = total_counts

    def handled(
        self,
        received_bytes: cython.longlong,
        queue_s: cython.double,
        handler_s: cython.double,
        reply,
        is_answered: cython.bint,
    ) -> None:
        """Count a request at the end of its handler; if it is not answered yet, see `answered`."""
        self.received_bytes += received_bytes
        self.queue_s += queue_s
        self.handler_s += handler_s
        self._count(self._queue_counts, queue_s)
        self._count(self._handler_counts, handler_s)
        if is_answered:
            self.answered(queue_s + handler_s, reply)

    def answered(self, total_s: cython.double, reply) -> None:
        """Count a reply, or its absence, and the time since the request arrived."""
        self.total_s += total_s
        self._count(self._total_counts, total_s)
        if reply is not None:
            for part in reply:
                self.sent_bytes += len(part)

    @cython.cfunc
    def _count(self, counts: list, seconds: cython.double):
        index: cython.Py_ssize_t = 0
        bound: cython.double
        for limit in self._bounds:
            bound = limit
            if seconds <= bound:
                break
            index += 1
        counts[index] += 1
