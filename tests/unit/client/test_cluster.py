import asyncio

import pytest

from headrace.client.errors import TimedOut, Unreachable
from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed, NoAnswer
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.types import TopicPartition
from tests.unit.client.virtual_time import Brokers, Channel


def brokers_with(topic: str = "a", partitions: int = 1, nodes: int = 1) -> Brokers:
    brokers = Brokers(nodes)
    brokers.add_topic(topic, partitions)
    return brokers


def test_an_impatient_client_does_not_wait_for_a_cluster_that_was_never_reached() -> None:
    brokers = Brokers()
    brokers.down = {1}
    before = brokers.clock.seconds
    with pytest.raises(Unreachable, match=r"10\.0\.0\.1:9092: nothing is listening"):
        brokers.run(brokers.new_cluster(patient=False).topics(["a"]))
    assert brokers.clock.seconds == before


def test_a_patient_client_waits_for_a_cluster_until_the_deadline() -> None:
    brokers = Brokers()
    brokers.down = {1}
    begun = brokers.clock.seconds
    with pytest.raises(Unreachable, match=r"gave up after 10 s: .*10\.0\.0\.1:9092"):
        brokers.run(brokers.new_cluster(timeout_s=10).topics(["a"]))
    assert 8 < brokers.clock.seconds - begun <= 10


def test_an_attempt_that_the_deadline_cut_short_does_not_hide_the_reason() -> None:
    brokers = Brokers()
    brokers.down = {1}
    refuse = brokers.open

    async def connect(address: Address, timeout_s: float, *, client_id: str) -> Channel:
        if timeout_s < 1.0:
            await asyncio.sleep(timeout_s)
            raise NoAnswer(address, "no connection in time", "see whether a firewall is there")
        return await refuse(address, timeout_s, client_id=client_id)

    brokers.open = connect  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match=r"gave up after 10 s: .*nothing is listening there"):
        brokers.run(brokers.new_cluster(timeout_s=10).topics(["a"]))
    with pytest.raises(Unreachable, match=r"gave up after 0\.1 s: .*no connection in time"):
        brokers.run(brokers.new_cluster(timeout_s=0.1).topics(["a"]))


def test_every_bootstrap_address_is_tried() -> None:
    brokers = brokers_with(nodes=3)
    brokers.down = {1, 2}
    topics = brokers.run(brokers.new_cluster(bootstrap=(1, 2, 3)).topics(["a"]))
    assert topics["a"].name == "a"
    brokers.down = {1, 2, 3}
    with pytest.raises(Unreachable, match=r"tried 10\.0\.0\.1:9092, 10\.0\.0\.2:9092"):
        brokers.run(brokers.new_cluster(bootstrap=(1, 2), patient=False).topics(["a"]))


def test_a_broker_that_comes_back_in_time_is_found_again() -> None:
    brokers = brokers_with()

    async def scenario() -> None:
        cluster = brokers.new_cluster(patient=False)
        await cluster.topics(["a"])
        brokers.down = {1}
        cluster.forget()
        asyncio.get_running_loop().call_later(5, brokers.down.clear)
        connection = await cluster.connection(1, cluster.deadline())
        connection.close()
        assert (await cluster.topics(["a"]))["a"].name == "a"

    begun = brokers.clock.seconds
    brokers.run(scenario())
    assert 5 <= brokers.clock.seconds - begun < 8


def test_metadata_is_asked_for_once_and_again_when_forgotten_or_old() -> None:
    brokers = brokers_with()
    brokers.add_topic("b")

    async def scenario() -> None:
        cluster = brokers.new_cluster(metadata_max_age_s=100)
        for _ in range(3):
            await cluster.topics(["a"])
        assert len(brokers.sent(MetadataRequest)) == 1
        await cluster.topics(["a", "b"])
        assert [topic.name for topic in brokers.sent(MetadataRequest)[1].topics] == ["b"]
        cluster.forget(["a"])
        await cluster.topics(["a"])
        assert len(brokers.sent(MetadataRequest)) == 3
        brokers.clock.sleep(100)
        assert cluster.known_topic("a") is not None
        await cluster.topics(["a"])
        assert len(brokers.sent(MetadataRequest)) == 4

    brokers.run(scenario())


def test_an_unknown_topic_is_reported_at_once_and_nothing_is_created() -> None:
    brokers = Brokers()
    brokers.auto_create_after = 1
    with pytest.raises(UnknownTopic, match="topic nope does not exist"):
        brokers.run(brokers.new_cluster().topics(["nope"]))
    assert len(brokers.sent(MetadataRequest)) == 1
    assert "nope" not in brokers.topics


def test_a_topic_that_asking_creates_is_waited_for() -> None:
    brokers = Brokers()
    brokers.auto_create_after = 3
    topics = brokers.run(brokers.new_cluster().topics(["new"], create=True))
    assert topics["new"].name == "new"


def test_a_topic_that_asking_does_not_create_is_unknown_after_a_while() -> None:
    brokers = Brokers()
    begun = brokers.clock.seconds
    with pytest.raises(UnknownTopic):
        brokers.run(brokers.new_cluster(timeout_s=60).topics(["new"], create=True))
    assert 3 < brokers.clock.seconds - begun < 10


def test_topics_that_were_deleted_are_not_known_after_all_were_asked_for() -> None:
    brokers = brokers_with()

    async def scenario() -> None:
        cluster = brokers.new_cluster()
        await cluster.topics(["a"])
        del brokers.topics["a"]
        assert await cluster.all_topics() == {}
        assert cluster.known_topic("a") is None

    brokers.run(scenario())


def test_partitions_are_grouped_by_their_leaders() -> None:
    brokers = brokers_with(partitions=3, nodes=2)
    partitions = [TopicPartition("a", number) for number in range(3)]
    assert brokers.run(brokers.new_cluster().by_leader(partitions)) == {
        1: [partitions[0], partitions[2]],
        2: [partitions[1]],
    }


def test_a_partition_that_does_not_exist_is_reported_with_those_that_do() -> None:
    brokers = brokers_with(partitions=3)
    with pytest.raises(UnknownTopic, match="no partition 3; it has 3, numbered from 0 to 2"):
        brokers.run(brokers.new_cluster().partition(TopicPartition("a", 3)))


def test_a_partition_that_was_added_is_found_though_the_topic_was_known_before() -> None:
    brokers = brokers_with(partitions=1)

    async def scenario() -> None:
        cluster = brokers.new_cluster()
        await cluster.topics(["a"])
        brokers.add_topic("a", 2)
        assert (await cluster.partition(TopicPartition("a", 1))).index == 1

    brokers.run(scenario())


def test_a_partition_without_leader_may_get_one() -> None:
    brokers = brokers_with()
    brokers.logs[TopicPartition("a", 0)].leader = -1

    async def scenario() -> None:
        cluster = brokers.new_cluster()
        with pytest.raises(KafkaError) as caught:
            await cluster.partition(TopicPartition("a", 0))
        assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert cluster.passes(caught.value)
        assert cluster.leader_of(TopicPartition("a", 0)) is None

    brokers.run(scenario())


def test_lanes_have_connections_of_their_own_and_share_them() -> None:
    brokers = brokers_with()

    async def scenario() -> None:
        cluster = brokers.new_cluster()
        await cluster.topics(["a"])
        deadline = cluster.deadline()
        first, second, other = await asyncio.gather(
            cluster.connection(1, deadline, lane="fetch"),
            cluster.connection(1, deadline, lane="fetch"),
            cluster.connection(1, deadline, lane="group"),
        )
        assert first is second
        assert first is not other
        assert brokers.connections == 3

    brokers.run(scenario())


def test_a_caller_that_gives_up_does_not_take_the_connection_from_another() -> None:
    brokers = brokers_with()

    async def scenario() -> None:
        cluster = brokers.new_cluster()
        await cluster.topics(["a"])
        deadline = cluster.deadline()
        hasty = asyncio.create_task(cluster.connection(1, deadline, lane="fetch"))
        steady = asyncio.create_task(cluster.connection(1, deadline, lane="fetch"))
        await asyncio.sleep(0)
        hasty.cancel()
        assert (await steady).is_open

    brokers.run(scenario())


def test_errors_that_pass_are_told_from_those_that_stay() -> None:
    brokers = Brokers()

    async def scenario() -> None:
        cluster = brokers.new_cluster(patient=False)
        assert cluster.passes(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert not cluster.passes(KafkaError(ErrorCode.INVALID_CONFIG))
        assert not cluster.passes(UnknownTopic("x"))
        assert not cluster.passes(TimedOut("x"))
        lost = ConnectionFailed(brokers.nodes[1], "closed", "try again")
        assert not cluster.passes(lost)
        await cluster.heard_view()
        assert cluster.passes(lost)

    brokers.run(scenario())


def test_closing_a_cluster_closes_its_connections() -> None:
    brokers = Brokers()

    async def scenario() -> None:
        cluster = brokers.new_cluster()
        connection = await cluster.connection(1, cluster.deadline())
        await cluster.close()
        assert not connection.is_open

    brokers.run(scenario())
