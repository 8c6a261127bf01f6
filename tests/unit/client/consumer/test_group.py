"""A member's tasks in virtual time, against the broker's own coordinator."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from headrace.client.errors import CommitFailed, TimedOut, Unreachable
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.apis import Api
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.types import TopicPartition
from tests.unit.client.consumer.coordinated import Coordinated, Member, member

A = [TopicPartition("a", number) for number in range(4)]
HOUR_S = 3600
COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}


@pytest.fixture
def brokers() -> Coordinated:
    brokers = Coordinated()
    brokers.add_topic("a", 4)
    return brokers


async def settled(*members: Member, within_s: float = 60) -> None:
    """Wait until the members share everything; time passes only when everybody waits."""

    async def look() -> None:
        while True:
            owned = sorted(tp for entry in members for tp in entry.host.mine)
            if owned == A and all(entry.group.is_stable for entry in members):
                return
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), within_s)


async def eventually(is_true: Callable[[], object], within_s: float = 60) -> None:
    async def look() -> None:
        while not is_true():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), within_s)


def in_virtual_time(
    test: Callable[[Coordinated], Awaitable[None]],
) -> Callable[[Coordinated], None]:
    def run(brokers: Coordinated) -> None:
        brokers.run(lambda: test(brokers))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_virtual_time
async def test_a_member_stays_for_hours_with_a_heartbeat_every_three_seconds(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a") as first_member:
        await settled(first_member)
        generation = first_member.group.generation
        await asyncio.sleep(HOUR_S)
        assert first_member.group.generation == generation
        assert first_member.owned == set(A)
        assert 1100 <= len(brokers.sent(HeartbeatRequest)) <= 1201
        assert not first_member.host.heard("revoked")


@in_virtual_time
async def test_an_application_that_does_not_poll_loses_its_place_in_time(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a") as first_member:
        await settled(first_member)
        begun = brokers.clock.monotonic()
        first_member.host.polls.clear()
        await eventually(lambda: brokers.sent(LeaveGroupRequest), within_s=400)
        assert 295 <= brokers.clock.monotonic() - begun <= 303
        assert first_member.group.generation == -1
        await asyncio.sleep(HOUR_S)
        # Nothing is asked for until it polls, and then it is told first.
        assert brokers.sent(JoinGroupRequest)[2:] == []
        assert not first_member.host.heard("lost")
        first_member.host.polls.set()
        first_member.group.polled()
        await settled(first_member)
        assert [told.what for told in first_member.host.told] == ["assigned", "lost", "assigned"]


@in_virtual_time
async def test_a_static_member_that_does_not_poll_is_removed_by_its_session(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a", group_instance_id="static") as first_member:
        await settled(first_member)
        first_member.host.polls.clear()
        await asyncio.sleep(300)
        assert brokers.shell.state("group") == "Stable"
        await asyncio.sleep(60)
        assert brokers.shell.state("group") == "Empty"
        assert not brokers.sent(LeaveGroupRequest)


@in_virtual_time
async def test_a_member_outlasts_a_coordinator_that_is_away_for_an_hour(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a") as first_member:
        await settled(first_member)
        brokers.down.add(1)
        brokers.move_to(1)
        before = len(brokers.requests)
        await asyncio.sleep(HOUR_S)
        assert len(brokers.requests) == before
        # Nobody else can have its partitions, so it keeps them.
        assert first_member.owned == set(A)
        assert first_member.group.failure is None
        brokers.down.clear()
        await asyncio.sleep(60)
        await settled(first_member)


@in_virtual_time
async def test_a_join_is_tried_again_with_growing_pauses(brokers: Coordinated) -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    brokers.refusals[JoinGroupRequest] = deque([loading] * 10)
    begun = brokers.clock.monotonic()
    async with member(brokers, "a") as first_member:
        await settled(first_member)
        assert 4 < brokers.clock.monotonic() - begun < 12
        assert brokers.refusals[JoinGroupRequest] == deque()


@in_virtual_time
async def test_stopping_while_a_join_waits_lets_the_others_go_on_at_once(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a") as first_member, member(brokers, "a", started=False) as two:
        await settled(first_member)
        first_member.host.polls.clear()
        two.group.start()
        await eventually(lambda: brokers.shell.state("group") == "PreparingRebalance")
        # The first does not join while it does not poll, so the second waits.
        await two.group.stop()
        assert brokers.shell.members("group") == {first_member.group.member_id}
        first_member.host.polls.set()
        await settled(first_member)


@in_virtual_time
async def test_a_member_without_topics_is_in_no_group(brokers: Coordinated) -> None:
    async with member(brokers, "a") as first_member:
        await settled(first_member)
        first_member.host.topics = frozenset()
        first_member.group.subscription_changed()
        await eventually(lambda: brokers.shell.state("group") == "Empty")
        assert first_member.host.heard("revoked") == [frozenset(A)]
        await asyncio.sleep(HOUR_S)
        first_member.host.topics = frozenset("a")
        first_member.group.subscription_changed()
        first_member.group.polled()
        await settled(first_member)
        assert not first_member.host.heard("lost")


@in_virtual_time
async def test_a_host_that_breaks_is_a_failure_and_no_silence(brokers: Coordinated) -> None:
    async with member(brokers, "a", started=False) as first_member:

        async def assigned(
            partitions: Sequence[TopicPartition], added: Sequence[TopicPartition]
        ) -> None:
            raise ZeroDivisionError("a bug")

        first_member.host.assigned = assigned  # type: ignore[method-assign]
        first_member.group.start()
        await eventually(lambda: first_member.group.failure)
        failure = first_member.group.failure
        assert type(failure) is HeadraceError
        assert "a bug" in str(failure)
        assert isinstance(failure.__cause__, ZeroDivisionError)


@in_virtual_time
async def test_new_partitions_are_seen_when_metadata_is_too_old(brokers: Coordinated) -> None:
    async with member(brokers, "a") as first_member:
        brokers.add_topic("b", 1)
        await settled(first_member)
        brokers.add_topic("a", 5)
        await asyncio.sleep(250)
        assert len(first_member.owned) == 4
        await asyncio.sleep(60)
        assert len(first_member.owned) == 5


@in_virtual_time
async def test_a_commit_while_the_group_rebalances_waits_for_the_new_generation(
    brokers: Coordinated,
) -> None:
    async with (
        member(brokers, "a", **COOPERATIVE) as first_member,
        member(brokers, "a", started=False, **COOPERATIVE) as two,
    ):
        await settled(first_member)
        two.host.polls.clear()
        two.group.start()
        # It is let in, and would now have to join again: it does not while nobody polls there.
        two.host.polls.set()
        await settled(first_member, two)
        two.host.polls.clear()
        first_member.group.subscription_changed()
        await eventually(lambda: brokers.shell.state("group") == "PreparingRebalance")
        mine = min(first_member.owned)
        commit = asyncio.create_task(
            first_member.group.commit(
                {mine: OffsetAndMetadata(8)}, first_member.cluster.deadline(60)
            )
        )
        await asyncio.sleep(20)
        assert not commit.done()
        two.host.polls.set()
        await commit
        assert brokers.shell.committed_at("a", mine.partition, "group") == 8


@in_virtual_time
async def test_a_commit_that_a_rebalance_keeps_waiting_says_so_at_its_deadline(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a") as first_member, member(brokers, "a") as two:
        await settled(first_member, two)
        two.host.polls.clear()
        first_member.group.subscription_changed()
        await eventually(lambda: brokers.shell.state("group") == "PreparingRebalance")
        begun = brokers.clock.monotonic()
        with pytest.raises(CommitFailed, match="poll, and commit again") as caught:
            await first_member.group.commit(
                {A[0]: OffsetAndMetadata(8)}, first_member.cluster.deadline(7)
            )
        assert caught.value.code is ErrorCode.REBALANCE_IN_PROGRESS
        assert brokers.clock.monotonic() - begun == pytest.approx(7, abs=0.2)


@in_virtual_time
async def test_commits_inside_the_call_that_revokes_are_accepted(brokers: Coordinated) -> None:
    async with member(brokers, "a") as first_member, member(brokers, "a", started=False) as two:
        await settled(first_member)
        told = first_member.host.revoked

        async def revoked(partitions: Sequence[TopicPartition]) -> None:
            await first_member.group.commit(
                {tp: OffsetAndMetadata(5) for tp in partitions}, first_member.cluster.deadline()
            )
            await told(partitions)

        first_member.host.revoked = revoked  # type: ignore[method-assign]
        two.group.start()
        await settled(first_member, two)
        assert brokers.shell.committed("group") == {("a", n): 5 for n in range(4)}


@in_virtual_time
async def test_a_refused_commit_ends_a_membership_the_coordinator_does_not_know(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a") as first_member:
        await settled(first_member)
        brokers.refusals[OffsetCommitRequest] = deque([ErrorCode.UNKNOWN_MEMBER_ID])
        with pytest.raises(CommitFailed, match="went on without"):
            await first_member.group.commit(
                {A[0]: OffsetAndMetadata(8)}, first_member.cluster.deadline()
            )
        await eventually(lambda: first_member.host.heard("lost"))
        await settled(first_member)


@in_virtual_time
async def test_what_passes_by_itself_is_asked_for_again(brokers: Coordinated) -> None:
    async with member(brokers, "a", started=False) as first_member:
        brokers.refusals = {
            OffsetCommitRequest: deque([ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT]),
            OffsetFetchRequest: deque([ErrorCode.UNSTABLE_OFFSET_COMMIT]),
        }
        deadline = first_member.cluster.deadline()
        await first_member.group.commit({A[0]: OffsetAndMetadata(8, "m")}, deadline)
        found = await first_member.group.committed(A[:2], deadline)
        assert found == {A[0]: OffsetAndMetadata(8, "m"), A[1]: None}


@in_virtual_time
async def test_offsets_nobody_can_be_asked_for_are_given_up_at_the_deadline(
    brokers: Coordinated,
) -> None:
    async with member(brokers, "a", started=False) as first_member:
        await first_member.group.committed(A, first_member.cluster.deadline())
        brokers.down.add(1)
        begun = brokers.clock.monotonic()
        for attempt in (
            first_member.group.committed(A, first_member.cluster.deadline(3)),
            first_member.group.commit(
                {A[0]: OffsetAndMetadata(1)}, first_member.cluster.deadline(3)
            ),
        ):
            with pytest.raises((TimedOut, Unreachable), match="gave up"):
                await attempt
        assert brokers.clock.monotonic() - begun <= 6.5


def test_offsets_of_an_old_broker_are_asked_for_in_its_way() -> None:
    brokers = Coordinated(versions={Api.OFFSET_FETCH: 5, Api.OFFSET_COMMIT: 2})
    brokers.add_topic("a", 4)

    async def test() -> None:
        async with member(brokers, "a", started=False) as first_member:
            deadline = first_member.cluster.deadline()
            await first_member.group.commit({A[0]: OffsetAndMetadata(8, "m")}, deadline)
            found = await first_member.group.committed(A[:2], deadline)
            assert found == {A[0]: OffsetAndMetadata(8, "m"), A[1]: None}

    brokers.run(test)


@pytest.mark.parametrize("options", [{}, COOPERATIVE], ids=["eager", "cooperative"])
def test_members_follow_their_coordinator_to_another_broker(options: dict[str, Any]) -> None:
    brokers = Coordinated(2)
    brokers.add_topic("a", 4)

    async def test() -> None:
        async with (
            member(brokers, "a", **options) as first_member,
            member(brokers, "a", **options) as two,
        ):
            await settled(first_member, two)
            generation = first_member.group.generation
            brokers.move_to(2)
            await asyncio.sleep(20)
            assert first_member.group.generation == generation
            await first_member.group.commit(
                {min(first_member.owned): OffsetAndMetadata(3)}, first_member.cluster.deadline()
            )
            assert not first_member.host.heard("lost")
            assert {node for node, request in brokers.requests[-4:]} == {2}

    brokers.run(test)
