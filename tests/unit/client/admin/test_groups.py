from typing import Any

import pytest

from headrace.client.admin.groups import (
    GroupDescription,
    GroupListing,
    MemberDescription,
)
from headrace.client.coordinator_lookup import GROUPS_PER_REQUEST
from headrace.client.errors import OutcomeUnknown, SomeFailed, TimedOut
from headrace.errors import ErrorCode, KafkaError
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
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import OLD_VERSIONS, AdminBrokers, code_of
from tests.unit.client.fake_groups import FakeGroup, member

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_groups_of_every_broker_are_listed_by_name() -> None:
    brokers = AdminBrokers(nodes=3)
    brokers.groups = {"b": FakeGroup(node=3, state="Stable"), "a": FakeGroup(node=1)}
    listed = brokers.admin(lambda admin: admin.list_groups())
    assert list(listed.values()) == [
        GroupListing("a", "Empty", "classic", "consumer", 1),
        GroupListing("b", "Stable", "classic", "consumer", 3),
    ]
    assert brokers.asked(ListGroupsRequest) == [1, 2, 3]


def test_filters_are_left_to_the_brokers() -> None:
    brokers = AdminBrokers()
    brokers.groups = {
        "a": FakeGroup(),
        "b": FakeGroup(state="Stable"),
        "c": FakeGroup(kind="share"),
    }
    assert list(brokers.admin(lambda admin: admin.list_groups(states=["Stable"]))) == ["b"]
    assert list(brokers.admin(lambda admin: admin.list_groups(types=["share"]))) == ["c"]


def test_listing_waits_for_a_coordinator_that_is_loading() -> None:
    brokers = AdminBrokers()
    brokers.groups = {"a": FakeGroup()}
    brokers.group_faults.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert list(brokers.admin(lambda admin: admin.list_groups())) == ["a"]


def test_groups_are_described_by_their_coordinators() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.groups = {
        "one": FakeGroup(node=1),
        "two": FakeGroup(
            node=2,
            state="Stable",
            protocol="range",
            members=[member("c", {"b": [2, 1], "a": [0]}, instance="i")],
        ),
    }
    found = brokers.admin(lambda admin: admin.describe_groups(["two", "one", "two"]))
    assert list(found) == ["two", "one"]
    assert found["one"] == GroupDescription("one", "Empty", "consumer", "", 1, ())
    owned = (A0, TopicPartition("b", 1), TopicPartition("b", 2))
    assert found["two"] == GroupDescription(
        "two",
        "Stable",
        "consumer",
        "range",
        2,
        (MemberDescription("c-1", "i", "c", "10.0.0.9", ("a", "b"), owned),),
    )
    (request,) = brokers.sent(FindCoordinatorRequest)
    assert request.coordinator_keys == ["two", "one"]
    assert sorted(brokers.asked(DescribeGroupsRequest)) == [1, 2]


def test_who_listed_a_group_is_asked_about_it() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.groups = {"a": FakeGroup(node=2)}

    async def scenario(admin: Any) -> None:
        await admin.list_groups()
        await admin.describe_groups(["a"])

    brokers.admin(scenario)
    assert brokers.sent(FindCoordinatorRequest) == []
    assert brokers.asked(DescribeGroupsRequest) == [2]


@pytest.mark.parametrize("versions", [{}, OLD_VERSIONS], ids=["new", "old"])
def test_a_group_that_does_not_exist_is_told_apart(versions: dict[int, int]) -> None:
    brokers = AdminBrokers(versions=versions)
    brokers.groups = {"a": FakeGroup()}
    with pytest.raises(SomeFailed, match="group nope does not exist") as caught:
        brokers.admin(lambda admin: admin.describe_groups(["nope", "a"]))
    assert code_of(caught.value.errors["nope"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(caught.value.outcomes["a"], GroupDescription)
    with pytest.raises(KafkaError, match="group nope does not exist"):
        brokers.admin(lambda admin: admin.describe_group("nope"))


def test_many_groups_go_into_several_requests() -> None:
    brokers = AdminBrokers()
    brokers.groups = {f"g{number}": FakeGroup() for number in range(GROUPS_PER_REQUEST + 1)}
    found = brokers.admin(lambda admin: admin.describe_groups(list(brokers.groups)))
    assert len(found) == GROUPS_PER_REQUEST + 1
    sizes = [len(request.coordinator_keys) for request in brokers.sent(FindCoordinatorRequest)]
    assert sizes == [GROUPS_PER_REQUEST, 1]
    assert [len(request.groups) for request in brokers.sent(DescribeGroupsRequest)] == sizes


def test_old_brokers_are_asked_for_one_coordinator_at_a_time() -> None:
    brokers = AdminBrokers(nodes=2, versions=OLD_VERSIONS)
    brokers.groups = {"a": FakeGroup(node=1), "b": FakeGroup(node=2)}
    found = brokers.admin(lambda admin: admin.describe_groups(["a", "b"]))
    assert [group.coordinator for group in found.values()] == [1, 2]
    assert [request.key for request in brokers.sent(FindCoordinatorRequest)] == ["a", "b"]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_of_what_members_say_can_be_read(version: int) -> None:
    brokers = AdminBrokers()
    brokers.groups = {"g": FakeGroup(members=[member("c", {"a": [0, 1]}, version=version)])}
    (found,) = brokers.admin(lambda admin: admin.describe_group("g")).members
    assert (found.subscription, found.assignment) == (("a",), (A0, A1))


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
    brokers = AdminBrokers()
    other = DescribedGroupMember(member_id="m", member_metadata=data, member_assignment=data)
    brokers.groups = {"g": FakeGroup(protocol_type=protocol_type, members=[other])}
    (found,) = brokers.admin(lambda admin: admin.describe_group("g")).members
    assert (found.subscription, found.assignment) == expected


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ],
)
def test_a_coordinator_that_is_not_ready_is_asked_again(code: ErrorCode) -> None:
    brokers = AdminBrokers()
    brokers.groups = {"a": FakeGroup(offsets={A0: 5}), "b": FakeGroup()}
    brokers.add_topic("a")
    brokers.finding_faults.append(code)

    async def scenario(admin: Any) -> None:
        brokers.group_faults.append(code)
        assert (await admin.group_offsets("a"))[A0].offset == 5
        brokers.group_faults.append(code)
        brokers.requests.clear()
        assert list(await admin.describe_groups(["a", "b"])) == ["a", "b"]
        # Only the group that failed is asked about again.
        assert [request.groups for request in brokers.sent(DescribeGroupsRequest)] == [
            ["a", "b"],
            ["a"],
        ]
        brokers.group_faults.append(code)
        await admin.alter_group_offsets("a", {A0: 1})
        brokers.group_faults.append(code)
        await admin.delete_group_offsets("a", [A0])
        brokers.group_faults.append(code)
        await admin.delete_groups(["a"])

    brokers.admin(scenario)
    assert list(brokers.groups) == ["b"]


def test_a_coordinator_that_is_never_ready_ends_with_the_deadline() -> None:
    brokers = AdminBrokers()
    brokers.group_faults.extend([ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
    with pytest.raises(TimedOut, match=r"gave up after 5 s: COORDINATOR_NOT_AVAILABLE: group g"):
        brokers.admin(lambda admin: admin.group_offsets("g"), timeout_s=5)
    assert brokers.clock.seconds <= 1005.0


def test_a_coordinator_that_moved_is_found() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.groups = {"g": FakeGroup(node=1, offsets={A0: 5})}
    brokers.add_topic("a")

    async def scenario(admin: Any) -> Any:
        await admin.group_offsets("g")
        brokers.groups["g"].node = 2
        return await admin.group_offsets("g")

    assert brokers.admin(scenario)[A0].offset == 5


def test_a_coordinator_that_died_is_replaced() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.groups = {"g": FakeGroup(node=2)}

    async def scenario(admin: Any) -> Any:
        await admin.describe_group("g")
        brokers.down.add(2)
        brokers.groups["g"].node = 1
        return await admin.describe_group("g")

    assert brokers.admin(scenario).coordinator == 1


def test_a_coordinator_the_cluster_does_not_name_yet_is_waited_for() -> None:
    brokers = AdminBrokers(nodes=1)
    brokers.groups = {"g": FakeGroup(node=2)}
    with pytest.raises(TimedOut, match="broker 2, which coordinates group g, is not part of"):
        brokers.admin(lambda admin: admin.describe_group("g"), timeout_s=3)
    brokers.nodes = AdminBrokers(nodes=2).nodes
    assert brokers.admin(lambda admin: admin.describe_group("g")).coordinator == 2


def test_an_answer_that_leaves_a_group_out_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = AdminBrokers()
    brokers.groups = {"g": FakeGroup()}
    described = DescribeGroupsResponse()
    monkeypatch.setattr(brokers, "_DescribeGroups", lambda node, request: described)
    with pytest.raises(TimedOut, match="broker 1 says nothing of group g"):
        brokers.admin(lambda admin: admin.describe_group("g"), timeout_s=3)
    found = FindCoordinatorResponse(coordinators=[Coordinator(key="other", node_id=1)])
    monkeypatch.setattr(brokers, "_FindCoordinator", lambda node, request: found)
    with pytest.raises(TimedOut, match="nobody coordinates group g"):
        brokers.admin(lambda admin: admin.describe_group("g"), timeout_s=3)


def test_a_group_one_may_not_see_fails_alone() -> None:
    brokers = AdminBrokers()
    brokers.groups = {"a": FakeGroup(), "b": FakeGroup()}
    brokers.finding_faults.append(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(SomeFailed, match="GROUP_AUTHORIZATION_FAILED: group a:") as caught:
        brokers.admin(lambda admin: admin.describe_groups(["a", "b"]))
    assert isinstance(caught.value.outcomes["b"], GroupDescription)


def test_groups_are_deleted_each_with_its_own_outcome() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.groups = {
        "empty": FakeGroup(node=2),
        "busy": FakeGroup(members=[member("c", {"a": [0]})]),
    }
    with pytest.raises(SomeFailed, match="2 of 3 failed: group busy: non empty group") as caught:
        brokers.admin(lambda admin: admin.delete_groups(["busy", "empty", "nope"]))
    assert caught.value.outcomes["empty"] is None
    assert code_of(caught.value.errors["busy"]) is ErrorCode.NON_EMPTY_GROUP
    assert code_of(caught.value.errors["nope"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert list(brokers.groups) == ["busy"]


def test_deleting_a_group_whose_answer_is_lost_is_not_repeated() -> None:
    brokers = AdminBrokers()
    brokers.groups = {"g": FakeGroup()}
    brokers.lost = [DeleteGroupsRequest]
    with pytest.raises(OutcomeUnknown, match="look before repeating"):
        brokers.admin(lambda admin: admin.delete_groups(["g"]))
    assert len(brokers.sent(DeleteGroupsRequest)) == 1
