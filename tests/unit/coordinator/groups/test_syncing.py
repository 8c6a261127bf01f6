"""SyncGroup: the leader's assignment reaches every member once it is committed."""

from typing import Any

import pytest

from headrace.coordinator.records import decode_group
from headrace.errors import ErrorCode
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.protocol.schema import encode_message
from tests.unit.coordinator.driving import REBALANCE_MS, SESSION_MS, SETTLE_MS, Shell


@pytest.fixture
def shell() -> Shell:
    return Shell()


def two_joined(shell: Shell, **options: Any) -> tuple[str, str]:
    leader, _ = shell.enter(**options)
    follower, _ = shell.enter(**options)
    shell.advance(SETTLE_MS)
    assert shell.state() == "CompletingRebalance"
    return leader, follower


def test_followers_wait_for_the_leader(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    waiting = shell.sync_request(follower, 1)
    assert shell.waiting == {waiting}
    led = shell.sync_request(leader, 1, {leader: b"L", follower: b"F"})
    assert shell.synced(waiting) == SyncGroupResponse(
        protocol_type="consumer", protocol_name="range", assignment=b"F"
    )
    assert shell.synced(led).assignment == b"L"
    assert shell.assignments() == {leader: b"L", follower: b"F"}
    for version in range(6):
        encode_message(shell.synced(led), version)


def test_nobody_learns_an_assignment_before_it_is_committed(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    shell.is_holding = True
    tokens = {
        shell.sync_request(follower, 1),
        shell.sync_request(leader, 1, {leader: b"L", follower: b"F"}),
    }
    assert shell.waiting == tokens
    assert shell.state() == "CompletingRebalance"
    assert shell.commit(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    shell.release()
    assert shell.waiting == set()
    assert shell.state() == "Stable"


def test_member_that_syncs_during_the_commit_is_answered_with_the_others(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    shell.is_holding = True
    shell.sync_request(leader, 1, {follower: b"F"})
    late = shell.sync_request(follower, 1)
    again = shell.sync_request(leader, 1, {follower: b"another"})
    assert len(shell.held) == 1
    shell.release()
    assert shell.synced(late).assignment == b"F"
    assert shell.synced(again).assignment == b""
    assert shell.assignments() == {leader: b"", follower: b"F"}


def test_rebalance_that_begins_during_the_commit_wins(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    shell.is_holding = True
    waiting = shell.sync_request(leader, 1, {leader: b"L", follower: b"F"})
    shell.join(follower, protocols=[("range", b"changed")])
    assert shell.synced(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    shell.release()
    assert shell.state() == "PreparingRebalance"
    shell.join(leader)
    assert shell.state() == "CompletingRebalance"
    shell.finish_rebalance([leader, follower], 2)


def test_generation_after_the_one_being_committed_waits_for_its_own_assignment(
    shell: Shell,
) -> None:
    leader, follower = two_joined(shell)
    shell.is_holding = True
    shell.sync_request(leader, 1, {leader: b"old", follower: b"old"})
    shell.join(follower, protocols=[("range", b"changed")])
    shell.join(leader)
    waiting = shell.sync_request(follower, 2)
    shell.release()
    assert shell.waiting == {waiting}
    assert shell.state() == "CompletingRebalance"


def test_assignment_of_the_generation_before_is_not_handed_out(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    shell.is_holding = True
    shell.sync_request(leader, 1, {leader: b"old", follower: b"old"})
    shell.join(follower, protocols=[("range", b"changed")])
    shell.join(leader)
    waiting = shell.sync_request(leader, 2, {leader: b"new", follower: b"new"})
    first, second = shell.held
    shell.held = [first]
    shell.release()
    assert shell.waiting == {waiting}
    shell.held = [second]
    shell.release()
    assert shell.synced(waiting).assignment == b"new"


def test_member_that_syncs_late_gets_its_assignment_at_once(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    shell.sync_request(leader, 1, {leader: b"L", follower: b"F"})
    assert shell.synced(shell.sync_request(follower, 1)).assignment == b"F"
    assert shell.synced(shell.sync_request(leader, 1)).assignment == b"L"


def test_assignments_for_strangers_are_dropped_and_missing_ones_are_empty(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    waiting = shell.sync_request(follower, 1)
    shell.sync_request(leader, 1, {"nobody": b"N", leader: b"L"})
    assert shell.synced(waiting).assignment == b""
    assert shell.assignments() == {leader: b"L", follower: b""}


def test_record_of_a_generation_holds_all_that_is_needed_to_go_on(shell: Shell) -> None:
    leader, _ = shell.enter(protocols=[("range", b"meta"), ("other", b"")])
    shell.advance(SETTLE_MS)
    shell.sync_request(leader, 1, {leader: b"L"})
    [record] = shell.log
    assert record.key == b"\x00\x02\x00\x07readers"
    assert record.value is not None
    value = decode_group(record.value)
    assert (value.protocol_type, value.protocol, value.generation) == ("consumer", "range", 1)
    assert (value.leader, value.current_state_timestamp) == (leader, shell.now_ms)
    [member] = value.members
    assert (member.member_id, member.subscription, member.assignment) == (leader, b"meta", b"L")
    assert (member.client_id, member.client_host) == ("app", "/10.0.0.7")
    assert (member.session_timeout, member.rebalance_timeout) == (SESSION_MS, REBALANCE_MS)


def test_bad_syncs_are_refused(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    assert shell.sync_error(leader, 1, group="") == ErrorCode.INVALID_GROUP_ID
    assert shell.sync_error(leader, 1, group="other") == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.sync_error("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.sync_error("", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.sync_error(leader, 0) == ErrorCode.ILLEGAL_GENERATION
    assert shell.sync_error(leader, 2) == ErrorCode.ILLEGAL_GENERATION
    assert shell.sync_error(leader, 1, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    mismatch = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shell.sync_error(leader, 1, protocol_type="connect") == mismatch
    assert shell.sync_error(leader, 1, protocol_name="sticky") == mismatch
    assert shell.log == []
    named: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
    token = shell.sync_request(follower, 1, **named)
    assert shell.sync_error(leader, 1, **named) == ErrorCode.NONE
    assert token in shell.answers


def test_sync_during_the_join_phase_says_to_join(shell: Shell) -> None:
    leader, follower = shell.stable_group(2)
    shell.join(leader)
    assert shell.sync_error(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_repeated_while_it_waits_answers_the_older_one(shell: Shell) -> None:
    _, follower = two_joined(shell)
    first = shell.sync_request(follower, 1)
    second = shell.sync_request(follower, 1)
    assert shell.synced(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.waiting == {second}


def test_leader_that_never_syncs_is_removed_after_the_rebalance_timeout(shell: Shell) -> None:
    leader, follower = two_joined(shell, session_ms=REBALANCE_MS * 2)
    waiting = shell.sync_request(follower, 1)
    shell.advance(REBALANCE_MS - SETTLE_MS)
    assert shell.waiting == {waiting}
    shell.advance(SETTLE_MS)
    assert shell.synced(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.members() == {follower}
    assert shell.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_follower_that_never_syncs_is_removed_from_a_stable_group(shell: Shell) -> None:
    leader, follower = two_joined(shell, session_ms=REBALANCE_MS * 2)
    shell.sync_request(leader, 1, {leader: b"L", follower: b"F"})
    assert shell.state() == "Stable"
    shell.advance(REBALANCE_MS)
    assert shell.members() == {leader}
    assert shell.state() == "PreparingRebalance"


def test_everybody_who_synced_stays_after_the_rebalance_timeout(shell: Shell) -> None:
    members = shell.stable_group(2, session_ms=REBALANCE_MS * 2)
    shell.advance(REBALANCE_MS)
    assert shell.members() == set(members)
    assert shell.state() == "Stable"


def test_waiting_for_an_assignment_does_not_end_a_session(shell: Shell) -> None:
    leader, follower = two_joined(shell)
    waiting = shell.sync_request(follower, 1)
    for _ in range(4):
        shell.advance(SESSION_MS - 1)
        assert shell.heartbeat(leader, 1) == ErrorCode.NONE
    assert shell.waiting == {waiting}
    shell.sync_request(leader, 1, {leader: b"L", follower: b"F"})
    shell.heartbeat(leader, 1)
    shell.advance(SESSION_MS - 1)
    assert follower in shell.members()
    shell.heartbeat(leader, 1)
    shell.advance(1)
    assert follower not in shell.members()


def test_sync_in_a_stable_group_is_a_sign_of_life(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    for _ in range(3):
        shell.advance(SESSION_MS - 1)
        assert shell.sync_error(member, 1) == ErrorCode.NONE
    assert shell.members() == {member}


def test_connection_of_an_answered_join_does_not_take_the_sync_with_it(shell: Shell) -> None:
    leader, _ = shell.enter()
    follower, joined = shell.enter()
    shell.advance(SETTLE_MS)
    waiting = shell.sync_request(follower, 1)
    shell.shard.cancel(joined)
    shell.sync_request(leader, 1, {follower: b"F"})
    assert shell.synced(waiting).assignment == b"F"


def test_session_of_a_synced_member_whose_connection_went_starts_with_the_assignment(
    shell: Shell,
) -> None:
    leader, follower = two_joined(shell)
    shell.shard.cancel(shell.sync_request(follower, 1))
    for _ in range(2):
        shell.advance(SESSION_MS - 1)
        shell.heartbeat(leader, 1)
    shell.sync_request(leader, 1, {leader: b"L", follower: b"F"})
    assert shell.state() == "Stable"
    shell.advance(SESSION_MS - 1)
    shell.heartbeat(leader, 1)
    shell.advance(1)
    assert shell.members() == {leader}
