"""Offsets without members, and where a consumer starts that has none."""

from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.testing.time_limits import scaled
from tests.integration.clients import ConfluentClient, ToSend
from tests.integration.groups.consumers import describe
from tests.integration.groups.raw import (
    RawMember,
    commit_codes,
    commit_request,
    committed,
    fetch_request,
    fetched,
    wait_for_coordinator,
)
from tests.integration.wire import Wire, create_topic, every_version
from tests.support import BrokerProcess

SECONDS = 60.0


@pytest.fixture
def filled(shared_broker: BrokerProcess, topic: str) -> str:
    """A topic with ten records in its one partition."""
    create_topic(shared_broker.address, topic)
    send(shared_broker, topic, 10)
    return topic


def send(broker: BrokerProcess, topic: str, count: int) -> None:
    ConfluentClient(broker.address).send(topic, [ToSend(b"x")] * count)


@pytest.fixture
def consumer(shared_broker: BrokerProcess) -> Iterator[Callable[..., Any]]:
    """Make librdkafka consumers, which are closed after the test."""
    made: list[Any] = []

    def make(group: str, **settings: Any) -> Any:
        options = {
            "bootstrap.servers": shared_broker.address,
            "group.id": group,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        made.append(confluent_kafka.Consumer(options))
        return made[-1]

    yield make
    for entry in made:
        entry.close()


def next_offsets(consumer: Any, count: int) -> list[int]:
    """The offsets of the next records; an error of the client is raised."""
    offsets: list[int] = []
    while len(offsets) < count:
        message = consumer.poll(scaled(SECONDS))
        assert message is not None, f"only {offsets} arrived in time"
        if message.error() is not None:
            raise confluent_kafka.KafkaException(message.error())
        offsets.append(message.offset())
    return offsets


def at(topic: str, offset: int = confluent_kafka.OFFSET_STORED) -> Any:
    return confluent_kafka.TopicPartition(topic, 0, offset)


def test_a_consumer_that_takes_its_partitions_itself_goes_on_where_it_committed(
    shared_broker: BrokerProcess, consumer: Callable[..., Any], filled: str
) -> None:
    group = f"simple-{filled}"
    first = consumer(group, auto_offset_reset="earliest")
    first.assign([at(filled)])
    assert next_offsets(first, 4) == [0, 1, 2, 3]
    [done] = first.commit(offsets=[at(filled, 4)], asynchronous=False)
    assert done.error is None
    first.close()
    described = describe(shared_broker.address, group)
    assert (described.group_state, described.members) == ("Empty", [])
    again = consumer(group, auto_offset_reset="earliest")
    [stored] = again.committed([at(filled)], timeout=scaled(SECONDS))
    assert stored.offset == 4
    again.assign([at(filled)])
    assert next_offsets(again, 6) == [4, 5, 6, 7, 8, 9]


def test_a_consumer_without_an_offset_starts_where_its_policy_says(
    shared_broker: BrokerProcess, consumer: Callable[..., Any], filled: str
) -> None:
    earliest = consumer(f"e-{filled}", auto_offset_reset="earliest")
    earliest.subscribe([filled])
    assert next_offsets(earliest, 10) == list(range(10))
    latest = consumer(f"l-{filled}", auto_offset_reset="latest", enable_partition_eof=True)
    latest.subscribe([filled])
    reached = latest.poll(scaled(SECONDS))
    assert reached.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    assert reached.offset() == 10
    send(shared_broker, filled, 2)
    assert next_offsets(latest, 2) == [10, 11]
    none = consumer(f"n-{filled}", auto_offset_reset="error")
    none.subscribe([filled])
    with pytest.raises(confluent_kafka.KafkaException) as failed:
        next_offsets(none, 1)
    assert failed.value.args[0].code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET


def test_an_offset_whose_record_is_gone_is_reset_by_the_policy(
    shared_broker: BrokerProcess, consumer: Callable[..., Any], filled: str
) -> None:
    client = ConfluentClient(shared_broker.address)
    groups = {policy: f"{policy}-{filled}" for policy in ("earliest", "error")}
    wait_for_coordinator(shared_broker.address, "any")
    with Wire(shared_broker.address) as wire:
        for group in groups.values():
            codes = commit_codes(wire.ask(commit_request(group, {(filled, 0): 3}), 9))
            assert codes == {(filled, 0): ErrorCode.NONE}
    client.delete_records(filled, 6)
    earliest = consumer(groups["earliest"], auto_offset_reset="earliest")
    earliest.subscribe([filled])
    assert next_offsets(earliest, 4) == [6, 7, 8, 9]
    none = consumer(groups["error"], auto_offset_reset="error")
    none.subscribe([filled])
    with pytest.raises(confluent_kafka.KafkaException) as failed:
        next_offsets(none, 1)
    assert failed.value.args[0].code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET


def test_offsets_metadata_and_epochs_come_back_in_every_version(
    shared_broker: BrokerProcess, filled: str
) -> None:
    """What a version cannot say is absent; the others find it again."""
    wait_for_coordinator(shared_broker.address, "any")
    with Wire(shared_broker.address) as wire:
        for commit_version in every_version(Api.OFFSET_COMMIT):
            if commit_version > 9:
                break  # By topic id, which the clients here do.
            group = f"{filled}-{commit_version}"
            request = commit_request(group, {(filled, 0): commit_version}, "m", 0)
            answer = wire.ask(request, commit_version)
            assert commit_codes(answer) == {(filled, 0): ErrorCode.NONE}
            for version in every_version(Api.OFFSET_FETCH):
                if version > 9:
                    break
                answer = wire.ask(fetch_request(group, {filled: [0]}, version), version)
                [found] = fetched(answer, version).values()
                assert (found.committed_offset, found.metadata) == (commit_version, "m")
                if version >= 5:
                    assert found.committed_leader_epoch == (0 if commit_version >= 6 else -1)


def test_a_group_that_is_deleted_has_no_offsets_any_more(
    shared_broker: BrokerProcess, filled: str
) -> None:
    group = f"gone-{filled}"
    wait_for_coordinator(shared_broker.address, group)
    with Wire(shared_broker.address) as wire:
        wire.ask(commit_request(group, {(filled, 0): 3}), 9)
        assert committed(shared_broker.address, group) == {(filled, 0): (3, "", -1)}
        [result] = wire.ask(DeleteGroupsRequest(groups_names=[group])).results
        assert result.error_code == ErrorCode.NONE
    assert committed(shared_broker.address, group) == {}
    assert describe(shared_broker.address, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", every_version(Api.JOIN_GROUP))
def test_a_member_joins_works_and_leaves_in_every_version(
    shared_broker: BrokerProcess, filled: str, version: int
) -> None:
    wait_for_coordinator(shared_broker.address, "any")
    with RawMember(shared_broker.address, f"v{version}-{filled}") as member:
        joined = member.ask_join(version)
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            joined = member.ask_join(version)
        assert joined.error_code == ErrorCode.NONE
        assert (joined.leader, joined.protocol_name) == (member.member_id, "range")
        assert [member.member_id for member in joined.members] == [member.member_id]
        assert member.ask_sync({member.member_id: b"work"}).assignment == b"work"
        assert member.ask_heartbeat() == ErrorCode.NONE
        assert member.ask_commit({(filled, 0): 1}) == {(filled, 0): ErrorCode.NONE}
        assert member.ask_leave() == [ErrorCode.NONE]
        assert member.ask_heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_topic_that_is_created_again_does_not_inherit_offsets(
    shared_broker: BrokerProcess, consumer: Callable[..., Any], filled: str
) -> None:
    group = f"g-{filled}"
    first = consumer(group, auto_offset_reset="earliest")
    first.subscribe([filled])
    assert next_offsets(first, 10) == list(range(10))
    first.commit(asynchronous=False)
    first.close()
    admin = AdminClient({"bootstrap.servers": shared_broker.address})
    admin.delete_topics([filled])[filled].result(scaled(SECONDS))
    create_topic(shared_broker.address, filled)
    send(shared_broker, filled, 12)
    again = consumer(group, auto_offset_reset="earliest")
    again.subscribe([filled])
    assert next_offsets(again, 12) == list(range(12))
