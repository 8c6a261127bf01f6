"""Real brokers in racks: replicas that move at a rate, moves taken back, reads near by, voters.

That a cluster grows and a broker is drained under load, losing nothing, is in `test_faults`.
"""

import json
import time
from collections.abc import Iterator, Mapping

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

import headrace
from headrace import Admin, Consumer, Producer, TopicPartition
from headrace.client.admin.configs import ConfigEntry
from headrace.config.cluster import RACK_AWARE
from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.records import decode_rows
from headrace.testing.broker_requests import NOBODY
from headrace.testing.cluster import Cluster, ClusterBroker
from headrace.testing.time_limits import Deadline, scaled, wait_until
from tests.integration.commands import Cli
from tests.integration.wire import FETCH_BY_NAME, Wire

RACK = "rack-{}"
VALUE = b"x" * 10_000


class RackedCluster(Cluster):
    """Three brokers, each in a rack of its own and with two data directories."""

    def _properties(self, member: ClusterBroker) -> dict[str, str]:
        return super()._properties(member) | {
            "broker.rack": RACK.format(member.node_id),
            "log.dirs": ",".join(log_dirs(member)),
        }


def log_dirs(member: ClusterBroker) -> tuple[str, str]:
    return str(member.data_dir), f"{member.data_dir}-second"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Leaders stay where a test has put them.
    config = {"replica.selector.class": RACK_AWARE, "auto.leader.rebalance.enable": "false"}
    with RackedCluster(brokers=3, config=config) as cluster:
        yield cluster


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster.bootstrap_servers)


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        yield admin


def fill(cluster: Cluster, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for _ in range(count):
            producer.send(topic, VALUE, partition=0)


def replicas(admin: Admin, topic: str) -> tuple[int, ...]:
    return admin.describe_topic(topic).partitions[0].replicas


def plan(topic: str, brokers: list[int]) -> bytes:
    partitions = [{"topic": topic, "partition": 0, "replicas": brokers}]
    return json.dumps({"version": 1, "partitions": partitions}).encode()


def test_a_move_is_held_to_its_rate_taken_back_and_made_in_the_end(
    cluster: Cluster, cli: Cli, admin: Admin
) -> None:
    topic = cluster.create_topic(replication_factor=2, min_insync_replicas=1)
    fill(cluster, topic, 300)
    first, second = replicas(admin, topic)
    [third] = {1, 2, 3} - {first, second}
    wanted = plan(topic, [third, second])
    cli.run("reassign", "execute", "-", "--throttle", "100000", stdin=wanted)
    time.sleep(1)
    found = json.loads(cli.run("reassign", "verify", "--json", status=1).stdout)
    assert [(partition["adding"], partition["removing"]) for partition in found["partitions"]] == [
        ([third], [first])
    ]
    # Three megabytes at a tenth of a megabyte a second.
    sizes = [directory.replicas for directory in admin.describe_log_dirs([third])[third]]
    assert sum(size.get(TopicPartition(topic, 0), 0) for size in sizes) < 2_000_000
    cli.run("reassign", "cancel", "-", stdin=wanted)
    assert set(replicas(admin, topic)) == {first, second}
    assert not throttled(admin, topic)

    begun = time.monotonic()
    cli.run("reassign", "execute", "-", "--wait", "--throttle", "100000000", stdin=wanted)
    assert time.monotonic() - begun < scaled(15)
    assert replicas(admin, topic) == (third, second)
    assert cluster.wait_for_leader(topic, other_than=[first, second]) == third
    assert not throttled(admin, topic)
    assert count(cluster, topic, 300) == 300


def test_replicas_move_to_other_brokers_and_directories_at_once(
    cluster: Cluster, cli: Cli, admin: Admin
) -> None:
    topic = cluster.create_topic(replication_factor=2, min_insync_replicas=1)
    tp = TopicPartition(topic, 0)
    fill(cluster, topic, 300)
    first, second = replicas(admin, topic)
    [third] = {1, 2, 3} - {first, second}
    before = homes(admin, tp)
    members = {broker.node_id: broker for broker in cluster.brokers}
    # The leader's replica and a new one; each has the other directory asked for, or the second.
    targets = {
        node: next(path for path in reversed(log_dirs(members[node])) if path != before.get(node))
        for node in (first, third)
    }
    entry = {
        "topic": topic,
        "partition": 0,
        "replicas": [first, second, third],
        "log_dirs": [targets[first], "any", targets[third]],
    }
    wanted = json.dumps({"version": 1, "partitions": [entry]}).encode()
    cli.run("reassign", "execute", "-", "--wait", stdin=wanted)
    cli.run("reassign", "verify", "-", stdin=wanted)
    assert homes(admin, tp) == {**before, **targets}
    fill(cluster, topic, 100)
    # A follower's replica moves while it follows, and leads then.
    other = next(path for path in log_dirs(members[second]) if path != before[second])
    admin.alter_replica_log_dirs(second, {tp: other})
    fill(cluster, topic, 100)
    wait_until(lambda: homes(admin, tp)[second] == other, 60, "the replica has not moved")
    cli.run("reassign", "execute", "-", "--wait", stdin=plan(topic, [second, first, third]))
    assert cluster.wait_for_leader(topic, other_than=[first, third]) == second
    assert count(cluster, topic, 500) == 500


def homes(admin: Admin, tp: TopicPartition) -> dict[int, str]:
    """The directory of each replica, by broker."""
    return {
        node: directory.path
        for node, directories in admin.describe_log_dirs([1, 2, 3]).items()
        for directory in directories
        if tp in directory.replicas
    }


def throttled(admin: Admin, topic: str) -> list[str]:
    """Settings of a throttle that are left."""
    entries: list[Mapping[str, ConfigEntry]] = [
        admin.describe_configs(topic=topic),
        *(admin.describe_configs(broker=number) for number in (1, 2, 3)),
    ]
    return [
        f"{name}={record.value}"
        for found in entries
        for name, record in found.items()
        if "throttled" in name and not record.is_default
    ]


def count(cluster: Cluster, topic: str, wanted: int, rack: str = "") -> int:
    """How many records a consumer finds, which stops when it has enough or nothing comes."""
    found = 0
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        client_rack=rack,
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        deadline = Deadline(15)
        while found < wanted and not deadline.has_passed:
            found += len(consumer.poll(1000))
    return found


def test_consumers_read_from_the_replica_in_their_rack(cluster: Cluster) -> None:
    topic = cluster.create_topic()
    fill(cluster, topic, 20)
    leader = cluster.leader_of(topic)
    follower = next(broker.node_id for broker in cluster.brokers if broker.node_id != leader)
    told = fetch(cluster.broker(leader), topic, RACK.format(follower))
    assert (told.preferred_read_replica, bytes(told.records or b"")) == (follower, b"")
    at_home = fetch(cluster.broker(leader), topic, RACK.format(leader))
    assert at_home.preferred_read_replica == -1
    assert at_home.records
    near = cluster.wait_until(
        lambda: _with_records(fetch(cluster.broker(follower), topic, RACK.format(follower))),
        10,
        "records at the follower",
    )
    assert decode_rows(near.records or b"")[0].value == VALUE
    assert count(cluster, topic, 20, RACK.format(follower)) == 20
    assert count_with_librdkafka(cluster, topic, 20, RACK.format(follower)) == 20


def count_with_librdkafka(cluster: Cluster, topic: str, wanted: int, rack: str) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "near",
            "client.rack": rack,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        return len(consumer.consume(wanted, timeout=scaled(15)))
    finally:
        consumer.close()


def _with_records(answer: PartitionData) -> PartitionData | None:
    return answer if answer.records else None


def fetch(broker: ClusterBroker, topic: str, rack: str) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
        rack_id=rack,
    )
    with Wire(str(broker.listens_on)) as wire:
        [answered] = wire.ask(request, FETCH_BY_NAME).responses
    [partition] = answered.partitions
    assert isinstance(partition, PartitionData)
    assert partition.error_code == 0
    return partition


def test_a_voter_leaves_and_comes_back(cluster: Cluster, cli: Cli, admin: Admin) -> None:
    topic = cluster.create_topic()
    leader = admin.describe_quorum().leader_id
    voter = next(number for number in (1, 2, 3) if number != leader)
    cli.run("quorum", "remove", str(voter), "--yes")
    roles = {node["id"]: node["role"] for node in cli.json("quorum", "describe")["nodes"]}
    assert roles.pop(voter, "observer") == "observer"
    # Who of them leads may change on a busy machine.
    assert sorted(roles.values()) == ["leader", "voter"]
    fill(cluster, topic, 1)

    def observed() -> bool | None:
        return voter in [observer.node_id for observer in admin.describe_quorum().observers] or None

    cluster.wait_until(observed, 10, "the node that left, as an observer")
    cli.run("quorum", "add", str(voter))
    voters = [voter.node_id for voter in admin.describe_quorum().voters]
    assert voters == [1, 2, 3]
    assert admin.create_topic("after-the-voters-changed").partitions == 1


def test_brokers_are_listed_with_their_racks_and_leaders_elected(
    cluster: Cluster, cli: Cli, admin: Admin
) -> None:
    topic = cluster.create_topic(partitions=3)
    assert [broker["rack"] for broker in cli.json("brokers", "list")["brokers"]] == [
        "rack-1",
        "rack-2",
        "rack-3",
    ]
    tp = TopicPartition(topic, 0)
    others = replicas(admin, topic)
    admin.alter_partition_reassignments({tp: others[::-1]})
    assert cli.text("brokers", "elect", "--topic", f"{topic}:0") == (
        f"elected leaders of {topic}:0\n"
    )
    assert cluster.wait_for_leader(topic, other_than=others[:-1]) == others[-1]
    assert cli.error("brokers", "remove", "3", "--yes").startswith("headrace: broker 3 has ")


def test_every_broker_sets_the_levels_of_its_own_loggers(cluster: Cluster, admin: Admin) -> None:
    for address in cluster.bootstrap_servers.split(","):
        with Wire(address) as wire:
            changes = [
                (AlterableConfig(name="headrace.net", value="ERROR"), 8, str(broker))
                for broker in (1, 2, 3)
            ]
            changes.append((AlterableConfig(name="interval.ms", value="1000"), 16, "levels"))
            resources = [
                AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
                for change, kind, name in changes
            ]
            answer = wire.ask(IncrementalAlterConfigsRequest(resources=resources), 1)
        # Its own, and what the controller keeps, whether that is this broker or another.
        codes = [response.error_code for response in answer.responses]
        assert sorted(codes[:3]) == [0, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
        assert codes[3] == 0
    for broker in (1, 2, 3):
        levels = admin.describe_configs(broker_logger=broker)
        assert levels["headrace.net"].value == levels["headrace.net.server"].value == "ERROR"
        admin.alter_configs({"headrace.net": None}, broker_logger=broker)


def test_other_clients_move_replicas_and_elect_leaders(cluster: Cluster, admin: Admin) -> None:
    topic = cluster.create_topic(replication_factor=2)
    first, second = replicas(admin, topic)
    [third] = {1, 2, 3} - {first, second}
    tp = kafka.TopicPartition(topic, 0)
    other = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        refused = other.alter_partition_reassignments({tp: [9]})[tp]
        assert refused.__name__ == "InvalidReplicationAssignmentError"
        refused = other.alter_partition_reassignments({tp: None})[tp]
        assert refused.__name__ == "NoReassignmentInProgressError"
        assert other.alter_partition_reassignments({tp: [second, third]}) == {tp: None}
        cluster.wait_until(lambda: not other.list_partition_reassignments() or None, 15, "the move")
        quorum = other.describe_metadata_quorum()
    finally:
        other.close()
    assert replicas(admin, topic) == (second, third)
    assert "current_voters" in str(quorum)

    admin.alter_partition_reassignments({TopicPartition(topic, 0): [third, second]})
    librdkafka = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wanted = [confluent_kafka.TopicPartition(topic, 0)]
    elected = librdkafka.elect_leaders(confluent_kafka.ElectionType.PREFERRED, wanted).result(
        scaled(15)
    )
    assert list(elected.values()) == [None]
    assert cluster.wait_for_leader(topic, other_than=[first, second]) == third


def test_consumers_go_back_to_where_the_logs_part_after_an_unclean_election(
    cluster: Cluster, cli: Cli
) -> None:
    topic = cluster.create_topic(replication_factor=2, min_insync_replicas=1)
    leader = cluster.leader_of(topic)
    [other] = set(cluster.partitions_of(topic)[0].replicas) - {leader}
    tp = TopicPartition(topic, 0)

    def send(*values: bytes) -> None:
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for value in values:
                producer.send(topic, value, partition=0)

    send(b"0")
    cluster.broker(other).kill()
    cluster.wait_for_isr(topic, 1)
    send(b"lost")
    found: list[bytes] = []
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([tp])

        def read(count: int) -> bool | None:
            found.extend(record.value for record in consumer.poll(200))
            return len(found) >= count or None

        cluster.wait_until(lambda: read(2), 15, "what was written")
        cluster.broker(leader).kill()
        cluster.broker(other).start()
        cluster.wait_until(lambda: leaderless(cluster, topic), 15, "a partition without leader")
        assert (
            "its first replica is down or behind"
            in cli.run("brokers", "elect", "--topic", topic, status=1).stderr.decode()
        )
        cli.run("brokers", "elect", "--topic", topic, "--unclean", "--yes")
        assert cluster.wait_for_leader(topic, other_than=[leader]) == other
        send(b"1", b"2")
        cluster.wait_until(lambda: read(4), 15, "what was written instead")
    assert found == [b"0", b"lost", b"1", b"2"]
    cluster.broker(leader).start()
    cluster.wait_for_isr(topic)


def leaderless(cluster: Cluster, topic: str) -> bool | None:
    return cluster.partitions_of(topic)[0].leader == NOBODY or None


def test_a_move_outlives_the_death_of_those_who_take_part(
    cluster: Cluster, cli: Cli, admin: Admin
) -> None:
    """The broker that is copied to dies, and the controller with it or after it."""
    topic = cluster.create_topic(replication_factor=2, min_insync_replicas=1)
    fill(cluster, topic, 100)
    first, second = replicas(admin, topic)
    [third] = {1, 2, 3} - {first, second}
    cli.run("reassign", "execute", "-", "--throttle", "200000", stdin=plan(topic, [third, second]))
    for victim in dict.fromkeys([third, cluster.wait_for_controller()]):
        cluster.broker(victim).kill()
        cluster.wait_for_controller(other_than=[victim])
        cluster.broker(victim).start()
    names = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    for number in (1, 2, 3):
        admin.alter_configs(dict.fromkeys(names), broker=number)
    cluster.wait_until(lambda: not admin.list_partition_reassignments() or None, 20, "the move")
    assert replicas(admin, topic) == (third, second)
    assert cli.json("reassign", "verify", "-", stdin=plan(topic, [third, second]))["done"]
    assert not throttled(admin, topic)
    assert count(cluster, topic, 100) == 100
