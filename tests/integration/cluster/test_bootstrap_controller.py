"""A controller that is no broker, asked directly, as tools do with `--bootstrap-controller`."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from headrace.broker.app import BrokerServer
from headrace.config import broker_config
from headrace.errors import ErrorCode
from headrace.protocol.messages import incremental_alter_configs as alter
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from tests.integration.wire import Wire

BROKERS, CONTROLLERS = 1, 2
BROKER_RESOURCE = 4
DYNAMIC_DEFAULT = 3
NAME, VALUE = "log.cleaner.backoff.ms", "14000"


def with_controller(directory: Path, test: Callable[[Wire], None]) -> None:
    """Run a test, in a thread, on a connection to the listener of a lone controller."""
    settings = {
        "process.roles": "controller",
        "node.id": "9",
        "listeners": "CONTROLLER://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory),
    }

    def ask(port: int) -> None:
        with Wire(f"127.0.0.1:{port}") as wire:
            test(wire)

    async def run() -> None:
        controller = BrokerServer(broker_config(settings))
        await controller.start()
        try:
            await asyncio.to_thread(ask, controller.listeners[0].port)
        finally:
            await controller.stop()

    asyncio.run(run())


def test_a_controller_answers_tools_without_a_broker(tmp_path: Path) -> None:
    def test(wire: Wire) -> None:
        announced = {api_key.api_key for api_key in wire.ask(ApiVersionsRequest(), 0).api_keys}
        assert {32, 44, 55, 60} <= announced
        cluster = wire.ask(DescribeClusterRequest(endpoint_type=CONTROLLERS))
        assert (cluster.error_code, cluster.controller_id) == (ErrorCode.NONE, 9)
        assert [(broker.broker_id, broker.host) for broker in cluster.brokers] == [(9, "127.0.0.1")]
        wrong = wire.ask(DescribeClusterRequest(endpoint_type=BROKERS))
        assert wrong.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        topic = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData()])
        [described] = wire.ask(DescribeQuorumRequest(topics=[topic])).topics
        assert described.partitions[0].leader_id == 9

    with_controller(tmp_path, test)


def test_a_controller_shows_the_settings_of_the_cluster(tmp_path: Path) -> None:
    def described(wire: Wire, name: str) -> dict[str, tuple[str | None, int]]:
        resource = DescribeConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name=name, configuration_keys=[NAME]
        )
        [result] = wire.ask(DescribeConfigsRequest(resources=[resource])).results
        assert result.error_code == ErrorCode.NONE, result.error_message
        return {config.name: (config.value, config.config_source) for config in result.configs}

    def test(wire: Wire) -> None:
        change = alter.AlterConfigsResource(
            resource_type=BROKER_RESOURCE,
            resource_name="",
            configs=[alter.AlterableConfig(name=NAME, value=VALUE)],
        )
        [altered] = wire.ask(alter.IncrementalAlterConfigsRequest(resources=[change])).responses
        assert altered.error_code == ErrorCode.NONE, altered.error_message
        for name in ("", "9"):
            assert described(wire, name) == {NAME: (VALUE, DYNAMIC_DEFAULT)}

    with_controller(tmp_path, test)
