"""Brokers that coordinators and leaders ask, without sockets: what they hear, and what they say."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.cluster.channels import BrokerChannels
from headrace.broker.metadata_store import MetadataStore
from headrace.metadata.image import Image, PartitionImage, TopicImage
from headrace.protocol.schema import Message
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

Answer = Callable[[int, Any], Message]


class FakePeers:
    """Answers as `answer` says after `delay_s`; notes who was asked what."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.delay_s = 0.01
        self.asked: list[tuple[int, Any]] = []
        self.asking = 0
        self.asking_most = 0
        self.closed = False
        self.here: int | None = None
        self.answer_here: Callable[[Message], Any] | None = None

    def is_self(self, broker_id: int) -> bool:
        return broker_id == self.here

    def answer_locally(self, request: Message) -> Any:
        assert self.here is not None
        if self.answer_here is not None:
            return self.answer_here(request)
        self.asked.append((self.here, request))
        return self.answer(self.here, request)

    @property
    def as_peers(self) -> BrokerChannels:
        return cast("BrokerChannels", self)

    async def ask(self, broker_id: int, request: Message, timeout_s: float) -> Message:
        self.asked.append((broker_id, request))
        self.asking += 1
        self.asking_most = max(self.asking_most, self.asking)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(self.delay_s)
        finally:
            self.asking -= 1
        return self.answer(broker_id, request)

    def brokers_changed(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Store:
    """An image that tests replace: topics by name, each with the leaders of its partitions."""

    def __init__(self, **leaders: tuple[int, ...]) -> None:
        self.image = image_of(leaders)

    @property
    def as_store(self) -> MetadataStore:
        return cast("MetadataStore", self)

    def lead(self, **leaders: tuple[int, ...]) -> None:
        self.image = image_of(leaders)


def image_of(leaders: dict[str, tuple[int, ...]]) -> Image:
    topics = {
        name: TopicImage(
            name,
            name.encode().ljust(16)[:16],
            tuple(
                PartitionImage((1, 2, 3), (1, 2, 3), leader, leader_epoch=4, partition_epoch=9)
                for leader in led_by
            ),
        )
        for name, led_by in leaders.items()
    }
    return Image(topics=topics, topics_by_id={value.topic_id: value for value in topics.values()})


def coordinators(topic: str, partition_count: int) -> Any:
    """Where an id is kept: in the partition that its first character says."""
    return SimpleNamespace(topic=topic, partition_of=lambda key: int(key[0]) % partition_count)


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop whose time passes at once."""
    run(FakeClock(), test())
