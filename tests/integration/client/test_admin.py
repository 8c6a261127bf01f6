"""`headrace.Admin` against a real broker, and librdkafka's view of what it did."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
)
from confluent_kafka.admin import NewTopic as OtherTopic  # type: ignore[attr-defined]

import headrace
from headrace import EARLIEST, LATEST, Admin, NewTopic, OffsetAndMetadata, TopicPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.testing.time_limits import Deadline, scaled
from tests.support import BrokerProcess, unused_port

SECONDS = 60.0


@pytest.fixture(scope="module")
def admin(shared_broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=shared_broker.address) as admin:
        yield admin


@pytest.fixture(scope="module")
def other(shared_broker: BrokerProcess) -> AdminClient:
    """librdkafka's admin client of the same broker."""
    return AdminClient({"bootstrap.servers": shared_broker.address})


def write(address: str, topic: str, count: int, partition: int = 0) -> None:
    """Records with timestamps a second apart, a batch for each: times are found by batch."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    for number in range(count):
        timestamp = 1_700_000_000_000 + number * 1000
        producer.produce(topic, str(number), partition=partition, timestamp=timestamp)
        assert producer.flush(scaled(SECONDS)) == 0


def described(other: AdminClient, topic: str) -> dict[int, tuple[int, list[int], list[int]]]:
    found = other.list_topics(topic, scaled(SECONDS)).topics[topic]
    return {
        number: (partition.leader, sorted(partition.replicas), sorted(partition.isrs))
        for number, partition in found.partitions.items()
    }


def test_topics_look_the_same_to_others(admin: Admin, other: AdminClient, topic: str) -> None:
    created = admin.create_topic(topic, partitions=3, configs={"retention.ms": 60_000})
    assert (created.name, created.partitions, created.replication_factor) == (topic, 3, 1)
    ours = admin.describe_topic(topic)
    assert ours.topic_id == created.topic_id
    assert described(other, topic) == {
        partition.index: (partition.leader, sorted(partition.replicas), sorted(partition.isr))
        for partition in ours.partitions
    }
    theirs = other.describe_topics(confluent_kafka.TopicCollection([topic]))[topic]
    assert len(theirs.result(scaled(SECONDS)).partitions) == 3
    assert topic in admin.list_topics()
    admin.create_partitions({topic: 5})
    assert len(described(other, topic)) == len(admin.describe_topic(topic).partitions) == 5
    admin.delete_topic(topic)
    assert topic not in other.list_topics(timeout=scaled(SECONDS)).topics
    assert topic not in admin.list_topics()


def test_topics_of_others_are_ours_to_use(admin: Admin, other: AdminClient, topic: str) -> None:
    new = OtherTopic(topic, 2, 1, config={"segment.ms": "5000"})
    other.create_topics([new])[topic].result(scaled(SECONDS))
    assert len(admin.describe_topic(topic).partitions) == 2
    assert admin.describe_configs(topic=topic)["segment.ms"].value == "5000"
    admin.delete_topics([topic])
    assert topic not in other.list_topics(timeout=scaled(SECONDS)).topics


def test_each_topic_has_its_own_outcome(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    wanted: list[NewTopic | str] = [
        NewTopic(topic),
        f"{topic}-b",
        NewTopic(f"{topic}-c", configs={"no.such": 1}),
    ]
    with pytest.raises(headrace.SomeFailed, match="2 of 3 failed") as caught:
        admin.create_topics(wanted)
    failed = caught.value
    assert failed.errors[topic].code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert failed.errors[f"{topic}-c"].code is ErrorCode.INVALID_CONFIG
    assert failed.outcomes[f"{topic}-b"].partitions == 1
    with pytest.raises(headrace.UnknownTopic, match=f"topic {topic}-c does not exist"):
        admin.describe_topic(f"{topic}-c")
    with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
        admin.create_topic("no spaces")
    with pytest.raises(headrace.SomeFailed) as caught:
        admin.create_partitions({topic: 1, f"{topic}-b": 3})
    assert caught.value.code is ErrorCode.INVALID_PARTITIONS
    assert caught.value.outcomes[f"{topic}-b"] is None


def configs_of(other: AdminClient, kind: Any, name: str) -> dict[str, tuple[str | None, bool]]:
    resource = ConfigResource(kind, name)
    found = other.describe_configs([resource])[resource].result(scaled(SECONDS))
    return {value.name: (value.value, value.is_default) for value in found.values()}


def test_settings_look_the_same_to_others(admin: Admin, other: AdminClient, topic: str) -> None:
    admin.create_topic(topic, configs={"retention.ms": 60_000})
    admin.alter_configs({"segment.ms": 5000, "retention.ms": None}, topic=topic)
    ours = admin.describe_configs(topic=topic)
    theirs = configs_of(other, ConfigResource.Type.TOPIC, topic)
    assert {name: (our.value, our.is_default) for name, our in ours.items()} == theirs
    assert theirs["segment.ms"] == ("5000", False)
    assert theirs["retention.ms"][1]
    ours = admin.describe_configs(broker=1)
    theirs = configs_of(other, ConfigResource.Type.BROKER, "1")
    assert {name: (our.value, our.is_default) for name, our in ours.items()} == theirs
    with pytest.raises(KafkaError, match=f"topic {topic}: .*segment.ms"):
        admin.alter_configs({"segment.ms": "soon"}, topic=topic)
    with pytest.raises(headrace.UnknownTopic, match="topic nope does not exist"):
        admin.describe_configs(topic="nope")


def test_settings_of_a_broker_change_and_go_back(admin: Admin) -> None:
    before = admin.describe_configs(broker=1)["log.retention.ms"]
    admin.alter_configs({"log.retention.ms": 123_456}, broker=1)
    changed = admin.describe_configs(broker=1)["log.retention.ms"]
    assert (changed.value, changed.source) == ("123456", "dynamic_broker_config")
    admin.alter_configs({"log.retention.ms": None}, broker=1)
    assert admin.describe_configs(broker=1)["log.retention.ms"] == before


def test_offsets_are_those_of_others(
    admin: Admin, other: AdminClient, topic: str, shared_broker: BrokerProcess
) -> None:
    admin.create_topic(topic, partitions=2)
    write(shared_broker.address, topic, 10)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    middle = 1_700_000_003_500
    for ours, theirs in (
        (EARLIEST, OffsetSpec.earliest()),
        (LATEST, OffsetSpec.latest()),
        (middle, OffsetSpec.for_timestamp(middle)),
    ):
        asked = {confluent_kafka.TopicPartition(*tp): theirs for tp in (first, second)}
        answers = other.list_offsets(asked)
        found = admin.offsets({first: ours, second: ours})
        for tp, answer in answers.items():
            mine = found[TopicPartition(tp.topic, tp.partition)]
            result = answer.result(scaled(SECONDS))
            assert (mine.offset, mine.timestamp) == (result.offset, result.timestamp)
    assert admin.offsets({first: middle})[first].offset == 4
    assert admin.offsets({second: middle})[second].offset == -1


def test_records_before_an_offset_are_deleted(
    admin: Admin, topic: str, shared_broker: BrokerProcess
) -> None:
    admin.create_topic(topic, partitions=2)
    for partition in range(2):
        write(shared_broker.address, topic, 5, partition)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.delete_records({first: 3, second: LATEST}) == {first: 3, second: 5}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": shared_broker.address, "group.id": topic}
    )
    try:
        for tp, low in ((first, 3), (second, 5)):
            wanted = confluent_kafka.TopicPartition(*tp)
            assert consumer.get_watermark_offsets(wanted, scaled(SECONDS)) == (low, 5)
    finally:
        consumer.close()
    with pytest.raises(headrace.SomeFailed, match="offset out of range") as caught:
        admin.delete_records({first: 6, second: 5})
    assert caught.value.outcomes[second] == 5


@pytest.fixture
def member(shared_broker: BrokerProcess, topic: str) -> Iterator[Callable[[], Any]]:
    """Joins a consumer of librdkafka into the group named like the topic; it has read all."""
    consumers = []

    def join() -> Any:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": shared_broker.address,
                "group.id": topic,
                "client.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumers.append(consumer)
        consumer.subscribe([topic])
        read = 0
        deadline = Deadline(SECONDS)
        while read < 10:
            assert not deadline.has_passed, "the consumer reads nothing"
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                read += 1
        return consumer

    yield join
    for consumer in consumers:
        consumer.close()


def test_groups_look_the_same_to_others(
    admin: Admin,
    other: AdminClient,
    topic: str,
    shared_broker: BrokerProcess,
    member: Callable[[], Any],
) -> None:
    admin.create_topic(topic, partitions=2)
    write(shared_broker.address, topic, 10)
    consumer = member()
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(topic, 0, 7, "a note")], asynchronous=False
    )
    listed = admin.list_groups(states=["Stable"])[topic]
    group = admin.describe_group(topic)
    theirs = other.describe_consumer_groups([topic])[topic].result(scaled(SECONDS))
    assert listed.state == group.state == "Stable"
    assert theirs.state.name == "STABLE"
    assert group.protocol == theirs.partition_assignor
    (ours,), (their,) = group.members, theirs.members
    assert (ours.member_id, ours.client_id, ours.host) == (
        their.member_id,
        their.client_id,
        their.host.lstrip("/"),
    )
    assert ours.subscription == (topic,)
    assert set(ours.assignment or ()) == {
        TopicPartition(tp.topic, tp.partition) for tp in their.assignment.topic_partitions
    }
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    committed = admin.group_offsets(topic)
    assert list(committed) == [first]
    # librdkafka's Python commits the zero behind its text too.
    assert (committed[first].offset, committed[first].metadata.rstrip("\0")) == (7, "a note")
    progress = admin.group_progress([topic])[topic]
    assert [
        (entry.tp, entry.committed_offset, entry.end_offset, entry.lag) for entry in progress
    ] == [
        (first, 7, 10, 3),
        (second, None, 0, None),
    ]
    assert all(entry.member == ours for entry in progress)
    for refused in (
        lambda: admin.alter_group_offsets(topic, {first: 1}),
        lambda: admin.delete_groups([topic]),
        lambda: admin.delete_group_offsets(topic, [first]),
    ):
        with pytest.raises(headrace.SomeFailed) as caught:
            refused()
        assert caught.value.code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        )


def committed_by(other: AdminClient, group: str) -> dict[TopicPartition, tuple[int, str]]:
    asked = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
    found = other.list_consumer_group_offsets(asked)[group].result(scaled(SECONDS))
    return {
        TopicPartition(tp.topic, tp.partition): (tp.offset, tp.metadata or "")
        for tp in found.topic_partitions
    }


def test_offsets_of_a_group_are_moved_and_forgotten(
    admin: Admin, other: AdminClient, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets(topic, {first: 5, second: OffsetAndMetadata(9, "by hand")})
    assert committed_by(other, topic) == {first: (5, ""), second: (9, "by hand")}
    assert admin.describe_group(topic).state == "Empty"
    admin.delete_group_offsets(topic, [first])
    assert committed_by(other, topic) == {second: (9, "by hand")}
    admin.delete_groups([topic])
    assert topic not in admin.list_groups()
    with pytest.raises(KafkaError, match=f"GROUP_ID_NOT_FOUND: group {topic} does not exist"):
        admin.describe_group(topic)
    with pytest.raises(headrace.UnknownTopic, match="topic nope does not exist"):
        admin.alter_group_offsets(topic, {TopicPartition("nope", 0): 1})


def test_the_cluster_is_the_one_others_see(
    admin: Admin, other: AdminClient, shared_broker: BrokerProcess
) -> None:
    ours, theirs = admin.describe_cluster(), other.describe_cluster().result(scaled(SECONDS))
    assert (ours.cluster_id, ours.controller_id) == (theirs.cluster_id, theirs.controller.id)
    (broker,) = ours.brokers
    assert (broker.node_id, str(broker.address)) == (1, shared_broker.address)


def test_threads_may_share_a_client(admin: Admin, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(admin.create_topic, names))
    assert [entry.name for entry in created] == names
    assert set(names) <= set(admin.list_topics())


def test_many_calls_wait_together_on_one_loop(shared_broker: BrokerProcess, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(20)]

    async def scenario() -> None:
        async with headrace.aio.Admin(bootstrap_servers=shared_broker.address) as admin:
            await asyncio.gather(*(admin.create_topic(name) for name in names))
            found = await asyncio.gather(*(admin.describe_topic(name) for name in names))
            assert [entry.name for entry in found] == names

    asyncio.run(scenario())


def test_a_cluster_that_is_not_there_ends_a_call_in_time() -> None:
    begun, nowhere = time.monotonic(), f"127.0.0.1:{unused_port()}"
    with Admin(bootstrap_servers=nowhere, request_timeout_ms=int(scaled(700))) as admin:
        with pytest.raises(headrace.Unreachable, match=r"gave up after .* s: .*headrace up"):
            admin.list_topics()
    assert time.monotonic() - begun < scaled(5)


def test_a_client_survives_the_restart_of_a_broker(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("before")
        broker.kill()
        waiting = ThreadPoolExecutor(1)
        try:
            # It waits for the broker, which comes back meanwhile.
            listed = waiting.submit(admin.list_topics)
            broker.start()
            assert list(listed.result(scaled(SECONDS))) == ["before"]
        finally:
            waiting.shutdown()
        broker.restart()
        admin.create_topic("after")
        assert list(admin.list_topics()) == ["after", "before"]


def test_a_broker_that_does_not_answer_ends_a_call_in_time(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    timeout_ms = int(scaled(700))
    options: Any = {"bootstrap_servers": broker.address, "request_timeout_ms": timeout_ms}
    with Admin(**options) as asking, Admin(**options) as changing:
        asking.create_topic("a")
        changing.create_topic("b")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(headrace.TimedOut, match=r"gave up after .* s: .*no answer"):
                asking.describe_topic("a")
            # The command was sent, so it may yet be done.
            with pytest.raises(headrace.OutcomeUnknown, match="look before repeating"):
                changing.create_topic("c")
            assert time.monotonic() - begun < scaled(10)
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_ctrl_c_ends_a_call_that_waits() -> None:
    with Admin(bootstrap_servers=f"127.0.0.1:{unused_port()}") as admin:
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            admin.list_topics()
        assert time.monotonic() - begun < scaled(10)
        timer.join()
