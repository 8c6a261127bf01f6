from typing import Any

import pytest

from headrace.client.admin import (
    EARLIEST,
    LATEST,
    Admin,
    CreatedTopic,
    FoundOffset,
    NewTopic,
    OutcomeUnknown,
    Resource,
    ResourceType,
)
from headrace.client.failures import ConnectionFailed, UnknownTopic
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeBrokers, FakeConnection


def test_created_topics_and_failures_come_back_by_name() -> None:
    brokers = FakeBrokers()
    brokers.add_topic("old")
    outcomes = Admin(brokers.cluster()).create_topics(
        [NewTopic("new", 3, configs={"retention.ms": "1"}), NewTopic("old")]
    )
    assert outcomes["new"] == CreatedTopic("new", brokers.topics["new"], 3, 1)
    old = outcomes["old"]
    assert isinstance(old, KafkaError)
    assert old.code is ErrorCode.TOPIC_ALREADY_EXISTS
    (request,) = brokers.sent(CreateTopicsRequest)
    assert [(one.name, one.num_partitions, one.replication_factor) for one in request.topics] == [
        ("new", 3, -1),
        ("old", -1, -1),
    ]
    assert [(one.name, one.value) for one in request.topics[0].configs] == [("retention.ms", "1")]


def test_commands_go_to_the_controller() -> None:
    brokers = FakeBrokers(nodes=3)
    Admin(brokers.cluster(bootstrap=(3,))).create_topics([NewTopic("a")])
    assert [node for node, one in brokers.requests if isinstance(one, CreateTopicsRequest)] == [1]


def test_a_command_whose_answer_is_lost_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeBrokers()

    def lose(connection: FakeConnection, request: Any, deadline: float) -> Any:
        if isinstance(request, CreateTopicsRequest):
            connection.send(request, deadline)
            raise ConnectionFailed(connection.address, "closed", "see its log")
        connection.send(request, deadline)
        return connection.receive(deadline)

    monkeypatch.setattr(FakeConnection, "call", lose)
    with pytest.raises(OutcomeUnknown, match="look before repeating"):
        Admin(brokers.cluster()).create_topics([NewTopic("a")])
    assert len(brokers.sent(CreateTopicsRequest)) == 1


def test_offsets_are_asked_of_each_leader() -> None:
    brokers = FakeBrokers(nodes=2)
    brokers.add_topic("a", partitions=2)
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    brokers.logs[first].start_offset, brokers.logs[second].next_offset = 5, 9
    admin = Admin(brokers.cluster())
    assert admin.offsets({first: EARLIEST, second: LATEST}) == {
        first: FoundOffset(5, -1),
        second: FoundOffset(9, -1),
    }
    assert admin.offsets({first: 123}) == {first: FoundOffset(-1, -1)}


def test_offsets_follow_a_leader_that_moved() -> None:
    brokers = FakeBrokers(nodes=2)
    brokers.add_topic("a")
    tp = TopicPartition("a", 0)
    cluster = brokers.cluster()
    cluster.partition(tp)
    brokers.logs[tp].leader = 2
    assert Admin(cluster).offsets({tp: LATEST})[tp].offset == 0


def configs(brokers: FakeBrokers, result: DescribeConfigsResult) -> None:
    brokers._DescribeConfigs = lambda node, request: (  # type: ignore[attr-defined]
        DescribeConfigsResponse(results=[result])
    )


def test_settings_come_sorted_with_their_sources() -> None:
    brokers = FakeBrokers()
    entries = [
        DescribeConfigsResourceResult(name="b", value="2", config_source=5),
        DescribeConfigsResourceResult(name="a", value="1", config_source=1, read_only=True),
        DescribeConfigsResourceResult(name="c", value="3", config_source=99),
    ]
    configs(brokers, DescribeConfigsResult(configs=entries))
    found = Admin(brokers.cluster()).describe_configs(Resource(ResourceType.TOPIC, "t"))
    assert [(one.name, one.value, one.source, one.is_default) for one in found] == [
        ("a", "1", "topic_config", False),
        ("b", "2", "default_config", True),
        ("c", "3", "source_99", False),
    ]
    assert [one.read_only for one in found] == [True, False, False]


def test_settings_of_an_unknown_topic_are_refused_as_its_partitions_are() -> None:
    brokers = FakeBrokers()
    configs(brokers, DescribeConfigsResult(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    with pytest.raises(UnknownTopic, match="topic t does not exist"):
        Admin(brokers.cluster()).describe_configs(Resource(ResourceType.TOPIC, "t"))


def test_settings_of_a_broker_are_asked_of_that_broker() -> None:
    brokers = FakeBrokers(nodes=3)
    configs(brokers, DescribeConfigsResult())
    admin = Admin(brokers.cluster())
    admin.describe_configs(Resource(ResourceType.BROKER, "2"))
    asked = [node for node, one in brokers.requests if one.api_key == ApiKey.DESCRIBE_CONFIGS]
    assert asked == [2]
    with pytest.raises(KafkaError, match="no broker 9; the cluster has 1, 2, 3"):
        admin.describe_configs(Resource(ResourceType.BROKER, "9"))


def test_settings_are_set_and_deleted_in_one_request() -> None:
    brokers = FakeBrokers()
    brokers._IncrementalAlterConfigs = lambda node, request: (  # type: ignore[attr-defined]
        IncrementalAlterConfigsResponse(responses=[AlterConfigsResourceResponse()])
    )
    admin = Admin(brokers.cluster())
    admin.alter_configs(Resource(ResourceType.TOPIC, "t"), {"a": "1"}, ["b"])
    (request,) = brokers.sent(IncrementalAlterConfigsRequest)
    (resource,) = request.resources
    changes = [(one.name, one.config_operation, one.value) for one in resource.configs]
    assert changes == [("a", 0, "1"), ("b", 1, None)]
    refused = AlterConfigsResourceResponse(error_code=ErrorCode.INVALID_CONFIG)
    brokers._IncrementalAlterConfigs = lambda node, request: (  # type: ignore[attr-defined]
        IncrementalAlterConfigsResponse(responses=[refused])
    )
    with pytest.raises(KafkaError, match="topic t: invalid config"):
        admin.alter_configs(Resource(ResourceType.TOPIC, "t"), {"a": "x"})
