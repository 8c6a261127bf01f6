"""The few threads for work that may block or takes long: fsync, cold reads, compaction."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from headrace.tasks import is_operating_error, report_bug

P = ParamSpec("P")
R = TypeVar("R")

_FLUSH_THREADS = 4
_READ_THREADS = 4


class WorkerPool(ThreadPoolExecutor):
    """A pool of threads that knows how many calls wait for a thread."""

    def __init__(self, threads_max: int, name: str) -> None:
        super().__init__(threads_max, thread_name_prefix=name)
        # Appended to and popped from by several threads at once, which a deque allows.
        self._waiting: deque[None] = deque()

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return len(self._waiting)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        def begin() -> R:
            self._waiting.pop()
            return fn(*args, **kwargs)

        self._waiting.append(None)
        future = super().submit(begin)
        future.add_done_callback(self._drop_cancelled)
        return future

    def _drop_cancelled(self, future: "Future[Any]") -> None:
        if future.cancelled():
            self._waiting.pop()


class ThreadPools:
    """Thread pools for flushes, for reads and for compaction.

    They are separate, so that neither a reader of old data on a slow disk nor a compaction holds up
    an acknowledgement. Exceptions are raised to the caller; a bug whose caller is gone is reported.
    """

    def __init__(self) -> None:
        self.flushes = WorkerPool(_FLUSH_THREADS, "flush")
        self.reads = WorkerPool(_READ_THREADS, "read")
        self.compactions = WorkerPool(1, "compact")

    async def flush(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await run_in(self.flushes, lambda: work(*args, **kwargs))

    async def read(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await run_in(self.reads, lambda: work(*args, **kwargs))

    async def compact(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await run_in(self.compactions, lambda: work(*args, **kwargs))

    def close(self) -> None:
        self.flushes.shutdown()
        self.reads.shutdown()
        self.compactions.shutdown()


def run_in(executor: Executor, work: Callable[[], R]) -> asyncio.Future[R]:
    """Run work in a thread; the future has its result or its exception."""
    loop = asyncio.get_running_loop()

    def watched() -> R:
        try:
            return work()
        except BaseException as error:
            if not is_operating_error(error):
                loop.call_soon_threadsafe(report_unseen, error)
            raise

    def report_unseen(error: BaseException) -> None:
        # On the loop's thread, where the future is known by now.
        if future.cancelled():
            report_bug("a worker thread", error)

    future = loop.run_in_executor(executor, watched)
    return future
