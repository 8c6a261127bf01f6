"""Rebalance listeners of applications, and the changes they are called for inside `poll()`."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum
from typing import Protocol

from headrace.client.consumer.subscription import SubscriptionState
from headrace.types import TopicPartition


class RebalanceCallbacks(Protocol):
    """The listener that `subscribe` takes: the two methods that every Kafka client has."""

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


class RebalanceEvent(Enum):
    """The kinds of changes of an assignment."""

    REVOKED = "revoked"
    ASSIGNED = "assigned"
    LOST = "lost"


class PendingRebalance:
    """One change the application is told about; `told` is done when it was."""

    __slots__ = ("assignment", "change", "partitions", "told")

    def __init__(
        self,
        change: RebalanceEvent,
        partitions: Sequence[TopicPartition],
        assignment: Sequence[TopicPartition],
        told: "asyncio.Future[None]",
    ) -> None:
        self.change = change
        self.partitions = partitions
        self.assignment = assignment
        self.told = told


class PendingRebalances:
    """The changes the application has yet to hear of, in order."""

    def __init__(
        self, subscription: SubscriptionState, post: Callable[..., None], wake: Callable[[], None]
    ) -> None:
        self._subscription = subscription
        self._post = post
        self._wake = wake
        self._pending: deque[PendingRebalance] = deque()
        self.listener: RebalanceCallbacks | None = None

    async def tell(
        self,
        change: RebalanceEvent,
        partitions: Sequence[TopicPartition],
        assignment: Sequence[TopicPartition] = (),
    ) -> None:
        """On the loop: return when the application was told, inside its next `poll()`."""
        done = asyncio.get_running_loop().create_future()
        pending = PendingRebalance(change, list(partitions), list(assignment), done)
        self._pending.append(pending)
        self._wake()
        try:
            await done
        finally:
            # Whoever is cancelled takes the news back, unless it is being told already.
            if pending in self._pending:
                self._pending.remove(pending)

    @property
    def has_pending(self) -> bool:
        """In the application: whether there is a change to be told."""
        return bool(self._pending)

    def begin(self) -> PendingRebalance | None:
        """In the application: the next change to be told; `end` it whatever the listener does."""
        if not self._pending:
            return None
        try:
            pending = self._pending.popleft()
        except IndexError:
            return None  # Taken back in this moment.
        if pending.change is RebalanceEvent.ASSIGNED:
            with self._subscription.lock:
                self._subscription.replace(pending.assignment)
        return pending

    def call_listener(
        self, change: RebalanceEvent, partitions: Sequence[TopicPartition]
    ) -> Awaitable[None] | None:
        """In the application: what the listener returns, if there is one and it has to know."""
        listener = self.listener
        if listener is None or (not partitions and change is not RebalanceEvent.ASSIGNED):
            return None
        if change is RebalanceEvent.ASSIGNED:
            return listener.on_partitions_assigned(partitions)
        if change is RebalanceEvent.LOST:
            # Listeners written for other clients may not have this one.
            lost = getattr(listener, "on_partitions_lost", None)
            if lost is not None:
                answer: Awaitable[None] | None = lost(partitions)
                return answer
        return listener.on_partitions_revoked(partitions)

    def end(self, one: PendingRebalance) -> None:
        """In the application: the listener is done, the loop may go on."""
        self._post(_settle, one.told)


def _settle(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)
