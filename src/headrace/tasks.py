"""Owners of long-lived tasks, periodic tasks, and the report of bugs that end the process.

Rule: the broker starts its tasks here and nowhere else, so that none fails unseen. A bug goes to
the exception handler of the event loop, which also gets bugs in callbacks; `stop_on_bugs` installs
that handler. A process with a bug ends with status 70.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from headrace.errors import ErrorCode, HeadraceError, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")
OnBug: TypeAlias = Callable[[str, BaseException], None]

# EX_SOFTWARE of sysexits.h: the exit status of a process after a bug of its own.
EXIT_BUG = 70

# The time that a cancelled task has to end.
CANCEL_SECONDS_MAX = 5.0

# The key under which `report_bug` passes the place of the bug to the loop's exception handler.
_WHERE = "headrace_bug"


def is_operating_error(error: BaseException) -> bool:
    """Whether an error is not a bug but a failed peer or disk, a bad request, or a cancellation."""
    return isinstance(error, HeadraceError | OSError | asyncio.CancelledError)


def report_bug(where: str, error: BaseException) -> None:
    """Pass a bug to the exception handler of the running loop. Returns only in tests."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"bug in {where}", "exception": error, _WHERE: where}
    )


def bug_of(context: dict[str, Any]) -> tuple[str, BaseException] | None:
    """The place of a bug and its exception, from an exception handler's context; None if no bug.

    Operating errors that are never awaited, and messages without an exception, are not bugs.
    """
    error: BaseException | None = context.get("exception")
    where: str | None = context.get(_WHERE)
    if error is None or (where is None and is_operating_error(error)):
        return None
    task = context.get("task") or context.get("future")
    if where is None and isinstance(task, asyncio.Task):
        where = f"task {task.get_name()}"
    return where or str(context.get("message") or "a callback"), error


def stop_on_bugs(loop: asyncio.AbstractEventLoop, on_bug: OnBug) -> None:
    """Log every bug that reaches a loop, with its stack, and call `on_bug` with each."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        bug = bug_of(context)
        if bug is None:
            logger.error("%s", context.get("message"), exc_info=context.get("exception"))
            return
        where, error = bug
        logger.critical(
            "bug in %s: this process stops with status %d, to be started again",
            where,
            EXIT_BUG,
            exc_info=error,
        )
        on_bug(where, error)

    loop.set_exception_handler(handle)


class TaskScope:
    """The tasks of one part of the program. Used on the event loop's thread only.

    Invariant: no task outlives `close`, and none fails unseen.
    """

    __slots__ = ("_closed", "_name", "_tasks")

    def __init__(self, name: str) -> None:
        self._name = name
        # In the order they began, so that every replay of a simulation ends them in that order.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def __len__(self) -> int:
        """The number of tasks that have not ended."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        """Run `work`, which returns or is cancelled; any other end of it is a bug.

        Even a HeadraceError is: `work` handles the errors that it expects. So is a CancelledError
        without a call of `cancel`: then `work` awaited a future that other code has cancelled.
        """
        task = self._begin(work, name)
        task.add_done_callback(self._ended)
        return task

    def start_awaited(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run `work` for a caller that awaits the task and handles its operating errors.

        A bug is reported even if the caller no longer awaits the task.
        """
        task = self._begin(work, name)
        task.add_done_callback(self._ended_awaited)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, and those that are started later, without waiting for their ends."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()

    async def close(self, grace_s: float = 0.0) -> None:
        """Let tasks end by themselves for `grace_s`, then cancel them; return when they have ended.

        A task that does not end within CANCEL_SECONDS_MAX of its cancellation is named in the log
        and left behind. Work that is started later is cancelled before it begins.
        """
        self._closed = True
        if self._tasks and grace_s > 0:
            await asyncio.wait(tuple(self._tasks), timeout=grace_s)
        tasks = tuple(self._tasks)
        self.cancel()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=CANCEL_SECONDS_MAX)
        for task in tasks:
            if task in left:
                logger.error(
                    "%s did not end within %g s of its cancellation: %r",
                    self._label(task),
                    CANCEL_SECONDS_MAX,
                    task.get_stack(limit=1),
                )

    def _begin(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        label = f"{self._name}: {name}" if name else self._name
        task = asyncio.get_running_loop().create_task(work, name=label)
        self._tasks[task] = None
        if self._closed:
            task.cancel()
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if task.cancelled():
            if not task.cancelling():
                error = RuntimeError("cancelled, but not by its owner: it awaited a shared future")
                report_bug(self._label(task), error)
            return
        error_or_none = task.exception()
        if error_or_none is not None:
            report_bug(self._label(task), error_or_none)

    def _ended_awaited(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        # Retrieved here, so that asyncio does not log an error whose caller is gone.
        error = None if task.cancelled() else task.exception()
        if error is not None and not is_operating_error(error):
            report_bug(self._label(task), error)

    def _label(self, task: asyncio.Task[Any]) -> str:
        return f"task {task.get_name()}"


class PeriodicTask:
    """A periodic task: calls `run` once every `period_s`, never twice at a time.

    A run that fails by a HeadraceError is logged, and the next run follows; any other error is a
    bug. NOT_CONTROLLER is not a failure: another node has become the active controller.
    """

    def __init__(self, name: str, period_s: float, run: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._period_s = period_s
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskScope(name)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the periods now; a task that was started before begins them anew."""
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._begin)

    def run_now(self) -> None:
        """Run now instead of at the end of the period; do nothing while running or stopped."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()

    def stop(self) -> None:
        """End the periods; a run that is under way is cancelled."""
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
