"""Static membership (KIP-345): a restart keeps a member's place, and fences what it replaced."""

from typing import Any

import pytest

from headrace.coordinator.shard import RequestClient
from headrace.errors import ErrorCode
from tests.unit.coordinator.driving import (
    REBALANCE_MS,
    SESSION_MS,
    SETTLE_MS,
    Shell,
    subscription,
)


@pytest.fixture
def shell() -> Shell:
    return Shell()


def static_group(shell: Shell, *instances: str, **options: Any) -> list[str]:
    tokens = [shell.join(instance=instance, **options) for instance in instances]
    shell.advance(SETTLE_MS)
    members = [shell.joined(token).member_id for token in tokens]
    shell.finish_rebalance(members, 1)
    return members


def test_static_member_needs_no_second_join_for_its_id(shell: Shell) -> None:
    token = shell.join(instance="left-shelf")
    shell.advance(SETTLE_MS)
    answer = shell.joined(token)
    assert answer.member_id.startswith("left-shelf-")
    assert [member.group_instance_id for member in answer.members] == ["left-shelf"]


def test_restart_keeps_the_assignment_without_a_rebalance(shell: Shell) -> None:
    leader, follower = static_group(shell, "a", "b")
    token = shell.join(instance="b", client=RequestClient("app", "/10.0.0.8"))
    answer = shell.joined(token)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, leader)
    assert answer.member_id != follower
    assert (answer.members, answer.skip_assignment) == ([], False)
    assert shell.state() == "Stable"
    synced = shell.synced(shell.sync_request(answer.member_id, 1, instance="b"))
    assert synced.assignment == follower.upper().encode()
    assert shell.reload().assignments() == shell.assignments()
    hosts = {
        member.group_instance_id: member.client_host
        for member in shell.shard.describe("readers", 5).members
    }
    assert hosts == {"a": "/10.0.0.7", "b": "/10.0.0.8"}


def test_restart_is_answered_once_the_new_id_is_committed(shell: Shell) -> None:
    static_group(shell, "a", "b")
    shell.is_holding = True
    token = shell.join(instance="b")
    assert shell.waiting == {token}
    shell.release()
    assert shell.waiting == set()


def test_restarted_leader_is_told_to_skip_the_assignment(shell: Shell) -> None:
    static_group(shell, "a", "b")
    answer = shell.joined(shell.join(instance="a"))
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert {member.group_instance_id for member in answer.members} == {"a", "b"}


def test_restarted_leader_of_an_older_version_does_not_know_it_leads(shell: Shell) -> None:
    leader, _ = static_group(shell, "a", "b")
    answer = shell.joined(shell.join(instance="a", version=8))
    assert answer.leader == leader
    assert answer.member_id != leader
    assert (answer.members, answer.skip_assignment) == ([], False)
    assert (answer.generation_id, answer.protocol_type, answer.protocol_name) == (
        1,
        "consumer",
        "range",
    )


def test_restart_renews_the_session(shell: Shell) -> None:
    leader, _ = static_group(shell, "a", "b")
    shell.advance(SESSION_MS - 1)
    new = shell.joined(shell.join(instance="b")).member_id
    shell.heartbeat(leader, 1, instance="a")
    shell.advance(SESSION_MS - 1)
    assert shell.members() == {leader, new}


def test_restart_of_a_member_that_has_not_synced_is_waited_for(shell: Shell) -> None:
    slow: dict[str, Any] = {"session_ms": REBALANCE_MS * 3}
    tokens = [shell.join(instance=name, **slow) for name in ("a", "b")]
    shell.advance(SETTLE_MS)
    leader, follower = (shell.joined(token).member_id for token in tokens)
    shell.sync_request(leader, 1, {leader: b"A", follower: b"B"}, instance="a")
    new = shell.joined(shell.join(instance="b", **slow)).member_id
    assert shell.members() == {leader, new}
    shell.advance(REBALANCE_MS)
    assert shell.members() == {leader}


def test_old_holder_is_fenced_everywhere(shell: Shell) -> None:
    _, old = static_group(shell, "a", "b")
    new = shell.joined(shell.join(instance="b")).member_id
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert shell.heartbeat(old, 1, instance="b") == fenced
    assert shell.sync_error(old, 1, instance="b") == fenced
    assert shell.commit(old, 1, instance="b") == fenced
    assert shell.refused(shell.join(old, instance="b")) == fenced
    assert shell.leave((old, "b")) == [(old, "b", fenced)]
    assert shell.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(new, 1, instance="b") == ErrorCode.NONE
    assert shell.commit(new, 1, instance="b") == ErrorCode.NONE


def test_requests_of_the_old_holder_that_wait_are_fenced(shell: Shell) -> None:
    first = shell.join(instance="a")
    second = shell.join(instance="a")
    assert shell.refused(first) == ErrorCode.FENCED_INSTANCE_ID
    shell.join(instance="b")
    shell.advance(SETTLE_MS)
    leader = shell.joined(second).member_id
    follower = next(member for member in shell.members() if member != leader)
    waiting = shell.sync_request(follower, 1, instance="b")
    shell.join(instance="b")
    assert shell.synced(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_restart_before_the_sync_starts_again(shell: Shell) -> None:
    shell.join(instance="a")
    shell.join(instance="b")
    shell.advance(SETTLE_MS)
    token = shell.join(instance="b")
    assert shell.state() == "PreparingRebalance"
    assert shell.waiting == {token}


def test_restart_with_other_topics_starts_a_rebalance(shell: Shell) -> None:
    leader, _ = static_group(shell, "a", "b")
    token = shell.join(instance="b", protocols=[("range", subscription("t", "u"))])
    assert shell.state() == "PreparingRebalance"
    shell.join(leader, instance="a")
    assert shell.joined(token).generation_id == 2


def test_restart_with_other_details_of_the_same_topics_does_not(shell: Shell) -> None:
    static_group(shell, "a", "b")
    token = shell.join(instance="b", protocols=[("range", subscription("t", version=1))])
    assert shell.joined(token).generation_id == 1
    assert shell.state() == "Stable"


def test_restart_that_changes_the_vote_starts_a_rebalance(shell: Shell) -> None:
    both = [("x", subscription("t")), ("y", subscription("t"))]
    static_group(shell, "a", protocols=both)
    token = shell.join(instance="a", protocols=both[::-1])
    assert shell.joined(token).protocol_name == "y"
    assert shell.joined(token).generation_id == 2


def test_static_member_keeps_its_place_in_a_rebalance_it_misses(shell: Shell) -> None:
    leader, follower = static_group(shell, "a", "b", session_ms=REBALANCE_MS * 3)
    token = shell.join(leader, instance="a", session_ms=REBALANCE_MS * 3)
    shell.advance(REBALANCE_MS)
    assert shell.joined(token).generation_id == 2
    assert shell.members() == {leader, follower}
    assert shell.heartbeat(follower, 1, instance="b") == ErrorCode.ILLEGAL_GENERATION


def test_static_member_goes_when_its_session_ends(shell: Shell) -> None:
    leader, _ = static_group(shell, "a", "b")
    shell.advance(SESSION_MS - 1)
    shell.heartbeat(leader, 1, instance="a")
    shell.advance(1)
    assert shell.members() == {leader}
    again = shell.join(leader, instance="a")
    assert shell.joined(again).generation_id == 2


def test_rebalance_that_no_member_comes_to_waits_for_the_sessions(shell: Shell) -> None:
    slow: dict[str, Any] = {"session_ms": REBALANCE_MS * 3, "rebalance_ms": 10_000}
    leader, follower = static_group(shell, "a", "b", **slow)
    dynamic, _ = shell.enter(**slow)
    shell.leave((dynamic, None))
    assert shell.state() == "PreparingRebalance"
    shell.advance(REBALANCE_MS)
    assert shell.state() == "PreparingRebalance"
    assert shell.members() == {leader, follower}
    token = shell.join(follower, instance="b", **slow)
    shell.advance(10_000)
    assert shell.joined(token).leader == follower
    shell.advance(REBALANCE_MS * 3)
    assert shell.state() == "Empty"


def test_instance_id_is_free_again_after_leaving(shell: Shell) -> None:
    _, follower = static_group(shell, "a", "b")
    shell.leave((follower, "b"))
    assert shell.heartbeat(follower, 1, instance="b") == ErrorCode.UNKNOWN_MEMBER_ID
    token = shell.join(instance="b")
    assert shell.waiting == {token}
