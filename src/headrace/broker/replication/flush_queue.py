"""fsync off the event loop: one at a time for each log, shared by all waiting appends."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.errors import HeadraceError
from headrace.metrics import catalog
from headrace.metrics.registry import Registry
from headrace.storage.log import Log

logger = logging.getLogger(__name__)


class FlushQueue:
    """Group commit: appends that arrive during an fsync share the next fsync."""

    def __init__(self, executor: Executor, registry: Registry | None = None) -> None:
        self._executor = executor
        self._durations = (registry or Registry()).histogram(catalog.LOG_FLUSH)
        self._running: set[Log] = set()
        self._waiting: dict[Log, list[Callable[[int], None]]] = {}

    def flush(self, log: Log, on_flushed: Callable[[int], None]) -> None:
        """Flush all records of `log` now, then call `on_flushed(offset)` with its end by then.

        A failed fsync takes the log offline, and `on_flushed` is called with -1.
        """
        self._waiting.setdefault(log, []).append(on_flushed)
        if log not in self._running:
            self._begin(log)

    def is_flushing(self, log: Log) -> bool:
        return log in self._running

    def _begin(self, log: Log) -> None:
        self._running.add(log)
        callbacks = self._waiting.pop(log)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        future = loop.run_in_executor(self._executor, log.flush)

        def done(flushed: asyncio.Future[int]) -> None:
            self._durations.observe(loop.time() - began_s)
            self._flushed(log, callbacks, flushed)

        future.add_done_callback(done)

    def _flushed(
        self, log: Log, callbacks: list[Callable[[int], None]], future: asyncio.Future[int]
    ) -> None:
        self._running.discard(log)
        try:
            offset = future.result()
        except HeadraceError as error:
            logger.error("%s is offline: %s", log.topic_partition, error)
            callbacks += self._waiting.pop(log, ())
            offset = -1
        if log in self._waiting:
            self._begin(log)
        for on_flushed in callbacks:
            on_flushed(offset)
