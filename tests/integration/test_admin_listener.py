"""The admin listener of real brokers: health, readiness and metrics, with and without security."""

import http.client
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.parser import text_string_to_metric_families

from headrace import Admin, Producer, ScramUpsertion
from headrace.testing import Broker, Cluster
from headrace.testing.broker import Value
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.time_limits import scaled, wait_until

LISTENER: dict[str, Value] = {"admin.listener": "127.0.0.1:0"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


def ask(url: str, path: str, tls: ssl.SSLContext | None = None, **headers: str) -> Answer:
    """The answer of an admin listener."""
    place = urlsplit(url)
    assert place.hostname is not None
    connection: http.client.HTTPConnection
    if place.scheme == "https":
        connection = http.client.HTTPSConnection(
            place.hostname, place.port, timeout=scaled(10), context=tls
        )
    else:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=scaled(10))
    try:
        connection.request("GET", path, headers={name.title(): headers[name] for name in headers})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read().decode())
    finally:
        connection.close()


def metrics(url: str) -> dict[str, float]:
    """All samples of a broker, by name and values of labels."""
    answer = ask(url, "/metrics")
    assert answer.status == 200
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config=LISTENER) as broker:
        yield broker


def test_a_broker_that_serves_is_alive_and_ready(broker: Broker) -> None:
    assert ask(broker.admin_url, "/healthz")[::2] == (200, "alive: serving\n")
    assert ask(broker.admin_url, "/readyz")[::2] == (200, "ready\n")
    assert ask(broker.admin_url, "/other").status == 404


def test_metrics_are_what_prometheus_reads(broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, b"value", partition=number % 2)
        producer.flush()
    found = metrics(broker.admin_url)
    assert found[f"headrace_partition_log_end_offset {topic} 0"] == 5
    assert found["headrace_request_handler_seconds_count Produce PLAINTEXT"] >= 1
    assert found["headrace_active_controller"] == 1
    assert found["headrace_cluster_brokers active"] == 1
    assert found["headrace_node_state serving"] == 1
    assert found["headrace_connections_accepted_total PLAINTEXT"] >= 1
    assert found["headrace_under_replicated_partitions"] == 0
    assert found["headrace_process_resident_memory_bytes"] > 10_000_000
    assert found["headrace_process_open_files"] > 5
    assert found["headrace_log_lines_total info"] >= 1


def test_open_metrics_is_there_for_who_asks(broker: Broker) -> None:
    answer = ask(broker.admin_url, "/metrics", accept="application/openmetrics-text")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {
        family.name: family
        for family in open_metrics_parser.text_string_to_metric_families(answer.text)
    }
    assert families["headrace_connections_accepted"].type == "counter"


def test_topics_and_partitions_are_limited() -> None:
    limits: dict[str, Value] = {"metrics.topics.max": 2, "metrics.partitions.max": 3}
    with Broker(config=LISTENER | limits, in_process=True) as broker:
        for _ in range(3):
            broker.create_topic(partitions=2)
        found = metrics(broker.admin_url)
        shown = [name for name in found if name.startswith("headrace_partition_log_end_offset ")]
        assert len(shown) == 3
        assert len({name.split()[1] for name in shown}) == 2
        assert found["headrace_partitions"] == 6


def test_a_broker_that_cannot_join_is_alive_and_not_ready(tmp_path: Path) -> None:
    properties = {
        "admin.listener": "127.0.0.1:0",
        # Its controller is not there.
        "process.roles": "broker",
        "node.id": "2",
        "controller.quorum.voters": "1@127.0.0.1:1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path),
    }
    process = BrokerProcess(BrokerLog(), 30.0)
    process.launch(properties, None)
    try:
        address = tmp_path / "admin.address"
        wait_until(address.exists, 30, "the broker has recovered")
        url = address.read_text().strip()
        assert ask(url, "/healthz")[::2] == (200, "alive: joining\n")
        answer = ask(url, "/readyz")
        assert answer.status == 503
        assert answer.text.startswith("not ready: joining: waiting for the active controller")
        assert metrics(url)["headrace_node_state joining"] == 1
    finally:
        process.kill()


def test_readiness_follows_the_policy_of_its_broker() -> None:
    config: dict[str, Value] = {
        **LISTENER,
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 500,
    }
    with Cluster(3, config=config) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        first = cluster.broker(1)
        assert all(ask(member.admin_url, "/readyz").status == 200 for member in cluster.brokers)
        active = [
            member
            for member in cluster.brokers
            if metrics(member.admin_url)["headrace_active_controller"] == 1
        ]
        assert len(active) == 1
        lost = next(member for member in cluster.brokers if member not in (first, active[0]))
        lost.kill()
        wait_until(
            lambda: metrics(first.admin_url)["headrace_under_replicated_partitions"] >= 1,
            60,
            "a partition is under-replicated",
        )
        assert ask(first.admin_url, "/readyz").status == 200
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.alter_configs({"admin.readiness.checks": "under-replicated"}, broker=1)
        wait_until(
            lambda: ask(first.admin_url, "/readyz").status == 503, 30, "the broker is not ready"
        )
        text = ask(first.admin_url, "/readyz").text
        assert re.match(r"not ready: under-replicated: \d+ partitions led here have fewer", text)
        cluster_counts = metrics(active[0].admin_url)
        assert cluster_counts["headrace_cluster_brokers fenced"] == 1
        assert cluster_counts["headrace_cluster_topics"] >= 1


def basic(name: str, password: str) -> str:
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


def test_metrics_of_a_secured_broker_need_a_user_with_the_right() -> None:
    with Broker(config={"admin.listener": "https://127.0.0.1:0"}, security=True) as broker:
        options = broker.client_options
        tls = ssl.create_default_context(cafile=options["ssl_truststore_location"])
        url = broker.admin_url
        assert url.startswith("https://")
        assert ask(url, "/readyz", tls).status == 200
        refused = ask(url, "/metrics", tls)
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Basic realm=")
        admin = basic(options["sasl_username"], options["sasl_password"])
        shown = ask(url, "/metrics", tls, authorization=admin)
        assert shown.status == 200
        expiry = re.search(
            r"^headrace_certificate_expiry_\w+{listener=\S+} (.*)$", shown.text, re.M
        )
        assert expiry is not None
        assert float(expiry[1]) > time.time()
        for wrong in (
            basic(options["sasl_username"], "guess"),
            basic("nobody", "x"),
            "Basic !",
            "Bearer x",
            "Digest x",
        ):
            assert ask(url, "/metrics", tls, authorization=wrong).status == 401
        with Admin(**options) as client:
            client.alter_user_scram_credentials(
                [ScramUpsertion("prometheus", "SCRAM-SHA-512", "scraped")]
            )
        scraper = basic("prometheus", "scraped")
        assert ask(url, "/metrics", tls, authorization=scraper).status == 403
