"""Metrics of three brokers that replicate, after traffic of known numbers: what is shown, and what
it adds up to.
"""

from collections.abc import Iterator

import confluent_kafka
import confluent_kafka.admin
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace import Admin, Consumer, Producer, TopicPartition
from headrace.metrics import catalog
from headrace.metrics.registry import Kind
from headrace.testing import Cluster
from headrace.testing.broker import Value
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.test_admin_listener import ask

CONFIG: dict[str, Value] = {
    "admin.listener": "127.0.0.1:0",
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
}
RECORDS = 60
VALUE = bytes(100)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CONFIG) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        yield cluster


class Scrapes:
    """The metrics of all brokers that answer, added up by name and labels."""

    def __init__(self, cluster: Cluster) -> None:
        self.families: list[Metric] = []
        for broker in cluster.brokers:
            if broker.answers:
                answer = ask(broker.admin_url, "/metrics")
                assert answer.status == 200
                self.families += text_string_to_metric_families(answer.text)

    def sum(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == f"headrace_{name}" and labels.items() <= sample.labels.items()
        )


def shown(cluster: Cluster, name: str, **labels: str) -> float:
    return Scrapes(cluster).sum(name, **labels)


def test_produce_requests_that_wait_for_followers_are_counted(cluster: Cluster) -> None:
    topic = cluster.create_topic(partitions=1, replication_factor=3)
    leader = cluster.leader_of(topic)
    follower = next(broker for broker in cluster.brokers if broker.node_id != leader)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        producer.send(topic, VALUE).result(scaled(30))
        follower.pause()
        try:
            sent = producer.send(topic, VALUE)
            wait_until(
                lambda: shown(cluster, "produces_waiting") >= 1,
                30,
                "a request waits",
            )
            assert not sent.done()
        finally:
            follower.resume()
        sent.result(scaled(60))
    wait_until(lambda: shown(cluster, "produces_waiting") == 0, 30, "no request waits")


def test_traffic_of_known_numbers_is_counted(cluster: Cluster) -> None:
    topic = "orders"
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0) as producer:
        for number in range(RECORDS):
            producer.send(topic, VALUE, partition=number % 3, timestamp_ms=1_000_000_000_000)
        producer.flush()
        sent_bytes = producer.metrics()["outgoing-byte-total"]
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        seen = 0
        while seen < RECORDS:
            seen += len(consumer.poll(scaled(10)))
        # 5 of the 20 records of each partition are left.
        consumer.commit({TopicPartition(topic, index): 15 for index in range(3)})
        scrapes = Scrapes(cluster)
        assert scrapes.sum("group_members", group="billing") == 1
        assert scrapes.sum("group_rebalances_total", group="billing") >= 1
        assert scrapes.sum("group_commits_total", group="billing") == 3
    assert scrapes.sum("topic_messages_in_total", topic=topic) == RECORDS
    assert scrapes.sum("topic_bytes_in_total", topic=topic) == sent_bytes
    assert scrapes.sum("topic_messages_out_total", topic=topic) == RECORDS
    assert scrapes.sum("topic_bytes_out_total", topic=topic) == sent_bytes
    # Each record goes to two followers, and is read from its leader for that.
    assert scrapes.sum("topic_replication_bytes_in_total", topic=topic) == 2 * sent_bytes
    assert scrapes.sum("topic_replication_bytes_out_total", topic=topic) == 2 * sent_bytes
    assert scrapes.sum("active_controller") == 1
    # Replicas are counted anew every few seconds at most.
    wait_until(
        lambda: shown(cluster, "log_directory_log_bytes") > 3 * sent_bytes, 30, "sizes are known"
    )
    wait_until(
        lambda: shown(cluster, "leaders") == shown(cluster, "cluster_partitions"),
        30,
        "every partition has a leader",
    )
    wait_until(
        lambda: shown(cluster, "group_lag_records", group="billing") == 15, 30, "the lag is known"
    )
    oldest = Scrapes(cluster).sum("group_lag_seconds", group="billing", partition="2")
    # The records say that they are of September 2001.
    assert oldest > 24 * 365 * 86_400
    produced = Scrapes(cluster)
    requests = produced.sum("request_seconds_count", api="Produce")
    assert requests == produced.sum("request_queue_seconds_count", api="Produce") >= 3
    assert produced.sum("request_waiting_seconds_count", api="Produce") == requests


def test_refused_batches_and_fetches_are_counted(cluster: Cluster) -> None:
    topic = cluster.create_topic("small", partitions=1, max_message_bytes=200)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, bytes(1000))
    producer.flush(scaled(10))
    assert shown(cluster, "topic_produce_errors_total", topic=topic) == 1
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 1000)

        def is_counted() -> bool:
            consumer.poll(0.1)
            return shown(cluster, "topic_fetch_errors_total", topic=topic) >= 1

        wait_until(is_counted, 30, "the fetch beyond the end of the log is counted")


def test_a_client_of_librdkafka_pushes_its_metrics(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_configs(
            {"metrics": "org.apache.kafka.producer.", "interval.ms": 500}, client_metrics="all"
        )
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "client.id": "pushing",
            "enable.metrics.push": True,
        }
    )
    topic = cluster.create_topic("pushed", partitions=1)

    def is_shown() -> bool:
        producer.produce(topic, b"value")
        producer.poll(0.1)
        return shown(cluster, "client_gauge", client_id="pushing") > 0

    wait_until(is_shown, 60, "the metrics of the client are shown")
    scrapes = Scrapes(cluster)
    assert scrapes.sum("telemetry_clients") == 1
    assert scrapes.sum("telemetry_refused_total") == 0
    producer.flush(scaled(10))


def test_the_loss_of_a_broker_is_counted_by_the_others(cluster: Cluster) -> None:
    leaders_lost = cluster.leader_of("orders")
    cluster.broker(leaders_lost).kill()
    wait_until(lambda: shown(cluster, "under_replicated_partitions") >= 3, 60, "the ISRs shrank")
    lost = Scrapes(cluster)
    # Each of the three partitions has lost one of its replicas, and the lost broker counts no more.
    assert lost.sum("isr_shrinks_total") >= 3
    assert lost.sum("leader_elections_total") > 0
    assert lost.sum("cluster_brokers", state="fenced") == 1
    cluster.broker(leaders_lost).start()
    wait_until(lambda: shown(cluster, "under_replicated_partitions") == 0, 60, "the ISRs are whole")
    assert shown(cluster, "isr_expands_total") >= 3


# Those of listeners with TLS or SASL, and those that begin with their first event.
NOT_SHOWN_YET = {
    catalog.TLS_FAILURES,
    catalog.AUTHENTICATIONS,
    catalog.AUTHENTICATION_FAILURES,
    catalog.AUDIT_DROPPED,
    catalog.REQUEST_ERRORS,
}


def test_every_declared_metric_is_shown(cluster: Cluster) -> None:
    names = {family.name for family in Scrapes(cluster).families}
    missing = [
        family.name
        for family in catalog.ALL
        if family not in NOT_SHOWN_YET
        # The parser takes the suffix of counters away.
        and family.name.removesuffix("_total" if family.kind is Kind.COUNTER else "-") not in names
    ]
    assert missing == []
