"""The part of the long run that injects every kind of fault into a cluster of three brokers.

The brokers are on hosts of their own, network namespaces, where that is allowed; else cuts go
through proxies. The load is librdkafka's: idempotent, acks=all, min.insync.replicas=2.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

from headrace.testing.cluster import Cluster
from tests.integration.cluster import hosts, mixed, moves, trials
from tests.integration.cluster.history import Findings
from tests.integration.cluster.trials import RESUME_S_MAX, FaultedCluster, Trial, subject

Fault = Callable[[FaultedCluster], Trial]

HEADRACE = str(Path(sys.executable).with_name("headrace"))


def break_a_cluster(rounds: int, seed: int) -> None:
    """Inject each kind of fault `rounds` times; AssertionError if a guarantee was violated."""
    rng = Random(seed)

    def cut(faulted: FaultedCluster) -> Trial:
        # A host that is cut off entirely, or one that clients still reach.
        return trials.cut_leader(faulted, clients=on_hosts and rng.random() < 0.5)

    on_hosts = hosts.available()
    where = "hosts in network namespaces" if on_hosts else "one host, cuts by proxies"
    print(f"breaking a cluster of three brokers, {where}, seed {seed}")
    kinds: list[tuple[str, Fault, int]] = [
        ("leader killed", trials.kill_leader, rounds),
        ("leader paused past its session", trials.pause_leader, rounds),
        ("leader cut off", cut, rounds),
        ("controller killed", trials.kill_controller, rounds),
    ]
    few = max(rounds // 5, 1)
    kinds += [
        ("all killed and restarted at once", trials.restart_all, few),
        ("a disk wiped and rebuilt", trials.wipe_leader, few),
    ]
    for number, (name, fault, times) in enumerate(kinds):
        with _new_cluster(on_hosts) as cluster, subject(cluster, f"soak-{number}") as faulted:
            _repeat(name, faulted, fault, times)
    with _new_cluster(on_hosts) as cluster, subject(cluster, "rolled") as faulted:
        gaps = [trials.roll(faulted) for _ in range(few)]
        _report(
            "rolling restart", few, faulted.finish(), f"writes paused {max(gaps):.1f} s at most"
        )
    with (
        _new_cluster(on_hosts) as cluster,
        subject(cluster, "moved", partitions=moves.PARTITIONS) as faulted,
    ):
        replicas, leaders = moves.expand_and_drain(faulted)
        even = f"replicas {sorted(replicas.items())}, leaders {sorted(leaders.items())}"
        _report("3 to 4 brokers and one drained", 1, faulted.finish(), even)
    with Cluster(3, proxied=True) as cluster, subject(cluster, "mixed") as faulted:
        _mix(faulted, 2 * rounds, rng)


def _new_cluster(on_hosts: bool) -> Cluster:
    return hosts.HostCluster(3) if on_hosts else Cluster(3, proxied=True)


def _repeat(name: str, faulted: FaultedCluster, fault: Fault, times: int) -> None:
    begin, resumed = time.monotonic(), list[float]()
    for number in range(1, times + 1):
        resumed.append(fault(faulted).resumed_s)
        if number % 5 == 0 and number < times:
            print(f"  {name}: {number} times, {time.monotonic() - begin:.0f} s")
    findings = faulted.finish()
    _compare_dumps(faulted)
    worst = max(resumed)
    speed = f"writes resumed in {median(resumed):.1f} s, at most {worst:.1f} s"
    _report(name, times, findings, speed)
    assert worst <= RESUME_S_MAX or fault in SLOWER, f"{name}: writes resumed after {worst:.1f} s"


def _mix(faulted: FaultedCluster, times: int, rng: Random) -> None:
    """Faults drawn at random, including one-way cuts, which need proxies."""
    mixture = mixed.Mixture(faulted, rng)
    drawn = Counter(mixture.strike() for _ in range(times))
    _report("any fault", times, faulted.finish(), f"{len(drawn)} kinds")


# No write succeeds while no broker runs, or while a majority of them starts.
SLOWER = (trials.restart_all,)


def _report(name: str, times: int, findings: Findings, more: str) -> None:
    print(
        f"{name} {times} times: {findings.acknowledged:,} records acknowledged,"
        f" {findings.lost} lost, {findings.duplicated} duplicated,"
        f" {findings.reordered} reordered; {more}; replicas byte-identical"
    )


def _compare_dumps(faulted: FaultedCluster) -> None:
    """Check that `headrace log dump` of a partition is the same on every broker."""
    for partition in range(faulted.partitions):
        dumps = {
            _dump(broker.data_dir / f"{faulted.topic}-{partition}")
            for broker in faulted.cluster.brokers
        }
        assert len(dumps) == 1, f"dumps of {faulted.topic}-{partition} differ"


def _dump(directory: Path) -> str:
    segments = [str(path) for path in sorted(directory.glob("*.log"))]
    command = [HEADRACE, "log", "dump", "--records", "--json", *segments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.replace(str(directory), "")
