"""Members of groups made of `GroupMember` alone: a host that writes down what it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from headrace.client.cluster import ClusterClient
from headrace.client.consumer.group import GroupMember
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import consumer_options
from headrace.net.addresses import parse_addresses
from headrace.testing.time_limits import Deadline
from headrace.types import TopicPartition
from tests.unit.client.consumer.hosts import Host

SECONDS = 60.0


class Member:
    """A host in a group, with connections of its own."""

    def __init__(self, address: str, topics: Iterable[str], **options: Any) -> None:
        self.options = consumer_options(
            **{
                "bootstrap_servers": address,
                "group_id": "group",
                "session_timeout_ms": 6000,
                "heartbeat_interval_ms": 100,
                "max_poll_interval_ms": 10_000,
                "partition_assignment_strategy": "range",
                **options,
            }
        )
        self.host = Host(topics)
        self.metrics = ConsumerMetrics()
        self.cluster = ClusterClient(parse_addresses(address), client_id=self.options.client_id)
        self.group = GroupMember(
            self.cluster, self.options, self.host, self.metrics, client_id=self.options.client_id
        )

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self.host.mine)

    async def heartbeats(self, count: int) -> None:
        """Wait for so many more heartbeats."""
        before = self.metrics.snapshot()["heartbeat-total"]

        def problem() -> object:
            seen = self.metrics.snapshot()["heartbeat-total"] - before
            return None if seen >= count else seen

        await until(problem)

    async def close(self, *, leave: bool = True) -> None:
        await self.group.stop(leave=leave)
        self.host.mine = []
        await self.cluster.close()


@asynccontextmanager
async def members(
    address: str, topics: Iterable[str], **options: Any
) -> AsyncIterator[Callable[..., Member]]:
    """Make members that are gone at the end; each is started unless `started=False`."""
    made: list[Member] = []

    def make(started: bool = True, **more: Any) -> Member:
        member = Member(address, topics, **{**options, **more})
        made.append(member)
        if started:
            member.group.start()
        return member

    try:
        yield make
    finally:
        for member in made:
            await member.close(leave=False)


async def until(problem: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until there is no problem any more; fail with the last one."""
    deadline = Deadline(seconds)
    while (said := problem()) is not None:
        assert not deadline.has_passed, said
        await asyncio.sleep(0.01)


async def settled(*made: Member, of: Iterable[TopicPartition]) -> None:
    """Wait until every partition has one owner, and everybody is content with that."""
    wanted = sorted(of)

    def problem() -> object:
        owned = sorted(tp for member in made for tp in member.owned)
        if owned != wanted:
            return [(member.group, sorted(member.owned)) for member in made]
        return [member.group for member in made if not member.group.is_stable] or None

    await until(problem)
