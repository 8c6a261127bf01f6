import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.types import TopicPartition
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.fakes import AdminBrokers
from tests.unit.client.fake_groups import FakeGroup, member

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> AdminBrokers:
    brokers = AdminBrokers(nodes=2)
    use(brokers, monkeypatch, "groups")
    brokers.add_topic("a", 3)
    for tp, end in ((A0, 12), (A1, 4), (A2, 9)):
        brokers.logs[tp].next_offset = end
    brokers.groups = {
        "live": FakeGroup(
            node=2,
            state="Stable",
            protocol="range",
            members=[member("one", {"a": [0, 1]}, instance="i"), member("two", {"a": [2]})],
            offsets={A0: 5, A1: 4},
        ),
        "idle": FakeGroup(offsets={A0: 12}),
    }
    return brokers


def test_list_shows_groups_of_all_brokers(brokers: AdminBrokers) -> None:
    assert invoke("groups", "list").stdout.splitlines() == [
        "GROUP  TYPE     STATE   PROTOCOL  MEMBERS  COORDINATOR",
        "idle   classic  Empty             0        1",
        "live   classic  Stable  range     2        2",
    ]
    found = document(invoke("groups", "list", "--json"))["groups"]
    assert found[1] == {
        "name": "live",
        "type": "classic",
        "state": "Stable",
        "protocol_type": "consumer",
        "protocol": "range",
        "members": 2,
        "coordinator": 2,
    }


def test_list_takes_states_in_any_case(brokers: AdminBrokers) -> None:
    found = document(invoke("groups", "list", "--state", "stable", "--json"))["groups"]
    assert [entry["name"] for entry in found] == ["live"]
    both = document(invoke("groups", "list", "--state", "Stable", "--state", "EMPTY", "--json"))
    assert len(both["groups"]) == 2
    assert invoke("groups", "list", "--state", "lively").exit_code == 2


def test_list_filters_what_an_old_broker_does_not(brokers: AdminBrokers) -> None:
    brokers._versions[16] = 3
    found = document(invoke("groups", "list", "--state", "Empty", "--json"))["groups"]
    assert [(entry["name"], entry["type"], entry["state"]) for entry in found] == [
        ("idle", None, "Empty")
    ]


def test_list_shows_groups_it_cannot_describe(brokers: AdminBrokers) -> None:
    brokers.groups["new"] = FakeGroup(kind="consumer", state="Stable", protocol="uniform")
    (found,) = document(invoke("groups", "list", "--type", "consumer", "--json"))["groups"]
    assert (found["name"], found["state"], found["members"]) == ("new", "Stable", None)
    assert "new    consumer  Stable                     1" in invoke("groups", "list").stdout


def test_without_groups_it_is_said_how_one_comes_to_be(brokers: AdminBrokers) -> None:
    brokers.groups.clear()
    for command in ("list", "describe"):
        result = invoke("groups", command)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.startswith("No groups; ")
        assert document(invoke("groups", command, "--json")) == {"groups": []}


def test_describe_shows_offsets_lag_and_owners(brokers: AdminBrokers) -> None:
    brokers.groups["live"].offsets[TopicPartition("gone", 0)] = 3
    brokers._versions[9] = 9  # By name: an id could not name a topic that is gone.
    assert invoke("groups", "describe", "live").stdout.splitlines() == [
        "Group live: Stable, 2 members, protocol range, coordinator 2",
        "TOPIC  PARTITION  COMMITTED  END  LAG  MEMBER  CLIENT  HOST",
        "a      0          5          12   7    one-1   one     10.0.0.9",
        "a      1          4          4    0    one-1   one     10.0.0.9",
        "a      2                     9         two-1   two     10.0.0.9",
        "gone   0          3",
        "Total lag: 7, not counting 2 partitions of unknown lag",
    ]


def test_describe_shows_members_and_what_they_own(brokers: AdminBrokers) -> None:
    members = [
        "MEMBER  INSTANCE  CLIENT  HOST      PARTITIONS  ASSIGNMENT",
        "one-1   i         one     10.0.0.9  2           a:0,1",
        "two-1             two     10.0.0.9  1           a:2",
    ]
    lines = invoke("groups", "describe", "live", "--members").stdout.splitlines()
    assert lines[1:] == members
    lines = invoke("groups", "describe", "live", "--members", "--offsets").stdout.splitlines()
    assert lines[-3:] == members
    assert lines[-4] == "Total lag: 7, not counting 1 partition of unknown lag"


def test_describe_of_all_groups_tells_them_apart(brokers: AdminBrokers) -> None:
    brokers.groups["new"] = FakeGroup()
    text = invoke("groups", "describe").stdout
    assert text.split("\n\n")[0].splitlines() == [
        "Group idle: Empty, no members, coordinator 1",
        "TOPIC  PARTITION  COMMITTED  END  LAG  MEMBER  CLIENT  HOST",
        "a      0          12         12   0",
        "Total lag: 0",
    ]
    assert text.split("\n\n")[2].splitlines() == [
        "Group new: Empty, no members, coordinator 1",
        "No committed offsets, and no partitions assigned",
    ]


def test_describe_tells_programs_everything(brokers: AdminBrokers) -> None:
    (found,) = document(invoke("groups", "describe", "live", "--json"))["groups"]
    assert {name: found[name] for name in ("name", "state", "coordinator", "total_lag")} == {
        "name": "live",
        "state": "Stable",
        "coordinator": 2,
        "total_lag": 7,
    }
    assert found["offsets"][0] == {
        "topic": "a",
        "partition": 0,
        "committed_offset": 5,
        "end_offset": 12,
        "lag": 7,
        "member_id": "one-1",
    }
    assert found["offsets"][2]["committed_offset"] is found["offsets"][2]["lag"] is None
    assert found["members"][0] == {
        "member_id": "one-1",
        "instance_id": "i",
        "client_id": "one",
        "host": "10.0.0.9",
        "subscription": ["a"],
        "assignment": {"a": [0, 1]},
        "epoch": None,
        "pattern": None,
    }


def test_describe_of_an_unknown_group_fails_beside_the_others(brokers: AdminBrokers) -> None:
    result = invoke("groups", "describe", "nope", "idle")
    assert result.exit_code == 1
    assert result.stdout.startswith("Group idle: Empty")
    assert result.stderr == (
        "headrace: group nope does not exist; list groups with `headrace groups list`\n"
    )


def test_delete_needs_a_yes_where_nobody_can_be_asked(brokers: AdminBrokers) -> None:
    result = invoke("groups", "delete", "idle")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert brokers.requests == []


def test_delete_reports_each_group(brokers: AdminBrokers) -> None:
    result = invoke("groups", "delete", "idle", "live", "nope", "idle", "--yes")
    assert result.exit_code == 1
    assert result.stdout == "deleted group idle\n"
    assert result.stderr.splitlines() == [
        "headrace: group live: non empty group; stop its consumers first; `headrace groups"
        " describe GROUP --members` shows them",
        "headrace: group nope does not exist; list groups with `headrace groups list`",
    ]
    assert list(brokers.groups) == ["live"]
    assert len(brokers.sent(DeleteGroupsRequest)) == 2
    brokers.groups["idle"] = FakeGroup()
    found = document(invoke("groups", "delete", "idle", "--yes", "--json"))
    assert found == {"groups": [{"name": "idle", "deleted": True}]}


def test_delete_offsets_forgets_a_topic(brokers: AdminBrokers) -> None:
    brokers.add_topic("b")
    offsets = {A0: 1, A1: 2, A2: 3, TopicPartition("b", 0): 4}
    brokers.groups["idle"].offsets = dict(offsets)
    result = invoke("groups", "delete-offsets", "idle", "--topic", "a:0,2", "--topic", "b")
    assert result.stdout == "deleted the offsets of group idle in a:0,2 b:0\n"
    assert brokers.groups["idle"].offsets == {A1: 2}
    found = document(invoke("groups", "delete-offsets", "idle", "--topic", "a", "--json"))
    assert found == {"group": "idle", "deleted": [{"topic": "a", "partition": 1}]}


@pytest.mark.parametrize(("topic", "where"), [("b", "b"), ("a:0-1", "a-1")])
def test_delete_offsets_finds_nothing_to_delete(
    brokers: AdminBrokers, topic: str, where: str
) -> None:
    result = invoke("groups", "delete-offsets", "idle", "--topic", topic)
    assert result.exit_code == 1
    assert result.stderr == (
        f"headrace: group idle has committed nothing in {where}; see what it has with"
        " `headrace groups describe idle`\n"
    )
    assert brokers.sent(OffsetDeleteRequest) == []


def test_delete_offsets_reports_what_members_still_read(brokers: AdminBrokers) -> None:
    brokers.partition_faults.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    result = invoke("groups", "delete-offsets", "live", "--topic", "a")
    assert result.exit_code == 1
    assert result.stdout == "deleted the offsets of group live in a:1\n"
    assert result.stderr == (
        "headrace: partition a-0: group subscribed to topic; stop the consumers that subscribe to"
        " the topic first\n"
    )
    assert invoke("groups", "delete-offsets", "nope", "--topic", "a").stderr.startswith(
        "headrace: group nope does not exist; "
    )
