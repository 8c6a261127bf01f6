"""Something a node does again and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.errors import ErrorCode, HeadraceError, KafkaError

logger = logging.getLogger(__name__)


class Duty:
    """Runs something once every `period_s`, one run at a time; one that fails does not end it.

    NOT_CONTROLLER is no failure: another node has become the active controller.
    """

    def __init__(self, name: str, period_s: float, run: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._period_s = period_s
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Run it a period from now, and so on; from now anew if it was started before."""
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._begin)

    def hurry(self) -> None:
        """Run it now instead of when it is due; nothing if it runs, or was stopped."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()

    def stop(self) -> None:
        """Run it no more; a run that is under way is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER:
            pass  # Another one is active now, and sees to it.
        elif isinstance(error, HeadraceError):
            logger.error("%s failed: %s", self._name, error)
        elif error is not None:
            logger.critical("%s failed", self._name, exc_info=error)
        if task is self._task:
            self.start()
