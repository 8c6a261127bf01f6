"""The few threads for work that may block or takes long: fsync, cold reads, compaction."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_FLUSH_THREADS = 4
_READ_THREADS = 4


class Workers:
    """Pools of their own, so that a reader of old data on a slow disk holds up no acknowledgement,
    and compaction neither.
    """

    def __init__(self) -> None:
        self.flushes = ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="flush")
        self.reads = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")
        self.compactions = ThreadPoolExecutor(1, thread_name_prefix="compact")

    async def flush(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.flushes, lambda: work(*args, **kwargs))

    async def read(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.reads, lambda: work(*args, **kwargs))

    async def compact(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.compactions, lambda: work(*args, **kwargs))

    def close(self) -> None:
        self.flushes.shutdown()
        self.reads.shutdown()
        self.compactions.shutdown()
