"""Settings as Apache Kafka describes them, compared with what a broker of ours describes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS, kafka_settings
from headrace.options import Scope
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.testing import Broker
from tests.compat.apache import apache_kafka
from tests.integration.wire import Wire
from tools.kafka_broker import KafkaBroker

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32

KAFKA_SETTINGS = kafka_settings(Scope.BROKER)
# Described by ours alone: settings that Kafka does not have (a unit test lists them by name), and
# those that Kafka describes only where they are given.
OURS_ALONE = {
    name for name in BROKER_SETTINGS if name not in KAFKA_SETTINGS or KAFKA_SETTINGS[name].internal
}
# Settings of topics that Kafka does not have.
OURS_OF_TOPICS = set(TOPIC_SETTINGS) - set(kafka_settings(Scope.TOPIC))
# Kafka can change these while it runs; docs/compatibility.md says of each that headrace cannot.
NOT_WHILE_RUNNING = {
    name
    for name, setting in BROKER_SETTINGS.items()
    if name in KAFKA_SETTINGS and KAFKA_SETTINGS[name].dynamic and not setting.dynamic
}
# Kafka 4.1 and later set this for the whole cluster when they format it.
SET_BY_KAFKA = {"min.insync.replicas"}


class Seen(NamedTuple):
    value: str | None
    kind: int
    read_only: bool
    is_sensitive: bool
    source: int
    synonyms: tuple[tuple[str, int], ...]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with apache_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def ours() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def describe(broker: Any, kind: int, name: str) -> dict[str, Seen]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    with Wire(broker.bootstrap_servers) as wire:
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        [answer] = wire.ask(request, 4).results
    assert answer.error_code == 0, answer.error_message
    return {
        config.name: Seen(
            config.value,
            config.config_type,
            config.read_only,
            config.is_sensitive,
            config.config_source,
            tuple((synonym.name, synonym.source) for synonym in config.synonyms),
        )
        for config in answer.configs
    }


def test_a_broker_describes_every_setting_that_kafka_describes(
    kafka: KafkaBroker, ours: Broker
) -> None:
    theirs, found = describe(kafka, BROKER, "1"), describe(ours, BROKER, "1")
    assert set(found) - set(theirs) == OURS_ALONE
    assert set(theirs) - set(found) == set()
    for name, seen in theirs.items():
        assert (found[name].kind, found[name].is_sensitive) == (seen.kind, seen.is_sensitive), name
        assert KAFKA_SETTINGS[name].dynamic is not seen.read_only, name
        assert found[name].read_only is (seen.read_only or name in NOT_WHILE_RUNNING), name
        if name not in BROKER_SETTINGS:
            assert found[name] == seen, name


def test_a_topic_is_described_as_by_kafka(kafka: KafkaBroker, ours: Broker) -> None:
    theirs = describe(kafka, TOPIC, kafka.create_topic("described"))
    found = describe(ours, TOPIC, ours.create_topic())
    assert set(found) - OURS_OF_TOPICS == set(theirs) >= set(TOPIC_SETTINGS) - OURS_OF_TOPICS
    for name in set(theirs) - SET_BY_KAFKA:
        assert found[name] == theirs[name], name


@pytest.mark.parametrize("kind", [GROUP, CLIENT_METRICS])
def test_groups_and_metrics_are_described_as_by_kafka(
    kafka: KafkaBroker, ours: Broker, kind: int
) -> None:
    assert describe(ours, kind, "anyone") == describe(kafka, kind, "anyone")
