"""Faults of a leader under load, one at a time, and what must hold during and after each."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import ErrorCode
from headrace.testing.cluster import Cluster
from tests.integration.cluster.history import Findings
from tests.integration.cluster.load import Load
from tests.integration.cluster.replicas import wait_until_identical
from tests.integration.requests import batch
from tests.integration.wire import PRODUCE_BY_NAME, Wire, produce, produce_request, produced

PARTITIONS = 3
RATE = 600
SESSION_S = 2.5
RESUME_S_MAX = 5.0
INTRUDER = b"accepted by a leader that is none"

# What a broker that leads no more may answer; anything else would be a promise.
REFUSALS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What one fault came to."""

    victim: int
    resumed_s: float
    """From the fault until every partition that the victim led acknowledged a later record."""


class FaultedCluster:
    """A cluster with a topic under load."""

    def __init__(
        self, cluster: Cluster, topic: str, *, partitions: int = PARTITIONS, rate: int = RATE
    ) -> None:
        self.cluster = cluster
        self.topic = cluster.create_topic(topic, partitions, min_insync_replicas=2)
        self.partitions = partitions
        self.load = Load(cluster.bootstrap_servers, self.topic, partitions, rate).start()

    def led_by(self, node_id: int) -> list[int]:
        views = self.cluster.partitions_of(self.topic)
        return [number for number, view in views.items() if view.leader == node_id]

    def leader(self) -> int:
        """A broker that leads something: that of the first partition."""
        return self.cluster.wait_for_leader(self.topic)

    def strike(self, victim: int, fault: Callable[[], None]) -> Trial:
        """Do a fault, and wait until what the victim led is written again."""
        led = self.led_by(victim)
        struck = time.monotonic()
        fault()
        # Until the fault has struck, what is sent may still be acknowledged as if nothing was.
        resumed = self.load.wait_until_acknowledged(time.monotonic(), led or [0])
        return Trial(victim, resumed - struck)

    def settle(self) -> None:
        """Wait until every replica is in sync again."""
        self.cluster.wait_for_isr(self.topic)

    def check(self) -> Findings:
        """Compare all that was promised with what is there. The load must have been stopped."""
        views = self.cluster.wait_for_isr(self.topic)
        addresses = {broker.node_id: str(broker.listens_on) for broker in self.cluster.brokers}
        return self.load.findings(addresses, views)

    def finish(self) -> Findings:
        """Stop the load; require that nothing is lost, twice or in disorder, and replicas alike."""
        self.load.stop()
        findings = self.check()
        assert findings.problems == {}, (findings, self.load.errors)
        assert self.load.errors == []
        assert wait_until_identical(self.cluster, self.topic, self.partitions) > 0
        for broker in self.cluster.brokers:
            assert "Traceback (most recent call last)" not in broker.log, broker.log
        return findings


@contextmanager
def subject(
    cluster: Cluster, topic: str, *, partitions: int = PARTITIONS, rate: int = RATE
) -> Iterator[FaultedCluster]:
    """A subject whose load ends with the block, whatever happens in it."""
    faulted = FaultedCluster(cluster, topic, partitions=partitions, rate=rate)
    try:
        yield faulted
    finally:
        faulted.load.stop()


def kill_leader(faulted: FaultedCluster) -> Trial:
    """kill -9, and back again."""
    victim = faulted.cluster.broker(faulted.leader())
    trial = faulted.strike(victim.node_id, victim.kill)
    victim.start()
    faulted.settle()
    return trial


def pause_leader(faulted: FaultedCluster) -> Trial:
    """SIGSTOP for longer than its session, and what waits for it in its sockets is refused."""
    victim = faulted.cluster.broker(faulted.leader())
    [partition, *_] = faulted.led_by(victim.node_id)
    with Wire(str(victim.listens_on)) as wire:
        begun = time.monotonic()
        trial = faulted.strike(victim.node_id, victim.pause)
        try:
            time.sleep(max(begun + SESSION_S + 0.5 - time.monotonic(), 0))
            wire.send(
                produce_request(faulted.topic, batch(INTRUDER), partition=partition, acks=1),
                PRODUCE_BY_NAME,
            )
        finally:
            victim.resume()
        refuse(produced(wire.receive()).error_code)
    faulted.settle()
    return trial


def cut_leader(faulted: FaultedCluster, *, clients: bool = False) -> Trial:
    """Cut from the other brokers; those clients who still reach it find that it accepts nothing."""
    victim = faulted.leader()
    [partition, *_] = faulted.led_by(victim)
    try:
        trial = faulted.strike(victim, lambda: faulted.cluster.isolate(victim, clients=clients))
        if not clients:
            probe(faulted, victim, partition)
    finally:
        faulted.cluster.heal()
    faulted.settle()
    return trial


def probe(faulted: FaultedCluster, node_id: int, partition: int) -> None:
    """Require that a broker which thinks it leads accepts nothing, with any acks."""
    for acks in (1, -1):
        # It closes the connection of whoever it has refused.
        with Wire(str(faulted.cluster.broker(node_id).listens_on)) as wire:
            answer = produce(wire, faulted.topic, batch(INTRUDER), partition=partition, acks=acks)
            refuse(answer.error_code)


def refuse(code: int) -> None:
    assert code in REFUSALS, f"a leader that is none answered {code}"


def kill_controller(faulted: FaultedCluster) -> Trial:
    """The active controller, which may lead partitions too."""
    victim = faulted.cluster.broker(faulted.cluster.controller_id)
    trial = faulted.strike(victim.node_id, victim.kill)
    faulted.cluster.wait_for_controller(other_than=[victim.node_id])
    victim.start()
    faulted.settle()
    return trial


def restart_all(faulted: FaultedCluster) -> Trial:
    """All at once, by kill -9."""

    def fault() -> None:
        for broker in faulted.cluster.brokers:
            broker.kill()
        faulted.cluster.start()

    trial = faulted.strike(faulted.leader(), fault)
    faulted.settle()
    return trial


def wipe_leader(faulted: FaultedCluster) -> Trial:
    """A crash that takes the disk with it: everything is copied from the others."""
    victim = faulted.cluster.broker(faulted.leader())
    trial = faulted.strike(victim.node_id, victim.kill)
    victim.wipe()
    victim.start()
    faulted.settle()
    return trial


def roll(faulted: FaultedCluster) -> float:
    """Restart one after the other; the longest time that writes to a partition stood still."""
    begun = time.monotonic()
    for broker in faulted.cluster.brokers:
        broker.restart()
        faulted.settle()
    return max(history.longest_gap_s(begun) for history in faulted.load.histories)
