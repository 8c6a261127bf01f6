"""Clusters under faults, from seeds; and bugs put in on purpose, which have to be noticed.

To see one seed again: `run_chaos(seed)`.
"""

from collections.abc import Callable

import pytest

from headrace.raft import leader_role, raft_node, replica_progress
from headrace.raft.candidate_role import CandidateRole
from headrace.raft.divergence import CommittedRecordsLost, position_answer
from headrace.raft.follower_role import FollowerRole
from headrace.raft.messages import HardState, LogView, OffsetAndEpoch, RaftRole
from headrace.raft.quorum_state import QuorumState
from headrace.raft.voters import VoteCount
from tests.unit.raft.chaos import run_chaos

SEEDS = 120
# How many seeds a bug may survive.
PATIENCE = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_nothing_committed_is_lost_and_the_cluster_recovers(first: int) -> None:
    for seed in range(first, first + 30):
        try:
            run_chaos(seed)
        except (AssertionError, CommittedRecordsLost) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_same_seed_gives_the_same_run() -> None:
    first, second = run_chaos(7).cluster, run_chaos(7).cluster
    assert (first.events, first.now) == (second.events, second.now)
    assert first.committed == second.committed
    assert len(first.committed) > 5


# Bugs. Each is a rule left out, in the core or in what the shell has to do.


def _votes_for_any_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CandidateRole, "_is_up_to_date", lambda self, request: True)


def _votes_twice_in_an_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CandidateRole, "_may_grant", lambda self, request: self._is_up_to_date(request))


def _leads_its_epoch_again_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    def enter_resigned(self: QuorumState, now_ms: int) -> None:
        self.role, self.round = RaftRole.CANDIDATE, VoteCount(())
        self.enter_leader(now_ms)

    patch.setattr(QuorumState, "enter_resigned", enter_resigned)


def _commits_what_it_alone_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_progress, "held_by_majority", max)


def _promises_what_is_not_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        QuorumState,
        "flushed_offset",
        property(lambda self: self.log.end_offset, lambda self, value: None),
        raising=False,
    )


def _never_truncates(patch: pytest.MonkeyPatch) -> None:
    def answer(
        log: LogView, offset: int, last_epoch: int
    ) -> tuple[OffsetAndEpoch | None, OffsetAndEpoch | None]:
        if log.start_offset <= offset <= log.end_offset:
            return None, None
        return position_answer(log, offset, last_epoch)

    patch.setattr(leader_role, "position_answer", answer)


def _takes_answers_of_earlier_fetches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerRole, "ended", lambda self, node_id, request: True)


def _node_without_data_votes(patch: pytest.MonkeyPatch) -> None:
    original = raft_node._starting_hard_state

    def starting_hard_state(stored: HardState | None, log: LogView, *, is_alone: bool) -> HardState:
        hard = original(stored, log, is_alone=is_alone)
        return hard._replace(may_vote=True, recovering=False)

    patch.setattr(raft_node, "_starting_hard_state", starting_hard_state)


BUGS = [
    _votes_for_any_log,
    _votes_twice_in_an_epoch,
    _leads_its_epoch_again_after_a_crash,
    _commits_what_it_alone_has,
    _promises_what_is_not_flushed,
    _never_truncates,
    _takes_answers_of_earlier_fetches,
    _node_without_data_votes,
]


@pytest.mark.parametrize("bug", BUGS)
def test_bug_is_noticed(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    for seed in range(PATIENCE):
        try:
            run_chaos(seed)
        except (AssertionError, CommittedRecordsLost):
            return
    raise AssertionError(f"{bug.__name__} survived")
