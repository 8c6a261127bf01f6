"""Rebalance listeners of applications, and the queue of changes to call them for in `poll()`."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum
from typing import Protocol

from headrace.client.consumer.subscription import SubscriptionState
from headrace.types import TopicPartition


class RebalanceCallbacks(Protocol):
    """The listener argument of `subscribe`: the two methods that every Kafka client has."""

    def on_partitions_revoked(
        self, revoked: Collection[TopicPartition], /
    ) -> Awaitable[None] | None: ...

    def on_partitions_assigned(
        self, assigned: Collection[TopicPartition], /
    ) -> Awaitable[None] | None: ...


class RebalanceListener:
    """A base class for listeners: override the methods you need.

    The methods are called inside `poll()`, in the thread (or the task) that polls, so they may use
    the consumer: commit, seek, pause. In `headrace.aio` they may be coroutine functions. Their
    exceptions are raised by `poll()`.

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
        """Called before partitions go to another member; offsets can still be committed."""
        return None

    def on_partitions_assigned(
        self, assigned: Collection[TopicPartition], /
    ) -> Awaitable[None] | None:
        """Called when partitions were assigned, before any record of them is read."""
        return None

    def on_partitions_lost(self, lost: Collection[TopicPartition], /) -> Awaitable[None] | None:
        """Called when partitions are lost: other members may own them, so no commit is possible.

        This happens to a member that was silent for too long. The default calls
        `on_partitions_revoked`.
        """
        return self.on_partitions_revoked(lost)


class RebalanceEvent(Enum):
    """The kinds of changes of an assignment."""

    REVOKED = "revoked"
    ASSIGNED = "assigned"
    LOST = "lost"


class PendingRebalance:
    """An assignment change to report to the application; `reported` is done once it knows."""

    __slots__ = ("assignment", "change", "partitions", "reported")

    def __init__(
        self,
        change: RebalanceEvent,
        partitions: Sequence[TopicPartition],
        assignment: Sequence[TopicPartition],
        reported: "asyncio.Future[None]",
    ) -> None:
        self.change = change
        self.partitions = partitions
        self.assignment = assignment
        self.reported = reported


class PendingRebalances:
    """The assignment changes to report to the application, in order."""

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
        """On the loop: return after the application was notified, inside its next `poll()`."""
        done = asyncio.get_running_loop().create_future()
        pending = PendingRebalance(change, list(partitions), list(assignment), done)
        self._pending.append(pending)
        self._wake()
        try:
            await done
        finally:
            # A cancelled caller withdraws the change, unless the listener is being called already.
            if pending in self._pending:
                self._pending.remove(pending)

    @property
    def has_pending(self) -> bool:
        """In the application: whether a change has to be reported."""
        return bool(self._pending)

    def begin(self) -> PendingRebalance | None:
        """In the application: the next change to report; `end` it whatever the listener does."""
        if not self._pending:
            return None
        try:
            pending = self._pending.popleft()
        except IndexError:
            return None  # Withdrawn at this moment.
        if pending.change is RebalanceEvent.ASSIGNED:
            with self._subscription.lock:
                self._subscription.replace(pending.assignment)
        return pending

    def call_listener(
        self, change: RebalanceEvent, partitions: Sequence[TopicPartition]
    ) -> Awaitable[None] | None:
        """In the application: the listener's result; None if there is nothing to call."""
        listener = self.listener
        if listener is None or (not partitions and change is not RebalanceEvent.ASSIGNED):
            return None
        if change is RebalanceEvent.ASSIGNED:
            return listener.on_partitions_assigned(partitions)
        if change is RebalanceEvent.LOST:
            # Listeners written for other clients may not have this method.
            lost = getattr(listener, "on_partitions_lost", None)
            if lost is not None:
                answer: Awaitable[None] | None = lost(partitions)
                return answer
        return listener.on_partitions_revoked(partitions)

    def end(self, pending: PendingRebalance) -> None:
        """In the application: the listener has returned, the loop may continue."""
        self._post(_settle, pending.reported)


def _settle(reported: "asyncio.Future[None]") -> None:
    if not reported.done():
        reported.set_result(None)
