"""Coordinators and leaders that die between the decision on a transaction and its last marker."""

import time
from collections.abc import Iterator

import pytest

from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import Deadline
from tests.integration.transactions.raw import RawProducer, patiently
from tests.integration.transactions.reading import end, group_offsets, read_committed, stable

CONFIG = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # Two of three brokers decide, so that it can be done while the third is frozen; and for as long
    # as that one's session lasts nobody else leads what it leads, and gets its marker.
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "broker.session.timeout.ms": "4000",
    # Leaders stay where a test has found them.
    "auto.leader.rebalance.enable": "false",
}
STATE = "__transaction_state"
PARTITIONS = 3
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all tests: after each it is whole again."""
    with Cluster(brokers=3, config=CONFIG) as cluster:
        yield cluster
        for broker in cluster.brokers:
            assert "Traceback (most recent call last)" not in broker.log, broker.log


class Scene:
    """A transaction over all partitions of a topic and a group's offsets, about to be ended."""

    def __init__(self, cluster: Cluster, name: str, *, old: bool = False) -> None:
        self.cluster = cluster
        self.topic = cluster.create_topic(name, PARTITIONS, min_insync_replicas=2)
        self.producer = RawProducer(cluster, name, old=old).init()
        for partition in range(PARTITIONS):
            self._send(b"%d" % partition, partition)
        patiently(lambda: self.producer.send_offsets(name, name, {0: 1}))

    def _send(self, value: bytes, partition: int) -> None:
        patiently(lambda: self.producer.send(self.topic, value, partition=partition))

    @property
    def coordinator(self) -> int:
        return self.cluster.wait_for_leader(STATE)

    def leader_beside_coordinator(self) -> int:
        """A broker that leads a partition and does not coordinate."""
        coordinator = self.coordinator
        views = self.cluster.partitions_of(self.topic).values()
        return next(view.leader for view in views if view.leader != coordinator)

    def leader_without_a_say(self) -> int:
        """A broker that leads a partition and has no part in decisions."""
        deciding = self.cluster.partitions_of(STATE)[0].replicas
        views = self.cluster.partitions_of(self.topic).values()
        return next(view.leader for view in views if view.leader not in deciding)

    def settle(self) -> None:
        for topic in (STATE, "__consumer_offsets", self.topic):
            self.cluster.wait_for_isr(topic)

    def require(self, *, committed: bool) -> None:
        """Every partition has its marker, each reader finds all or nothing, and life goes on."""
        producer, cluster = self.producer, self.cluster
        producer.wait_until("CompleteCommit" if committed else "CompleteAbort")
        found = {}
        for partition in range(PARTITIONS):
            address = producer.brokers.leader(self.topic, partition)
            wait_until_stable(address, self.topic, partition)
            found[partition] = read_committed(address, self.topic, partition)
        assert found == {index: [b"%d" % index] if committed else [] for index in range(PARTITIONS)}
        address = producer.brokers.coordinator(self.topic, kind=0)
        offsets = group_offsets(address, self.topic, self.topic, 0, stable=True)
        assert offsets == {0: (0, 1 if committed else -1)}
        producer.init()
        self._send(b"next", 0)
        producer.commit()
        self.settle()
        assert cluster.controller_id


def wait_until_stable(address: str, topic: str, partition: int) -> None:
    deadline = Deadline(PATIENCE_S)
    while stable(address, topic, partition) != end(address, topic, partition):
        assert not deadline.has_passed, f"{topic}-{partition} is open for ever"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("old", "committed"),
    [(False, True), (True, False)],
    ids=["version 2, commit", "version 1, abort"],
)
def test_the_coordinator_dies_before_all_markers_are_written(
    cluster: Cluster, *, old: bool, committed: bool
) -> None:
    scene = Scene(cluster, f"decided-{old}-{committed}", old=old)
    coordinator = cluster.broker(scene.coordinator)
    # It gets no marker as long as it is frozen.
    with cluster.broker(scene.leader_without_a_say()).paused():
        patiently(lambda: scene.producer.end(committed=committed))
        assert scene.producer.describe().transaction_state in ("PrepareCommit", "PrepareAbort")
        coordinator.kill()
    coordinator.start()
    scene.require(committed=committed)


def test_the_coordinator_dies_while_it_decides(cluster: Cluster) -> None:
    """The answer is lost, and so the producer asks the next coordinator for the same again."""
    scene = Scene(cluster, "undecided")
    coordinator = cluster.broker(scene.coordinator)
    others = [broker for broker in cluster.brokers if broker is not coordinator]
    address = scene.producer.brokers.coordinator(scene.topic)
    # Nobody is there to copy the decision: it cannot be committed, and so it cannot be answered.
    for other in others:
        other.pause()
    with scene.producer.send_end(address, committed=True):
        time.sleep(0.3)
        coordinator.kill()
    for other in others:
        other.resume()
    scene.producer.commit()
    coordinator.start()
    scene.require(committed=True)


def test_a_leader_dies_before_its_marker_is_written(cluster: Cluster) -> None:
    scene = Scene(cluster, "leaderless")
    victim = cluster.broker(scene.leader_beside_coordinator())
    victim.kill()
    scene.producer.commit()
    # Another leads by then, and gets the marker that was meant for the dead one.
    scene.producer.wait_until("CompleteCommit")
    victim.start()
    scene.require(committed=True)


def test_an_open_transaction_outlives_its_coordinator(cluster: Cluster) -> None:
    scene = Scene(cluster, "open", old=True)
    coordinator = cluster.broker(scene.coordinator)
    coordinator.kill()
    cluster.wait_for_leader(STATE, other_than=[coordinator.node_id])
    assert scene.producer.describe().transaction_state == "Ongoing"
    scene.producer.commit()
    coordinator.start()
    scene.require(committed=True)
