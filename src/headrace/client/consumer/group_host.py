"""What a membership of a group needs from the consumer it is for."""

from collections.abc import Sequence
from typing import Protocol

from headrace.types import TopicPartition


class GroupHost(Protocol):
    """The consumer a membership is for. Every call is made on the loop of the cluster."""

    def subscribed(self) -> frozenset[str]:
        """The topics subscribed to at this moment; a pattern is expanded already."""
        ...

    def owned(self) -> Sequence[TopicPartition]:
        """The partitions the consumer has at this moment, by `assigned`, `revoked` and `lost`."""
        ...

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Give up partitions; returns when the application was told and has committed.

        Commits made until this returns are accepted for these partitions.
        """
        ...

    async def assigned(
        self, partitions: Sequence[TopicPartition], added: Sequence[TopicPartition]
    ) -> None:
        """Take over an assignment as a whole; `added` is what was not owned before."""
        ...

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop partitions that others may own by now; nothing can be committed for them."""
        ...

    async def may_join(self) -> None:
        """Wait until the application is inside `poll()`."""
        ...
