"""A consumer's place in its group: joining, heartbeats, leaving, and committed offsets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.client.consumer.offsets import OffsetAndMetadata
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.client.metrics import ConsumerMetrics
    from headrace.client.options import ConsumerOptions
    from headrace.client.transport.cluster import Cluster


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


class Group:
    """One member of one group. Loop-bound, not thread-safe.

    Without `start` it only commits and fetches offsets, as `assign()` with a group id needs it.
    After `stop` it may be started again.
    """

    # What ended the membership for good; `poll` raises it.
    failure: HeadraceError | None

    def __init__(
        self,
        cluster: "Cluster",
        options: "ConsumerOptions",
        host: GroupHost,
        metrics: "ConsumerMetrics",
        *,
        client_id: str,
    ) -> None:
        raise NotImplementedError

    @property
    def is_stable(self) -> bool:
        """Whether the host has the current assignment and no rebalance is going on."""
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """The generation of the assignment; -1 outside of a group."""
        raise NotImplementedError

    @property
    def member_id(self) -> str:
        """The id the coordinator gave this member; "" before that."""
        raise NotImplementedError

    def start(self) -> None:
        """Join the group, as soon as the host may, and stay in it until `stop`."""
        raise NotImplementedError

    async def stop(self, *, leave: bool = True) -> None:
        """End the membership. A static member stays in the group until its session is over.

        The host is not called any more: what is owned is the host's to revoke and commit before.
        """
        raise NotImplementedError

    def subscription_changed(self) -> None:
        """Join again with the topics subscribed to now."""
        raise NotImplementedError

    def polled(self) -> None:
        """The application called `poll`, so it is alive for another `max_poll_interval_ms`."""
        raise NotImplementedError

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> None:
        """Commit offsets; CommitFailed if a partition is no longer ours, TimedOut."""
        raise NotImplementedError

    async def committed(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The last committed offsets, None where there is none."""
        raise NotImplementedError
