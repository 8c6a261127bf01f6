"""Offsets of deleted topics, as the shell of the group coordinators removes them."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.coordination.group_topics import GroupDriver, GroupTopics
from headrace.coordinator.shard import CoordinatorRecord, ShardEffects
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import Image, TopicImage
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

TOMBSTONE = CoordinatorRecord(b"key", None)


def image(**ids: bytes) -> Image:
    topics = {name: TopicImage(name, topic_id) for name, topic_id in ids.items()}
    return Image(topics=topics, topics_by_id={value.topic_id: value for value in topics.values()})


class FakeDriver:
    """Notes what is asked of the shard, and what is written."""

    def __init__(self, *, loading: bool = False) -> None:
        self.loading = loading
        self.closed = False
        self.in_sync = True
        self.fails = False
        self.asked: list[Any] = []
        self.written: list[ShardEffects] = []
        self.shard = SimpleNamespace(
            has_to_remove_stale_offsets=True, remove_stale_offsets=self._remove
        )
        self.partition = SimpleNamespace(name="offsets-0", check_in_sync=self._check)

    def ask(self, question: Callable[[Any], ShardEffects]) -> ShardEffects:
        return question(self.shard)

    def _remove(self, deleted: Any) -> ShardEffects:
        self.asked.append(deleted)
        self.shard.has_to_remove_stale_offsets &= deleted is not None
        return ShardEffects((TOMBSTONE,))

    def _check(self) -> None:
        if not self.in_sync:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def perform(self, effects: ShardEffects) -> None:
        if self.fails:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.written.append(effects)

    @property
    def as_driver(self) -> GroupDriver:
        return cast("GroupDriver", self)


def test_deletions_are_told_to_shards_that_are_loaded() -> None:
    topics = GroupTopics()
    loaded, loading = FakeDriver(), FakeDriver(loading=True)
    drivers = [loaded.as_driver, loading.as_driver]
    topics.follow(image(a=b"1", b=b"2", c=b"3"), 5, drivers)
    assert loaded.asked == []
    # One is gone, one has another id, one is new.
    topics.follow(image(b=b"4", c=b"3", d=b"5"), 6, drivers)
    assert (loaded.asked, loading.asked) == ([["a", "b"]], [])
    assert loaded.written == [ShardEffects((TOMBSTONE,))]
    assert (topics.id_of("b"), topics.id_of("a")) == (b"4", None)


def test_a_shard_is_cleaned_once_when_it_is_loaded_even_if_it_cannot_be_written() -> None:
    topics, driver = GroupTopics(), FakeDriver()
    driver.fails = True
    topics.on_change(driver.as_driver)
    topics.on_change(driver.as_driver)
    assert driver.asked == [None]


def test_removal_waits_until_enough_replicas_are_in_sync() -> None:
    clock = FakeClock()

    async def main() -> None:
        topics, driver, other = GroupTopics(), FakeDriver(), FakeDriver()
        driver.in_sync = other.in_sync = False
        for entry in (driver, other):
            topics.on_change(entry.as_driver)
            topics.on_change(entry.as_driver)
        other.closed = True
        driver.in_sync = other.in_sync = True
        await asyncio.sleep(6)
        assert (driver.asked, other.asked) == ([None], [])

    run(clock, main())
