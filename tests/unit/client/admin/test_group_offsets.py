from typing import Any

import pytest

from headrace.client.admin.admin_requests import by_topic
from headrace.client.admin.groups import GroupProgress
from headrace.client.errors import SomeFailed
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import OLD_VERSIONS, AdminBrokers, code_of
from tests.unit.client.fake_groups import FakeGroup, member

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
B0 = TopicPartition("b", 0)


@pytest.mark.parametrize("versions", [{}, {9: 9}, OLD_VERSIONS], ids=["ids", "names", "one group"])
def test_committed_offsets_come_by_partition(versions: dict[int, int]) -> None:
    brokers = AdminBrokers(versions=versions)
    brokers.add_topic("a", 3)
    brokers.add_topic("b")
    brokers.groups = {"g": FakeGroup(offsets={B0: 7, A1: 0, A0: 5, A2: -1})}
    found = brokers.admin(lambda admin: admin.group_offsets("g"))
    assert list(found.items()) == [
        (A0, OffsetAndMetadata(5)),
        (A1, OffsetAndMetadata(0)),
        (B0, OffsetAndMetadata(7)),
    ]
    assert brokers.admin(lambda admin: admin.group_offsets("nope")) == {}


@pytest.mark.parametrize("versions", [{}, {9: 9}, OLD_VERSIONS], ids=["ids", "names", "one group"])
def test_committed_offsets_of_many_groups_take_few_requests(versions: dict[int, int]) -> None:
    brokers = AdminBrokers(nodes=2, versions=versions)
    brokers.add_topic("a", 3)
    brokers.groups = {
        f"g{number}": FakeGroup(node=1 + number % 2, offsets={A0: number}) for number in range(6)
    }
    found = brokers.admin(lambda admin: admin.offsets_of_groups([*brokers.groups, "nope"]))
    assert found == {f"g{n}": {A0: OffsetAndMetadata(n)} for n in range(6)} | {"nope": {}}
    # One for each coordinator; before version 8 one for each group.
    assert len(brokers.asked(OffsetFetchRequest)) == (7 if versions is OLD_VERSIONS else 2)


def test_a_deleted_topic_has_no_name_where_only_ids_are_sent() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("b")
    brokers.groups = {"g": FakeGroup(offsets={A0: 5, B0: 7})}
    assert brokers.admin(lambda admin: admin.group_offsets("g")) == {B0: OffsetAndMetadata(7)}


def test_progress_joins_commits_owners_and_ends() -> None:
    brokers = AdminBrokers(nodes=2, versions=OLD_VERSIONS)
    brokers.add_topic("a", 3)
    brokers.logs[A0].next_offset = 12
    brokers.logs[A1].next_offset = 4
    brokers.logs[A2].leader = -1
    offsets = {A0: 5, A2: 3, TopicPartition("gone", 0): 1}
    brokers.groups = {"g": FakeGroup(members=[member("c", {"a": [0, 1]})], offsets=offsets)}

    async def scenario(admin: Any) -> Any:
        group = await admin.describe_group("g")
        by_description = await admin.group_progress([group])
        assert await admin.group_progress(["g"]) == by_description
        assert await admin.group_progress("g") == by_description
        return group, by_description["g"]

    group, found = brokers.admin(scenario)
    (owner,) = group.members
    assert found == (
        GroupProgress(A0, 5, 12, owner),
        GroupProgress(A1, None, 4, owner),
        GroupProgress(A2, 3, None, None),
        GroupProgress(TopicPartition("gone", 0), 1, None, None),
    )
    assert [entry.lag for entry in found] == [7, None, None, None]


def test_lag_is_never_negative() -> None:
    assert GroupProgress(A0, 9, 4, None).lag == 0
    assert GroupProgress(A0, 4, 4, None).lag == 0


@pytest.mark.parametrize("versions", [{}, OLD_VERSIONS], ids=["ids", "names"])
def test_commits_are_those_of_a_consumer_outside_any_generation(versions: dict[int, int]) -> None:
    brokers = AdminBrokers(nodes=2, versions=versions)
    brokers.add_topic("a", 2)
    brokers.add_topic("b")
    brokers.groups = {"g": FakeGroup(node=2)}
    noted = OffsetAndMetadata(2, "note", 5)
    offsets: dict[TopicPartition, int | OffsetAndMetadata] = {B0: 1, A1: noted, A0: 3}
    assert brokers.admin(lambda admin: admin.alter_group_offsets("g", offsets)) is None
    assert brokers.groups["g"].offsets == {A0: 3, A1: 2, B0: 1}
    (request,) = brokers.sent(OffsetCommitRequest)
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
    committed = request.topics[0].partitions[1]
    assert (committed.committed_metadata, committed.committed_leader_epoch) == ("note", 5)
    assert brokers.asked(OffsetCommitRequest) == [2]


def test_a_commit_that_one_partition_refuses_stands_in_the_others() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a", 2)
    brokers.partition_faults.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with pytest.raises(SomeFailed, match="partition a-0: unknown topic") as caught:
        brokers.admin(lambda admin: admin.alter_group_offsets("g", {A0: 1, A1: 2}))
    assert caught.value.outcomes[A1] is None
    assert brokers.groups["g"].offsets == {A1: 2}


def test_a_group_with_members_takes_no_commits_from_outside() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a")
    brokers.groups = {"g": FakeGroup(members=[member("c", {"a": [0]})])}
    with pytest.raises(SomeFailed) as caught:
        brokers.admin(lambda admin: admin.alter_group_offsets("g", {A0: 1}))
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_an_unknown_topic_are_not_committed() -> None:
    brokers = AdminBrokers()
    with pytest.raises(UnknownTopic, match="topic a does not exist"):
        brokers.admin(lambda admin: admin.alter_group_offsets("g", {A0: 1}))
    assert brokers.sent(OffsetCommitRequest) == []


def test_offsets_are_deleted_by_partition() -> None:
    brokers = AdminBrokers()
    brokers.groups = {"g": FakeGroup(offsets={A0: 1, A1: 2, B0: 3})}
    brokers.partition_faults.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    with pytest.raises(SomeFailed) as caught:
        brokers.admin(lambda admin: admin.delete_group_offsets("g", [B0, A0]))
    assert code_of(caught.value.errors[A0]) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert caught.value.outcomes[B0] is None
    assert brokers.groups["g"].offsets == {A0: 1, A1: 2}
    with pytest.raises(KafkaError, match="group nope does not exist"):
        brokers.admin(lambda admin: admin.delete_group_offsets("nope", [A0]))


@pytest.mark.parametrize("kind", [OffsetCommitRequest, OffsetDeleteRequest])
def test_what_may_be_repeated_is_when_its_answer_is_lost(kind: type) -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a")
    brokers.groups = {"g": FakeGroup(offsets={A0: 1})}
    brokers.lost = [kind]

    async def scenario(admin: Any) -> None:
        await admin.alter_group_offsets("g", {A0: 9})
        assert brokers.groups["g"].offsets == {A0: 9}
        await admin.delete_group_offsets("g", [A0])

    brokers.admin(scenario)
    assert brokers.groups["g"].offsets == {}
    assert len(brokers.asked(kind)) == 2


def test_nothing_is_asked_about_no_offsets() -> None:
    brokers = AdminBrokers()
    assert brokers.admin(lambda admin: admin.alter_group_offsets("g", {})) is None
    assert brokers.admin(lambda admin: admin.delete_group_offsets("g", [])) is None
    assert brokers.admin(lambda admin: admin.offsets({})) == {}
    assert brokers.requests == []


def test_partitions_are_put_together_by_topic() -> None:
    assert by_topic([B0, A1, A0]) == {"a": [0, 1], "b": [0]}
