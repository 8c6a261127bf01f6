"""Settings of Kafka that have no effect here: accepted, described, and refused where it matters."""

import subprocess
import sys
from dataclasses import replace

import pytest

from headrace.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigSource,
    accepted_settings,
    accepted_value,
    broker_config,
    describe_broker,
    describe_broker_defaults,
    describe_client_metrics,
    describe_group,
    describe_topic,
    kafka_settings,
    read_properties,
    topic_config,
)
from headrace.config.accepted import NO_EFFECT
from headrace.errors import ConfigError
from headrace.options import ClassName, Option, Password, Scope, ValueType

HONOURED = {Scope.BROKER: BROKER_SETTINGS, Scope.TOPIC: TOPIC_SETTINGS}

# Settings of our own, under names that Kafka does not have.
OURS = {
    "admin.listener",
    "admin.readiness.checks",
    "audit.log.decisions",
    "audit.log.max.bytes",
    "audit.log.max.per.second",
    "audit.log.path",
    "cluster.id",
    "connections.first.request.timeout.ms",
    "encryption.data.key.max.age.ms",
    "encryption.enable",
    "encryption.key.command.timeout.ms",
    "encryption.key.id",
    "encryption.key.refresh.ms",
    "encryption.key.source",
    "leader.imbalance.per.broker.percentage",
    "log.dir.reserved.bytes",
    "log.dir.usage.warn.percent",
    "log.format",
    "log.repeated.lines.max",
    "log.scrub.bytes.per.second",
    "log.scrub.interval.ms",
    "max.in.flight.requests.per.connection",
    "metrics.clients.max",
    "metrics.groups.max",
    "metrics.partitions.max",
    "metrics.topics.max",
    "queued.max.response.bytes",
    "quota.consumer.default",
    "quota.producer.default",
    "request.receive.timeout.ms",
    "sasl.oauthbearer.groups.claim.name",
    "sasl.plain.scram.credentials",
    "sasl.server.authentication.timeout.ms",
    "scram.bootstrap.credentials",
    "ssl.handshake.timeout.ms",
    "ssl.reload.interval.ms",
    "unclean.recovery.timeout.ms",
}

# The settings of config/server.properties, broker.properties and controller.properties of Kafka
# 4.3, as they come, but for addresses and directories.
COMMON = """
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
    SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
controller.quorum.bootstrap.servers=localhost:9093
"""
SERVER = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
log.dirs=kraft-combined-logs
"""
BROKER = """
process.roles=broker
node.id=2
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
log.dirs=kraft-broker-logs
"""
CONTROLLER = """
process.roles=controller
node.id=1
listeners=CONTROLLER://:9093
advertised.listeners=CONTROLLER://localhost:9093
log.dirs=kraft-controller-logs
"""


def refusal(properties: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        broker_config(properties)
    return str(caught.value)


@pytest.mark.parametrize(
    "text", [SERVER, BROKER, CONTROLLER], ids=["server", "broker", "controller"]
)
def test_the_properties_files_that_come_with_kafka_are_accepted(text: str) -> None:
    config = broker_config(read_properties(text + COMMON))
    assert set(config.without_effect) == {
        "num.network.threads",
        "num.io.threads",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "num.recovery.threads.per.data.dir",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    }


@pytest.mark.parametrize(
    ("servers", "is_alone"),
    [
        ("localhost:9093", True),
        ("127.0.0.1:9093,LOCALHOST:9093,[::1]:9093", True),
        ("localhost:9092", False),
        ("localhost:9093,other:9093", False),
        ("other:9093", False),
    ],
)
def test_a_controller_that_bootstraps_from_itself_is_alone(servers: str, is_alone: bool) -> None:
    properties = read_properties(SERVER + COMMON)
    properties["controller.quorum.bootstrap.servers"] = servers
    assert (broker_config(properties).controller_quorum_bootstrap_servers == ()) is is_alone


@pytest.mark.parametrize("scope", Scope)
def test_every_row_is_read_and_its_default_is_a_value_it_accepts(scope: Scope) -> None:
    for setting in kafka_settings(scope).values():
        assert setting.scope is scope
        if setting.default is not None:
            plain = replace(setting, convert=None)
            assert plain.parse(plain.format(setting.default) or "") == setting.default


@pytest.mark.parametrize("scope", Scope)
def test_every_accepted_setting_says_what_it_means_and_that_it_has_no_effect(scope: Scope) -> None:
    for setting in accepted_settings(scope, HONOURED.get(scope, {})).values():
        has_effect = scope is Scope.GROUP and setting.name.startswith("consumer.")
        assert setting.doc.startswith(f"{NO_EFFECT} ") != has_effect, setting.name
        assert setting.doc.endswith("."), setting.name


@pytest.mark.parametrize("scope", HONOURED)
def test_every_honoured_setting_is_kafkas_of_the_same_type(scope: Scope) -> None:
    known = kafka_settings(scope)
    assert {name for name in HONOURED[scope] if name not in known} <= OURS
    for name, setting in HONOURED[scope].items():
        if name not in OURS:
            assert setting.type.config_type is known[name].type.config_type, name
            assert known[name].dynamic >= setting.dynamic, name


def test_the_number_of_settings_is_that_of_kafka_4_3() -> None:
    # 360 of KafkaConfig, 3 rates that only change while it runs, 2 of its authorizer.
    assert len(kafka_settings(Scope.BROKER)) == 360 + 3 + 2
    assert len(kafka_settings(Scope.TOPIC)) == 34
    assert len(kafka_settings(Scope.GROUP)) == 17


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num.io.threads", "many", "num.io.threads cannot be 'many': it must be a whole number"),
        ("num.io.threads", "0", "num.io.threads cannot be '0': it must be a whole number of at"),
        ("remote.log.manager.task.retry.jitter", "0.6", "it must be a number from 0.0 to 0.5"),
        ("log.preallocate", "yes", "log.preallocate cannot be 'yes': it must be true or false"),
        ("num.io.thread", "8", "unknown setting 'num.io.thread'; did you mean num.io.threads?"),
        ("zookeeper.connect", "localhost:2181", "unknown setting 'zookeeper.connect'"),
        ("listener.name.a.max.connection", "8", "'max.connection'; did you mean max.connections?"),
        ("listener.name.a.max.connections", "x", "listener.name.a.max.connections cannot be 'x'"),
    ],
)
def test_a_value_or_a_name_that_kafka_has_not_is_refused(
    name: str, value: str, reason: str
) -> None:
    assert reason in refusal({name: value})


def test_a_secret_is_not_told_in_a_refusal() -> None:
    text = refusal({"sasl.jaas.config": "org.example required password=hunter2;"})
    assert "(hidden)" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("create.topic.policy.class.name", "org.example.Policy"),
        ("alter.config.policy.class.name", "org.example.Policy"),
        ("client.quota.callback.class", "org.example.Quotas"),
        ("config.providers", "env"),
        ("remote.log.storage.system.enable", "true"),
    ],
)
def test_what_others_rely_on_is_refused_where_it_is_not_done(name: str, value: str) -> None:
    assert refusal({name: value}).startswith(f"{name} cannot be {value!r}: headrace")


@pytest.mark.parametrize(
    "properties",
    [
        {"ssl.protocol": "TLSv1.3", "ssl.provider": "a"},
        {"listener.name.plaintext.ssl.protocol": "a", "metric.reporters": ""},
        {"rsm.config.bucket": "a", "rlmm.config.partitions": "5", "early.start.listeners": "A"},
    ],
)
def test_what_asks_for_nothing_is_accepted(properties: dict[str, str]) -> None:
    assert broker_config(properties).without_effect == tuple(properties)


def test_broker_id_is_another_name_of_node_id() -> None:
    assert broker_config({"broker.id": "7"}).node_id == 7
    assert broker_config({"broker.id": "-1", "node.id": "3"}).node_id == 3
    assert broker_config({"node.id": "3"}).broker_id == 3
    assert refusal({"broker.id": "1", "node.id": "2"}).startswith("node.id 2 and broker.id 1 are")


def test_accepted_settings_are_described_with_their_values_and_sources() -> None:
    broker = broker_config({"num.io.threads": "9", "queued.max.requests": "10"}).with_overrides(
        {"num.io.threads": "11"}, {"num.io.threads": "12", "log.preallocate": "true"}
    )
    described = describe_broker(broker)
    assert [tuple(synonym) for synonym in described["num.io.threads"].synonyms] == [
        ("num.io.threads", "11", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("num.io.threads", "12", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("num.io.threads", "9", ConfigSource.STATIC_BROKER_CONFIG),
        ("num.io.threads", "8", ConfigSource.DEFAULT_CONFIG),
    ]
    assert described["num.io.threads"].value == "11"
    assert described["queued.max.requests"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert described["background.threads"].value == "10"
    assert described["background.threads"].is_default
    assert accepted_value(broker, "num.io.threads") == 11
    assert describe_topic(broker, {})["preallocate"].value == "true"
    assert describe_topic(broker, {"preallocate": "false"})["preallocate"].synonyms[1:] == (
        ("log.preallocate", "true", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.preallocate", "false", ConfigSource.DEFAULT_CONFIG),
    )


def test_internal_and_prefixed_settings_are_described_where_they_are_given() -> None:
    names = ("log.initial.task.delay.ms", "listener.name.plaintext.ssl.keystore.password")
    assert not set(names) & set(describe_broker(BrokerConfig()))
    given = {"log.initial.task.delay.ms": "5", "listener.name.plaintext.ssl.keystore.password": "x"}
    described = describe_broker(broker_config(given))
    assert described["log.initial.task.delay.ms"].value == "5"
    assert described["listener.name.plaintext.ssl.keystore.password"].setting.sensitive


def test_the_clusters_defaults_are_described_by_themselves() -> None:
    [(name, described)] = describe_broker_defaults({"log.segment.bytes": "2000000"}).items()
    assert (name, described.value) == ("log.segment.bytes", "2000000")
    assert described.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert len(described.synonyms) == 1


def test_a_groups_settings_follow_the_brokers() -> None:
    broker = broker_config({"group.consumer.session.timeout.ms": "50000"})
    described = describe_group(broker, {"share.isolation.level": "read_committed"})
    assert described["consumer.session.timeout.ms"].value == "50000"
    assert described["consumer.session.timeout.ms"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert [tuple(synonym) for synonym in described["share.isolation.level"].synonyms] == [
        ("share.isolation.level", "read_committed", ConfigSource.GROUP_CONFIG),
        ("share.isolation.level", "read_uncommitted", ConfigSource.DEFAULT_CONFIG),
    ]


def test_a_subscription_to_metrics_has_defaults_without_synonyms() -> None:
    described = describe_client_metrics({"match": "client_id=a"})
    assert described["match"].source is ConfigSource.CLIENT_METRICS_CONFIG
    assert (described["interval.ms"].value, described["interval.ms"].synonyms) == ("300000", ())


def test_a_topic_takes_accepted_settings_and_none_of_their_values() -> None:
    given = {"preallocate": "true", "local.retention.ms": "5", "remote.log.copy.disable": "true"}
    assert topic_config(BrokerConfig(), given) == topic_config(BrokerConfig(), {})


def test_a_topic_may_have_no_cleanup_policy() -> None:
    assert topic_config(BrokerConfig(), {"cleanup.policy": ""}).cleanup_policy == ()
    assert describe_topic(BrokerConfig(), {"cleanup.policy": ""})["cleanup.policy"].value == ""


@pytest.mark.parametrize("values", [ClassName(), Password()])
def test_names_of_classes_and_passwords_are_text(values: ValueType) -> None:
    setting = Option(name="a", type=values, default=None, doc="", scope=Scope.BROKER)
    assert setting.parse("x") == "x"
    assert values.allowed == "text"


def test_a_broker_that_gets_only_what_it_honours_does_not_read_the_rows() -> None:
    code = (
        "import sys; from headrace.config import broker_config, topic_config\n"
        "topic_config(broker_config({'node.id': '1', 'num.partitions': '3'}), {'flush.ms': '1'})\n"
        "assert not [one for one in sys.modules if '.kafka_settings' in one]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
