from typing import Any

import pytest

from headrace.client.admin import OutcomeUnknown
from headrace.client.coordinators import GROUPS_PER_REQUEST
from headrace.client.failures import ConnectionFailed, TimedOut, UnknownTopic
from headrace.client.groups import Group, GroupAdmin, ListedGroup, Member, Progress, by_topic
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import (
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeConnection
from tests.unit.client.fake_groups import FakeGroup, FakeGroups, member

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

OLD_VERSIONS: dict[int, int] = {
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.DELETE_GROUPS: 1,
}


def admin_of(brokers: FakeGroups, timeout_s: float = 30.0) -> GroupAdmin:
    return GroupAdmin(brokers.cluster(timeout_s))


def code_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, KafkaError), outcome
    return outcome.code


def asked(brokers: FakeGroups, kind: type) -> list[int]:
    """The nodes that received requests of a kind, in order."""
    return [node for node, request in brokers.requests if isinstance(request, kind)]


def test_groups_of_every_broker_are_listed_by_name() -> None:
    brokers = FakeGroups(nodes=3)
    brokers.groups = {"b": FakeGroup(node=3, state="Stable"), "a": FakeGroup(node=1)}
    assert admin_of(brokers).list_groups() == [
        ListedGroup("a", "Empty", "classic", "consumer", 1),
        ListedGroup("b", "Stable", "classic", "consumer", 3),
    ]
    assert asked(brokers, ListGroupsRequest) == [1, 2, 3]


def test_filters_are_left_to_the_brokers() -> None:
    brokers = FakeGroups()
    brokers.groups = {
        "a": FakeGroup(),
        "b": FakeGroup(state="Stable"),
        "c": FakeGroup(kind="share"),
    }
    admin = admin_of(brokers)
    assert [one.name for one in admin.list_groups(states=["Stable"])] == ["b"]
    assert [one.name for one in admin.list_groups(types=["share"])] == ["c"]


def test_listing_waits_for_a_coordinator_that_is_loading() -> None:
    brokers = FakeGroups()
    brokers.groups = {"a": FakeGroup()}
    brokers.group_faults.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert [one.name for one in admin_of(brokers).list_groups()] == ["a"]


def test_groups_are_described_by_their_coordinators() -> None:
    brokers = FakeGroups(nodes=2)
    brokers.groups = {
        "one": FakeGroup(node=1),
        "two": FakeGroup(
            node=2,
            state="Stable",
            protocol="range",
            members=[member("c", {"b": [2, 1], "a": [0]}, instance="i")],
        ),
    }
    found = admin_of(brokers).describe_groups(["two", "one", "two"])
    assert list(found) == ["two", "one"]
    assert found["one"] == Group("one", "Empty", "consumer", "", 1, ())
    assert found["two"] == Group(
        "two",
        "Stable",
        "consumer",
        "range",
        2,
        (
            Member(
                "c-1",
                "i",
                "c",
                "10.0.0.9",
                ("a", "b"),
                (A0, TopicPartition("b", 1), TopicPartition("b", 2)),
            ),
        ),
    )
    (request,) = brokers.sent(FindCoordinatorRequest)
    assert request.coordinator_keys == ["two", "one"]
    assert sorted(asked(brokers, DescribeGroupsRequest)) == [1, 2]


def test_who_listed_a_group_is_asked_about_it() -> None:
    brokers = FakeGroups(nodes=2)
    brokers.groups = {"a": FakeGroup(node=2)}
    admin = admin_of(brokers)
    admin.list_groups()
    admin.describe_groups(["a"])
    assert brokers.sent(FindCoordinatorRequest) == []
    assert asked(brokers, DescribeGroupsRequest) == [2]


@pytest.mark.parametrize("versions", [{}, OLD_VERSIONS], ids=["new", "old"])
def test_a_group_that_does_not_exist_is_told_apart(versions: dict[int, int]) -> None:
    brokers = FakeGroups(versions=versions)
    brokers.groups = {"a": FakeGroup()}
    found = admin_of(brokers).describe_groups(["nope", "a"])
    assert code_of(found["nope"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(found["a"], Group)


def test_many_groups_go_into_several_requests() -> None:
    brokers = FakeGroups()
    brokers.groups = {f"g{number}": FakeGroup() for number in range(GROUPS_PER_REQUEST + 1)}
    found = admin_of(brokers).describe_groups(list(brokers.groups))
    assert len(found) == GROUPS_PER_REQUEST + 1
    sizes = [len(one.coordinator_keys) for one in brokers.sent(FindCoordinatorRequest)]
    assert sizes == [GROUPS_PER_REQUEST, 1]
    assert [len(one.groups) for one in brokers.sent(DescribeGroupsRequest)] == sizes


def test_old_brokers_are_asked_for_one_coordinator_at_a_time() -> None:
    brokers = FakeGroups(nodes=2, versions=OLD_VERSIONS)
    brokers.groups = {"a": FakeGroup(node=1), "b": FakeGroup(node=2)}
    found = admin_of(brokers).describe_groups(["a", "b"])
    assert [group.coordinator for group in found.values() if isinstance(group, Group)] == [1, 2]
    assert [one.key for one in brokers.sent(FindCoordinatorRequest)] == ["a", "b"]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_of_what_members_say_can_be_read(version: int) -> None:
    brokers = FakeGroups()
    brokers.groups = {"g": FakeGroup(members=[member("c", {"a": [0, 1]}, version=version)])}
    group = admin_of(brokers).describe_groups(["g"])["g"]
    assert isinstance(group, Group)
    assert (group.members[0].subscription, group.members[0].assignment) == (("a",), (A0, A1))


@pytest.mark.parametrize(
    ("protocol_type", "data", "expected"),
    [
        ("consumer", b"", (None, ())),
        ("consumer", b"\0", (None, None)),
        ("consumer", b"\0\0\x7f\xff\xff\xff", (None, None)),
        ("connect", b"\0\0\0\0\0\0", (None, None)),
    ],
)
def test_what_members_do_not_say_is_not_guessed(
    protocol_type: str, data: bytes, expected: object
) -> None:
    brokers = FakeGroups()
    other = DescribedGroupMember(member_id="m", member_metadata=data, member_assignment=data)
    brokers.groups = {"g": FakeGroup(protocol_type=protocol_type, members=[other])}
    group = admin_of(brokers).describe_groups(["g"])["g"]
    assert isinstance(group, Group)
    assert (group.members[0].subscription, group.members[0].assignment) == expected


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ],
)
def test_a_coordinator_that_is_not_ready_is_asked_again(code: ErrorCode) -> None:
    brokers = FakeGroups()
    brokers.groups = {"a": FakeGroup(offsets={A0: 5}), "b": FakeGroup()}
    brokers.add_topic("a")
    brokers.finding_faults.append(code)
    brokers.group_faults.append(code)
    admin = admin_of(brokers)
    assert admin.committed("a") == {A0: 5}
    brokers.group_faults.append(code)
    brokers.requests.clear()
    found = admin.describe_groups(["a", "b"])
    assert all(isinstance(group, Group) for group in found.values())
    # Only the group that failed is asked about again.
    assert [one.groups for one in brokers.sent(DescribeGroupsRequest)] == [["a", "b"], ["a"]]
    brokers.group_faults.append(code)
    assert admin.commit("a", {A0: 1}) == {A0: None}
    brokers.group_faults.append(code)
    assert admin.delete_offsets("a", [A0]) == {A0: None}
    brokers.group_faults.append(code)
    assert admin.delete_groups(["a"]) == {"a": None}


def test_a_coordinator_that_is_never_ready_ends_with_the_deadline() -> None:
    brokers = FakeGroups()
    brokers.group_faults.extend([ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
    with pytest.raises(TimedOut, match=r"gave up after 5 s: COORDINATOR_NOT_AVAILABLE: group g"):
        admin_of(brokers, 5.0).committed("g")
    assert brokers.clock.seconds <= 1005.0


def test_a_coordinator_that_moved_is_found() -> None:
    brokers = FakeGroups(nodes=2)
    brokers.groups = {"g": FakeGroup(node=1, offsets={A0: 5})}
    brokers.add_topic("a")
    admin = admin_of(brokers)
    admin.committed("g")
    brokers.groups["g"].node = 2
    assert admin.committed("g") == {A0: 5}


def test_a_coordinator_that_died_is_replaced() -> None:
    brokers = FakeGroups(nodes=2)
    brokers.groups = {"g": FakeGroup(node=2)}
    admin = admin_of(brokers)
    admin.describe_groups(["g"])
    brokers.down.add(2)
    brokers.groups["g"].node = 1
    group = admin.describe_groups(["g"])["g"]
    assert isinstance(group, Group)
    assert group.coordinator == 1


def test_a_coordinator_the_cluster_does_not_name_yet_is_waited_for() -> None:
    brokers = FakeGroups(nodes=1)
    brokers.groups = {"g": FakeGroup(node=2)}
    with pytest.raises(TimedOut, match="broker 2, which coordinates group g, is not part of"):
        admin_of(brokers, 3.0).describe_groups(["g"])
    joined = FakeGroups(nodes=2)
    brokers.nodes = joined.nodes
    assert isinstance(admin_of(brokers).describe_groups(["g"])["g"], Group)


def test_an_answer_that_leaves_a_group_out_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeGroups()
    brokers.groups = {"g": FakeGroup()}
    described = DescribeGroupsResponse()
    monkeypatch.setattr(brokers, "_DescribeGroups", lambda node, request: described)
    with pytest.raises(TimedOut, match="broker 1 says nothing of group g"):
        admin_of(brokers, 3.0).describe_groups(["g"])
    found = FindCoordinatorResponse(coordinators=[Coordinator(key="other", node_id=1)])
    monkeypatch.setattr(brokers, "_FindCoordinator", lambda node, request: found)
    with pytest.raises(TimedOut, match="nobody coordinates group g"):
        admin_of(brokers, 3.0).describe_groups(["g"])


def test_a_group_one_may_not_see_fails_alone() -> None:
    brokers = FakeGroups()
    brokers.groups = {"a": FakeGroup(), "b": FakeGroup()}
    brokers.finding_faults.append(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    found = admin_of(brokers).describe_groups(["a", "b"])
    assert code_of(found["a"]) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert isinstance(found["b"], Group)


@pytest.mark.parametrize("versions", [{}, {9: 9}, OLD_VERSIONS], ids=["ids", "names", "one group"])
def test_committed_offsets_come_by_partition(versions: dict[int, int]) -> None:
    brokers = FakeGroups(versions=versions)
    brokers.add_topic("a", 3)
    brokers.add_topic("b")
    offsets = {B0: 7, A1: 0, A0: 5, TopicPartition("a", 2): -1}
    brokers.groups = {"g": FakeGroup(offsets=offsets)}
    found = admin_of(brokers).committed("g")
    assert list(found.items()) == [(A0, 5), (A1, 0), (B0, 7)]
    assert admin_of(brokers).committed("nope") == {}


def test_a_deleted_topic_has_no_name_where_only_ids_are_sent() -> None:
    brokers = FakeGroups()
    brokers.add_topic("b")
    brokers.groups = {"g": FakeGroup(offsets={A0: 5, B0: 7})}
    assert admin_of(brokers).committed("g") == {B0: 7}


def test_progress_joins_commits_owners_and_ends() -> None:
    brokers = FakeGroups(nodes=2)
    brokers.add_topic("a", 3)
    brokers.logs[A0].next_offset = 12
    brokers.logs[A1].next_offset = 4
    brokers.logs[TopicPartition("a", 2)].leader = -1
    offsets = {A0: 5, TopicPartition("a", 2): 3, TopicPartition("gone", 0): 1}
    brokers.groups = {"g": FakeGroup(members=[member("c", {"a": [0, 1]})], offsets=offsets)}
    admin = admin_of(brokers)
    group = admin.describe_groups(["g"])["g"]
    assert isinstance(group, Group)
    owner = group.members[0]
    found = admin.progress([group], {"g": offsets})["g"]
    assert found == [
        Progress(A0, 5, 12, owner),
        Progress(A1, None, 4, owner),
        Progress(TopicPartition("a", 2), 3, None, None),
        Progress(TopicPartition("gone", 0), 1, None, None),
    ]
    assert [one.lag for one in found] == [7, None, None, None]


def test_lag_is_never_negative() -> None:
    assert Progress(A0, 9, 4, None).lag == 0
    assert Progress(A0, 4, 4, None).lag == 0


@pytest.mark.parametrize("versions", [{}, OLD_VERSIONS], ids=["ids", "names"])
def test_commits_are_those_of_a_consumer_outside_any_generation(versions: dict[int, int]) -> None:
    brokers = FakeGroups(nodes=2, versions=versions)
    brokers.add_topic("a", 2)
    brokers.add_topic("b")
    brokers.groups = {"g": FakeGroup(node=2)}
    outcome = admin_of(brokers).commit("g", {B0: 1, A1: 2, A0: 3})
    assert outcome == {A0: None, A1: None, B0: None}
    assert brokers.groups["g"].offsets == {A0: 3, A1: 2, B0: 1}
    (request,) = brokers.sent(OffsetCommitRequest)
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
    assert asked(brokers, OffsetCommitRequest) == [2]


def test_a_commit_that_one_partition_refuses_stands_in_the_others() -> None:
    brokers = FakeGroups()
    brokers.add_topic("a", 2)
    brokers.partition_faults.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    outcome = admin_of(brokers).commit("g", {A0: 1, A1: 2})
    assert code_of(outcome[A0]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome[A1] is None
    assert brokers.groups["g"].offsets == {A1: 2}


def test_a_group_with_members_takes_no_commits_from_outside() -> None:
    brokers = FakeGroups()
    brokers.add_topic("a")
    brokers.groups = {"g": FakeGroup(members=[member("c", {"a": [0]})])}
    outcome = admin_of(brokers).commit("g", {A0: 1})
    assert code_of(outcome[A0]) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_an_unknown_topic_are_not_committed() -> None:
    brokers = FakeGroups()
    with pytest.raises(UnknownTopic, match="topic a does not exist"):
        admin_of(brokers).commit("g", {A0: 1})
    assert brokers.sent(OffsetCommitRequest) == []


def test_offsets_are_deleted_by_partition() -> None:
    brokers = FakeGroups()
    brokers.groups = {"g": FakeGroup(offsets={A0: 1, A1: 2, B0: 3})}
    brokers.partition_faults.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    outcome = admin_of(brokers).delete_offsets("g", [B0, A0])
    assert code_of(outcome[A0]) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert outcome[B0] is None
    assert brokers.groups["g"].offsets == {A0: 1, A1: 2}
    with pytest.raises(KafkaError, match="group nope does not exist"):
        admin_of(brokers).delete_offsets("nope", [A0])


def test_groups_are_deleted_each_with_its_own_outcome() -> None:
    brokers = FakeGroups(nodes=2)
    brokers.groups = {
        "empty": FakeGroup(node=2),
        "busy": FakeGroup(members=[member("c", {"a": [0]})]),
    }
    outcome = admin_of(brokers).delete_groups(["busy", "empty", "nope"])
    assert outcome["empty"] is None
    assert code_of(outcome["busy"]) is ErrorCode.NON_EMPTY_GROUP
    assert code_of(outcome["nope"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert list(brokers.groups) == ["busy"]


def test_a_command_whose_answer_is_lost_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeGroups()
    brokers.groups = {"g": FakeGroup()}

    def lose(connection: FakeConnection, request: Any, deadline: float) -> Any:
        connection.send(request, deadline)
        if isinstance(request, DeleteGroupsRequest):
            raise ConnectionFailed(connection.address, "closed", "see its log")
        return connection.receive(deadline)

    monkeypatch.setattr(FakeConnection, "call", lose)
    with pytest.raises(OutcomeUnknown, match="look before repeating"):
        admin_of(brokers).delete_groups(["g"])
    assert len(brokers.sent(DeleteGroupsRequest)) == 1


def test_partitions_are_put_together_by_topic() -> None:
    assert by_topic([B0, A1, A0]) == {"a": [0, 1], "b": [0]}
