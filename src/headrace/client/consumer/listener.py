"""What an application is told when its partitions change."""

from collections.abc import Awaitable, Collection
from typing import Protocol

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
