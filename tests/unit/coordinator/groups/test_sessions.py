"""Heartbeats, leaving, and what happens to members that fall silent."""

import pytest

from headrace.coordinator.groups.classic_protocol import NEW_MEMBER_TIMEOUT_MS
from headrace.errors import ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.protocol.schema import encode_message
from tests.unit.coordinator.driving import DELAY_MS, GROUP, SESSION_MS, SETTLE_MS, Shell


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_heartbeats_keep_a_member(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    for _ in range(10):
        shell.advance(SESSION_MS - 1)
        assert shell.heartbeat(member, 1) == ErrorCode.NONE
    shell.advance(SESSION_MS)
    assert shell.members() == set()
    assert shell.state() == "Empty"
    assert shell.heartbeat(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_keep_a_member(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    for _ in range(3):
        shell.advance(SESSION_MS - 1)
        assert shell.commit(member, 1) == ErrorCode.NONE
    assert shell.members() == {member}


def test_commits_of_zombies_keep_nobody(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.advance(SESSION_MS - 1)
    assert shell.commit(member, 0) == ErrorCode.ILLEGAL_GENERATION
    shell.advance(1)
    assert shell.members() == set()


def test_silence_of_one_makes_the_others_rebalance(shell: Shell) -> None:
    first, second = shell.stable_group(2)
    shell.advance(SESSION_MS - 1)
    shell.heartbeat(second, 1)
    shell.advance(1)
    assert shell.heartbeat(second, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    answer = shell.joined(shell.join(second))
    assert (answer.generation_id, answer.leader) == (2, second)
    assert shell.heartbeat(first, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_during_a_rebalance_renew_the_session_and_say_to_join(shell: Shell) -> None:
    first, second = shell.stable_group(2)
    shell.join(first)
    for _ in range(3):
        shell.advance(SESSION_MS - 1)
        assert shell.heartbeat(second, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.members() == {first, second}


def test_heartbeats_before_the_sync_are_answered(shell: Shell) -> None:
    member, _ = shell.enter()
    shell.advance(DELAY_MS)
    assert shell.heartbeat(member, 1) == ErrorCode.NONE


def test_bad_heartbeats_are_refused(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    pending = shell.joined(shell.join()).member_id
    assert shell.heartbeat(member, 1, group="") == ErrorCode.INVALID_GROUP_ID
    assert shell.heartbeat(member, 1, group="other") == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(pending, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert shell.heartbeat(member, 2) == ErrorCode.ILLEGAL_GENERATION
    assert shell.heartbeat(member, 1, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_waits_in_a_join_is_not_ended_by_its_session(shell: Shell) -> None:
    first, second = shell.stable_group(2)
    token = shell.join(first)
    for _ in range(4):
        shell.advance(SESSION_MS - 1)
        shell.heartbeat(second, 1)
    assert shell.waiting == {token}
    shell.join(second)
    assert shell.joined(token).generation_id == 2


def test_new_member_that_guesses_a_generation_does_not_shorten_its_wait(shell: Shell) -> None:
    [first] = shell.stable_group(1)
    member, token = shell.enter()
    assert shell.heartbeat(member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(3):
        shell.heartbeat(first, 1)
        shell.advance(SESSION_MS - 1)
    assert shell.waiting == {token}


def test_new_member_does_not_wait_for_ever(shell: Shell) -> None:
    [first] = shell.stable_group(1, rebalance_ms=NEW_MEMBER_TIMEOUT_MS * 2)
    _, token = shell.enter(rebalance_ms=NEW_MEMBER_TIMEOUT_MS * 2)
    for _ in range(NEW_MEMBER_TIMEOUT_MS // 5_000):
        assert shell.waiting == {token}
        shell.heartbeat(first, 1)
        shell.advance(5_000)
    answer = shell.joined(token)
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert shell.members() == {first}


def test_leaving_starts_a_rebalance_and_the_last_one_empties_the_group(shell: Shell) -> None:
    first, second = shell.stable_group(2)
    assert shell.leave((first, None)) == [(first, None, ErrorCode.NONE)]
    assert shell.heartbeat(second, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    shell.join(second)
    shell.finish_rebalance([second], 2)
    shell.leave((second, None))
    assert shell.state() == "Empty"
    assert shell.reload().state() == "Empty"


def test_leaving_is_answered_once_the_empty_group_is_committed(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.is_holding = True
    request = LeaveGroupRequest(group_id=GROUP, member_id=member)
    token = shell.send(request, 2)
    assert shell.waiting == {token}
    shell.release()
    assert shell.answers[token] == LeaveGroupResponse()


def test_leaving_completes_a_rebalance_that_waited_for_nobody_else(shell: Shell) -> None:
    first, second = shell.stable_group(2)
    token = shell.join(first)
    shell.leave((second, None))
    assert shell.joined(token).generation_id == 2


def test_pending_member_may_leave_and_nobody_rebalances(shell: Shell) -> None:
    [first] = shell.stable_group(1)
    pending = shell.joined(shell.join()).member_id
    assert shell.leave((pending, None)) == [(pending, None, ErrorCode.NONE)]
    assert shell.state() == "Stable"
    pending = shell.joined(shell.join()).member_id
    token = shell.join(first)
    shell.leave((pending, None))
    assert shell.joined(token).generation_id == 2


def test_member_that_leaves_while_it_waits_is_told_it_is_unknown(shell: Shell) -> None:
    first, second = shell.stable_group(2)
    joining = shell.join(first)
    shell.leave((first, None))
    assert shell.refused(joining) == ErrorCode.UNKNOWN_MEMBER_ID
    shell.join(second)
    syncing = shell.sync_request(second, 2)
    assert shell.synced(syncing).error_code == ErrorCode.NONE
    third, _ = shell.enter()
    shell.join(second)
    waiting = shell.sync_request(third, 3)
    shell.leave((third, None))
    assert shell.synced(waiting).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_many_members_leave_at_once_each_with_its_own_outcome(shell: Shell) -> None:
    first, second, third = shell.stable_group(3)
    static = shell.join(instance="i")
    for member in (first, second, third):
        shell.join(member)
    holder = shell.joined(static).member_id
    asked = [
        (first, None),
        ("nobody", None),
        ("", "i"),
        ("", "unknown"),
        ("", None),
        (second, "i"),
        (first, None),
    ]
    codes = [code for _, _, code in shell.leave(*asked)]
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert shell.members() == {second, third}
    assert holder not in shell.members()


def test_leaving_with_the_id_of_another_holder_is_fenced(shell: Shell) -> None:
    token = shell.join(instance="i")
    shell.advance(SETTLE_MS)
    holder = shell.joined(token).member_id
    assert shell.leave(("other", "i")) == [("other", "i", ErrorCode.FENCED_INSTANCE_ID)]
    assert shell.leave((holder, "i")) == [(holder, "i", ErrorCode.NONE)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_leave_alone(shell: Shell, version: int) -> None:
    [member] = shell.stable_group(1)
    unknown = shell.send(LeaveGroupRequest(group_id=GROUP, member_id="nobody"), version)
    assert shell.answers[unknown] == LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    left = shell.send(LeaveGroupRequest(group_id=GROUP, member_id=member), version)
    assert shell.answers[left] == LeaveGroupResponse()
    encode_message(shell.answers[left], version)
    assert shell.members() == set()
    elsewhere = shell.send(LeaveGroupRequest(group_id="other", member_id=member), version)
    assert shell.answers[elsewhere] == unknown_member()


def test_leaving_nowhere_is_refused(shell: Shell) -> None:
    assert shell.leave(("a", "i"), group="other") == [("a", "i", ErrorCode.UNKNOWN_MEMBER_ID)]
    token = shell.send(LeaveGroupRequest(group_id=""), 5)
    assert shell.answers[token] == LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)


def test_leaving_before_the_first_generation_leaves_an_empty_group(shell: Shell) -> None:
    member, token = shell.enter()
    shell.leave((member, None))
    assert shell.refused(token) == ErrorCode.UNKNOWN_MEMBER_ID
    shell.advance(DELAY_MS)
    assert shell.state() == "Empty"


def test_heartbeats_at_any_rate_leave_nothing_behind(shell: Shell) -> None:
    members = shell.stable_group(3)
    for _ in range(10_000):
        shell.now_ms += 1
        for member in members:
            shell.heartbeat(member, 1)
    assert len(shell.shard._deadlines) < 100
    assert shell.members() == set(members)


def test_closing_tells_everybody_who_waits(shell: Shell) -> None:
    shell.enter()
    follower, _ = shell.enter()
    shell.advance(SETTLE_MS)
    syncing = shell.sync_request(follower, 1)
    _, joining = shell.enter(group="other")
    replies = shell.shard.close(ErrorCode.NOT_COORDINATOR)
    assert {token for token, _ in replies} == {syncing, joining}
    for _, response in replies:
        assert isinstance(response, JoinGroupResponse | SyncGroupResponse)
        assert response.error_code == ErrorCode.NOT_COORDINATOR
    assert shell.shard.close(ErrorCode.NOT_COORDINATOR) == ()


def unknown_member() -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
