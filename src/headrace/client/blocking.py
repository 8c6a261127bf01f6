"""Calls of a client that run both blocking on a thread and in asyncio.

A call is a generator that yields its waits. The code between two yields runs in the caller's
context: of a blocking client in the application's thread, of an asyncio client on its loop.
`LoopThread.run` and `run_async` drive calls; both take coroutines too, as calls with a single wait.
"""

import asyncio
import atexit
import concurrent.futures
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from inspect import iscoroutine
from types import GeneratorType
from typing import Any, TypeAlias, TypeVar, cast

import uvloop

from headrace.client.errors import Closed, TimedOut
from headrace.clock import SystemClock

# A wait on a lock that Ctrl-C ends whenever it comes.
#
# Python runs a signal's handler between instructions, or when a wait is interrupted. A signal that
# comes after the last instruction and before the wait does neither: giving up the interpreter lock
# can take milliseconds, and then the wait goes on until its end. So long waits are made of short
# ones on the main thread, the only one where handlers run.


# The longest delay before Ctrl-C is noticed.
GLANCE_S = 0.1

# Threads wait in real time, whatever clock their client has.
_CLOCK = SystemClock()


def wait_in_parts(wait: Callable[[float | None], bool], timeout_s: float | None) -> bool:
    """Whether `wait`, called with seconds or None (for ever), succeeded within the timeout."""
    if threading.current_thread() is not threading.main_thread():
        return wait(timeout_s)
    if timeout_s is not None and timeout_s <= GLANCE_S:
        return wait(timeout_s)
    deadline = float("inf") if timeout_s is None else _CLOCK.monotonic() + timeout_s
    while not wait(min(GLANCE_S, max(deadline - _CLOCK.monotonic(), 0.0))):
        if _CLOCK.monotonic() >= deadline:
            return False
    return True


Result = TypeVar("Result")

Call: TypeAlias = Generator[Awaitable[Any], Any, Result]


async def run_async(call: Call[Result] | Awaitable[Result]) -> Result:
    """The result of a call whose waits are awaited here; cancelling a wait cancels the call."""
    if not isinstance(call, GeneratorType):
        return await cast("Awaitable[Result]", call)
    error: BaseException | None = None
    try:
        while True:
            try:
                awaitable = next(call) if error is None else call.throw(error)
                while True:
                    awaitable = call.send(await awaitable)
            except StopIteration as end:
                return cast("Result", end.value)
            except BaseException as raised:
                if call.gi_frame is None:  # By the call itself, which has ended.
                    raise
                error = raised
    finally:
        error = None  # Its traceback has this frame: a cycle.


class Wait:
    """A wait that can be made by a thread itself, without the event loop, or by a task.

    `block` waits in a thread for the given seconds, or for ever; `waiter` makes a future of the
    running loop. The result is whether the wait succeeded in time.
    """

    __slots__ = ("_block", "_timeout_s", "_waiter")

    def __init__(
        self,
        block: Callable[[float | None], bool],
        waiter: "Callable[[], asyncio.Future[Any]]",
        timeout_s: float | None,
    ) -> None:
        self._block = block
        self._waiter = waiter
        self._timeout_s = timeout_s

    def block(self) -> bool:
        """Wait in this thread; Ctrl-C ends the wait."""
        return wait_in_parts(self._block, self._timeout_s)

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._in_task().__await__()

    async def _in_task(self) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._waiter()
        except TimeoutError:
            return False
        return True


class Signal:
    """A flag to wait for. A waiting thread may be woken from any thread, a waiting task from its
    loop.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Set the flag: end the current wait, or the next."""
        self._event.set()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Clear the flag, so that the next wait blocks."""
        self._event.clear()

    def wait(self, timeout_s: float | None) -> Wait:
        """A wait until the flag is set. One wait at a time."""
        return Wait(self._event.wait, self._new_waiter, timeout_s)

    def _new_waiter(self) -> "asyncio.Future[None]":
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        if self._event.is_set():
            waiter.set_result(None)
        return waiter


# The time that cancelled tasks on the loop have to end.
_CLOSE_S_MAX = 5.0

_threads: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


class LoopThread:
    """A daemon thread that runs an event loop, from its first use until `close`.

    Waiting for it is waiting on a lock, so Ctrl-C interrupts a blocked caller at once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closing = False
        self._parking = False
        self._parked = threading.Event()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, started on first use."""
        return self._loop or self._start()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    @property
    def is_closed(self) -> bool:
        return self._closing

    def is_current(self) -> bool:
        """Whether the caller is on this thread, as in a callback, where nothing may block."""
        return threading.current_thread() is self._thread

    def run(
        self,
        call: Call[Result] | Coroutine[Any, Any, Result],
        timeout_s: float | None = None,
    ) -> Result:
        """The result of a call, whose waits run on the loop; Ctrl-C cancels the wait.

        The timeout is for coroutines; generator calls have their own deadlines.
        """
        if not isinstance(call, GeneratorType):
            return self._wait_for(cast("Awaitable[Result]", call), timeout_s)
        assert timeout_s is None, "a call has deadlines of its own"
        error: BaseException | None = None
        try:
            while True:
                try:
                    awaitable = next(call) if error is None else call.throw(error)
                    # Inside this block Ctrl-C reaches the call even between its waits.
                    while True:
                        awaitable = call.send(
                            awaitable.block()
                            if type(awaitable) is Wait
                            else self._wait_for(awaitable)
                        )
                except StopIteration as end:
                    return cast("Result", end.value)
                except BaseException as raised:
                    if call.gi_frame is None:  # By the call itself, which has ended.
                        raise
                    error = raised
        finally:
            error = None  # Its traceback has this frame: a cycle.

    def _wait_for(self, awaitable: Awaitable[Result], timeout_s: float | None = None) -> Result:
        coroutine: Coroutine[Any, Any, Result] = (
            awaitable if iscoroutine(awaitable) else _awaited(awaitable)
        )
        if self._closing:
            coroutine.close()
            raise _closed()
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
            # Both an operation's timeout and our own timeout end up here.
            if future.done() and not future.cancelled():
                raise
            raise TimedOut(f"not done within {timeout_s:g} s") from None
        finally:
            future.cancel()
            del future  # Its error's traceback has this frame: a cycle.

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Schedule a callback on the loop from any thread; does nothing once the loop is closed."""
        if self._closing:
            return
        try:
            self.loop.call_soon_threadsafe(callback, *arguments)
        except (Closed, RuntimeError):
            if not self._closing:
                raise

    def close(self) -> None:
        """Cancel the running tasks, stop the loop, and wait for the thread. May be called again."""
        with self._starting:
            if self._closing:
                return
            self._closing = True
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current():
            self._thread.join()

    def join(self) -> None:
        """Wait for the thread, after `close` was called on the thread itself."""
        assert self._closing and not self.is_current()
        if self._thread is not None and not self._parking:  # That keeps the thread for ever.
            self._thread.join()

    def park(self) -> None:
        """Stop the loop from doing any work, because the interpreter is about to end.

        uvloop takes the interpreter's lock at every event, and crashes when there is no interpreter
        any more. There is no time to close: tasks on the loop may need threads that have ended
        already.
        """
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            return  # Not in this process either, if it was forked.
        if self._closing:
            self._thread.join(_CLOSE_S_MAX)
            return
        self._closing = self._parking = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._parked.wait(_CLOSE_S_MAX)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._closing:
                raise _closed()
            if self._loop is None:
                loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(loop,), name=self._name, daemon=True
                )
                self._thread.start()
                _threads.add(self)
                # Assigned last: other threads that see it use it without the lock.
                self._loop = loop
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            if self._parking:
                self._parked.set()
                # For ever: returning would let go of the loop, whose tasks would complain of it.
                threading.Event().wait()
            _cancel_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_S_MAX))


def _closed() -> Closed:
    return Closed("the client is closed", advice="make a new one")


async def _awaited(awaitable: Awaitable[Result]) -> Result:
    return await awaitable


# Registered before every module that uses this one, and so called after them.
@atexit.register
def _park_all() -> None:
    for thread in tuple(_threads):
        thread.park()
