"""Per-producer FIFO queues of work, bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.tasks import TaskScope

# More than a client has in flight to one broker, unless it does not need an order.
WAITING_MAX = 64
# Of the waiting requests of all producers together.
HELD_BYTES_MAX = 256 * 1024 * 1024

Result = TypeVar("Result")


class ProducerQueue:
    """The work of each producer, one at a time and in order. For the loop's thread only."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[asyncio.Future[None]]] = {}
        self._held_bytes = 0
        self._tasks = TaskScope("requests in turn")

    def is_busy(self, producer_id: int) -> bool:
        """Whether work of a producer runs or waits, so that new work must wait."""
        return producer_id in self._queues

    def submit(
        self, producer_id: int, size: int, work: Callable[[], Awaitable[Result]]
    ) -> "asyncio.Task[Result]":
        """Run `work`, which holds `size` bytes, after all earlier work of the producer.

        KafkaError if too much waits. Its place in the queue is taken now, and left when the task
        ends, in whatever way.
        """
        queue = self._queues.get(producer_id, ())
        if len(queue) >= WAITING_MAX or (
            self._held_bytes and self._held_bytes + size > HELD_BYTES_MAX
        ):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many requests wait for their turn")
        queue = self._queues.setdefault(producer_id, deque())
        self._held_bytes += size
        turn = asyncio.get_running_loop().create_future()
        if not queue:
            turn.set_result(None)
        queue.append(turn)
        task = self._tasks.start_awaited(_in_turn(turn, work))
        task.add_done_callback(lambda _: self._leave(producer_id, turn, size))
        return task

    def _leave(self, producer_id: int, turn: asyncio.Future[None], size: int) -> None:
        self._held_bytes -= size
        queue = self._queues[producer_id]
        queue.remove(turn)
        if not queue:
            del self._queues[producer_id]
        elif not queue[0].done():
            queue[0].set_result(None)


async def _in_turn(turn: asyncio.Future[None], work: Callable[[], Awaitable[Result]]) -> Result:
    await turn
    return await work()
