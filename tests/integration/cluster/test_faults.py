"""One round of every fault under a load that nothing may be lost of; `make soak` does many."""

from collections.abc import Iterator

import pytest

from headrace.testing.cluster import Cluster
from tests.integration.cluster import moves, trials
from tests.integration.cluster.trials import FaultedCluster, subject

# Records in a second: a third of those of `make soak`, so that other tests have the cores too.
RATE = 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all rounds: after each it is whole again."""
    with Cluster(brokers=3, proxied=True) as cluster:
        yield cluster


@pytest.fixture
def faulted(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[FaultedCluster]:
    with subject(cluster, request.node.name.replace("_", "-")[:60], rate=RATE) as faulted:
        yield faulted


def test_the_leader_is_killed(faulted: FaultedCluster) -> None:
    trials.kill_leader(faulted)
    faulted.finish()


def test_the_leader_is_paused_past_its_session(faulted: FaultedCluster) -> None:
    trials.pause_leader(faulted)
    faulted.finish()


def test_the_leader_is_cut_off_and_accepts_nothing(faulted: FaultedCluster) -> None:
    trials.cut_leader(faulted)
    faulted.finish()


def test_the_controller_is_killed(faulted: FaultedCluster) -> None:
    trials.kill_controller(faulted)
    faulted.finish()


def test_all_are_killed_and_start_at_once(faulted: FaultedCluster) -> None:
    trials.restart_all(faulted)
    faulted.finish()


def test_a_disk_is_lost_and_rebuilt(faulted: FaultedCluster) -> None:
    trials.wipe_leader(faulted)
    faulted.finish()


def test_brokers_restart_one_after_the_other(faulted: FaultedCluster) -> None:
    trials.roll(faulted)
    faulted.finish()


def test_a_cluster_grows_and_a_broker_is_drained(cluster: Cluster) -> None:
    with subject(cluster, "moved", partitions=moves.PARTITIONS, rate=RATE) as faulted:
        moves.expand_and_drain(faulted)
        faulted.finish()
