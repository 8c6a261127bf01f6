"""Nodes that log in at each other over TLS: brokers by SCRAM, controllers by PLAIN or SCRAM."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority
from headrace.testing.broker import DEFAULTS
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.ports import HOST, hold_port
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.security.sasl_nodes import (
    BOOTSTRAP,
    PASSWORDS,
    SCRAM_MODULE,
    START_S,
    STOP_S,
    plain_jaas,
)

ADMIN: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "admin",
    "sasl_password": PASSWORDS["admin"],
}


class Node(BrokerProcess):
    """A node of the cluster, with what it is started with."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.output = BrokerLog()
        super().__init__(self.output, STOP_S)
        self.properties = properties
        self.address = properties["listeners"].split(",")[0].partition("://")[2]

    def begin(self) -> None:
        self.launch(self.properties, None)


def nodes_of(
    directory: Path, ports: list[int], controller_mechanism: str, authority: CertificateAuthority
) -> list[Node]:
    jaas = f'{SCRAM_MODULE} required username="admin" password="{PASSWORDS["admin"]}";'
    voters = ",".join(f"{number + 1}@{HOST}:{ports[3 + number]}" for number in range(3))
    return [
        Node(
            {
                **DEFAULTS,
                "node.id": str(number + 1),
                "log.dirs": str(directory / str(number)),
                "listeners": f"INSIDE://{HOST}:{ports[number]},"
                f"CONTROL://{HOST}:{ports[3 + number]}",
                "listener.security.protocol.map": "INSIDE:SASL_SSL,CONTROL:SASL_SSL",
                "inter.broker.listener.name": "INSIDE",
                "controller.listener.names": "CONTROL",
                "controller.quorum.voters": voters,
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                "sasl.jaas.config": jaas,
                "scram.bootstrap.credentials": BOOTSTRAP,
                "listener.name.control.sasl.enabled.mechanisms": controller_mechanism,
                "sasl.mechanism.controller.protocol": controller_mechanism,
                "listener.name.control.plain.sasl.jaas.config": plain_jaas("admin"),
                "ssl.keystore.location": str(authority.directory / "node.pem"),
                "ssl.truststore.location": str(authority.certificate_path),
                "default.replication.factor": "3",
                "min.insync.replicas": "2",
                "offsets.topic.replication.factor": "3",
            }
        )
        for number in range(3)
    ]


@pytest.mark.parametrize("controller_mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_three_nodes_log_in_at_each_other(tmp_path: Path, controller_mechanism: str) -> None:
    with ExitStack() as stack:
        authority = CertificateAuthority.create(tmp_path / "certs")
        authority.issue_broker("node", LOOPBACK_HOSTS)
        ADMIN["ssl_truststore_location"] = str(authority.certificate_path)
        held = [hold_port() for _ in range(6)]
        nodes = nodes_of(tmp_path, [port.number for port in held], controller_mechanism, authority)
        for node in nodes:
            node.begin()
            stack.callback(lambda node: node.kill() if node.is_running else None, node)
        for node in nodes:
            node.wait_until_ready(START_S)
        servers = ",".join(node.address for node in nodes)
        with headrace.Admin(bootstrap_servers=servers, **ADMIN) as admin:
            admin.create_topics([headrace.NewTopic("orders", 3, 3)])
            send(servers, 30)
            # The followers fetch from their leaders, so they all log in at each other.
            wait_until(lambda: all_in_sync(admin), 30, "all replicas in sync")
            nodes[2].kill()
            send(servers, 30)
            nodes[2].begin()
            nodes[2].wait_until_ready(START_S)
            wait_until(lambda: all_in_sync(admin), 30, "all replicas in sync")
        for node in nodes:
            node.request_stop()
        for node in nodes:
            node.wait_until_stopped()
            assert "Traceback" not in node.output.text
            assert PASSWORDS["admin"] not in node.output.text


def send(servers: str, count: int) -> None:
    with headrace.Producer(bootstrap_servers=servers, **ADMIN) as producer:
        futures = [producer.send("orders", b"%d" % number) for number in range(count)]
        for future in futures:
            future.result(scaled(30))


def all_in_sync(admin: headrace.Admin) -> bool:
    topic = admin.describe_topics(["orders"])["orders"]
    return all(len(partition.isr) == 3 for partition in topic.partitions)
