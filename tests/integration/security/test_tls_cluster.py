"""A cluster of three nodes with TLS on every listener, and clients of all kinds."""

from collections.abc import Iterator

import pytest

import headrace
from headrace.testing.time_limits import scaled
from tests.integration.security.tls_brokers import TLS_CLIENTS, TlsBrokers, tls_lines


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBrokers]:
    with TlsBrokers(tmp_path_factory.mktemp("cluster"), 3) as brokers:
        with brokers.admin() as admin:
            for name in (*TLS_CLIENTS, "killed"):
                admin.create_topic(name, partitions=3, replication_factor=3)
        yield brokers


@pytest.mark.parametrize("name", TLS_CLIENTS)
def test_a_client_produces_and_consumes(cluster: TlsBrokers, name: str) -> None:
    produce, consume = TLS_CLIENTS[name]
    produce(cluster, name, 300)
    assert sorted(consume(cluster, name, 300)) == sorted(
        f"{name}-{number}".encode() for number in range(300)
    )


def test_records_survive_a_killed_broker_and_it_comes_back(cluster: TlsBrokers) -> None:
    with headrace.Producer(**cluster.options(max_in_flight=1)) as producer:
        sent = [producer.send("killed", b"%d" % number) for number in range(200)]
        cluster.processes[2].kill()
        sent += [producer.send("killed", b"%d" % number) for number in range(200, 400)]
        producer.flush()
        for delivery in sent:
            delivery.result(scaled(60))
    cluster.start(2)
    consume = TLS_CLIENTS["ours"][1]
    found = consume(cluster, "killed", 400)
    assert {int(value) for value in found} == set(range(400))
    with cluster.admin() as admin:
        assert len(admin.describe_cluster().brokers) == 3


def test_nodes_that_show_no_certificate_are_no_nodes(cluster: TlsBrokers) -> None:
    port = cluster.ports[1][1]
    with pytest.raises(headrace.ConnectionFailed, match="wants a certificate of this client"):
        with cluster.admin(bootstrap_servers=f"localhost:{port}") as admin:
            admin.list_topics()
    assert any("ssl.client.auth is required" in line for line in tls_lines(cluster.logs[1].text))
