"""Faults in any order, of leaders, followers and controllers, on a cluster with proxies."""

import time
from collections.abc import Callable
from random import Random

from headrace.testing.cluster import ClusterBroker
from headrace.testing.time_limits import scaled
from tests.integration.cluster import trials
from tests.integration.cluster.trials import FaultedCluster

START_S_MAX = 60.0


class Mixture:
    """Draws one fault after the other; after each the cluster is whole again."""

    def __init__(self, faulted: FaultedCluster, rng: Random) -> None:
        self._one = faulted
        self._cluster = faulted.cluster
        self._rng = rng
        self.faults: dict[str, Callable[[], object]] = {
            "leader killed": lambda: trials.kill_leader(faulted),
            "leader paused": lambda: trials.pause_leader(faulted),
            "leader cut off": lambda: trials.cut_leader(faulted),
            "controller killed": lambda: trials.kill_controller(faulted),
            "disk lost": lambda: trials.wipe_leader(faulted),
            "leader heard by nobody": lambda: self._deafen(outgoing=True),
            "leader hears nobody": lambda: self._deafen(outgoing=False),
            "leader cut off from one follower": self._cut_pair,
            "leader paused for a moment": self._pause_briefly,
            "leader killed twice": self._kill_twice,
            "follower killed": self._kill_follower,
            "leader slow": self._slow,
            "two killed": self._kill_two,
            "one stopped while another is dead": self._stop_beside_dead,
        }

    def strike(self) -> str:
        """Do one fault, wait until all is well again, and say which it was."""
        name = self._rng.choice(sorted(self.faults))
        self.faults[name]()
        self._one.settle()
        return name

    def _leader(self) -> ClusterBroker:
        return self._cluster.broker(self._one.leader())

    def _followers(self) -> list[ClusterBroker]:
        leader = self._one.leader()
        return [broker for broker in self._cluster.brokers if broker.node_id != leader]

    def _some(self, count: int) -> list[ClusterBroker]:
        return self._rng.sample(list(self._cluster.brokers), count)

    def _wait(self, seconds_max: float) -> None:
        time.sleep(self._rng.uniform(0.0, seconds_max))

    def _deafen(self, *, outgoing: bool) -> None:
        leader = self._one.leader()
        [partition, *_] = self._one.led_by(leader)

        def fault() -> None:
            for other in self._followers():
                way = (leader, other.node_id) if outgoing else (other.node_id, leader)
                self._cluster.cut(*way, one_way=True)

        try:
            self._one.strike(leader, fault)
            trials.probe(self._one, leader, partition)
        finally:
            self._cluster.heal()

    def _cut_pair(self) -> None:
        follower = self._rng.choice(self._followers())
        self._cluster.cut(self._one.leader(), follower.node_id)
        self._wait(6.0)
        self._cluster.heal()

    def _pause_briefly(self) -> None:
        with self._leader().paused():
            self._wait(3.0)

    def _kill_twice(self) -> None:
        leader = self._leader()
        for _ in range(2):
            leader.kill()
            self._wait(1.0)
            leader.start()

    def _kill_follower(self) -> None:
        follower = self._rng.choice(self._followers())
        follower.kill()
        self._wait(3.0)
        follower.start()

    def _slow(self) -> None:
        latency_ms = self._rng.choice([50, 200, 500])
        self._cluster.slow(self._one.leader(), latency_ms=latency_ms)
        self._wait(4.0)
        self._cluster.heal()

    def _kill_two(self) -> None:
        two = self._some(2)
        for entry in two:
            entry.kill()
        self._wait(3.0)
        self._start(two)

    def _stop_beside_dead(self) -> None:
        dead, stopped = self._some(2)
        dead.kill()
        stopped.stop()
        self._start([dead, stopped])

    def _start(self, brokers: list[ClusterBroker]) -> None:
        """All at once: neither may be ready without the other."""
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_until_ready(scaled(START_S_MAX))
