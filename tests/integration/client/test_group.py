"""Members of groups against real brokers: rebalances, crashes, static members, commits."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from headrace.client.errors import CommitFailed
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.testing.time_limits import scaled
from headrace.types import TopicPartition
from tests.integration.client.group_members import members, settled, until
from tests.integration.groups import consumers
from tests.integration.wire import Wire, create_topic
from tests.support import BrokerProcess

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]
COOPERATIVE = "cooperative-sticky"
ALL = [TopicPartition(topic, number) for topic in ("left", "right") for number in range(6)]
TOPICS = ["left", "right"]


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test as the one task of a new event loop."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def restless(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that lets sessions be short, and does not wait for more members at the start."""
    broker = start_broker(
        **{"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
    )
    for topic in TOPICS:
        create_topic(broker.address, topic, 6)
    return broker


@pytest.mark.parametrize("strategy", STRATEGIES)
@in_a_loop
async def test_members_come_and_go(restless: BrokerProcess, strategy: str) -> None:
    options = {"partition_assignment_strategy": strategy}
    async with members(restless.address, TOPICS, **options) as make:
        first = make()
        await settled(first, of=ALL)
        second, third = make(), make()
        await settled(first, second, third, of=ALL)
        assert [len(entry.owned) for entry in (first, second, third)] == [4, 4, 4]
        kept = second.owned
        await third.close()
        await settled(first, second, of=ALL)
        assert sorted(len(entry.owned) for entry in (first, second)) == [6, 6]
        assert not [
            entry.host.heard("lost") for entry in (first, second) if entry.host.heard("lost")
        ]
        if "sticky" in strategy:
            assert kept <= second.owned
        if strategy == COOPERATIVE:
            # It gave up what the others needed, and was never without the rest.
            assert sum(map(len, first.host.heard("revoked"))) == 8
        assert first.metrics.snapshot()["rebalance-total"] >= 3


@pytest.mark.parametrize("strategy", ["range", COOPERATIVE])
@in_a_loop
async def test_the_partitions_of_a_crashed_member_go_to_the_others(
    restless: BrokerProcess, strategy: str
) -> None:
    options = {"partition_assignment_strategy": strategy}
    async with members(restless.address, TOPICS, **options) as make:
        first, second = make(), make(session_timeout_ms=1000)
        await settled(first, second, of=ALL)
        await second.close(leave=False)
        await settled(first, of=ALL)


@in_a_loop
async def test_a_static_member_that_starts_again_disturbs_nobody(restless: BrokerProcess) -> None:
    async with members(restless.address, TOPICS) as make:
        first = make(group_instance_id="first")
        second = make(group_instance_id="second")
        await settled(first, second, of=ALL)
        generation, owned = first.group.generation, second.owned
        told = list(first.host.told)
        await second.close()
        again = make(group_instance_id="second")
        await settled(first, again, of=ALL)
        assert again.owned == owned
        assert first.group.generation == again.group.generation == generation
        assert first.host.told == told


@in_a_loop
async def test_a_leader_that_starts_again_as_a_static_member_still_watches_the_topics(
    restless: BrokerProcess,
) -> None:
    async with members(restless.address, TOPICS, metadata_max_age_ms=200) as make:
        first = make(group_instance_id="first")
        await settled(first, of=ALL)
        await first.close()
        again = make(group_instance_id="first")
        await settled(again, of=ALL)
        grow(restless.address, "left", 8)
        await settled(again, of=[*ALL, TopicPartition("left", 6), TopicPartition("left", 7)])


@in_a_loop
async def test_a_second_member_of_the_same_instance_fences_the_first(
    restless: BrokerProcess,
) -> None:
    async with members(restless.address, TOPICS) as make:
        first = make(group_instance_id="same")
        await settled(first, of=ALL)
        second = make(group_instance_id="same")
        await settled(second, of=ALL)
        await until(lambda: None if first.group.failure else "it is not fenced")
        failure = first.group.failure
        assert isinstance(failure, KafkaError)
        assert failure.code is ErrorCode.FENCED_INSTANCE_ID
        assert "give every consumer its own" in str(failure)
        assert first.host.heard("lost") == [frozenset(ALL)]
        with pytest.raises(CommitFailed):
            await first.group.commit({ALL[0]: OffsetAndMetadata(1)}, first.cluster.deadline())


@pytest.mark.parametrize("strategy", ["range", COOPERATIVE])
@in_a_loop
async def test_members_survive_a_restart_of_their_coordinator(
    restless: BrokerProcess, strategy: str
) -> None:
    options = {"partition_assignment_strategy": strategy}
    async with members(restless.address, TOPICS, **options) as make:
        first, second = make(), make()
        await settled(first, second, of=ALL)
        await asyncio.to_thread(restless.kill)
        third = make()
        await asyncio.to_thread(restless.start)
        await settled(first, second, third, of=ALL)
        [tp, *_] = first.owned
        await first.group.commit({tp: OffsetAndMetadata(3)}, first.cluster.deadline())


@in_a_loop
async def test_a_commit_waits_for_a_coordinator_that_restarts(restless: BrokerProcess) -> None:
    async with members(restless.address, TOPICS) as make:
        member = make()
        await settled(member, of=ALL)
        await asyncio.to_thread(restless.kill)
        commit = asyncio.create_task(
            member.group.commit({ALL[0]: OffsetAndMetadata(3)}, member.cluster.deadline())
        )
        await asyncio.to_thread(restless.start)
        await commit
        deadline = member.cluster.deadline()
        assert await member.group.committed([ALL[0]], deadline) == {ALL[0]: OffsetAndMetadata(3)}


@pytest.mark.parametrize("strategy", ["range", COOPERATIVE])
@in_a_loop
async def test_a_member_whose_application_does_not_poll_leaves_and_comes_back(
    restless: BrokerProcess, strategy: str
) -> None:
    options = {"partition_assignment_strategy": strategy}
    async with members(restless.address, TOPICS, **options) as make:
        first = make()
        slow = make(max_poll_interval_ms=int(scaled(700)), session_timeout_ms=int(scaled(600)))
        await settled(first, slow, of=ALL)
        owned = slow.owned
        slow.host.polls.clear()
        await until(lambda: None if first.owned == frozenset(ALL) else first.owned)
        [tp, *_] = owned
        with pytest.raises(CommitFailed):
            await slow.group.commit({tp: OffsetAndMetadata(3)}, slow.cluster.deadline())
        slow.host.polls.set()
        slow.group.polled()
        await settled(first, slow, of=ALL)
        assert slow.host.heard("lost") == [owned]


@in_a_loop
async def test_a_poll_that_is_longer_than_the_interval_does_no_harm(
    restless: BrokerProcess,
) -> None:
    interval_ms = int(scaled(600))
    async with members(restless.address, TOPICS, max_poll_interval_ms=interval_ms) as make:
        member = make(session_timeout_ms=interval_ms)
        await settled(member, of=ALL)
        generation = member.group.generation
        # Longer than the interval: there is one every 0.1 s.
        await member.heartbeats(10)
        assert member.group.generation == generation
        assert not member.host.heard("lost")


@in_a_loop
async def test_nobody_joins_before_the_application_polls(restless: BrokerProcess) -> None:
    async with members(restless.address, TOPICS) as make:
        first = make()
        await settled(first, of=ALL)
        second = make(started=False)
        second.host.polls.clear()
        second.group.start()
        await first.heartbeats(5)
        assert second.group.member_id == ""
        second.host.polls.set()
        await settled(first, second, of=ALL)


def grow(address: str, topic: str, count: int) -> None:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
        timeout_ms=10_000,
    )
    with Wire(address) as wire:
        [result] = wire.ask(request).results
    assert result.error_code == 0, result


@pytest.mark.parametrize("strategy", ["range", COOPERATIVE])
@in_a_loop
async def test_partitions_that_are_added_are_shared_out(
    restless: BrokerProcess, strategy: str
) -> None:
    options = {"partition_assignment_strategy": strategy, "metadata_max_age_ms": 200}
    async with members(restless.address, TOPICS, **options) as make:
        first, second = make(), make()
        await settled(first, second, of=ALL)
        grow(restless.address, "right", 8)
        await settled(
            first, second, of=[*ALL, TopicPartition("right", 6), TopicPartition("right", 7)]
        )


@in_a_loop
async def test_a_topic_that_is_created_later_is_read_soon(restless: BrokerProcess) -> None:
    options = {"allow_auto_create_topics": False}
    async with members(restless.address, [*TOPICS, "later"], **options) as make:
        member = make()
        await settled(member, of=ALL)
        create_topic(restless.address, "later", 2)
        await settled(member, of=[*ALL, TopicPartition("later", 0), TopicPartition("later", 1)])


@pytest.mark.parametrize("strategy", ["range", COOPERATIVE])
@in_a_loop
async def test_a_change_of_subscription_gives_up_topics_and_takes_others(
    restless: BrokerProcess, strategy: str
) -> None:
    options = {"partition_assignment_strategy": strategy}
    async with members(restless.address, TOPICS, **options) as make:
        member = make()
        await settled(member, of=ALL)
        member.host.topics = frozenset(["right"])
        member.group.subscription_changed()
        right = [tp for tp in ALL if tp.topic == "right"]
        await settled(member, of=right)
        member.host.topics = frozenset()
        member.group.subscription_changed()
        await until(lambda: member.owned or member.group.member_id or None)
        member.host.topics = frozenset(TOPICS)
        member.group.subscription_changed()
        await settled(member, of=ALL)


@in_a_loop
async def test_a_group_can_be_left_and_joined_again(restless: BrokerProcess) -> None:
    async with members(restless.address, TOPICS) as make:
        first, second = make(), make()
        await settled(first, second, of=ALL)
        await second.group.stop()
        second.host.mine = []
        await settled(first, of=ALL)
        second.group.start()
        await settled(first, second, of=ALL)


@pytest.mark.parametrize(
    ("client", "strategy"),
    [
        *(("librdkafka", strategy) for strategy in STRATEGIES if strategy != "sticky"),
        *(("kafka-python", strategy) for strategy in STRATEGIES),
        ("aiokafka", "sticky"),
    ],
)
@pytest.mark.parametrize("leads", [True, False], ids=["we-lead", "they-lead"])
@in_a_loop
async def test_a_group_of_ours_and_theirs(
    restless: BrokerProcess, client: str, strategy: str, leads: bool
) -> None:
    theirs = consumers.Group(
        restless.address, "group", client, strategy=strategy, topics=TOPICS, poll_interval_ms=10_000
    )
    options = {"partition_assignment_strategy": strategy}
    async with members(restless.address, TOPICS, **options) as make:
        with consumers.closing([theirs]):
            if leads:
                ours = make()
                await settled(ours, of=ALL)
                [other] = theirs.start()
            else:
                [other] = theirs.start()
                await until(lambda: None if len(other.owned) == len(ALL) else other.owned)
                ours = make()

            def problem() -> object:
                shared = sorted([*ours.owned, *other.owned])
                is_even = len(ours.owned) == len(other.owned)
                return None if is_even and shared == ALL and ours.group.is_stable else shared

            await until(problem)
            if leads:
                await asyncio.to_thread(theirs.close, [other])
                await settled(ours, of=ALL)
            else:
                await ours.close()
                await until(lambda: None if len(other.owned) == len(ALL) else other.owned)


@in_a_loop
async def test_offsets_are_committed_and_found_again(restless: BrokerProcess) -> None:
    async with members(restless.address, TOPICS) as make:
        member = make()
        await settled(member, of=ALL)
        group, deadline = member.group, member.cluster.deadline()
        offsets = {ALL[0]: OffsetAndMetadata(7, "why", 0), ALL[7]: OffsetAndMetadata(0)}
        await group.commit({}, deadline)
        await group.commit(offsets, deadline)
        found = await group.committed([*offsets, ALL[1]], deadline)
        assert found == {**offsets, ALL[1]: None}
        assert member.metrics.snapshot()["commit-total"] == 1


@in_a_loop
async def test_offsets_are_committed_without_membership(restless: BrokerProcess) -> None:
    async with members(restless.address, []) as make:
        lone = make(started=False, group_id="nobody")
        deadline = lone.cluster.deadline()
        assert await lone.group.committed([ALL[0]], deadline) == {ALL[0]: None}
        await lone.group.commit({ALL[0]: OffsetAndMetadata(5)}, deadline)
        assert await lone.group.committed([ALL[0]], deadline) == {ALL[0]: OffsetAndMetadata(5)}


@in_a_loop
async def test_an_outsider_cannot_commit_for_a_group_with_members(
    restless: BrokerProcess,
) -> None:
    async with members(restless.address, TOPICS) as make:
        await settled(make(), of=ALL)
        outsider = make(started=False)
        with pytest.raises(CommitFailed) as caught:
            await outsider.group.commit({ALL[0]: OffsetAndMetadata(5)}, outsider.cluster.deadline())
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


@in_a_loop
async def test_a_partition_that_went_to_another_cannot_be_committed(
    restless: BrokerProcess,
) -> None:
    options = {"partition_assignment_strategy": COOPERATIVE}
    async with members(restless.address, TOPICS, **options) as make:
        first = make()
        await settled(first, of=ALL)
        second = make()
        await settled(first, second, of=ALL)
        deadline = first.cluster.deadline()
        mine, theirs = min(first.owned), min(second.owned)
        await first.group.commit({mine: OffsetAndMetadata(1)}, deadline)
        with pytest.raises(CommitFailed, match=str(theirs)):
            await first.group.commit({theirs: OffsetAndMetadata(1)}, deadline)


@in_a_loop
async def test_commits_to_what_does_not_exist_say_so(restless: BrokerProcess) -> None:
    async with members(restless.address, TOPICS) as make:
        member = make(started=False)
        deadline = member.cluster.deadline()
        for tp in (TopicPartition("nothing", 0), TopicPartition("left", 99)):
            with pytest.raises(UnknownTopic, match=tp.topic):
                await member.group.commit({tp: OffsetAndMetadata(1)}, deadline)


@in_a_loop
async def test_metadata_that_is_too_long_is_refused_with_the_partition(
    restless: BrokerProcess,
) -> None:
    async with members(restless.address, TOPICS) as make:
        member = make(started=False)
        with pytest.raises(KafkaError, match="left-0") as caught:
            await member.group.commit(
                {ALL[0]: OffsetAndMetadata(1, "x" * 5000)}, member.cluster.deadline()
            )
        assert caught.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize(
    ("options", "code", "advice"),
    [
        ({"session_timeout_ms": 3_600_000}, ErrorCode.INVALID_SESSION_TIMEOUT, "session_timeout"),
        (
            {"partition_assignment_strategy": "sticky"},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "partition_assignment_strategy",
        ),
    ],
    ids=["session", "strategy"],
)
@in_a_loop
async def test_a_member_that_cannot_join_says_why(
    restless: BrokerProcess, options: dict[str, Any], code: ErrorCode, advice: str
) -> None:
    async with members(restless.address, TOPICS) as make:
        await settled(make(), of=ALL)
        member = make(**{"max_poll_interval_ms": 4_000_000, **options})
        await until(lambda: None if member.group.failure else "it goes on trying")
        failure = member.group.failure
        assert isinstance(failure, KafkaError)
        assert failure.code is code
        assert advice in str(failure)
