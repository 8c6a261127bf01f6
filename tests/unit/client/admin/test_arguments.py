from collections.abc import Callable
from typing import Any

import pytest

from headrace.client.admin.topics import NewTopic
from headrace.client.types import OffsetAndMetadata
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import AdminBrokers

A0 = TopicPartition("a", 0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.delete_topics("orders"), r"'orders' is one topic.*\['orders'\]"),
        (lambda admin: admin.create_topics("orders"), r"is one topic, not a list"),
        (lambda admin: admin.create_topics(NewTopic("a")), r"is one topic, not a list"),
        (lambda admin: admin.describe_groups("g"), r"'g' is one group.*\['g'\]"),
        (lambda admin: admin.list_groups(states="Empty"), r"'Empty' is one state"),
        (lambda admin: admin.describe_topic(7), "7 is no topic; give its name as a str"),
        (lambda admin: admin.create_topic(b"a"), "b'a' is no topic"),
        (lambda admin: admin.create_topic("a", "3"), "partitions of a is '3'; give a number"),
        (lambda admin: admin.create_topic("a", True), "partitions of a is True; give a number"),
        (lambda admin: admin.create_topic("a", configs={"b": [1]}), r"b is \[1\]; give text"),
        (lambda admin: admin.alter_configs({"b": b"x"}, topic="a"), "b is b'x'; give text"),
        (lambda admin: admin.alter_configs({"b": "x"}), "loggers of a broker; give one"),
        (lambda admin: admin.describe_configs(topic="a", broker=1), "give one, as topic='orders'"),
        (lambda admin: admin.describe_configs(broker="1"), "broker is '1'; give a number"),
        (lambda admin: admin.offsets([A0]), "wanted is .*; give a dict from TopicPartition"),
        (lambda admin: admin.offsets({"a-0": 1}), "'a-0' is no partition; write TopicPartition"),
        (lambda admin: admin.offsets({A0: "end"}), "time of a-0 is 'end'; give a number"),
        (lambda admin: admin.delete_group_offsets("g", A0), "is no list of partitions; write"),
        (lambda admin: admin.alter_group_offsets("g", {A0: None}), "offset of a-0 is None"),
        (lambda admin: admin.create_partitions({"a": None}), "partitions of a is None"),
        (lambda admin: admin.group_offsets(None), "None is no group"),
    ],
)
def test_wrong_types_are_named_before_anything_is_sent(
    call: Callable[[Any], Any], text: str
) -> None:
    brokers = AdminBrokers()
    with pytest.raises(TypeError, match=text):
        brokers.admin(call)
    assert brokers.requests == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.create_topic("a", 2**31), "partitions of a is 2147483648; give a"),
        (lambda admin: admin.create_topic("a", 1, 2**15), "replication_factor of a is 32768"),
        (lambda admin: admin.create_topics(["a", "a"]), "topic a is given twice"),
        (lambda admin: admin.create_partitions({"a": 0}), "partitions of a is 0; give a number"),
        (lambda admin: admin.offsets({A0: -3}), "time of a-0 is -3"),
        (lambda admin: admin.offsets({("a", -1): 1}), "partition of a is -1"),
        (lambda admin: admin.delete_records({A0: 2**63}), "offset of a-0 is"),
        (lambda admin: admin.alter_group_offsets("g", {A0: -1}), "offset of a-0 is -1"),
        (
            lambda admin: admin.alter_group_offsets("g", {A0: OffsetAndMetadata(-1)}),
            "offset of a-0 is -1; give a number from 0 to",
        ),
    ],
)
def test_numbers_out_of_bounds_are_named_before_anything_is_sent(
    call: Callable[[Any], Any], text: str
) -> None:
    brokers = AdminBrokers()
    with pytest.raises(ValueError, match=text):
        brokers.admin(call)
    assert brokers.requests == []
