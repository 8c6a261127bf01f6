"""Something a node does again and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.tasks import TaskScope

logger = logging.getLogger(__name__)


class Duty:
    """Runs something once every `period_s`, one run at a time.

    A run that fails by a HeadraceError is logged and does not end it; any other error is a bug.
    NOT_CONTROLLER is no failure: another node has become the active controller.
    """

    def __init__(self, name: str, period_s: float, run: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._period_s = period_s
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskScope(name)
        self._task: asyncio.Task[None] | None = None

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
        self._task = self._tasks.start(self._run_once())
        self._task.add_done_callback(self._ended)

    async def _run_once(self) -> None:
        try:
            await self._run()
        except HeadraceError as error:
            if not (isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER):
                logger.error("%s failed: %s", self._name, error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self.start()
