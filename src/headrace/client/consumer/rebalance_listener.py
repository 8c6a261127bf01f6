"""Rebalance listeners of applications, and the changes they are called for inside `poll()`."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum
from typing import Protocol

from headrace.client.consumer.subscription import Subscription
from headrace.types import TopicPartition


class Listener(Protocol):
    """What `subscribe` takes: anything with the two methods every Kafka client has."""

    def on_partitions_revoked(
        self, revoked: Collection[TopicPartition], /
    ) -> Awaitable[None] | None: ...

    def on_partitions_assigned(
        self, assigned: Collection[TopicPartition], /
    ) -> Awaitable[None] | None: ...


class RebalanceListener:
    """A base for listeners: overwrite what you need.

    The methods are called inside `poll()`, in the thread (or the task) that polls, so they may use
    the consumer: commit, seek, pause. In `headrace.aio` they may be coroutine functions. What they
    raise is raised by `poll()`.

    >>> class Offsets(RebalanceListener):
    ...     def on_partitions_revoked(self, revoked):
    ...         print("gave back", len(revoked))
    ...     def on_partitions_assigned(self, assigned):
    ...         print("got", len(assigned))
    >>> Offsets().on_partitions_lost([TopicPartition("orders", 0)])
    gave back 1
    """

    def on_partitions_revoked(
        self, revoked: Collection[TopicPartition], /
    ) -> Awaitable[None] | None:
        """These partitions go to another member next; offsets can still be committed."""
        return None

    def on_partitions_assigned(
        self, assigned: Collection[TopicPartition], /
    ) -> Awaitable[None] | None:
        """These partitions are ours from now on; nothing was read of them yet."""
        return None

    def on_partitions_lost(self, lost: Collection[TopicPartition], /) -> Awaitable[None] | None:
        """Others may have these partitions already, so nothing can be committed any more.

        That is what happens to a member that was silent for too long. Without a method of your own
        it is as if they were revoked.
        """
        return self.on_partitions_revoked(lost)


class Change(Enum):
    """What happens to partitions."""

    REVOKED = "revoked"
    ASSIGNED = "assigned"
    LOST = "lost"


class Rebalance:
    """One change the application is told about; `told` is done when it was."""

    __slots__ = ("assignment", "change", "partitions", "told")

    def __init__(
        self,
        change: Change,
        partitions: Sequence[TopicPartition],
        assignment: Sequence[TopicPartition],
        told: "asyncio.Future[None]",
    ) -> None:
        self.change = change
        self.partitions = partitions
        self.assignment = assignment
        self.told = told


class Rebalances:
    """The changes the application has yet to hear of, in order."""

    def __init__(
        self, subscription: Subscription, post: Callable[..., None], wake: Callable[[], None]
    ) -> None:
        self._subscription = subscription
        self._post = post
        self._wake = wake
        self._pending: deque[Rebalance] = deque()
        self.listener: Listener | None = None

    async def tell(
        self,
        change: Change,
        partitions: Sequence[TopicPartition],
        assignment: Sequence[TopicPartition] = (),
    ) -> None:
        """On the loop: return when the application was told, inside its next `poll()`."""
        told = asyncio.get_running_loop().create_future()
        one = Rebalance(change, list(partitions), list(assignment), told)
        self._pending.append(one)
        self._wake()
        try:
            await told
        finally:
            # Whoever is cancelled takes the news back, unless it is being told already.
            if one in self._pending:
                self._pending.remove(one)

    def begin(self) -> Rebalance | None:
        """In the application: the next change to be told; `end` it whatever the listener does."""
        if not self._pending:
            return None
        try:
            one = self._pending.popleft()
        except IndexError:
            return None  # Taken back in this moment.
        if one.change is Change.ASSIGNED:
            with self._subscription.lock:
                self._subscription.replace(one.assignment)
        return one

    def call_listener(
        self, change: Change, partitions: Sequence[TopicPartition]
    ) -> Awaitable[None] | None:
        """In the application: what the listener returns, if there is one and it has to know."""
        listener = self.listener
        if listener is None or (not partitions and change is not Change.ASSIGNED):
            return None
        if change is Change.ASSIGNED:
            return listener.on_partitions_assigned(partitions)
        if change is Change.LOST:
            # Listeners written for other clients may not have this one.
            lost = getattr(listener, "on_partitions_lost", None)
            if lost is not None:
                answer: Awaitable[None] | None = lost(partitions)
                return answer
        return listener.on_partitions_revoked(partitions)

    def end(self, one: Rebalance) -> None:
        """In the application: the listener is done, the loop may go on."""
        self._post(_settle, one.told)


def _settle(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)
