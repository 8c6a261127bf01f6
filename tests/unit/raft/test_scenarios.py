"""Accidents that take more luck than a few seeds have, step by step.

Each is played twice: as things are, and with the rule left out that makes it harmless.
"""

import pytest

from headrace.raft.progress import Replicas
from headrace.raft.values import EndEpochRequest, HardState
from tests.unit.raft.memory import Entry
from tests.unit.raft.simulated import Cluster, Process


def working_cluster() -> tuple[Cluster, Process, Process, Process]:
    """A cluster that has committed something, its leader, and the other two."""
    cluster = Cluster(1, voters=3)
    assert cluster.run(5000, cluster.agrees)
    cluster.write(1)
    assert cluster.run(cluster.now + 100, cluster.agrees)
    leader = cluster.leader
    assert leader is not None
    first, second = (process for process in cluster.alive if process is not leader)
    return cluster, leader, first, second


def cut(cluster: Cluster, one: Process, other: Process) -> None:
    cluster.faults.cuts |= {(one.node_id, other.node_id), (other.node_id, one.node_id)}


def stand(process: Process, leader: Process, epoch: int) -> None:
    """Stand in the next epoch, as a successor does that its leader named."""
    request = EndEpochRequest(epoch, leader.node_id, (process.node_id,))
    process.handle(request, lambda _: None)


def write(process: Process, value: int) -> None:
    process.append([Entry(process.node.epoch, value)])
    process.look_around()


def voter_crashes_between_two_rivals() -> None:
    """Two stand in one epoch. The third votes for one, crashes, and is asked by the other."""
    cluster, voter, first, second = working_cluster()
    cut(cluster, first, second)
    epoch = voter.node.epoch
    stand(first, voter, epoch)
    assert cluster.run(cluster.now + 10, lambda: voter.node.epoch > epoch)
    # It has voted, and does not hear that the one it voted for was elected.
    cluster.faults.cuts.add((first.node_id, voter.node_id))
    assert cluster.run(cluster.now + 10, lambda: first.node.is_leader)
    voter.bounce()
    stand(second, voter, epoch)
    cluster.run(cluster.now + 20)
    assert not second.node.is_leader


def test_vote_outlives_a_crash() -> None:
    voter_crashes_between_two_rivals()


def test_vote_that_is_not_stored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def persist(self: Cluster, process: Process, hard_state: HardState) -> None:
        process.hard_state = hard_state._replace(voted_for=-1)

    monkeypatch.setattr(Cluster, "persist", persist)
    with pytest.raises(AssertionError, match="two leaders"):
        voter_crashes_between_two_rivals()


def wiped_voter_meets_a_leader_that_was_replaced() -> tuple[Cluster, Process]:
    """A voter helps a new leader to commit, loses its disk, and comes back to the old leader,
    which has not noticed anything yet."""
    cluster, old, new, voter = working_cluster()
    cut(cluster, old, new)
    stand(new, old, old.node.epoch)
    assert cluster.run(cluster.now + 20, lambda: new.node.is_leader)
    write(new, 2)
    committed = len(cluster.committed)
    assert cluster.run(cluster.now + 100, lambda: len(cluster.committed) == committed + 2)
    voter.crash()
    voter.wipe()
    cut(cluster, voter, new)
    voter.start()
    write(old, 3)
    cluster.run(cluster.now + 500)
    return cluster, old


def test_wiped_voter_does_not_help_a_leader_that_was_replaced() -> None:
    cluster, old = wiped_voter_meets_a_leader_that_was_replaced()
    assert old.node.is_leader, "or this shows nothing"
    assert voter_of(cluster, old).node.leader_id == old.node_id
    cluster.heal()
    assert cluster.run(cluster.now + 5000, cluster.agrees)


def voter_of(cluster: Cluster, leader: Process) -> Process:
    (voter,) = (one for one in cluster.alive if one.node.leader_id == leader.node_id != one.node_id)
    return voter


def test_wiped_voter_that_counts_at_once_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicas, "_counts", lambda self, node_id: node_id in self._by_id)
    with pytest.raises(AssertionError, match=r"committed record .* changed"):
        wiped_voter_meets_a_leader_that_was_replaced()


def test_wiped_voter_that_trusts_any_leader_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicas, "is_confirmed", lambda self, node_id: True)
    with pytest.raises(AssertionError, match=r"committed record .* changed"):
        wiped_voter_meets_a_leader_that_was_replaced()
