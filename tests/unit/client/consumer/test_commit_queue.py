"""Commits in order, and automatic ones of what is done."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from headrace.client.consumer.commit_queue import CommitQueue
from headrace.client.consumer.subscription import SubscriptionState
from headrace.client.errors import CommitFailed, TimedOut
from headrace.client.options import consumer_options
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ConfigError, ErrorCode
from headrace.types import TopicPartition
from tests.unit.client.consumer.batches import OTHER, TP, reading
from tests.unit.client.virtual_time import Brokers


class FakeGroup:
    """Takes commits, a second each."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.failure: CommitFailed | None = None

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> None:
        await asyncio.sleep(1)
        if self.failure is not None:
            raise self.failure
        self.commits.append({tp: offset.offset for tp, offset in offsets.items()})


class Desk:
    """A consumer's commits, a group that takes them, and virtual time."""

    def __init__(self, subscription: SubscriptionState, **options: Any) -> None:
        self.brokers = Brokers()
        self.group: FakeGroup | None = FakeGroup()
        self.woken = 0
        self.committing = CommitQueue(
            self.brokers.new_cluster(),
            subscription,
            consumer_options(group_id="g", **options),
            self.group,  # type: ignore[arg-type]
            self._wake,
        )

    def _wake(self) -> None:
        self.woken += 1

    @property
    def commits(self) -> list[dict[TopicPartition, int]]:
        assert self.group is not None
        return self.group.commits

    def run(self, test: Callable[[CommitQueue], Coroutine[Any, Any, None]]) -> None:
        self.brokers.run(test(self.committing))


def at(offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TP: OffsetAndMetadata(offset)}


def give(subscription: SubscriptionState, tp: TopicPartition, offset: int) -> None:
    """The application was given all before an offset, and asked for more."""
    subscription.seek(tp, offset)


def test_by_default_everything_that_was_given_is_committed() -> None:
    desk = Desk(reading(TP, OTHER, position=3))
    assert desk.committing.wanted(None) == {TP: OffsetAndMetadata(3), OTHER: OffsetAndMetadata(3)}
    assert desk.committing.wanted(at(1)) == at(1)


def test_without_a_group_nothing_can_be_committed() -> None:
    subscription = reading(TP)
    alone = CommitQueue(
        Brokers().new_cluster(), subscription, consumer_options(), None, lambda: None
    )
    assert not alone.is_automatic
    with pytest.raises(ConfigError, match="give the consumer a group_id"):
        alone.wanted(None)


def test_commits_are_done_in_the_order_they_are_asked_for() -> None:
    desk = Desk(reading(TP))
    told: list[tuple[int, object]] = []

    async def commit(committing: CommitQueue) -> None:
        for offset in range(3):
            committing.expect()
            callback = lambda offsets, error: told.append((offsets[TP].offset, error))  # noqa: E731
            asyncio.get_running_loop().create_task(
                committing.commit_and_report(at(offset), callback)
            )
        await asyncio.sleep(0)
        await committing.commit(at(3))
        await committing.drain(10)

    desk.run(commit)
    assert desk.commits == [{TP: 0}, {TP: 1}, {TP: 2}, {TP: 3}]
    assert told == [], "callbacks wait for the application"
    while (callback := desk.committing.next_callback()) is not None:
        callback()
    assert told == [(0, None), (1, None), (2, None)]
    assert desk.woken == 3


def test_a_commit_does_not_wait_for_earlier_ones_past_its_timeout() -> None:
    desk = Desk(reading(TP))

    async def commit(committing: CommitQueue) -> None:
        first = asyncio.get_running_loop().create_task(committing.commit(at(1)))
        await asyncio.sleep(0)
        with pytest.raises(TimedOut, match="earlier commits"):
            await committing.commit(at(2), timeout_s=0.5)
        await first

    desk.run(commit)
    assert desk.commits == [{TP: 1}]


def test_a_failed_commit_is_told_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(reading(TP, position=1))
    assert desk.group is not None
    desk.group.failure = CommitFailed(ErrorCode.ILLEGAL_GENERATION, "others have them")

    async def commit(committing: CommitQueue) -> None:
        for callback in (None, lambda offsets, error: None):
            committing.expect()
            await committing.commit_and_report(at(1), callback)
        await committing.commit_done()
        with pytest.raises(CommitFailed):
            await committing.commit(at(1))

    desk.run(commit)
    assert caplog.text.count("a commit failed: ILLEGAL_GENERATION: others have them") == 1
    assert caplog.text.count("an automatic commit failed: ILLEGAL_GENERATION") == 1


def test_automatic_commits_are_of_what_changed() -> None:
    subscription = reading(TP, OTHER)
    desk = Desk(subscription, auto_commit_interval_ms=5000)

    async def commit(committing: CommitQueue) -> None:
        committing.note_committed(TP, 0)
        running = asyncio.get_running_loop().create_task(committing.run())
        await asyncio.sleep(7)
        give(subscription, TP, 7)
        await asyncio.sleep(20)
        running.cancel()
        committing.forget([OTHER])
        await committing.commit_done([OTHER])

    desk.run(commit)
    assert desk.commits == [{OTHER: 0}, {TP: 7}, {OTHER: 0}]


def test_nothing_is_committed_by_itself_unless_that_is_wanted() -> None:
    desk = Desk(reading(TP, position=5), enable_auto_commit=False)

    async def commit(committing: CommitQueue) -> None:
        await committing.commit_done(with_given=True)

    desk.run(commit)
    assert desk.commits == []


def test_waiting_for_commits_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(reading(TP))

    async def commit(committing: CommitQueue) -> None:
        committing.expect()
        await committing.drain(3)

    desk.run(commit)
    assert "commits were not done in time" in caplog.text
