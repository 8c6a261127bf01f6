"""An event loop on a thread of its own for blocking clients, and waits that Ctrl-C ends."""

import asyncio
import atexit
import concurrent.futures
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from headrace.client.errors import Closed, TimedOut

# Waiting on a lock so that Ctrl-C ends it whenever it comes.
#
# Python runs a signal's handler between instructions, or when a wait is interrupted. A signal that
# comes after the last instruction and before the wait does neither: giving up the interpreter lock
# can take milliseconds, and then the wait goes on until its end. So long waits are made of short
# ones on the main thread, the only one where handlers run.


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


Result = TypeVar("Result")

# How long what runs on the loop may take to end when it is cancelled.
_CLOSE_S_MAX = 5.0

_threads: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


class LoopThread:
    """A daemon thread that runs an event loop until `close`.

    Waiting for it is waiting on a lock, so Ctrl-C interrupts a blocked caller at once.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._closing = False
        self._parking = False
        self._parked = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        _threads.add(self)

    @property
    def is_closed(self) -> bool:
        return self._closing

    def is_current(self) -> bool:
        """Whether the caller is on this thread: in a callback, where nothing may block."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """What a coroutine returns; leaving early, by Ctrl-C or the timeout, cancels it."""
        if self._closing:
            coroutine.close()
            raise Closed("the client is closed; make a new one")
        assert not self.is_current(), "a callback of the client would wait for itself"
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        try:
            wait_in_parts(done.wait, timeout_s)
            return future.result(0)
        except concurrent.futures.CancelledError:
            raise Closed("the client was closed while it was waiting") from None
        except TimeoutError:
            # Both an operation that timed out and our own patience end up here.
            if future.done() and not future.cancelled():
                raise
            raise TimedOut(f"not done within {timeout_s:g} s") from None
        finally:
            future.cancel()

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Have the loop call something soon; nothing happens once it is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self._closing:
                raise

    def close(self) -> None:
        """Cancel what still runs, stop the loop, and wait for the thread. May be called again."""
        if self._closing:
            return
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current():
            self._thread.join()

    def join(self) -> None:
        """Wait for the thread after `close` was called on it, which could not wait for itself."""
        assert self._closing and not self.is_current()
        if not self._parking:  # That keeps the thread for ever.
            self._thread.join()

    def park(self) -> None:
        """Have the loop do nothing any more, because the interpreter is about to end.

        uvloop asks for the interpreter's lock whenever something happens, and crashes when there is
        no interpreter any more. There is no time to close: what runs on the loop may need threads
        that have ended already.
        """
        if not self._thread.is_alive():
            return  # Not in this process either, if it was forked.
        if self._closing:
            self._thread.join(_CLOSE_S_MAX)
            return
        self._closing = self._parking = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._parked.wait(_CLOSE_S_MAX)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            if self._parking:
                self._parked.set()
                # For ever: returning would let go of the loop, whose tasks would complain of it.
                threading.Event().wait()
            self._cancel_tasks()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_S_MAX))


# Registered before all that use this module, and so called after them.
@atexit.register
def _park_all() -> None:
    for thread in tuple(_threads):
        thread.park()
