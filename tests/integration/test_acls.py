"""A broker that enforces ACLs, with real clients. Everybody at its plain listener is ANONYMOUS."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.admin import ACLOperation as KafkaPythonOperation
from kafka.admin import KafkaAdminClient as KafkaPythonAdmin

import headrace
from headrace import Acl, ErrorCode
from headrace.config.authorization import AUTHORIZER
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.testing.time_limits import scaled
from tests.integration.commands import Cli
from tests.integration.wire import Wire
from tests.support import BrokerProcess

# Its stubs lack the names of ACLs.
rdkafka: Any = confluent_admin

ANONYMOUS = "User:ANONYMOUS"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
# The cluster has no ACL in these tests, so that everybody goes on to change ACLs.
SETTINGS = {
    "authorizer.class.name": AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:admin;User:CN=broker,O=headrace",
}


def deny(operation: str, name: str, resource_type: str = "topic") -> Acl:
    return Acl(ANONYMOUS, operation, resource_type, name, permission="deny")


def allow(operation: str, name: str, principal: str = ANONYMOUS, pattern: str = "literal") -> Acl:
    return Acl(principal, operation, "topic", name, pattern)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("acls"), SETTINGS).start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[headrace.Admin]:
    with headrace.Admin(bootstrap_servers=broker.address) as admin:
        yield admin


@pytest.fixture
def topic(admin: headrace.Admin, request: pytest.FixtureRequest) -> str:
    name = request.node.name.removeprefix("test_")[:40].replace("[", "-").replace("]", "")
    admin.create_topic(name)
    return name


def test_a_change_counts_for_the_next_request(
    broker: BrokerProcess, admin: headrace.Admin, topic: str
) -> None:
    with headrace.Producer(bootstrap_servers=broker.address) as producer:
        producer.send(topic, b"1").result()
        admin.create_acls([deny("write", topic), allow("all", topic)])
        with pytest.raises(headrace.KafkaError) as denied:
            producer.send(topic, b"2").result()
        assert denied.value.code is DENIED
        assert admin.delete_acls(permission="deny") == [deny("write", topic)]
        producer.send(topic, b"3").result()
    with pytest.raises(TypeError, match="would delete every ACL"):
        admin.delete_acls()


def test_topics_are_not_revealed(broker: BrokerProcess, admin: headrace.Admin, topic: str) -> None:
    admin.create_acls([deny("describe", topic), deny("describe", "missing")])
    described = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in (topic, "missing")],
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=True,
    )
    partitions = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic)])
    with Wire(broker.address) as wire:
        everything = wire.ask(MetadataRequest(topics=None), 12)
        assert topic not in {found.name for found in everything.topics}
        all_partitions = wire.ask(DescribeTopicPartitionsRequest(), 0)
        assert topic not in {found.name for found in all_partitions.topics}
        # Nothing tells a topic that exists from one that does not.
        for found in wire.ask(described, 12).topics:
            assert (found.error_code, found.topic_id, found.partitions) == (DENIED, bytes(16), [])
        [found] = wire.ask(partitions, 0).topics
        assert (found.error_code, found.topic_id, found.partitions) == (DENIED, bytes(16), [])
    admin.delete_acls(operation="describe")
    with Wire(broker.address) as wire:
        [found, _] = wire.ask(described, 12).topics
        by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=found.topic_id, name=None)])
        admin.create_acls([deny("describe", topic)])
        [hidden] = wire.ask(by_id, 12).topics
        assert (hidden.error_code, hidden.name) == (DENIED, None)
    admin.delete_acls(resource_name=topic)


def test_topics_are_created_for_those_who_may_create_them(
    broker: BrokerProcess, admin: headrace.Admin
) -> None:
    admin.create_acls(
        [
            Acl(ANONYMOUS, "describe", "topic", "new", "prefixed"),
            allow("create", "new-mine"),
            # For all but topics that begin with new-mine nothing is said of the cluster either.
            Acl("User:other", "create", "cluster", "kafka-cluster"),
            Acl(ANONYMOUS, "alter", "cluster", "kafka-cluster"),
            Acl(ANONYMOUS, "describe", "cluster", "kafka-cluster"),
        ]
    )
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in ("new-mine", "new-its")],
        allow_auto_topic_creation=True,
    )
    with Wire(broker.address) as wire:
        codes = {found.name: found.error_code for found in wire.ask(request, 12).topics}
    assert codes["new-its"] == DENIED
    assert codes["new-mine"] in (0, ErrorCode.LEADER_NOT_AVAILABLE)
    with pytest.raises(headrace.KafkaError) as denied:
        admin.create_topic("new-other")
    assert denied.value.code is DENIED
    admin.delete_acls(resource_type="topic")
    admin.delete_acls(principal="User:other")
    # The last of them is that of the right to do this.
    admin.delete_acls(resource_type="cluster")


def fetch(topic: str, replica_id: int = -1, max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=10_000,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def test_reading_takes_the_right_of_consumers_or_that_of_followers(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    path = tmp_path / "audit.log"
    broker = start_broker(**SETTINGS, **{"audit.log.path": str(path)})

    def code(replica_id: int = -1) -> int:
        with Wire(broker.address) as wire:
            [found] = wire.ask(fetch("orders", replica_id), 11).responses
        return int(found.partitions[0].error_code)

    with headrace.Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("orders")
        assert code() == 0
        admin.create_acls([deny("read", "orders")])
        assert (code(), code(2)) == (DENIED, ErrorCode.UNKNOWN_LEADER_EPOCH)
        admin.create_acls([deny("cluster_action", "kafka-cluster", "cluster")])
        assert code(2) == DENIED
        # Now that the cluster has an ACL, nobody may change ACLs any more but by another one.
        with pytest.raises(headrace.KafkaError) as denied:
            admin.create_acls([Acl(ANONYMOUS, "alter", "cluster", "kafka-cluster")])
        assert denied.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    broker.stop()
    assert path.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["decision"], line["principal"]) for line in lines} == {("denied", ANONYMOUS)}
    assert [(line["api"], line["operation"]) for line in lines] == [
        ("Fetch", "READ"),
        ("Fetch", "CLUSTER_ACTION"),
        ("CreateAcls", "ALTER"),
    ]


def test_a_restart_keeps_the_acls_and_a_super_user_is_only_that_by_name(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**SETTINGS)
    with headrace.Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("kept")
        admin.create_acls([deny("read", "kept"), allow("describe", "ke", pattern="prefixed")])
        before = admin.describe_acls()
    broker.kill()
    broker.start()
    with headrace.Admin(bootstrap_servers=broker.address) as admin:
        assert admin.describe_acls() == before
        matching = admin.describe_acls(
            resource_type="topic", resource_name="kept", pattern="match", permission="allow"
        )
        assert matching == [allow("describe", "ke", pattern="prefixed")]
    with Wire(broker.address) as wire:
        [found] = wire.ask(fetch("kept"), 11).responses
        assert found.partitions[0].error_code == DENIED


def test_a_fetch_that_waits_is_answered_by_the_acls_of_its_end(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**SETTINGS)
    with (
        headrace.Admin(bootstrap_servers=broker.address) as admin,
        headrace.Producer(bootstrap_servers=broker.address) as producer,
        Wire(broker.address) as wire,
    ):
        admin.create_topic("slow")
        wire.send(fetch("slow", max_wait_ms=int(scaled(20) * 1000)), 11)
        admin.create_acls([deny("read", "slow"), allow("write", "slow")])
        producer.send("slow", b"secret").result()
        [found] = wire.receive().responses
        assert (found.partitions[0].error_code, found.partitions[0].records) == (DENIED, b"")


def test_groups_that_may_not_be_described_are_left_out(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker(**SETTINGS)
    with headrace.Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("t")
        for group in ("shown", "hidden"):
            admin.alter_group_offsets(group, {headrace.TopicPartition("t", 0): 0})
        admin.create_acls(
            [
                deny("describe", "hidden", "group"),
                deny("describe", "kafka-cluster", "cluster"),
                Acl(ANONYMOUS, "alter", "cluster", "kafka-cluster"),
            ]
        )
        with Wire(broker.address) as wire:
            listed = {group.group_id for group in wire.ask(ListGroupsRequest(), 5).groups}
        assert listed == {"shown"}
        with pytest.raises(headrace.KafkaError) as denied:
            admin.describe_groups(["hidden"])
        assert denied.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_librdkafka_manages_acls(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(**SETTINGS)
    client = rdkafka.AdminClient({"bootstrap.servers": broker.address})
    binding = rdkafka.AclBinding(
        rdkafka.ResourceType.TOPIC,
        "orders",
        rdkafka.ResourcePatternType.PREFIXED,
        "User:alice",
        "10.0.0.0/8",
        rdkafka.AclOperation.READ,
        rdkafka.AclPermissionType.ALLOW,
    )
    wrong = rdkafka.AclBinding(
        rdkafka.ResourceType.BROKER,
        "cluster",
        rdkafka.ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        rdkafka.AclOperation.READ,
        rdkafka.AclPermissionType.ALLOW,
    )
    answers = client.create_acls([binding, wrong], request_timeout=scaled(10))
    assert answers[binding].result() is None
    with pytest.raises(confluent_kafka.KafkaException, match="only resource of type CLUSTER"):
        answers[wrong].result()
    every = rdkafka.AclBindingFilter(
        rdkafka.ResourceType.ANY,
        None,
        rdkafka.ResourcePatternType.ANY,
        None,
        None,
        rdkafka.AclOperation.ANY,
        rdkafka.AclPermissionType.ANY,
    )
    assert client.describe_acls(every).result() == [binding]
    [deleted] = client.delete_acls([every]).values()
    assert deleted.result() == [binding]
    assert client.describe_acls(every).result() == []


def test_kafka_python_manages_acls(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(**SETTINGS)
    client = KafkaPythonAdmin(bootstrap_servers=broker.address)
    acl = ACL(
        principal="User:alice",
        host="*",
        operation=KafkaPythonOperation.WRITE,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(ResourceType.GROUP, "g", ACLResourcePatternType.LITERAL),
    )
    assert client.create_acls([acl])["succeeded"] == [acl]
    every = ACLFilter(
        principal=None,
        host=None,
        operation=KafkaPythonOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    assert client.describe_acls(every)[0] == [acl]
    client.delete_acls([every])
    assert client.describe_acls(every)[0] == []
    client.close()


def test_roles_give_their_rights_to_members(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(**SETTINGS)

    run = Cli(broker.address).text
    with (
        headrace.Admin(bootstrap_servers=broker.address) as admin,
        headrace.Producer(bootstrap_servers=broker.address) as producer,
    ):
        admin.create_topic("reports")
        run("roles", "create", "writers", "--description", "write reports")
        run("roles", "grant", "writers", "--operation", "write", "--topic", "rep", "--prefixed")
        with pytest.raises(headrace.KafkaError):
            producer.send("reports", b"1").result()
        run("roles", "bind", "writers", ANONYMOUS, "Group:staff")
        producer.send("reports", b"1").result()
        described = json.loads(run("roles", "describe", "writers", "--json"))
        assert described["members"] == ["Group:staff", ANONYMOUS]
        assert described["rights"] == ["allow Role:writers write on topic prefix 'rep' from *"]
        run("roles", "unbind", "writers", ANONYMOUS)
        with pytest.raises(headrace.KafkaError):
            producer.send("reports", b"1").result()
        run("roles", "revoke", "writers", "--operation", "write", "--topic", "rep", "--prefixed")
        assert admin.describe_acls() == []
        [listed] = json.loads(run("roles", "list", "--json"))
        assert (listed["role"], listed["members"], listed["rights"]) == (
            "writers",
            ["Group:staff"],
            0,
        )
        run("roles", "delete", "writers", "--yes")
        assert admin.describe_roles() == {}


def test_commands_add_list_and_remove_acls(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker(**SETTINGS)
    cli = Cli(broker.address)
    cli.run(
        "acls", "add", "--allow-principal", "User:a", "--producer", "--topic", "t", "--prefixed"
    )
    network = ("--operation", "all", "--host", "10.0.0.0/8")
    cli.run(
        "acls",
        "add",
        "--deny-principal",
        "User:a",
        *network,
        "--group",
        "g",
        "--transactional-id",
        "x",
    )
    listed = cli.json("acls", "list", "--topic", "topic", "--match")
    assert [(acl["pattern"], acl["operation"]) for acl in listed] == [
        ("prefixed", "create"),
        ("prefixed", "describe"),
        ("prefixed", "write"),
    ]
    removed = cli.json("acls", "remove", "--principal", "User:a", "--yes")
    assert len(removed) == 5
    assert {acl["host"] for acl in removed if acl["permission"] == "deny"} == {"10.0.0.0/8"}
    assert "would remove every ACL" in cli.error("acls", "remove", "--yes", status=2)


def test_without_an_authorizer_there_are_no_acls(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    with headrace.Admin(bootstrap_servers=broker.address) as admin:
        for attempt in (admin.describe_acls, lambda: admin.create_acls([deny("read", "t")])):
            with pytest.raises(headrace.KafkaError) as refused:
                attempt()
            assert refused.value.code is ErrorCode.SECURITY_DISABLED
