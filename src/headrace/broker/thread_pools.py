"""The few threads for work that may block or takes long: fsync, cold reads, compaction."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from headrace.tasks import is_operating_error, report_bug

P = ParamSpec("P")
R = TypeVar("R")

_FLUSH_THREADS = 4
_READ_THREADS = 4


class ThreadPools:
    """Thread pools for flushes, for reads and for compaction.

    They are separate, so that neither a reader of old data on a slow disk nor a compaction holds up
    an acknowledgement. Exceptions are raised to the caller; a bug whose caller is gone is reported.
    """

    def __init__(self) -> None:
        self.flushes = ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="flush")
        self.reads = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")
        self.compactions = ThreadPoolExecutor(1, thread_name_prefix="compact")

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
