"""Topics that grow and topics that appear: groups take them up by themselves."""

from collections.abc import Callable

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.integration.groups.consumers import Group, Partition, closing, wait_settled
from tests.integration.groups.history import check_history
from tests.integration.groups.stream import Stream
from tests.integration.wire import Wire, create_topic
from tests.support import BrokerProcess

CLIENTS = ["headrace", "librdkafka", "kafka-python", "aiokafka"]


@pytest.fixture
def group_broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker(**{"group.min.session.timeout.ms": "1000"})


def add_partitions(address: str, topic: str, count: int) -> None:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)], timeout_ms=10_000
    )
    with Wire(address) as wire:
        [result] = wire.ask(request).results
    assert result.error_code == ErrorCode.NONE


def read_on(groups: list[Group], address: str, partitions: list[Partition]) -> None:
    """Every partition has an owner, and what is written to each is read."""
    wait_settled(groups, partitions)
    with Stream(address, partitions) as stream:
        stream.wait_read_something(groups)


def test_partitions_that_are_added_are_shared_out(group_broker: BrokerProcess) -> None:
    address = group_broker.address
    create_topic(address, "grows", 2)
    groups = [
        Group(address, f"{client}-grows", client, topics=["grows"], metadata_ms=500)
        for client in CLIENTS
    ]
    with closing(groups):
        for group in groups:
            group.start(2)
        read_on(groups, address, [("grows", index) for index in range(2)])
        add_partitions(address, "grows", 5)
        read_on(groups, address, [("grows", index) for index in range(5)])
        for group in groups:
            group.close(list(group.members))
            check_history(group)


def test_a_group_that_reads_by_pattern_takes_up_a_new_topic(group_broker: BrokerProcess) -> None:
    address = group_broker.address
    create_topic(address, "fruit-apples", 2)
    create_topic(address, "stones", 2)
    groups = [
        Group(address, f"{client}-pattern", client, pattern="^fruit-.*", metadata_ms=500)
        for client in CLIENTS
    ]
    with closing(groups):
        for group in groups:
            group.start(2)
        partitions: list[Partition] = [("fruit-apples", index) for index in range(2)]
        read_on(groups, address, partitions)
        create_topic(address, "fruit-pears", 3)
        read_on(groups, address, partitions + [("fruit-pears", index) for index in range(3)])
        for group in groups:
            group.close(list(group.members))
            assert {topic for topic, _, _ in group.received} == {"fruit-apples", "fruit-pears"}
            check_history(group)
