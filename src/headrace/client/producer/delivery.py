# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Delivery of records: one outcome for a batch, and a small future for each of its records.

Rule: a future only points to its batch's `BatchDelivery`, which refers to no futures except those
with waiters or callbacks; so a record without them costs one small object. Callbacks run on the
thread of the producer's event loop, where the batch is settled; an exception in one is logged.
"""

from __future__ import annotations

import asyncio
import logging
import threading

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.client.blocking import wait_in_parts
from headrace.client.errors import TimedOut
from headrace.client.types import BatchMetadata, RecordMetadata

COMPILED = cython.compiled

_log = logging.getLogger("headrace.producer")

# Registering for an outcome and setting it must not miss each other. Both are short and rare
# enough, one per batch or per wait, for all producers to share a lock.
_lock = threading.Lock()

_DONE = cython.declare(cython.int, 0)
_RESULT = cython.declare(cython.int, 1)
_ERROR = cython.declare(cython.int, 2)
_BOTH = cython.declare(cython.int, 3)


@cython.final
@cython.cclass
class BatchDelivery:
    """The outcome that all records of a batch share.

    It `is_settled` once the outcome is known, and `is_done` once its callbacks have run: a waiter
    for a record finds that the callbacks have been called. A batch that was split has its outcome
    when all `parts` have theirs; each part has the index of its first record in the whole. `home`
    is the thread it is settled on, which must not wait for it. Thread-safe.
    """

    def __init__(self, tp, count: cython.Py_ssize_t = 0, home=None) -> None:
        self.tp = tp
        self.count = count
        self.home = home
        self.is_settled = False
        self.is_done = False
        self.base_offset = -1
        self.timestamp = -1
        self.error = None
        self.record_errors = None
        self.parts = None
        self.parent = None
        self.unfinished = 0
        self.event = None
        self.callbacks = None
        self.waiters = None

    def succeed(self, base_offset: cython.longlong, timestamp: cython.longlong = -1) -> None:
        """Settle: the records are written from `base_offset` on, at the broker's `timestamp` if not
        -1.
        """
        if not self.is_settled:
            self.base_offset = base_offset
            self.timestamp = timestamp
            self._settle()

    def fail(self, error, record_errors=None) -> None:
        """Settle: no record is known to be written. `record_errors` are those of single records."""
        if not self.is_settled:
            self.error = error
            self.record_errors = record_errors
            self._settle()

    def divide(self, parts: list) -> None:
        """Take the outcome from parts: (index of the first record, delivery), in order."""
        part: BatchDelivery
        with _lock:
            self.parts = parts
            for _, part in parts:
                if not part.is_done:
                    part.parent = self
                    self.unfinished += 1
            is_done: cython.bint = self.unfinished == 0
        if is_done:
            self._settle()

    def wait(self, timeout_s=None) -> bool:
        """Whether the outcome is known within the timeout."""
        if self.is_done:
            return True
        with _lock:
            if not self.is_done and self.event is None:
                self.event = threading.Event()
            event = self.event
        return self.is_done or wait_in_parts(event.wait, timeout_s)

    def waiter(self):
        """A future of the running event loop that is done when the delivery is."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        with _lock:
            if not self.is_done:
                if self.waiters is None:
                    self.waiters = {}
                self.waiters.setdefault(loop, []).append(waiter)
                return waiter
        waiter.set_result(None)
        return waiter

    def outcome(self, index: cython.longlong) -> tuple:
        """The offset, the broker's timestamp and the error of one record; only valid when done."""
        delivery: BatchDelivery = self
        while delivery.parts is not None:
            first, chosen = delivery.parts[0]
            for start, part in delivery.parts:
                if start > index:
                    break
                first, chosen = start, part
            index -= first
            delivery = chosen
        error = delivery.error
        if delivery.record_errors is not None:
            error = delivery.record_errors.get(index, error)
        if error is not None or delivery.base_offset < 0:
            return -1, delivery.timestamp, error
        return delivery.base_offset + index, delivery.timestamp, None

    def batches(self) -> list:
        """The deliveries of the parts that were sent, in order; only valid when done."""
        if self.parts is None:
            return [self]
        return [batch for _, part in self.parts for batch in part.batches()]

    @cython.cfunc
    def add(self, future: Future, kind: cython.int, function):
        """Register a function to call when the delivery is settled; called at once if it is."""
        with _lock:
            if not self.is_settled:
                if self.callbacks is None:
                    self.callbacks = []
                self.callbacks.append((future, kind, function))
                return
        _call(future, kind, function)

    @cython.cfunc
    def _settle(self):
        with _lock:
            self.is_settled = True
            callbacks, self.callbacks = self.callbacks, None
        if callbacks is not None:
            for future, kind, function in callbacks:
                _call(future, kind, function)
        with _lock:
            self.is_done = True
            event, self.event = self.event, None
            waiters, self.waiters = self.waiters, None
        if event is not None:
            event.set()
        if waiters is not None:
            for loop, waiting in waiters.items():
                _wake(loop, waiting)
        parent: BatchDelivery = self.parent
        if parent is not None:
            with _lock:
                parent.unfinished -= 1
                is_done: cython.bint = parent.unfinished == 0
            if is_done:
                parent._settle()

    def __repr__(self) -> str:
        state = "pending" if not self.is_done else repr(self.error or self.base_offset)
        return f"<Delivery of {self.count} records to {self.tp}, {state}>"


def _wake(loop, waiting) -> None:
    """Set futures of an event loop, from any thread."""
    try:
        loop.call_soon_threadsafe(_set_all, waiting)
    except RuntimeError:
        # The loop is closed, and the tasks that waited on it are gone with it.
        _log.debug("a delivery was awaited on a loop that is closed")


def _set_all(waiting) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)


def _call(future: Future, kind: cython.int, function) -> None:
    try:
        if kind == _DONE:
            function(future)
            return
        result, error = future._outcome()
        if kind == _BOTH:
            function(error, result)
        elif kind == _RESULT and error is None:
            function(result)
        elif kind == _ERROR and error is not None:
            function(error)
    except Exception:
        # A bug of the application; the sender has other records to deliver.
        _log.exception("a delivery callback of %r raised", future)


@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Future:
    """The result of one `send`: a `RecordMetadata`, or an exception. Thread-safe.

    Wait with `result()`, `await` it on any event loop, or give it callbacks; they run on the
    producer's own thread, so they must not block.

    >>> future = producer.send(topic, b"hello")
    >>> future.result(timeout=10).topic == topic
    True
    >>> future.done(), future.exception()
    (True, None)
    """

    def result(self, timeout=None):
        """The metadata of the written record; waits up to `timeout` seconds, then TimedOut."""
        self._wait(timeout)
        result, error = self._outcome()
        if error is not None:
            # Records of a batch share their error, so it must not collect the frames of all
            # callers.
            raise error.with_traceback(None)
        return result

    def get(self, timeout=None):
        """The same as `result`, by kafka-python's name."""
        return self.result(timeout)

    def exception(self, timeout=None):
        """The error of the record, or None; waits up to `timeout` seconds, then TimedOut."""
        self._wait(timeout)
        return self._outcome()[1]

    def done(self) -> bool:
        """Whether there is a result or an exception."""
        return self.delivery.is_settled

    def succeeded(self) -> bool:
        """Whether there is a result."""
        return self.delivery.is_settled and self._outcome()[1] is None

    def add_done_callback(self, function) -> None:
        """Call `function(future)` when the outcome is known: at once, if it is."""
        self.delivery.add(self, _DONE, _checked(function))

    def add_callback(self, function):
        """Call `function(result)` when the record is written. Returns this future.

        >>> offsets = []
        >>> future = producer.send(topic, b"hello").add_callback(
        ...     lambda written: offsets.append(written.offset)
        ... )
        >>> producer.flush()
        >>> offsets == [future.result().offset]
        True
        """
        self.delivery.add(self, _RESULT, _checked(function))
        return self

    def add_errback(self, function):
        """Call `function(exception)` if the record is not written. Returns this future."""
        self.delivery.add(self, _ERROR, _checked(function))
        return self

    def __await__(self):
        if not self.delivery.is_done:
            yield from self.delivery.waiter().__await__()
        return self.result()

    def __repr__(self) -> str:
        name = type(self).__name__
        if not self.delivery.is_settled:
            return f"<{name} of {self.delivery.tp}, pending>"
        result, error = self._outcome()
        return f"<{name}: {result if error is None else repr(error)}>"

    def _wait(self, timeout) -> None:
        delivery: BatchDelivery = self.delivery
        if delivery.is_done:
            return
        if delivery.home == threading.get_ident():
            if delivery.is_settled:
                # In one of its callbacks, which may read the outcome.
                return
            raise RuntimeError(
                "result() would block the thread that delivers the record; await the future"
                " instead, or use add_callback()"
            )
        if not delivery.wait(timeout):
            raise TimedOut(
                f"a record for {delivery.tp} is not acknowledged within {timeout:g} s;"
                " it may still be: the producer goes on until delivery_timeout_ms"
            )

    def _outcome(self) -> tuple:
        """The result and the error, one of which is None."""
        offset, timestamp, error = self.delivery.outcome(self.index)
        if error is not None:
            return None, error
        tp = self.delivery.tp
        return (
            RecordMetadata(
                tp.topic,
                tp.partition,
                offset,
                self.timestamp if timestamp < 0 else timestamp,
                self.key_size,
                self.value_size,
            ),
            None,
        )


@cython.cfunc
def new_future(
    delivery: BatchDelivery,
    index: cython.longlong,
    timestamp: cython.longlong,
    key_size: cython.Py_ssize_t,
    value_size: cython.Py_ssize_t,
) -> Future:
    """The future of one record of a batch."""
    future: Future = Future.__new__(Future)
    future.delivery = delivery
    future.index = index
    future.timestamp = timestamp
    future.key_size = key_size
    future.value_size = value_size
    return future


@cython.no_gc
@cython.cclass
class ColumnsFuture(Future):
    """The result of one `send_arrow`: a list of `BatchMetadata`, or the first batch's exception."""

    def __init__(self, delivery: BatchDelivery) -> None:
        self.delivery = delivery
        self.index = 0
        self.timestamp = -1
        self.key_size = -1
        self.value_size = -1

    def _outcome(self) -> tuple:
        written = []
        for batch in self.delivery.batches():
            error = batch.error
            if batch.record_errors:
                # An error of a single record says more than the error of its batch.
                error = next(iter(batch.record_errors.values()))
            if error is not None:
                return None, error
            written.append(
                BatchMetadata(
                    batch.tp.topic,
                    batch.tp.partition,
                    batch.base_offset,
                    batch.count,
                    batch.timestamp,
                )
            )
        return written, None


@cython.cfunc
def attach(delivery: BatchDelivery, future: Future, on_delivery):
    """Call `on_delivery(error, metadata)` for a record of an open batch when it is settled."""
    delivery.add(future, _BOTH, on_delivery)


def _checked(function):
    if not callable(function):
        raise TypeError(f"a callback must be callable, not {type(function).__name__}")
    return function
