"""OffsetCommit, OffsetFetch, OffsetDelete: who may change offsets, and what is kept of them."""

import pytest

from headrace.coordinator.records import decode_key, decode_offset
from headrace.coordinator.shard import GroupSettings
from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
)
from headrace.protocol.messages.offsets_records import OffsetCommitKey
from headrace.types import ZERO_UUID
from tests.unit.coordinator.driving import DELAY_MS, GROUP, Shell, subscription


@pytest.fixture
def shell() -> Shell:
    return Shell()


def full_commit(*topics: OffsetCommitRequestTopic, retention_ms: int = -1) -> OffsetCommitRequest:
    return OffsetCommitRequest(group_id=GROUP, topics=list(topics), retention_time_ms=retention_ms)


def codes(shell: Shell, token: int) -> dict[tuple[str, int], ErrorCode]:
    answer = shell.answers[token]
    assert isinstance(answer, OffsetCommitResponse)
    return {
        (topic.name, partition.partition_index): error_code(partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    }


def test_commit_is_fetched_with_its_epoch_and_metadata(shell: Shell) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=3, committed_offset=42, committed_leader_epoch=7, committed_metadata="why"
    )
    shell.send(full_commit(OffsetCommitRequestTopic(name="t", partitions=[partition])), 9)
    wanted = OffsetFetchRequestTopics(name="t", topic_id=b"\1" * 16, partition_indexes=[3, 4])
    answer = shell.shard.fetch_offsets(
        OffsetFetchRequestGroup(group_id=GROUP, member_epoch=-1, topics=[wanted])
    )
    assert (answer.group_id, answer.error_code) == (GROUP, 0)
    [topic] = answer.topics
    assert (topic.name, topic.topic_id) == ("t", b"\1" * 16)
    assert topic.partitions == [
        OffsetFetchResponsePartitions(
            partition_index=3, committed_offset=42, committed_leader_epoch=7, metadata="why"
        ),
        OffsetFetchResponsePartitions(
            partition_index=4, committed_offset=-1, committed_leader_epoch=-1, metadata=""
        ),
    ]


def test_fetch_of_an_unknown_group_knows_no_offset(shell: Shell) -> None:
    assert shell.committed("unknown") == {}
    assert shell.committed_at("t", 0, group="unknown") == -1


def test_fetch_of_all_topics_returns_every_offset(shell: Shell) -> None:
    shell.commit(topic="t", partition=0, offset=1)
    shell.commit(topic="t", partition=1, offset=2)
    shell.commit(topic="u", partition=0, offset=3)
    shell.commit(topic="u", partition=0, offset=4)
    assert shell.committed() == {("t", 0): 1, ("t", 1): 2, ("u", 0): 4}


def test_commit_is_visible_once_it_is_committed(shell: Shell) -> None:
    shell.commit(offset=1)
    shell.is_holding = True
    request = full_commit(
        OffsetCommitRequestTopic(
            name="t", partitions=[OffsetCommitRequestPartition(committed_offset=2)]
        )
    )
    token = shell.send(request, 9)
    assert shell.waiting == {token}
    assert shell.committed_at("t", 0) == 1
    shell.release()
    assert shell.committed_at("t", 0) == 2


def test_simple_consumer_makes_a_group_by_committing(shell: Shell) -> None:
    assert shell.commit() == ErrorCode.NONE
    [listed] = shell.shard.list()
    assert (listed.group_id, listed.group_state, listed.protocol_type) == (GROUP, "Empty", "")
    assert shell.commit(member_id="anything") == ErrorCode.NONE


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_commit_of_a_generation_that_is_not_there(
    shell: Shell, version: int, code: ErrorCode
) -> None:
    assert shell.commit("member", 3, version=version) == code
    assert shell.shard.list() == []


def test_commits_of_members_are_checked(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    assert shell.commit(member, 1) == ErrorCode.NONE
    assert shell.commit("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.commit(member, 0) == ErrorCode.ILLEGAL_GENERATION
    assert shell.commit(member, 2) == ErrorCode.ILLEGAL_GENERATION
    assert shell.commit(member, -1) == ErrorCode.ILLEGAL_GENERATION
    assert shell.commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.commit(member, 1, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert len(shell.committed()) == 1


def test_members_commit_while_others_are_waited_for_but_not_before_the_sync(shell: Shell) -> None:
    first, second = shell.stable_group(2)
    shell.join(first)
    assert shell.state() == "PreparingRebalance"
    assert shell.commit(second, 1, offset=5) == ErrorCode.NONE
    shell.join(second)
    assert shell.commit(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.commit(second, 1) == ErrorCode.ILLEGAL_GENERATION
    assert shell.committed_at("t", 0) == 5


def test_zombie_of_an_emptied_group_cannot_commit(shell: Shell) -> None:
    [member] = shell.stable_group(1)
    shell.leave((member, None))
    assert shell.commit(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.commit() == ErrorCode.NONE


def test_refused_commit_names_every_partition(shell: Shell) -> None:
    shell.stable_group(1)
    partitions = [OffsetCommitRequestPartition(partition_index=number) for number in (0, 1)]
    token = shell.send(
        full_commit(
            OffsetCommitRequestTopic(name="t", topic_id=b"\2" * 16, partitions=partitions),
            OffsetCommitRequestTopic(name="u", partitions=partitions[:1]),
        ),
        9,
    )
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert codes(shell, token) == {("t", 0): unknown, ("t", 1): unknown, ("u", 0): unknown}
    answer = shell.answers[token]
    assert isinstance(answer, OffsetCommitResponse)
    assert answer.topics[0].topic_id == b"\2" * 16


def test_too_much_metadata_fails_its_partition_and_no_other() -> None:
    shell = Shell(GroupSettings(offset_metadata_bytes_max=10))
    token = shell.send(
        full_commit(
            OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequestPartition(partition_index=0, committed_metadata="x" * 11),
                    OffsetCommitRequestPartition(partition_index=1, committed_metadata="x" * 10),
                    OffsetCommitRequestPartition(partition_index=2, committed_metadata=None),
                ],
            )
        ),
        9,
    )
    assert codes(shell, token) == {
        ("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ("t", 1): ErrorCode.NONE,
        ("t", 2): ErrorCode.NONE,
    }
    assert shell.committed().keys() == {("t", 1), ("t", 2)}


def test_metadata_that_no_record_can_hold_is_too_large() -> None:
    shell = Shell(GroupSettings(offset_metadata_bytes_max=100_000))
    partition = OffsetCommitRequestPartition(committed_metadata="é" * 16_384)
    token = shell.send(full_commit(OffsetCommitRequestTopic(name="t", partitions=[partition])), 9)
    assert codes(shell, token) == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}


def test_group_id_that_no_record_can_hold_is_refused(shell: Shell) -> None:
    assert shell.commit(group="g" * 32_768) == ErrorCode.INVALID_GROUP_ID


def test_records_of_commits_have_the_version_that_holds_what_they_say(shell: Shell) -> None:
    plain = OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition()])
    by_id = OffsetCommitRequestTopic(
        name="t", topic_id=b"\3" * 16, partitions=[OffsetCommitRequestPartition()]
    )
    shell.send(full_commit(plain), 9)
    shell.send(full_commit(by_id), 10)
    shell.send(full_commit(plain, retention_ms=1_000), 4)
    values = []
    for record in shell.log:
        assert decode_key(record.key) == OffsetCommitKey(group=GROUP, topic="t", partition=0)
        assert record.value is not None
        values.append((record.value[1], decode_offset(record.value)))
    assert [version for version, _ in values] == [3, 4, 1]
    assert [value.topic_id for _, value in values] == [ZERO_UUID, b"\3" * 16, ZERO_UUID]
    assert [value.expire_timestamp for _, value in values] == [-1, -1, shell.now_ms + 1_000]
    assert {value.commit_timestamp for _, value in values} == {shell.now_ms}


def test_offsets_are_deleted_from_an_empty_group(shell: Shell) -> None:
    shell.commit(topic="t")
    shell.commit(topic="u")
    assert shell.delete_offset("t") == ErrorCode.NONE
    assert shell.committed().keys() == {("u", 0)}
    assert shell.reload().committed().keys() == {("u", 0)}
    written = len(shell.log)
    assert shell.delete_offset("t") == ErrorCode.NONE
    assert len(shell.log) == written


def test_offsets_of_topics_that_members_read_stay(shell: Shell) -> None:
    [member] = shell.stable_group(1, protocols=[("range", subscription("t"))])
    shell.commit(member, 1, topic="t")
    shell.commit(member, 1, topic="u")
    assert shell.delete_offset("t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert shell.delete_offset("u") == ErrorCode.NONE
    assert shell.committed().keys() == {("t", 0)}
    shell.leave((member, None))
    assert shell.delete_offset("t") == ErrorCode.NONE


@pytest.mark.parametrize("metadata", [b"", b"\x00", b"\x00\x00\x00\x00\x00\x09"])
def test_unreadable_subscription_may_be_to_any_topic(shell: Shell, metadata: bytes) -> None:
    [member] = shell.stable_group(1, protocols=[("range", metadata)])
    shell.commit(member, 1)
    assert shell.delete_offset("t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_offsets_of_a_group_that_is_still_forming_stay(shell: Shell) -> None:
    shell.commit()
    shell.enter()
    assert shell.delete_offset("t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_offsets_of_live_groups_of_other_protocols_stay(shell: Shell) -> None:
    shell.commit()
    shell.enter(protocol_type="connect")
    shell.advance(DELAY_MS)
    assert shell.delete_offset("t") == ErrorCode.NON_EMPTY_GROUP


def test_bad_deletes_are_refused(shell: Shell) -> None:
    assert shell.delete_offset("t", group="") == ErrorCode.INVALID_GROUP_ID
    assert shell.delete_offset("t", group="unknown") == ErrorCode.GROUP_ID_NOT_FOUND


def test_delete_of_an_offset_that_is_being_committed_comes_after_it(shell: Shell) -> None:
    shell.commit(topic="u")
    shell.is_holding = True
    request = full_commit(
        OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition()])
    )
    shell.send(request, 9)
    shell.send(request, 9)
    records, code = shell.shard.delete(GROUP)
    assert code == ErrorCode.NONE
    assert len(records) == 3
    shell.log += records
    shell.release()
    assert shell.reload().shard.list() == []
    assert shell.reload().committed() == {}
