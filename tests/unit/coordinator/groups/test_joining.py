"""JoinGroup: who may join, who gets an id, and when a generation begins."""

from typing import Any

import pytest

from headrace.coordinator.shard import GroupSettings, RequestClient
from headrace.errors import ErrorCode
from headrace.protocol.schema import encode_message
from tests.unit.coordinator.driving import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    SETTLE_MS,
    Shell,
    subscription,
)


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_first_join_gets_an_id_and_has_to_come_again(shell: Shell) -> None:
    answer = shell.joined(shell.join(client=RequestClient("billing", "/::1")))
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("billing-")
    assert len(answer.member_id) == len("billing-") + 36
    assert shell.state() == "Empty"
    assert shell.log == []


def test_join_before_version_4_is_taken_in_at_once(shell: Shell) -> None:
    token = shell.join(version=3)
    assert shell.waiting == {token}
    shell.advance(DELAY_MS)
    assert shell.joined(token).member_id.startswith("app-")


def test_a_long_client_id_is_cut_in_the_ids_made_from_it(shell: Shell) -> None:
    token = shell.join(version=3, client=RequestClient("x" * 32_767, "/1"))
    shell.advance(DELAY_MS)
    encode_message(shell.joined(token), 3)


def test_leader_sees_all_members_and_followers_none(shell: Shell) -> None:
    leader, first = shell.enter(protocols=[("range", b"one")])
    follower, second = shell.enter(protocols=[("range", b"two")])
    shell.advance(SETTLE_MS)
    told = shell.joined(first)
    assert (told.generation_id, told.protocol_type, told.protocol_name) == (1, "consumer", "range")
    assert told.leader == told.member_id == leader
    assert [(member.member_id, member.metadata) for member in told.members] == [
        (leader, b"one"),
        (follower, b"two"),
    ]
    heard = shell.joined(second)
    assert (heard.leader, heard.member_id, heard.members) == (leader, follower, [])
    assert not told.skip_assignment
    assert shell.state() == "CompletingRebalance"


@pytest.mark.parametrize("version", range(10))
def test_answers_can_be_written_in_every_version(shell: Shell, version: int) -> None:
    refused = shell.join("nobody", version=version)
    token = shell.join(version=version)
    if version >= 4:
        token = shell.join(shell.joined(token).member_id, version=version)
    shell.advance(DELAY_MS)
    for entry in (refused, token):
        encode_message(shell.joined(entry), version)
    assert shell.joined(refused).protocol_name == (None if version >= 7 else "")
    assert shell.joined(token).protocol_name == "range"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "g" * 40_000}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": [("é" * 20_000, b"")]}, ErrorCode.INVALID_REQUEST),
        ({"protocol_type": "x" * 32_768}, ErrorCode.INVALID_REQUEST),
        ({"instance": "x" * 32_768}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_bad_join_is_refused_and_leaves_no_group(
    shell: Shell, options: dict[str, Any], code: ErrorCode
) -> None:
    assert shell.refused(shell.join(**options)) == code
    assert shell.shard.list() == []


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_session_timeouts_at_the_bounds_are_accepted(shell: Shell, session_ms: int) -> None:
    shell.enter(session_ms=session_ms)


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": "connect"},
        {"protocols": [("sticky", b"")]},
        {"protocols": []},
        {"protocol_type": ""},
    ],
)
def test_members_must_agree_with_the_group(shell: Shell, options: dict[str, Any]) -> None:
    [member] = shell.stable_group(1)
    assert shell.refused(shell.join(**options)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    known = shell.join(member, **options)
    assert shell.refused(known) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shell.state() == "Stable"


def test_unknown_member_is_refused_in_a_group_that_exists(shell: Shell) -> None:
    shell.stable_group(1)
    assert shell.refused(shell.join("nobody")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.refused(shell.join("", instance=None, version=9)) == ErrorCode.MEMBER_ID_REQUIRED


def test_pending_id_cannot_be_used_with_an_instance_id(shell: Shell) -> None:
    pending = shell.joined(shell.join()).member_id
    assert shell.refused(shell.join(pending, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_id_is_forgotten_with_its_session(shell: Shell) -> None:
    pending = shell.joined(shell.join()).member_id
    shell.advance(SESSION_MS)
    assert shell.refused(shell.join(pending)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_an_id_that_was_given_out(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    pending = shell.joined(shell.join()).member_id
    again = shell.join(member)
    assert shell.waiting == {again}
    late = shell.join(pending)
    assert shell.joined(again).generation_id == shell.joined(late).generation_id == 2


def test_rebalance_goes_on_without_an_id_that_never_joins(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.join()
    again = shell.join(member)
    shell.advance(SESSION_MS - 1)
    assert shell.waiting == {again}
    shell.advance(1)
    assert shell.joined(again).generation_id == 2


def test_initial_rebalance_is_extended_while_members_keep_coming(shell: Shell) -> None:
    _, first = shell.enter()
    shell.advance(DELAY_MS - 1)
    _, second = shell.enter()
    shell.advance(DELAY_MS)
    assert shell.waiting == {first, second}
    shell.advance(1)
    assert shell.waiting == set()
    assert len(shell.members()) == 2


def test_initial_rebalance_lasts_no_longer_than_the_rebalance_timeout(shell: Shell) -> None:
    tokens = []
    for _ in range(5):
        tokens.append(shell.enter(rebalance_ms=10_000)[1])
        shell.advance(2_500)
    assert shell.waiting == {tokens[4]}
    assert {shell.joined(token).generation_id for token in tokens[:4]} == {1}


def test_initial_rebalance_without_delay_begins_at_once() -> None:
    shell = Shell(GroupSettings(initial_rebalance_delay_ms=0))
    _, token = shell.enter()
    shell.advance(0)
    assert shell.joined(token).generation_id == 1


def test_protocol_is_the_one_most_members_prefer_of_those_all_support(shell: Shell) -> None:
    tokens = [
        shell.enter(protocols=[(name, name.encode()) for name in names])[1]
        for names in (["only", "b", "a"], ["a", "b"], ["b", "a"])
    ]
    shell.advance(SETTLE_MS)
    leader = shell.joined(tokens[0])
    assert {shell.joined(token).protocol_name for token in tokens} == {"b"}
    assert [member.metadata for member in leader.members] == [b"b", b"b", b"b"]


def test_protocol_named_twice_counts_once(shell: Shell) -> None:
    _, first = shell.enter(protocols=[("a", b"1"), ("a", b"2")])
    _, second = shell.enter(protocols=[("a", b"3")])
    shell.advance(SETTLE_MS)
    assert [member.metadata for member in shell.joined(first).members] == [b"1", b"3"]
    assert shell.joined(second).protocol_name == "a"


def test_member_that_leads_may_join_again_to_have_work_assigned_anew(shell: Shell) -> None:
    leader, follower = shell.stable_group(2)
    token = shell.join(leader)
    assert shell.state() == "PreparingRebalance"
    other = shell.join(follower)
    assert shell.joined(token).generation_id == shell.joined(other).generation_id == 2
    assert len(shell.joined(token).members) == 2


def test_follower_that_joins_again_unchanged_is_told_the_current_generation(shell: Shell) -> None:
    leader, follower = shell.stable_group(2)
    answer = shell.joined(shell.join(follower))
    assert (answer.generation_id, answer.leader, answer.members) == (1, leader, [])
    assert shell.state() == "Stable"


def test_follower_that_changes_its_metadata_starts_a_rebalance(shell: Shell) -> None:
    leader, follower = shell.stable_group(2)
    token = shell.join(follower, protocols=[("range", subscription("t", "u"))])
    assert shell.state() == "PreparingRebalance"
    shell.join(leader)
    assert shell.joined(token).generation_id == 2


def test_follower_that_changes_its_preference_starts_a_rebalance(shell: Shell) -> None:
    both = [("a", b""), ("b", b"")]
    shell.stable_group(2, protocols=both)
    follower = shell.shard.describe(GROUP, 5).members[1].member_id
    shell.join(follower, protocols=both[::-1])
    assert shell.state() == "PreparingRebalance"


def test_join_lost_on_its_way_back_can_be_repeated_before_the_sync(shell: Shell) -> None:
    leader, _ = shell.enter()
    follower, _ = shell.enter()
    shell.advance(SETTLE_MS)
    led = shell.joined(shell.join(leader))
    assert (led.generation_id, len(led.members)) == (1, 2)
    followed = shell.joined(shell.join(follower))
    assert (followed.generation_id, followed.members) == (1, [])
    assert shell.state() == "CompletingRebalance"


def test_change_before_the_sync_starts_again_and_tells_those_who_wait(shell: Shell) -> None:
    leader, _ = shell.enter()
    follower, _ = shell.enter()
    shell.advance(SETTLE_MS)
    waiting = shell.sync_request(follower, 1)
    shell.join(leader, protocols=[("range", b"changed")])
    assert shell.synced(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.state() == "PreparingRebalance"


def test_join_repeated_while_it_waits_answers_the_older_one(shell: Shell) -> None:
    member, first = shell.enter()
    second = shell.join(member)
    assert shell.refused(first) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.waiting == {second}
    shell.advance(DELAY_MS)
    assert shell.joined(second).generation_id == 1


def test_members_that_do_not_come_back_in_time_are_left_behind(shell: Shell) -> None:
    first, second, third = shell.stable_group(3, session_ms=REBALANCE_MS * 2)
    token = shell.join(first)
    other = shell.join(second)
    shell.advance(REBALANCE_MS - 1)
    assert shell.waiting == {token, other}
    shell.advance(1)
    assert shell.joined(token).generation_id == 2
    assert shell.members() == {first, second}
    assert shell.heartbeat(third, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_of_all_members_counts(shell: Shell) -> None:
    first, _ = shell.enter(rebalance_ms=20_000, session_ms=100_000)
    second, _ = shell.enter(rebalance_ms=40_000, session_ms=100_000)
    shell.advance(SETTLE_MS)
    shell.finish_rebalance([first, second], 1)
    token = shell.join(first, rebalance_ms=20_000, session_ms=100_000)
    shell.advance(39_999)
    assert shell.waiting == {token}
    shell.advance(1)
    assert shell.waiting == set()


def test_leader_that_does_not_come_back_is_replaced(shell: Shell) -> None:
    _, second, third = shell.stable_group(3, session_ms=REBALANCE_MS * 2)
    changed = [("range", subscription("u"))]
    token = shell.join(second, protocols=changed)
    shell.join(third)
    shell.advance(REBALANCE_MS)
    answer = shell.joined(token)
    assert answer.leader == second
    assert {member.member_id for member in answer.members} == {second, third}


def test_version_0_has_the_session_timeout_for_its_rebalances(shell: Shell) -> None:
    shell.join(version=0, rebalance_ms=-1, session_ms=30_000)
    shell.advance(DELAY_MS)
    [described] = shell.shard.describe(GROUP, 5).members
    shell.finish_rebalance([described.member_id], 1)
    token = shell.join(version=0, session_ms=30_000, rebalance_ms=-1)
    for _ in range(3):
        shell.advance(9_999)
        shell.heartbeat(described.member_id, 1)
    assert shell.waiting == {token}
    shell.advance(3)
    assert shell.waiting == set()


def test_full_group_takes_nobody_else() -> None:
    shell = Shell(GroupSettings(max_size=2))
    members = shell.stable_group(2)
    assert shell.refused(shell.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert shell.refused(shell.join(version=3)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert shell.state() == "Stable"
    assert shell.refused(shell.join(members[1])) == ErrorCode.NONE


def test_full_group_takes_nobody_else_while_it_rebalances() -> None:
    shell = Shell(GroupSettings(max_size=2))
    [first] = shell.stable_group(1)
    pending = [shell.joined(shell.join()).member_id for _ in range(2)]
    assert shell.refused(shell.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    tokens = [shell.join(first), shell.join(pending[0])]
    assert shell.waiting == set(tokens)
    assert shell.refused(shell.join(pending[1])) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {shell.joined(token).generation_id for token in tokens} == {2}


def test_last_to_come_back_have_to_go_when_the_bound_was_lowered() -> None:
    before = Shell(GroupSettings(max_size=3))
    first, second, third = before.stable_group(3)
    shell = Shell(GroupSettings(max_size=2), log=before.log, now_ms=before.now_ms)
    tokens = [shell.join(first), shell.join(second)]
    assert shell.refused(shell.join(third)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {shell.joined(token).generation_id for token in tokens} == {2}
    assert shell.members() == {first, second}


def test_static_members_that_are_away_take_up_room() -> None:
    shell = Shell(GroupSettings(max_size=2))
    tokens = [shell.join(instance=name) for name in ("a", "b")]
    shell.advance(SETTLE_MS)
    leader, _ = members = [shell.joined(token).member_id for token in tokens]
    shell.finish_rebalance(members, 1)
    shell.join(leader, instance="a")
    assert shell.state() == "PreparingRebalance"
    assert shell.refused(shell.join(instance="c")) == ErrorCode.GROUP_MAX_SIZE_REACHED
    shell.join(instance="b")
    assert shell.state() == "CompletingRebalance"


def test_static_member_starts_again_in_a_full_group() -> None:
    shell = Shell(GroupSettings(max_size=1))
    token = shell.join(instance="a")
    shell.advance(SETTLE_MS)
    shell.finish_rebalance([shell.joined(token).member_id], 1)
    assert shell.refused(shell.join(instance="a")) == ErrorCode.NONE
    assert shell.refused(shell.join(instance="b")) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_empty_group_takes_up_another_protocol(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.leave((member, None))
    _, token = shell.enter(protocol_type="connect", protocols=[("default", b"")])
    shell.advance(DELAY_MS)
    assert shell.joined(token).protocol_type == "connect"
    assert shell.joined(token).generation_id == 3


def test_connection_that_goes_while_it_waits_leaves_its_member_in_the_generation(
    shell: Shell,
) -> None:
    gone, token = shell.enter()
    other, waiting = shell.enter()
    shell.shard.cancel(token)
    shell.advance(SETTLE_MS)
    assert shell.waiting == {token}
    assert shell.joined(waiting).leader == gone
    shell.advance(SESSION_MS)
    assert gone not in shell.members()
    assert other not in shell.members()


def test_canceling_what_does_not_wait_does_nothing(shell: Shell) -> None:
    _, token = shell.enter()
    shell.shard.cancel(12_345)
    shell.advance(DELAY_MS)
    shell.shard.cancel(token)
    assert shell.waiting == set()
