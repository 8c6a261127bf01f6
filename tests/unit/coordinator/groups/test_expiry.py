"""Retention: which offsets go when, and groups that have nothing left."""

import pytest

from headrace.coordinator.groups.group_shard import EXPIRED_PER_CHECK
from headrace.coordinator.shard import GroupSettings
from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.unit.coordinator.driving import DELAY_MS, GROUP, SESSION_MS, Shell, subscription

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
CHECK_MS = 600_000


@pytest.fixture
def shell() -> Shell:
    return Shell(
        GroupSettings(
            initial_rebalance_delay_ms=DELAY_MS,
            offsets_retention_ms=RETENTION_MS,
            offsets_retention_check_interval_ms=CHECK_MS,
        )
    )


def keep_alive(shell: Shell, member: str, duration_ms: int) -> None:
    """Let time pass in steps that fit a session of half an hour."""
    for _ in range(duration_ms // 1_000_000):
        shell.advance(1_000_000)
        assert shell.heartbeat(member, 1) == ErrorCode.NONE


def test_offsets_of_a_simple_consumer_go_by_their_commit(shell: Shell) -> None:
    shell.commit(topic="old")
    shell.advance(RETENTION_MS // 2)
    shell.commit(topic="new")
    shell.advance(RETENTION_MS // 2 - 2 * CHECK_MS)
    assert shell.committed().keys() == {("old", 0), ("new", 0)}
    shell.advance(3 * CHECK_MS)
    assert shell.committed().keys() == {("new", 0)}
    assert shell.reload().committed().keys() == {("new", 0)}


def test_group_goes_with_its_last_offset(shell: Shell) -> None:
    shell.commit()
    shell.advance(RETENTION_MS + 2 * CHECK_MS)
    assert shell.shard.list() == []
    assert shell.shard.describe(GROUP, 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert [record.value for record in shell.log[1:]] == [None, None]
    assert shell.reload().shard.list() == []


def test_offsets_of_a_group_are_kept_from_when_its_last_member_left(shell: Shell) -> None:
    [member] = shell.stable_group(1, session_ms=1_800_000, protocols=[("r", subscription("t"))])
    shell.commit(member, 1)
    keep_alive(shell, member, RETENTION_MS * 2)
    assert shell.committed() != {}
    shell.leave((member, None))
    shell.advance(RETENTION_MS - CHECK_MS)
    assert shell.committed() != {}
    shell.advance(2 * CHECK_MS)
    assert shell.committed() == {}
    assert shell.shard.list() == []


def test_commit_into_an_empty_group_is_kept_for_the_whole_retention(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.leave((member, None))
    shell.advance(RETENTION_MS - CHECK_MS)
    shell.commit()
    shell.advance(RETENTION_MS - CHECK_MS)
    assert shell.committed() != {}
    shell.advance(2 * CHECK_MS)
    assert shell.committed() == {}


def test_live_group_loses_offsets_only_of_topics_it_does_not_read(shell: Shell) -> None:
    [member] = shell.stable_group(1, session_ms=1_800_000, protocols=[("r", subscription("t"))])
    shell.commit(member, 1, topic="t")
    shell.commit(member, 1, topic="u")
    keep_alive(shell, member, RETENTION_MS + 4 * CHECK_MS)
    assert shell.committed().keys() == {("t", 0)}
    assert shell.state() == "Stable"


def test_live_group_of_unknown_subscription_loses_nothing(shell: Shell) -> None:
    [member] = shell.stable_group(1, session_ms=1_800_000, protocol_type="connect")
    shell.commit(member, 1)
    keep_alive(shell, member, RETENTION_MS + 4 * CHECK_MS)
    assert shell.committed() != {}


def test_commit_may_ask_for_a_retention_of_its_own(shell: Shell) -> None:
    partitions = [OffsetCommitRequestPartition()]
    request = OffsetCommitRequest(
        group_id=GROUP,
        retention_time_ms=DAY_MS,
        topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
    )
    shell.send(request, 4)
    shell.advance(DAY_MS - CHECK_MS)
    assert shell.committed() != {}
    shell.advance(2 * CHECK_MS)
    assert shell.committed() == {}


def test_retention_longer_than_time_itself_is_for_ever(shell: Shell) -> None:
    partitions = [OffsetCommitRequestPartition(committed_offset=5)]
    request = OffsetCommitRequest(
        group_id=GROUP,
        retention_time_ms=2**63 - 1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
    )
    shell.send(request, 4)
    shell.advance(2 * RETENTION_MS)
    assert shell.committed() == {("t", 0): 5}


def test_offset_that_is_being_committed_does_not_expire(shell: Shell) -> None:
    shell.commit(offset=1)
    shell.advance(RETENTION_MS - 1)
    shell.is_holding = True
    request = OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            OffsetCommitRequestTopic(
                name="t", partitions=[OffsetCommitRequestPartition(committed_offset=2)]
            )
        ],
    )
    shell.send(request, 9)
    shell.advance(2 * CHECK_MS)
    shell.release()
    assert shell.committed_at("t", 0) == 2
    assert shell.reload().committed_at("t", 0) == 2


def test_group_stays_while_another_offset_is_being_committed(shell: Shell) -> None:
    shell.commit(topic="old")
    shell.advance(RETENTION_MS - 1)
    shell.is_holding = True
    topic = OffsetCommitRequestTopic(name="new", partitions=[OffsetCommitRequestPartition()])
    shell.send(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 9)
    shell.advance(2 * CHECK_MS)
    shell.release()
    assert shell.committed().keys() == {("new", 0)}
    assert shell.state() == "Empty"
    assert shell.reload().committed().keys() == {("new", 0)}


def test_many_offsets_expire_a_bounded_number_at_a_time(shell: Shell) -> None:
    many = EXPIRED_PER_CHECK + 10
    partitions = [OffsetCommitRequestPartition(partition_index=index) for index in range(many)]
    shell.send(
        OffsetCommitRequest(
            group_id=GROUP, topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)]
        ),
        9,
    )
    shell.advance(RETENTION_MS)
    while len(shell.committed()) == many:
        assert shell.shard.next_deadline_ms is not None
        shell.advance(shell.shard.next_deadline_ms - shell.now_ms)
    assert len(shell.committed()) == 10
    shell.advance(2_000)
    assert shell.shard.list() == []


def test_emptied_group_without_offsets_is_removed(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.leave((member, None))
    shell.advance(2 * CHECK_MS)
    assert shell.shard.list() == []
    assert shell.log[-1].value is None


def test_group_that_never_had_a_member_is_removed_without_a_record(shell: Shell) -> None:
    shell.join()
    shell.advance(SESSION_MS)
    assert len(shell.shard.list()) == 1
    shell.advance(2 * CHECK_MS)
    assert shell.shard.list() == []
    assert shell.log == []
    assert shell.shard.next_deadline_ms is None


def test_group_that_somebody_is_about_to_join_stays(shell: Shell) -> None:
    pending = shell.joined(shell.join(session_ms=1_800_000)).member_id
    shell.advance(2 * CHECK_MS)
    token = shell.join(pending)
    shell.advance(DELAY_MS)
    assert shell.joined(token).generation_id == 1


def test_group_is_not_available_while_its_end_is_being_committed(shell: Shell) -> None:
    shell.commit()
    shell.is_holding = True
    shell.advance(RETENTION_MS + 2 * CHECK_MS)
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shell.commit() == unavailable
    assert shell.refused(shell.join()) == unavailable
    shell.release()
    assert shell.commit(offset=9) == ErrorCode.NONE
    assert shell.reload().committed_at("t", 0) == 9
