"""A shard loaded from its log goes on where the last one stopped."""

from random import Random

import pytest

from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.records import RecordError, group_record, offset_record
from headrace.coordinator.shard import CoordinatorRecord
from headrace.errors import ErrorCode
from headrace.protocol.messages.offsets_records import (
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
)
from headrace.protocol.schema import encode_message
from tests.unit.coordinator.driving import (
    GROUP,
    SESSION_MS,
    SETTINGS,
    SETTLE_MS,
    START_MS,
    Shell,
    subscription,
)


def test_members_go_on_with_their_generation_and_assignment() -> None:
    before = Shell()
    leader, follower = before.stable_group(2)
    before.commit(leader, 1, offset=11)
    shell = before.reload()
    assert shell.shard.describe(GROUP, 6) == before.shard.describe(GROUP, 6)
    assert shell.heartbeat(leader, 1) == ErrorCode.NONE
    assert shell.commit(follower, 1, offset=12) == ErrorCode.NONE
    assert shell.committed_at("t", 0) == 12
    synced = shell.synced(shell.sync_request(follower, 1))
    assert synced.assignment == follower.upper().encode()
    assert shell.delete_offset("t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    waiting = shell.join(leader)
    assert shell.waiting == {waiting}


def test_restored_members_have_a_session_to_show_up() -> None:
    before = Shell()
    leader, _ = before.stable_group(2)
    before.advance(SESSION_MS - 1)
    shell = before.reload()
    shell.advance(SESSION_MS - 1)
    assert shell.heartbeat(leader, 1) == ErrorCode.NONE
    shell.advance(1)
    assert shell.members() == {leader}
    assert shell.state() == "PreparingRebalance"


def test_restored_static_member_is_still_the_holder_of_its_instance() -> None:
    before = Shell()
    token = before.join(instance="i")
    before.advance(SETTLE_MS)
    old = before.joined(token).member_id
    before.finish_rebalance([old], 1)
    shell = before.reload()
    new = shell.joined(shell.join(instance="i", version=8)).member_id
    assert shell.heartbeat(old, 1, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert shell.heartbeat(new, 1, instance="i") == ErrorCode.NONE


def test_rebalance_under_way_is_forgotten_and_members_join_again() -> None:
    before = Shell()
    leader, follower = before.stable_group(2)
    newcomer, _ = before.enter()
    before.join(leader)
    before.join(follower)
    assert before.state() == "CompletingRebalance"
    shell = before.reload()
    assert shell.state() == "Stable"
    assert shell.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION
    assert shell.heartbeat(newcomer, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.sync_error(leader, 2) == ErrorCode.ILLEGAL_GENERATION
    first, second = shell.join(leader), shell.join(follower)
    assert shell.joined(first).generation_id == shell.joined(second).generation_id == 2


def test_generation_goes_on_after_an_empty_group_was_loaded() -> None:
    before = Shell()
    [member] = before.stable_group(1)
    before.leave((member, None))
    shell = before.reload()
    assert shell.state() == "Empty"
    _, token = shell.enter()
    shell.advance(SETTLE_MS)
    assert shell.joined(token).generation_id == 3


def test_last_record_of_a_key_wins_and_tombstones_remove() -> None:
    def value(offset: int) -> OffsetCommitValue:
        return OffsetCommitValue(offset=offset, commit_timestamp=START_MS)

    log = [
        offset_record("g", "t", 0, value(1)),
        offset_record("g", "t", 1, value(2)),
        offset_record("g", "t", 0, value(3)),
        offset_record("g", "t", 1, None),
        offset_record("g", "never", 1, None),
        offset_record("h", "t", 0, value(4)),
        offset_record("h", "t", 0, None),
        group_record("h", GroupMetadataValue(generation=5)),
        group_record("h", None),
        group_record("never", None),
    ]
    shell = Shell(log=log)
    assert shell.committed("g") == {("t", 0): 3}
    assert [(request.group_id, request.group_state) for request in shell.shard.list()] == [
        ("g", "Empty")
    ]


def test_offsets_of_a_group_without_a_record_are_those_of_a_simple_consumer() -> None:
    before = Shell()
    before.commit()
    shell = before.reload()
    assert shell.state() == "Empty"
    assert shell.commit(offset=2) == ErrorCode.NONE


def test_records_of_unknown_types_are_counted_and_passed_over() -> None:
    shard = GroupShard(SETTINGS, Random(1))
    shard.replay(CoordinatorRecord(b"\x00\x11\x00\x01g", b"\x00\x00whatever"))
    shard.replay(CoordinatorRecord(b"\x7f\xff", None))
    shard.loaded(START_MS)
    assert shard.ignored_records == 2
    assert shard.list() == []


def test_group_with_a_member_twice_cannot_be_loaded() -> None:
    twice = [MemberMetadata(member_id="m"), MemberMetadata(member_id="m")]
    instance = [
        MemberMetadata(member_id="m", group_instance_id="i"),
        MemberMetadata(member_id="n", group_instance_id="i"),
    ]
    for members in (twice, instance):
        shard = GroupShard(SETTINGS, Random(1))
        with pytest.raises(RecordError, match="'g' has a member twice"):
            shard.replay(group_record("g", GroupMetadataValue(members=members)))


def test_records_of_other_brokers_are_read_with_what_they_lack() -> None:
    member = MemberMetadata(
        member_id="m",
        rebalance_timeout=-1,
        session_timeout=7_000,
        subscription=subscription("t"),
        assignment=b"A",
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol=None, leader=None, members=[member]
    )
    shell = Shell(log=[group_record("g", value)])
    assert shell.assignments("g") == {"m": b"A"}
    assert shell.heartbeat("m", 3, group="g") == ErrorCode.NONE
    shell.advance(7_000)
    assert shell.state("g") == "Empty"
    for version in (0, 1, 2):
        old = CoordinatorRecord(
            group_record("h", None).key, version.to_bytes(2, "big") + encode_message(value, version)
        )
        shell = Shell(log=[old])
        assert shell.members("h") == {"m"}


def test_leader_is_the_one_the_record_names() -> None:
    members = [
        MemberMetadata(member_id=name, session_timeout=SESSION_MS, subscription=subscription("t"))
        for name in ("m", "n")
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="n", members=members
    )
    shell = Shell(log=[group_record(GROUP, value)])
    assert shell.joined(shell.join("m")).leader == "n"


def test_loaded_groups_are_not_all_looked_through_at_once() -> None:
    before = Shell()
    for number in range(50):
        before.commit(group=f"g{number}")
    shell = before.reload()
    assert len({entry[0] for entry in shell.shard._deadlines._heap}) > 40
