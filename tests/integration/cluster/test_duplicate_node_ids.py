"""Two processes with one `node.id`: the second is refused while the first one has a session."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace import Producer
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.cluster import Cluster, ClusterBroker
from headrace.testing.ports import hold_port
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.wire import read_all

RECORDS = 100


@contextmanager
def second_process(
    cluster: Cluster, first: ClusterBroker, data_dir: Path
) -> Iterator[tuple[BrokerProcess, BrokerLog]]:
    """A process with the node id of a broker, and with a port and a data directory of its own."""
    controller = cluster.broker(1)
    log = BrokerLog()
    process = BrokerProcess(log, scaled(30))
    with hold_port() as port:
        properties = {
            "node.id": str(first.node_id),
            "process.roles": "broker",
            "controller.quorum.voters": f"1@{controller.bootstrap_servers}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port.number}",
            "log.dirs": str(data_dir),
            # It tries for twice as long, which a slow machine needs.
            "broker.session.timeout.ms": str(round(scaled(30) * 1000)),
        }
        process.launch(properties, None)
        try:
            yield process, log
        finally:
            process.kill()


def write(cluster: Cluster, topic: str) -> None:
    """Write records that every replica in sync acknowledges."""
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number)
        producer.flush()


def test_a_second_process_waits_until_the_first_is_dead_and_changes_nothing_before(
    tmp_path: Path,
) -> None:
    with Cluster(brokers=1, config={"min.insync.replicas": 2}) as cluster:
        first = cluster.add_broker()
        topic = cluster.create_topic(replication_factor=2)
        write(cluster, topic)
        with second_process(cluster, first, tmp_path / "second") as (second, log):
            refusal = f"another process runs as broker 2 ({first.bootstrap_servers}) with other"
            wait_until(lambda: refusal in log.text, 30, lambda: f"the refusal in {log.text}")
            # Both replicas have to acknowledge: the first process is in sync, and stays registered.
            write(cluster, topic)
            assert len(cluster.wait_for_isr(topic, 2)[0].isr) == 2
            assert " ready on " not in log.text
            assert not list((tmp_path / "second").glob(f"{topic}-*"))
            first.kill()
            second.wait_until_ready(scaled(60))
            # It is broker 2 now, and fetches the records that its disk does not have.
            cluster.wait_for_isr(topic, 2, timeout_s=scaled(60))
            leader = cluster.broker(1).bootstrap_servers
            values = [record.value for record in read_all(leader, topic)]
            assert values == [b"%d" % number for number in range(RECORDS)] * 2
