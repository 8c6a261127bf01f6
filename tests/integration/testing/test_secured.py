"""Secured brokers of tests: what connects, what does not, and that no secret is in the log."""

from pathlib import Path

import confluent_kafka
import psutil
import pytest
from confluent_kafka.admin import AdminClient

import headrace
from headrace.testing import Broker, Cluster
from headrace.testing.time_limits import scaled
from tests.integration.commands import Cli


def test_a_secured_broker_serves_its_user_and_nobody_else() -> None:
    with Broker(security=True, proxied=True) as broker:
        topic = broker.create_topic(partitions=2)
        config = broker.client_config
        password = config["sasl.password"]
        with headrace.Producer(**broker.client_options) as producer:
            assert producer.send(topic, b"ours").result(scaled(20)).offset == 0
        theirs = confluent_kafka.Producer(config)
        theirs.produce(topic, b"librdkafka")
        assert theirs.flush(scaled(20)) == 0
        assert topic in AdminClient({**config}).list_topics(timeout=scaled(20)).topics
        with (
            pytest.raises(headrace.HeadraceError),
            headrace.Admin(
                **{**broker.client_options, "sasl_password": "guessed"}, request_timeout_ms=10_000
            ) as admin,
        ):
            admin.list_topics()
        arguments = " ".join(psutil.Process(broker.pid).cmdline())
        assert password not in arguments + broker.log + repr(broker)


def test_a_secured_broker_on_a_thread_keeps_its_users_through_a_restart(tmp_path: Path) -> None:
    for expected in (0, 1):
        with (
            Broker(security=True, in_process=True, data_dir=tmp_path) as broker,
            headrace.Producer(**broker.client_options) as producer,
        ):
            assert producer.send("kept", b"x").result(scaled(20)).offset == expected


def test_a_plain_broker_has_the_same_options_without_security() -> None:
    with Broker(in_process=True) as broker:
        assert broker.client_config == {"bootstrap.servers": broker.bootstrap_servers}
        with headrace.Admin(**broker.client_options) as admin:
            assert admin.list_topics() == {}


def test_the_brokers_of_a_secured_cluster_replicate_and_replace_each_other(tmp_path: Path) -> None:
    with Cluster(brokers=3, security=True) as cluster:
        topic = cluster.create_topic()
        leader = cluster.leader_of(topic)
        with headrace.Producer(**cluster.client_options) as producer:
            producer.send(topic, b"before").result(scaled(30))
            cluster.broker(leader).kill()
            cluster.wait_for_leader(topic, other_than=[leader])
            assert producer.send(topic, b"after").result(scaled(60)).offset == 1
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{k}={v}\n" for k, v in cluster.client_config.items()))
        assert topic in Cli("").text("topics", "list", "--client-config", str(file))
