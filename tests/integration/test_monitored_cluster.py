"""Three brokers as operators have them: scraped by a real Prometheus, and behind a load balancer.

The load balancer is a TCP proxy that asks `/readyz` before it passes a connection on.
"""

import json
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from headrace import Consumer, Producer
from headrace.testing import Cluster
from headrace.testing.broker import Value
from headrace.testing.cluster import ClusterBroker
from headrace.testing.ports import hold_port
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.test_admin_listener import ask

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "headrace.rules.yml"
CONFIG: dict[str, Value] = {
    "admin.listener": "127.0.0.1:0",
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
}


class Prometheus:
    """A Prometheus that scrapes brokers every second, and evaluates the alerts of deploy/."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        rules = yaml.safe_load(RULES.read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                # What is waited for in production is not waited for here.
                rule["for"] = "1s"
        (directory / "rules.yml").write_text(yaml.safe_dump(rules))
        self._targets = directory / "targets.json"
        self._cluster = cluster
        self.show_targets()
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {
                    "job_name": "headrace",
                    "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}],
                }
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        program = shutil.which("prometheus")
        assert program is not None, "install Prometheus: apt install prometheus"
        self._port = hold_port()
        self.url = f"http://127.0.0.1:{self._port.number}"
        self._log = open(directory / "prometheus.log", "wb")  # noqa: SIM115  # Closed at the end.
        self._process = subprocess.Popen(
            [
                program,
                "--config.file=prometheus.yml",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self._port.number}",
            ],
            cwd=directory,
            stdout=self._log,
            stderr=self._log,
        )

    def show_targets(self) -> None:
        """Tell it where the admin listeners are: a broker that starts again has a new port."""
        targets = [
            {
                "targets": [urlsplit(broker.admin_url).netloc],
                "labels": {"broker": str(broker.node_id)},
            }
            for broker in self._cluster.brokers
        ]
        self._targets.write_text(json.dumps(targets))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector of an expression now; empty while it does not answer."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=5) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            return []

    def firing(self, alert: str) -> list[str]:
        """The brokers of an alert that fires."""
        found = self.query(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')
        return [sample["metric"].get("broker", "") for sample in found]

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(scaled(20))
        self._log.close()


class LoadBalancer:
    """A TCP proxy that passes each connection on to a broker that is ready, in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._brokers = cycle(cluster.brokers)
        self._count = len(cluster.brokers)
        # The brokers to which connections were passed on.
        self.chosen: list[int] = []
        balancer = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                balancer.pass_on(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
        self._server.daemon_threads = True
        self.address = "{}:{}".format(*self._server.server_address)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def pass_on(self, client: socket.socket) -> None:
        """Connect a client to a ready broker; without any its connection is closed."""
        for broker in islice(self._brokers, self._count):
            try:
                if ask(broker.admin_url, "/readyz").status != 200:
                    continue
                with socket.create_connection((broker.host, broker.port)) as server:
                    self.chosen.append(broker.node_id)
                    back = threading.Thread(target=copy, args=(server, client), daemon=True)
                    back.start()
                    copy(client, server)
                    back.join(scaled(10))
                return
            except OSError:
                continue

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until an end is gone."""
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=CONFIG) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        yield cluster


def test_the_loss_of_a_broker_fires_alerts_that_clear_when_it_is_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    prometheus = Prometheus(tmp_path, cluster)
    try:
        wait_until(
            lambda: len(prometheus.query('up{job="headrace"} == 1')) == 3, 30, "3 are scraped"
        )
        assert prometheus.query("sum(headrace_active_controller)")[0]["value"][1] == "1"
        lost = cluster.broker(cluster.leader_of("orders"))
        lost.kill()
        wait_until(
            lambda: prometheus.firing("HeadraceBrokerDown") == [str(lost.node_id)],
            30,
            "the alert on the lost broker fires",
        )
        wait_until(
            lambda: bool(prometheus.firing("HeadraceUnderReplicated")),
            30,
            "the replicas are missed",
        )
        lost.start()
        prometheus.show_targets()
        wait_until(lambda: not prometheus.firing("HeadraceBrokerDown"), 60, "it clears")
        wait_until(lambda: not prometheus.firing("HeadraceUnderReplicated"), 60, "it clears, too")
        assert len(prometheus.query('up{job="headrace"} == 1')) == 3
    finally:
        prometheus.close()


def test_a_client_bootstraps_through_a_load_balancer_while_a_broker_is_down(
    cluster: Cluster,
) -> None:
    balancer = LoadBalancer(cluster)
    try:
        with Producer(bootstrap_servers=balancer.address) as producer:
            for number in range(3):
                producer.send("orders", b"before", partition=number)
            producer.flush()
        lost = cluster.broker(cluster.leader_of("orders"))
        lost.kill()
        before = len(balancer.chosen)
        # Three times: whichever the balancer would choose next is the lost one once.
        for _ in range(3):
            with Producer(bootstrap_servers=balancer.address) as producer:
                for number in range(3):
                    producer.send("orders", b"after", partition=number)
                producer.flush()
        chosen = balancer.chosen[before:]
        assert len(chosen) >= 3
        assert lost.node_id not in chosen
        with Consumer(
            bootstrap_servers=balancer.address, group_id="billing", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["orders"])
            values: list[bytes | None] = []

            def are_read() -> bool:
                values.extend(record.value for record in consumer.poll(1.0))
                return len(values) >= 12

            wait_until(are_read, 60, "all records are read")
        assert values.count(b"before") == 3
        assert values.count(b"after") == 9
        lost.start()
        wait_until(
            lambda: ask(lost.admin_url, "/readyz").status == 200, 60, "the broker is ready again"
        )
    finally:
        balancer.close()


def health_of(broker: ClusterBroker) -> tuple[int, str]:
    """The status of `/readyz` and the text of `/healthz`; 0 and "" if it does not listen."""
    try:
        ready, alive = ask(broker.admin_url, "/readyz"), ask(broker.admin_url, "/healthz")
    except OSError:
        return 0, ""
    return ready.status, alive.text.strip()


def test_a_load_balancer_passes_nothing_to_a_broker_that_is_alive_and_not_ready() -> None:
    def brokers_of_new_clients() -> set[int]:
        before = len(balancer.chosen)
        # Twice as many as brokers: the balancer comes to each of them.
        for _ in range(6):
            with Producer(bootstrap_servers=balancer.address) as producer:
                producer.send("orders", b"tea").result(scaled(30))
        return set(balancer.chosen[before:])

    with Cluster(3, config=CONFIG, proxied=True) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=3)
        every = {broker.node_id for broker in cluster.brokers}
        alone = next(
            broker for broker in cluster.brokers if broker.node_id != cluster.controller_id
        )
        others = every - {alone.node_id}
        balancer = LoadBalancer(cluster)
        try:
            assert brokers_of_new_clients() == every

            cluster.isolate(alone.node_id)
            wait_until(lambda: health_of(alone) == (503, "alive: fenced"), 60, "it is fenced")
            assert brokers_of_new_clients() == others

            alone.kill()
            alone.launch()
            wait_until(lambda: health_of(alone) == (503, "alive: joining"), 60, "it cannot join")
            assert brokers_of_new_clients() == others

            cluster.heal()
            alone.wait_until_ready(scaled(60))
            wait_until(lambda: health_of(alone) == (200, "alive: serving"), 60, "it serves again")
            assert brokers_of_new_clients() == every
        finally:
            balancer.close()
