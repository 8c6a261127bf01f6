"""Per-producer FIFO queues of work, bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.tasks import TaskScope

# More than a client has in flight to one broker, unless it does not care for an order.
WAITING_MAX = 64
# All that is held together, of all producers.
HELD_BYTES_MAX = 256 * 1024 * 1024

Result = TypeVar("Result")


class Turns:
    """One at a time for each number, in the order in which they came. For the loop's thread."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[asyncio.Future[None]]] = {}
        self._held_bytes = 0
        self._tasks = TaskScope("requests in turn")

    def taken(self, number: int) -> bool:
        """Whether somebody has the turn, so that others must wait."""
        return number in self._queues

    def take(
        self, number: int, size: int, work: Callable[[], Awaitable[Result]]
    ) -> "asyncio.Task[Result]":
        """Do `work`, which holds `size` bytes, when all is done that came before.

        KafkaError if that is too much. The place is taken now, and left when the task ends, however
        that is.
        """
        queue = self._queues.get(number, ())
        if len(queue) >= WAITING_MAX or (
            self._held_bytes and self._held_bytes + size > HELD_BYTES_MAX
        ):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many requests wait for their turn")
        queue = self._queues.setdefault(number, deque())
        self._held_bytes += size
        turn = asyncio.get_running_loop().create_future()
        if not queue:
            turn.set_result(None)
        queue.append(turn)
        task = self._tasks.start_awaited(_in_turn(turn, work))
        task.add_done_callback(lambda _: self._leave(number, turn, size))
        return task

    def _leave(self, number: int, turn: asyncio.Future[None], size: int) -> None:
        self._held_bytes -= size
        queue = self._queues[number]
        queue.remove(turn)
        if not queue:
            del self._queues[number]
        elif not queue[0].done():
            queue[0].set_result(None)


async def _in_turn(turn: asyncio.Future[None], work: Callable[[], Awaitable[Result]]) -> Result:
    await turn
    return await work()
