"""Accidents that take more luck than a few seeds have, step by step.

Each is played twice: as things are, and with the rule left out that makes it harmless.
"""

import pytest

from headrace.raft.divergence import CommittedRecordsLost
from headrace.raft.messages import EndEpochRequest, HardState
from headrace.raft.replica_progress import ProgressTracker
from tests.unit.raft.memory import Entry, MemoryLog
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
    (voter,) = (
        broker
        for broker in cluster.alive
        if broker.node.leader_id == leader.node_id != broker.node_id
    )
    return voter


def test_wiped_voter_that_counts_at_once_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressTracker, "_counts", lambda self, node_id: node_id in self._by_id)
    with pytest.raises(AssertionError, match=r"committed record .* changed"):
        wiped_voter_meets_a_leader_that_was_replaced()


def test_wiped_voter_that_trusts_any_leader_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressTracker, "is_confirmed", lambda self, node_id: True)
    with pytest.raises(AssertionError, match=r"committed record .* changed"):
        wiped_voter_meets_a_leader_that_was_replaced()


def damaged_voter_is_asked_by_a_voter_that_is_behind() -> None:
    """Two commit a record without the third. One of them finds its log damaged, the other is
    down, and the third, which lacks the record, asks for a vote."""
    cluster, leader, damaged, behind = working_cluster()
    cut(cluster, behind, leader)
    cut(cluster, behind, damaged)
    before = len(cluster.committed)
    write(leader, 2)
    assert cluster.run(cluster.now + 500, lambda: len(cluster.committed) > before)
    for process in (leader, damaged):
        process.crash()
    damaged.lose_log()
    damaged.start()
    cluster.faults.cuts.clear()
    cluster.run(cluster.now + 10_000)
    assert cluster.leader is None
    leader.start()
    assert cluster.run(cluster.now + 10_000, cluster.agrees)
    assert len(cluster.committed) > before


def test_damaged_voter_does_not_help_a_voter_that_is_behind() -> None:
    damaged_voter_is_asked_by_a_voter_that_is_behind()


def test_damaged_voter_that_votes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "lose_log", lambda self: setattr(self, "log", MemoryLog()))
    with pytest.raises((AssertionError, CommittedRecordsLost)):
        damaged_voter_is_asked_by_a_voter_that_is_behind()


def majority_finds_its_logs_damaged() -> None:
    """Two of three set their logs aside. The third cannot lead alone; nobody begins anew."""
    cluster, leader, first, second = working_cluster()
    committed = len(cluster.committed)
    for process in (leader, first, second):
        process.crash()
    for process in (leader, first):
        process.lose_log()
    for process in (leader, first, second):
        process.start()
    cluster.run(cluster.now + 20_000)
    assert cluster.leader is None
    assert len(cluster.committed) == committed
    assert second.log.end_offset >= committed


def test_damage_of_a_majority_founds_no_cluster() -> None:
    majority_finds_its_logs_damaged()


def test_damage_of_a_majority_that_founds_a_cluster_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Process, "lose_log", Process.wipe)
    with pytest.raises(AssertionError):
        majority_finds_its_logs_damaged()


def test_voter_with_a_damaged_log_is_back_when_the_others_lead() -> None:
    cluster, leader, first, _ = working_cluster()
    leader.crash()
    leader.lose_log()
    leader.start()
    assert cluster.run(cluster.now + 10_000, lambda: leader.log.end_offset > 0 and cluster.agrees())
    assert leader.hard_state is not None and leader.hard_state.may_vote
    # It counts again: with it, one more may fail.
    first.crash()
    before = len(cluster.committed)
    assert cluster.run(cluster.now + 10_000, lambda: cluster.leader is not None)
    cluster.write(2)
    assert cluster.run(cluster.now + 1000, lambda: len(cluster.committed) > before)
