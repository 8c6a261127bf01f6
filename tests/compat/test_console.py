"""The console of an Apache Kafka broker: every page, and changes by its forms."""

from pathlib import Path

import pytest

from headrace import Admin, Producer, TopicPartition
from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterConnection
from tests.compat.apache import apache_kafka
from tests.integration.console.watched_pages import RunningConsole


@pytest.mark.timeout(300)
def test_apache_kafka_is_shown_and_changed(tmp_path: Path) -> None:
    with apache_kafka(tmp_path / "kafka") as kafka:
        address = kafka.bootstrap_servers
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topic("orders", 3, 1)
            with Producer(bootstrap_servers=address) as producer:
                producer.send("orders", "one espresso", partition=0)
            admin.alter_group_offsets("readers", {TopicPartition("orders", 0): 0})
            settings = ConsoleSettings(ClusterConnection(address), interval_s=0.5)
            with RunningConsole(settings) as console:
                console.wait_for("/groups", "readers")
                console.wait_for("/brokers", "Leader 1 in epoch")
                viewer = console.viewer()
                for path, text in (
                    ("/", "All is well"),
                    ("/brokers/1", "Data directories"),
                    ("/topics", "orders good 3 1"),
                    ("/topics/orders", "Partitions"),
                    ("/group?name=readers", "orders -0 0 1 1"),
                    ("/transactions?all=1&hanging=1", "None in"),
                    ("/users", "No users of SCRAM"),
                    ("/acls", "no authorizer"),
                    ("/roles", "Apache Kafka has none"),
                    ("/quotas", "No quotas"),
                ):
                    answer = viewer.get(path)
                    assert (answer.status, text in answer.words) == (200, True), answer.words
                assert "was created" in viewer.submit("/new-topic", {"name": "made"}).words
                setting = {"setting": "retention.ms", "action": "set", "value": "90000"}
                viewer.submit("/topics/made/settings", setting)
                assert admin.describe_configs(topic="made")["retention.ms"].value == "90000"
                viewer.submit("/group/reset?name=readers", {"target": "latest", "action": "commit"})
                committed = admin.group_offsets("readers")
                assert committed[TopicPartition("orders", 0)].offset == 1
