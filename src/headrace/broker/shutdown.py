"""The steps of a node's stop: what each waits for is logged, and how long it took."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from headrace.clock import Clock

logger = logging.getLogger(__name__)

# A step that takes longer is told of while it goes on.
_PATIENCE_SECONDS = 1.0
# Steps shorter than this are left out of the report.
_WORTH_TELLING_SECONDS = 0.1


class Shutdown:
    """Runs the steps of a stop, and reports those that took a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: float | None = None
        self._took: list[tuple[str, float]] = []

    def push(
        self, stack: AsyncExitStack, name: str, stop: Callable[..., Awaitable[None]], *args: object
    ) -> None:
        """Have a step run when the stack is left; `name` says what it waits for."""
        stack.push_async_callback(self.run, name, stop, *args)

    async def run(self, name: str, stop: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run one step, saying so if it takes long."""
        began = self._clock.monotonic()
        if self._began is None:
            self._began = began
        loop = asyncio.get_running_loop()
        notice = loop.call_later(_PATIENCE_SECONDS, logger.info, "stopping: waiting for %s", name)
        try:
            await stop(*args)
        finally:
            notice.cancel()
            took = self._clock.monotonic() - began
            if took >= _WORTH_TELLING_SECONDS:
                self._took.append((name, took))

    def report(self) -> None:
        """Log how long the stop took, and with what."""
        if self._began is None:
            return
        steps = ", ".join(f"{took:.1f} s for {name}" for name, took in self._took)
        total = self._clock.monotonic() - self._began
        logger.info("stopped in %.1f s%s", total, f": {steps}" if steps else "")
