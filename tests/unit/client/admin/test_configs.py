import pytest

from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.unit.client.admin.fakes import AdminBrokers


def brokers_that_describe(result: DescribeConfigsResult, nodes: int = 1) -> AdminBrokers:
    brokers = AdminBrokers(nodes)
    brokers._DescribeConfigs = lambda node, request: (  # type: ignore[attr-defined]
        DescribeConfigsResponse(results=[result])
    )
    return brokers


def brokers_that_alter(*codes: int, nodes: int = 1) -> AdminBrokers:
    brokers = AdminBrokers(nodes)
    left = list(codes)
    brokers._IncrementalAlterConfigs = lambda node, request: (  # type: ignore[attr-defined]
        IncrementalAlterConfigsResponse(
            responses=[AlterConfigsResourceResponse(error_code=left.pop(0) if left else 0)]
        )
    )
    return brokers


def test_settings_come_sorted_with_their_sources() -> None:
    entries = [
        DescribeConfigsResourceResult(name="b", value="2", config_source=5),
        DescribeConfigsResourceResult(name="a", value="1", config_source=1, read_only=True),
        DescribeConfigsResourceResult(name="c", value="3", config_source=99),
    ]
    brokers = brokers_that_describe(DescribeConfigsResult(configs=entries))
    found = brokers.admin(lambda admin: admin.describe_configs(topic="t"))
    assert [
        (name, record.value, record.source, record.is_default) for name, record in found.items()
    ] == [
        ("a", "1", "topic_config", False),
        ("b", "2", "default_config", True),
        ("c", "3", "source_99", False),
    ]
    assert [value.read_only for value in found.values()] == [True, False, False]


def test_settings_of_an_unknown_topic_are_refused_as_its_partitions_are() -> None:
    refused = DescribeConfigsResult(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    brokers = brokers_that_describe(refused)
    with pytest.raises(UnknownTopic, match="topic t does not exist"):
        brokers.admin(lambda admin: admin.describe_configs(topic="t"))
    assert len(brokers.sent(DescribeConfigsRequest)) == 1


def test_settings_of_a_broker_are_asked_of_that_broker() -> None:
    brokers = brokers_that_describe(DescribeConfigsResult(), nodes=3)
    brokers.admin(lambda admin: admin.describe_configs(broker=2))
    assert brokers.asked(DescribeConfigsRequest) == [2]
    with pytest.raises(KafkaError, match="no broker 9; the cluster has 1, 2, 3"):
        brokers.admin(lambda admin: admin.describe_configs(broker=9))


def test_settings_are_set_and_deleted_in_one_request() -> None:
    brokers = brokers_that_alter()
    changes = {"a": 1, "b": None, "c": False, "d": "x"}
    brokers.admin(lambda admin: admin.alter_configs(changes, topic="t"))
    (request,) = brokers.sent(IncrementalAlterConfigsRequest)
    (resource,) = request.resources
    assert [
        (config.name, config.config_operation, config.value) for config in resource.configs
    ] == [
        ("a", 0, "1"),
        ("c", 0, "false"),
        ("d", 0, "x"),
        ("b", 1, None),
    ]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.INVALID_CONFIG, "topic t: invalid config"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic t: unknown topic or partition"),
    ],
)
def test_settings_that_are_refused_are_not_sent_again(code: ErrorCode, text: str) -> None:
    brokers = brokers_that_alter(code)
    with pytest.raises(KafkaError, match=text):
        brokers.admin(lambda admin: admin.alter_configs({"a": "x"}, topic="t"))
    assert len(brokers.sent(IncrementalAlterConfigsRequest)) == 1


def test_settings_are_sent_again_after_what_passes_and_after_a_lost_answer() -> None:
    brokers = brokers_that_alter(ErrorCode.NOT_CONTROLLER, nodes=2)
    brokers.admin(lambda admin: admin.alter_configs({"a": "x"}, topic="t"))
    assert brokers.asked(IncrementalAlterConfigsRequest) == [1, 1]
    brokers.lost = [IncrementalAlterConfigsRequest]
    brokers.admin(lambda admin: admin.alter_configs({"a": "x"}, broker=2))
    assert brokers.asked(IncrementalAlterConfigsRequest) == [1, 1, 2, 2]
