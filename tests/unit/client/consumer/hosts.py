"""A consumer as its group sees it, which does nothing but write down what it is told."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.types import TopicPartition


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
        return [entry.partitions for entry in self.told if entry.what == what and entry.partitions]
