"""Groups from the outside: list, describe, delete."""

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.list_groups import ListedGroup
from tests.unit.coordinator.driving import GROUP, SETTLE_MS, Shell, subscription


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_groups_are_listed_with_state_and_type(shell: Shell) -> None:
    shell.stable_group(1)
    shell.commit(group="simple")
    assert shell.shard.list() == [
        ListedGroup(
            group_id=GROUP, protocol_type="consumer", group_state="Stable", group_type="classic"
        ),
        ListedGroup(group_id="simple", group_state="Empty", group_type="classic"),
    ]


def test_filters_pick_groups_in_any_case_of_letters(shell: Shell) -> None:
    shell.stable_group(1)
    shell.commit(group="simple")
    shell.enter(group="forming")

    def listed(states: list[str], types: list[str]) -> list[str]:
        return [group.group_id for group in shell.shard.list(states, types)]

    assert listed(["Stable"], []) == [GROUP]
    assert listed(["stable", "EMPTY"], []) == [GROUP, "simple"]
    assert listed(["PreparingRebalance"], ["Classic"]) == ["forming"]
    assert listed([], ["consumer"]) == []
    assert listed(["Dead"], []) == []
    assert len(listed([], ["consumer", "classic"])) == 3


def test_stable_group_is_described_in_full(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    assert shell.shard.describe(GROUP, 6) == DescribedGroup(
        group_id=GROUP,
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=[
            DescribedGroupMember(
                member_id=member,
                client_id="app",
                client_host="/10.0.0.7",
                member_metadata=subscription("t"),
                member_assignment=member.upper().encode(),
            )
        ],
    )


def test_what_members_want_is_not_told_before_the_group_is_stable(shell: Shell) -> None:
    token = shell.join(instance="i")
    shell.advance(SETTLE_MS)
    described = shell.shard.describe(GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    [member] = described.members
    assert member.member_id == shell.joined(token).member_id
    assert (member.group_instance_id, member.member_metadata) == ("i", b"")


def test_unknown_group_is_dead_and_an_error_since_version_6(shell: Shell) -> None:
    assert shell.shard.describe("x", 5) == DescribedGroup(group_id="x", group_state="Dead")
    assert shell.shard.describe("x", 6) == DescribedGroup(
        group_id="x",
        group_state="Dead",
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message="Group x not found.",
    )


def test_empty_group_is_deleted_with_its_offsets(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.commit(member, 1, topic="t")
    shell.commit(member, 1, topic="u")
    shell.leave((member, None))
    assert shell.delete() == ErrorCode.NONE
    assert [record.value for record in shell.log[-3:]] == [None, None, None]
    assert shell.shard.list() == []
    assert shell.committed() == {}
    shell.advance(10_000_000)
    assert shell.shard.next_deadline_ms is None
    again = shell.reload()
    assert again.shard.list() == []
    assert again.committed() == {}
    assert again.shard.next_deadline_ms is None


@pytest.mark.parametrize("phase", ["joining", "syncing", "stable"])
def test_group_with_members_is_not_deleted(shell: Shell, phase: str) -> None:
    if phase == "stable":
        shell.stable_group(1)
    else:
        shell.enter()
        shell.advance(0 if phase == "joining" else SETTLE_MS)
    assert shell.delete() == ErrorCode.NON_EMPTY_GROUP
    assert len(shell.members()) == 1


def test_unknown_group_is_not_deleted(shell: Shell) -> None:
    assert shell.delete("x") == ErrorCode.GROUP_ID_NOT_FOUND
    assert shell.log == []


def test_deleted_group_answers_nobody_until_its_tombstone_is_committed(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.leave((member, None))
    pending = shell.joined(shell.join()).member_id
    shell.is_holding = True
    assert shell.delete() == ErrorCode.NONE
    assert shell.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert shell.shard.list() == []
    assert shell.state() == "Dead"
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shell.refused(shell.join()) == unavailable
    assert shell.refused(shell.join(pending)) == unavailable
    assert shell.heartbeat(pending, 1) == unavailable
    assert shell.sync_error(pending, 1) == unavailable
    assert shell.commit() == unavailable
    assert shell.delete_offset("t") == ErrorCode.GROUP_ID_NOT_FOUND
    token = shell.send(LeaveGroupRequest(group_id=GROUP), 5)
    assert shell.answers[token] == LeaveGroupResponse(error_code=unavailable)
    shell.release()
    assert shell.refused(shell.join(pending)) == ErrorCode.UNKNOWN_MEMBER_ID
    _, joining = shell.enter()
    shell.advance(SETTLE_MS)
    assert shell.joined(joining).generation_id == 1
