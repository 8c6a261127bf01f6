import pytest

from headrace.client.failures import ConnectionFailed, TimedOut, UnknownTopic, Unreachable
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeBrokers


def test_a_cluster_that_was_never_reached_is_not_waited_for() -> None:
    brokers = FakeBrokers()
    brokers.down = {1}
    before = brokers.clock.seconds
    with pytest.raises(Unreachable, match=r"10\.0\.0\.1:9092: nothing is listening"):
        brokers.cluster().topics(["a"])
    assert brokers.clock.seconds == before


def test_every_bootstrap_address_is_tried() -> None:
    brokers = FakeBrokers(nodes=3)
    brokers.down = {1, 2}
    brokers.add_topic("a")
    assert brokers.cluster(bootstrap=(1, 2, 3)).topics(["a"])["a"].name == "a"
    brokers.down = {1, 2, 3}
    with pytest.raises(Unreachable, match=r"tried 10\.0\.0\.1:9092, 10\.0\.0\.2:9092"):
        brokers.cluster(bootstrap=(1, 2)).topics(["a"])


def test_a_cluster_that_was_reached_is_waited_for_until_the_deadline() -> None:
    brokers = FakeBrokers()
    brokers.add_topic("a")
    cluster = brokers.cluster(timeout_s=10)
    cluster.topics(["a"])
    brokers.down = {1}
    cluster.forget()
    begun = brokers.clock.seconds
    with pytest.raises(TimedOut, match="gave up after 10 s"):
        cluster.topics(["a"])
    assert 8 < brokers.clock.seconds - begun <= 10


def test_a_broker_that_comes_back_in_time_is_found_again() -> None:
    brokers = FakeBrokers()
    brokers.add_topic("a")
    cluster = brokers.cluster()
    cluster.topics(["a"])
    brokers.down = {1}
    cluster.forget()
    attempts = 0

    def sleep(seconds: float) -> None:
        nonlocal attempts
        attempts += 1
        brokers.clock.sleep(seconds)
        if attempts == 3:
            brokers.down = set()

    cluster.sleep = sleep
    assert cluster.topics(["a"])["a"].name == "a"
    assert attempts == 3


def test_metadata_is_asked_for_once_and_again_after_it_was_forgotten() -> None:
    brokers = FakeBrokers()
    brokers.add_topic("a")
    brokers.add_topic("b")
    cluster = brokers.cluster()
    for _ in range(3):
        cluster.topics(["a"])
    assert len(brokers.sent(MetadataRequest)) == 1
    cluster.topics(["a", "b"])
    assert [topic.name for topic in brokers.sent(MetadataRequest)[1].topics] == ["b"]
    cluster.forget(["a"])
    cluster.topics(["a"])
    assert len(brokers.sent(MetadataRequest)) == 3


def test_an_unknown_topic_is_reported_at_once_and_nothing_is_created() -> None:
    brokers = FakeBrokers()
    brokers.auto_create_after = 1
    with pytest.raises(UnknownTopic, match="topic nope does not exist"):
        brokers.cluster().topics(["nope"])
    assert len(brokers.sent(MetadataRequest)) == 1
    assert "nope" not in brokers.topics


def test_a_topic_that_asking_creates_is_waited_for() -> None:
    brokers = FakeBrokers()
    brokers.auto_create_after = 3
    assert brokers.cluster().topics(["new"], create=True)["new"].name == "new"


def test_a_topic_that_asking_does_not_create_is_unknown_after_a_while() -> None:
    brokers = FakeBrokers()
    begun = brokers.clock.seconds
    with pytest.raises(UnknownTopic):
        brokers.cluster(timeout_s=60).topics(["new"], create=True)
    assert 3 < brokers.clock.seconds - begun < 10


def test_partitions_are_grouped_by_their_leaders() -> None:
    brokers = FakeBrokers(nodes=2)
    brokers.add_topic("a", partitions=3)
    partitions = [TopicPartition("a", number) for number in range(3)]
    assert brokers.cluster().by_leader(partitions) == {
        1: [partitions[0], partitions[2]],
        2: [partitions[1]],
    }


def test_a_partition_that_does_not_exist_is_reported_with_those_that_do() -> None:
    brokers = FakeBrokers()
    brokers.add_topic("a", partitions=3)
    with pytest.raises(UnknownTopic, match="no partition 3; it has 3, numbered from 0 to 2"):
        brokers.cluster().partition(TopicPartition("a", 3))


def test_a_partition_without_leader_may_get_one() -> None:
    brokers = FakeBrokers()
    brokers.add_topic("a")
    brokers.logs[TopicPartition("a", 0)].leader = -1
    with pytest.raises(KafkaError) as caught:
        brokers.cluster().partition(TopicPartition("a", 0))
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert brokers.cluster().passes(caught.value)


def test_a_busy_connection_is_left_alone_by_other_questions() -> None:
    brokers = FakeBrokers()
    brokers.add_topic("a")
    cluster = brokers.cluster()
    busy = cluster.connection(1, cluster.deadline())
    busy.send(MetadataRequest(topics=[]), cluster.deadline())
    assert cluster.connection(1, cluster.deadline()) is busy
    cluster.topics(["a"])
    assert busy.in_flight == 1
    assert brokers.connections == 2


def test_errors_that_pass_are_told_from_those_that_stay() -> None:
    cluster = FakeBrokers().cluster()
    assert cluster.passes(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert not cluster.passes(KafkaError(ErrorCode.INVALID_CONFIG))
    assert not cluster.passes(UnknownTopic("x"))
    lost = ConnectionFailed(cluster._bootstrap[0], "closed", "try again")
    assert not cluster.passes(lost)
    cluster.view()
    assert cluster.passes(lost)


def test_closing_a_cluster_closes_its_connections() -> None:
    brokers = FakeBrokers()
    with brokers.cluster() as cluster:
        connection = cluster.connection(1, cluster.deadline())
    assert not connection.is_open
