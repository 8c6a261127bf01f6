"""Settings of a running broker, of every kind of resource."""

from collections.abc import Iterator

import pytest

import headrace
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.integration.wire import Wire
from tests.support import BrokerProcess


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> Iterator[headrace.Admin]:
    with headrace.Admin(bootstrap_servers=shared_broker.address) as admin:
        yield admin


def test_settings_of_groups_and_metrics_are_stored_and_listed(admin: headrace.Admin) -> None:
    admin.alter_configs({"consumer.session.timeout.ms": 50_000}, group="readers")
    admin.alter_configs({"interval.ms": 1000, "metrics": "org.a"}, client_metrics="java")
    timeout = admin.describe_configs(group="readers")["consumer.session.timeout.ms"]
    assert (timeout.value, timeout.source, timeout.has_effect) == ("50000", "group_config", True)
    interval = admin.describe_configs(client_metrics="java")["interval.ms"]
    assert (interval.value, interval.source) == ("1000", "client_metrics_config")
    listed = admin.list_config_resources(["group", "client_metrics", "broker"])
    assert listed == {"group": ["readers"], "client_metrics": ["java"], "broker": ["1"]}
    with pytest.raises(headrace.KafkaError, match="at least group"):
        admin.alter_configs({"consumer.session.timeout.ms": 1}, group="readers")


def test_the_first_version_of_the_list_is_that_of_client_metrics(
    admin: headrace.Admin, shared_broker: BrokerProcess
) -> None:
    admin.alter_configs({"interval.ms": 1000}, client_metrics="listed")
    with Wire(shared_broker.address) as wire:
        first = wire.ask(ListConfigResourcesRequest(), 0)
        unknown = wire.ask(ListConfigResourcesRequest(resource_types=[64]), 1)
    assert "listed" in [config_resource.resource_name for config_resource in first.config_resources]
    assert {config_resource.resource_type for config_resource in first.config_resources} == {16}
    assert (unknown.error_code, unknown.config_resources) == (35, [])


def test_log_levels_change_while_the_broker_runs(admin: headrace.Admin) -> None:
    name = "headrace.net.server"
    before = admin.describe_configs(broker_logger=1)
    admin.alter_configs({name: "ERROR"}, broker_logger=1)
    level = admin.describe_configs(broker_logger=1)[name]
    assert (level.value, level.source) == ("ERROR", "dynamic_broker_logger_config")
    admin.alter_configs({name: None}, broker_logger=1)
    assert admin.describe_configs(broker_logger=1) == before


def test_accepted_settings_are_altered_and_described(admin: headrace.Admin) -> None:
    admin.alter_configs({"num.io.threads": 16}, broker=1)
    threads = admin.describe_configs(broker=1)["num.io.threads"]
    assert (threads.value, threads.source, threads.read_only, threads.has_effect) == (
        "16",
        "dynamic_broker_config",
        False,
        False,
    )
    admin.create_topic("tuned", configs={"preallocate": "true", "cleanup.policy": ""})
    described = admin.describe_configs(topic="tuned")
    assert described["preallocate"].value == "true"
    assert described["cleanup.policy"].value == ""
