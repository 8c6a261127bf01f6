"""Tasks and futures that hash by their number, so that sets of them have the same order always."""

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.simulation.loop import VirtualLoop


class SimulatedFuture(asyncio.Future[Any]):
    """A future whose hash is its creation number instead of its address."""

    __slots__ = ("number",)

    def __init__(self, *, loop: "VirtualLoop") -> None:
        self.number = next(loop.future_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimulatedTask(asyncio.Task[Any]):
    """A task that knows its process; TaskGroup, asyncio.wait and all_tasks keep sets of these."""

    __slots__ = ("number", "process")

    def __init__(self, coro: Any, *, loop: "VirtualLoop", name: str | None, **options: Any) -> None:
        self.process = loop.current_process(options.get("context"))
        self.number = next(loop.future_numbers)
        super().__init__(coro, loop=loop, name=name or f"task-{self.number}", **options)

    def __hash__(self) -> int:
        return self.number


def task_of(handle: Any) -> "asyncio.Task[Any] | None":
    """The task of which this handle is the next step, if any."""
    owner = getattr(handle._callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


def described(handle: Any) -> str:
    """A name for a handle that is the same in every run; its repr holds addresses."""
    if task := task_of(handle):
        return f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '?')}"
    return str(getattr(handle._callback, "__qualname__", type(handle._callback).__name__))
