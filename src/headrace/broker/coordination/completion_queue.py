"""Per transactional id, a FIFO of requests that wait until its prepared transaction is complete.

A client that gets CONCURRENT_TRANSACTIONS retries after 20 to 100 ms, and markers are written in a
few. And librdkafka sends AddPartitionsToTxn and EndTxn without waiting in between: EndTxn must not
be decided first, when there is no transaction to end.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from headrace.protocol.schema import Message
from headrace.tasks import TaskScope

# After this the client has to retry: markers take long, or partitions have no leader.
WAIT_SECONDS = 1.0

Answer: TypeAlias = Message | asyncio.Future[Message]


class CompletionQueue:
    """The queues of all transactional ids. Used on the event loop's thread only.

    Invariant: of the requests for one transactional id only the first in its queue is decided
    again, until a request has waited for WAIT_SECONDS.
    """

    def __init__(self, is_prepared: Callable[[str], bool]) -> None:
        """`is_prepared`: whether the transaction of an id is prepared, but not complete."""
        self._is_prepared = is_prepared
        self._queues: dict[str, deque[_QueuedRequest]] = {}
        self._tasks = TaskScope("requests of a prepared transaction")

    def ask(
        self, transactional_id: str, ask: Callable[[], Answer], is_concurrent: Callable[[Any], bool]
    ) -> Message | Awaitable[Any]:
        """The response to a request, as soon as it is not concurrent by `is_concurrent`.

        `ask` decides the request: now, or in its turn if others wait. It may raise KafkaError.
        """
        if transactional_id in self._queues:
            return self._wait(_QueuedRequest(transactional_id, ask, is_concurrent))
        answer = ask()
        if isinstance(answer, Message):
            if not is_concurrent(answer):
                return answer
            return self._wait(_QueuedRequest(transactional_id, ask, is_concurrent))
        return self._checked(answer, _QueuedRequest(transactional_id, ask, is_concurrent))

    def completed(self, transactional_id: str) -> None:
        """Decide the first request again: its transactional id has no prepared transaction now."""
        queue = self._queues.get(transactional_id)
        if queue is not None:
            queue[0].completed.set()

    async def _checked(self, answer: asyncio.Future[Message], waiting: "_QueuedRequest") -> Any:
        response = await answer
        return await self._wait(waiting) if waiting.is_concurrent(response) else response

    def _wait(self, waiting: "_QueuedRequest") -> "asyncio.Task[Any]":
        """Queue a request; it leaves the queue when the task ends, in whatever way."""
        queue = self._queues.setdefault(waiting.transactional_id, deque())
        queue.append(waiting)
        if len(queue) == 1 and not self._is_prepared(waiting.transactional_id):
            waiting.completed.set()
        task = self._tasks.start_awaited(waiting.run(), waiting.transactional_id)
        task.add_done_callback(lambda _: self._leave(waiting))
        return task

    def _leave(self, waiting: "_QueuedRequest") -> None:
        queue = self._queues[waiting.transactional_id]
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.transactional_id]
        else:
            queue[0].completed.set()


class _QueuedRequest:
    """A request in the queue of a transactional id."""

    __slots__ = ("ask", "completed", "is_concurrent", "transactional_id")

    def __init__(
        self, transactional_id: str, ask: Callable[[], Answer], is_concurrent: Callable[[Any], bool]
    ) -> None:
        self.transactional_id = transactional_id
        self.ask = ask
        self.is_concurrent = is_concurrent
        self.completed = asyncio.Event()

    async def run(self) -> Any:
        """Decide again at each completion, and for the last time after WAIT_SECONDS."""
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            is_late = False
            try:
                async with asyncio.timeout_at(deadline):
                    await self.completed.wait()
            except TimeoutError:
                is_late = True
            self.completed.clear()
            answer = self.ask()
            response = answer if isinstance(answer, Message) else await answer
            if is_late or not self.is_concurrent(response):
                return response
