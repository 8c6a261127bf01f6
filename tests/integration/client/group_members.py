"""Members of groups made of `Group` alone: a host that records what it is told, and no fetching."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from headrace.client.addresses import parse_addresses
from headrace.client.consumer.group import Group
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import consumer_options
from headrace.client.transport.cluster import Cluster
from headrace.types import TopicPartition

SECONDS = 30.0


class Told(NamedTuple):
    what: str
    partitions: frozenset[TopicPartition]


class Host:
    """A consumer whose application polls all the time, unless it is told not to."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)
        self.mine: list[TopicPartition] = []
        self.told: list[Told] = []
        self.polls = asyncio.Event()
        self.polls.set()

    def subscribed(self) -> frozenset[str]:
        return self.topics

    def owned(self) -> Sequence[TopicPartition]:
        return self.mine

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._tell("revoked", partitions)
        self.mine = [tp for tp in self.mine if tp not in partitions]

    async def assigned(
        self, partitions: Sequence[TopicPartition], added: Sequence[TopicPartition]
    ) -> None:
        assert set(added) == set(partitions) - set(self.mine)
        await self._tell("assigned", added)
        self.mine = list(partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._tell("lost", partitions)
        self.mine = [tp for tp in self.mine if tp not in partitions]

    async def may_join(self) -> None:
        await self.polls.wait()

    async def _tell(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        await self.polls.wait()
        self.told.append(Told(what, frozenset(partitions)))

    def heard(self, what: str) -> list[frozenset[TopicPartition]]:
        """The partitions of everything of a kind that was not about nothing."""
        return [one.partitions for one in self.told if one.what == what and one.partitions]


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
        self.cluster = Cluster(parse_addresses(address), client_id=self.options.client_id)
        self.group = Group(
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
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (said := problem()) is not None:
        assert loop.time() < deadline, said
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
