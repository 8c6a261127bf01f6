"""Elections: Raft §5.2 and §5.4.1, pre-votes as in KIP-996."""

import pytest

from headrace.errors import ErrorCode
from headrace.raft.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    HardState,
    RaftRole,
    VoteRequest,
    VoteResponse,
)
from tests.unit.raft.memory import MemoryLog
from tests.unit.raft.nodes import SETTINGS, Driven, directory_of, ok, only_vote


def test_single_voter_leads_after_the_first_tick() -> None:
    node = Driven(voters=[1])
    effects = node.tick(0)
    assert node.node.is_leader
    assert effects.hard_state == HardState(1, voted_for=1, leader_id=1)
    assert effects.lead is not None and effects.lead.granting_voters == (1,)
    assert effects.requests == ()
    node.flush()
    assert node.node.high_watermark == 1


def test_single_voter_leads_a_new_epoch_after_a_restart() -> None:
    """What it wrote in the old one may have been lost with the crash."""
    node = Driven(voters=[1], log=MemoryLog(1, 1), hard_state=HardState(1, 1, 1))
    effects = node.tick(0)
    assert effects.hard_state == HardState(2, voted_for=1, leader_id=1)
    assert node.node.epoch_start_offset == 2


def test_node_asks_whether_it_would_be_elected_before_it_stands() -> None:
    node = Driven()
    effects = node.stand()
    request = VoteRequest(0, 1, directory_of(1), 0, 0, pre_vote=True)
    assert effects.requests == ((2, request), (3, request))
    assert effects.hard_state is None
    assert node.plays(RaftRole.PROSPECTIVE)
    assert node.now <= SETTINGS.election_timeout_ms


def test_candidate_votes_for_itself_in_a_new_epoch() -> None:
    node = Driven(log=MemoryLog(1, 3), hard_state=HardState(4, voted_for=2))
    effects = node.become_candidate()
    assert effects.hard_state == HardState(5, voted_for=1)
    request = VoteRequest(5, 1, directory_of(1), 3, 2, pre_vote=False)
    assert effects.requests == ((2, request), (3, request))


def test_majority_of_votes_makes_a_leader() -> None:
    node = Driven(voters=[1, 2, 3, 4, 5])
    vote = only_vote(node.become_candidate())
    node.granted(2, vote)
    assert node.plays(RaftRole.CANDIDATE)
    effects = node.granted(5, vote)
    assert node.node.is_leader
    assert effects.hard_state == HardState(1, voted_for=1, leader_id=1)
    assert effects.lead is not None
    assert effects.lead.granting_voters == (1, 2, 5)
    assert effects.requests == tuple((voter, BeginEpochRequest(1, 1)) for voter in (2, 3, 4, 5))


def test_vote_given_twice_counts_once() -> None:
    node = Driven(voters=[1, 2, 3, 4, 5])
    vote = only_vote(node.become_candidate())
    node.granted(2, vote)
    node.granted(2, vote)
    assert node.plays(RaftRole.CANDIDATE)


def test_vote_of_an_observer_does_not_count() -> None:
    node = Driven()
    vote = only_vote(node.become_candidate())
    node.granted(9, vote)
    assert node.plays(RaftRole.CANDIDATE)


def test_votes_of_an_older_election_do_not_count() -> None:
    node = Driven()
    old = only_vote(node.become_candidate())
    node.refused(2, old)
    node.refused(3, old)
    new = only_vote(node.become_candidate())
    assert new.epoch == old.epoch + 1
    node.granted(2, old)
    assert node.plays(RaftRole.CANDIDATE)
    node.granted(2, new)
    assert node.node.is_leader


def test_refused_candidate_pauses_and_asks_again() -> None:
    node = Driven()
    vote = only_vote(node.become_candidate())
    node.refused(2, vote)
    node.refused(3, vote)
    assert node.plays(RaftRole.CANDIDATE)
    assert node.node.deadline_ms is not None
    pause = node.node.deadline_ms - node.now
    assert SETTINGS.retry_backoff_ms <= pause
    assert pause < SETTINGS.retry_backoff_ms + SETTINGS.election_backoff_max_ms
    node.tick()
    assert node.plays(RaftRole.PROSPECTIVE)
    assert node.node.epoch == vote.epoch


def test_election_without_answers_is_tried_again() -> None:
    node = Driven()
    began = node.now
    node.become_candidate()
    effects = node.tick()
    assert began + SETTINGS.election_timeout_ms <= node.now
    assert only_vote(effects).pre_vote


def test_voters_that_cannot_be_reached_end_a_round_early() -> None:
    node = Driven()
    pre_vote = only_vote(node.stand())
    for voter in (2, 3):
        node.node.failed(voter, pre_vote, node.now, refused=True)
    assert node.node.deadline_ms is not None
    assert node.node.deadline_ms <= node.now + 50 + SETTINGS.election_backoff_max_ms


def test_voter_grants_one_vote_per_epoch() -> None:
    node = Driven()
    assert node.vote(2, 5).granted
    assert node.stored == HardState(5, voted_for=2)
    assert node.vote(2, 5).granted, "it may not have heard the answer"
    assert node.vote(3, 5) == VoteResponse(5, -1, granted=False)
    assert node.vote(3, 6).granted


def test_voter_gives_the_candidate_time() -> None:
    node = Driven(hard_state=HardState(5))
    node.fetch()
    node.now = 300
    node.vote(2, 5)
    assert node.node.deadline_ms is not None
    assert node.node.deadline_ms >= 300 + SETTINGS.election_timeout_ms


def test_vote_is_in_what_is_stored_before_it_is_told() -> None:
    node = Driven()
    request = VoteRequest(5, 2, directory_of(2), 0, 0, pre_vote=False)
    response, effects = node.node.handle_vote(request, 0)
    assert response.granted
    assert effects.hard_state == HardState(5, voted_for=2)


def test_vote_is_remembered_after_a_restart() -> None:
    node = Driven(hard_state=HardState(5, voted_for=2))
    assert not node.vote(3, 5).granted
    assert node.vote(2, 5).granted


@pytest.mark.parametrize(
    ("candidate", "granted"),
    [
        ((2, 3), True),
        ((2, 4), True),
        ((3, 1), True),
        ((2, 2), False),
        ((1, 9), False),
    ],
)
@pytest.mark.parametrize("pre_vote", [False, True])
def test_voter_refuses_a_log_that_is_behind_its_own(
    candidate: tuple[int, int], granted: bool, pre_vote: bool
) -> None:
    """Raft §5.4.1: the later last epoch is newer, then the longer log."""
    node = Driven(log=MemoryLog(1, 2, 2), hard_state=HardState(3))
    assert node.vote(2, 4, candidate, pre_vote=pre_vote).granted is granted


def test_voter_refuses_an_older_epoch() -> None:
    node = Driven(hard_state=HardState(5))
    response = node.vote(2, 4)
    assert response == VoteResponse(5, -1, granted=False, error=ErrorCode.FENCED_LEADER_EPOCH)


def test_voter_that_knows_the_leader_of_an_epoch_votes_for_nobody_else_in_it() -> None:
    node = Driven()
    node.follow(2, 5)
    assert not node.vote(3, 5).granted
    assert node.node.leader_id == 2


def test_pre_vote_promises_nothing() -> None:
    node = Driven(hard_state=HardState(5))
    for candidate in (2, 3):
        assert node.vote(candidate, 5, pre_vote=True).granted
    assert node.stored == HardState(5)


def test_follower_of_a_living_leader_refuses_pre_votes() -> None:
    """Raft dissertation §4.2.3: a node that was cut off must not disturb the others."""
    node = Driven()
    node.follow(2, 5)
    assert node.vote(3, 5, pre_vote=True).granted, "it has not heard of its leader yet"
    node.answer(ok(5, 2))
    assert node.vote(3, 5, pre_vote=True) == VoteResponse(5, 2, granted=False)
    node.now += SETTINGS.fetch_timeout_ms
    assert node.vote(3, 5, pre_vote=True).granted


def test_follower_that_heard_of_one_leader_has_not_heard_of_the_next() -> None:
    node = Driven()
    node.follow(2, 5)
    node.answer(ok(5, 2))
    node.follow(3, 6)
    assert node.vote(2, 6, pre_vote=True).granted


def test_leader_refuses_pre_votes_and_says_who_leads() -> None:
    node = Driven()
    node.become_leader()
    assert node.vote(3, 1, (9, 9), pre_vote=True) == VoteResponse(1, 1, granted=False)


def test_leader_steps_down_for_a_newer_epoch() -> None:
    node = Driven()
    node.become_leader()
    request = VoteRequest(7, 2, directory_of(2), 1, 1, pre_vote=False)
    response, effects = node.node.handle_vote(request, node.now)
    assert response.granted
    assert node.plays(RaftRole.UNATTACHED)
    assert effects.wake_fetches, "those who wait for records have to look elsewhere"
    assert node.node.epoch_start_offset == -1
    assert node.node.progress(node.now) == ([], [])


def test_candidate_follows_a_leader_of_its_epoch() -> None:
    node = Driven()
    vote = only_vote(node.become_candidate())
    node.follow(2, vote.epoch)
    assert (node.node.role, node.node.leader_id) == (RaftRole.FOLLOWER, 2)
    node.granted(3, vote)
    assert node.plays(RaftRole.FOLLOWER)


def test_answer_with_a_newer_epoch_ends_a_candidacy() -> None:
    node = Driven()
    vote = only_vote(node.become_candidate())
    effects = node.carry_out(
        node.node.answered(2, vote, VoteResponse(9, 3, granted=False), node.now)
    )
    assert effects.hard_state == HardState(9, leader_id=3)
    assert node.plays(RaftRole.FOLLOWER)


def test_silent_leader_is_doubted_after_the_fetch_timeout() -> None:
    node = Driven()
    node.follow(2, 5)
    node.answer(ok(5, 2))
    node.fetch()
    node.tick(SETTINGS.fetch_timeout_ms - 1)
    assert node.plays(RaftRole.FOLLOWER)
    effects = node.tick()
    assert node.now == SETTINGS.fetch_timeout_ms
    assert only_vote(effects).pre_vote
    assert node.node.leader_id == -1
    assert node.stored == HardState(5, leader_id=2)


def test_refused_connection_to_the_leader_starts_a_pre_vote_at_once() -> None:
    node = Driven()
    node.follow(2, 5)
    leader, request = node.fetch()
    effects = node.node.failed(leader, request, node.now, refused=True)
    assert only_vote(effects).pre_vote


def test_slow_leader_is_asked_again_after_a_pause() -> None:
    node = Driven()
    node.follow(2, 5)
    leader, request = node.fetch()
    node.node.failed(leader, request, node.now, refused=False)
    assert node.plays(RaftRole.FOLLOWER)
    assert node.node.next_fetch(node.now) is None
    assert node.node.deadline_ms == node.now + SETTINGS.retry_backoff_ms
    node.tick()
    assert node.fetch()[0] == 2


def test_node_that_doubts_its_leader_goes_on_asking_it() -> None:
    node = Driven()
    node.follow(2, 5)
    leader, request = node.fetch()
    pre_vote = only_vote(node.node.failed(leader, request, node.now, refused=True))
    node.refused(3, pre_vote, leader=2)
    assert node.node.next_fetch(node.now) is None, "not at once"
    node.wait(SETTINGS.retry_backoff_ms)
    assert node.plays(RaftRole.PROSPECTIVE)
    node.answer(ok(5, 2))
    assert (node.node.role, node.node.leader_id) == (RaftRole.FOLLOWER, 2)


def test_node_that_doubts_its_leader_asks_the_others_again() -> None:
    node = Driven()
    node.follow(2, 5)
    leader, request = node.fetch()
    pre_vote = only_vote(node.node.failed(leader, request, node.now, refused=True))
    node.refused(3, pre_vote, leader=2)
    node.node.failed(2, pre_vote, node.now, refused=True)
    assert only_vote(node.stand()).pre_vote
    assert node.now <= SETTINGS.retry_backoff_ms + SETTINGS.election_backoff_max_ms


def test_leader_itself_ends_doubts_about_it() -> None:
    node = Driven()
    node.follow(2, 5)
    leader, request = node.fetch()
    node.node.failed(leader, request, node.now, refused=True)
    node.follow(2, 5)
    assert node.plays(RaftRole.FOLLOWER)


def test_of_two_that_ask_each_other_the_one_with_the_smaller_id_insists() -> None:
    first, second = Driven(1), Driven(2)
    first.stand()
    second.stand()
    assert not first.vote(2, 0, pre_vote=True).granted
    assert second.vote(1, 0, pre_vote=True).granted
    assert second.plays(RaftRole.UNATTACHED)
    first.now += SETTINGS.retry_backoff_ms
    assert first.vote(2, 0, pre_vote=True).granted, "it may hear without being heard"


def test_nobody_insists_against_one_that_has_refused() -> None:
    """It doubts the leader only now, and its vote in this round is lost."""
    node = Driven(voters=[1, 2, 3, 4, 5])
    node.refused(2, only_vote(node.stand()))
    assert not node.vote(3, 0, pre_vote=True).granted
    assert node.vote(2, 0, pre_vote=True).granted
    assert node.plays(RaftRole.UNATTACHED)


def test_of_two_that_ask_each_other_the_one_with_more_records_insists() -> None:
    node = Driven(2, log=MemoryLog(1, 1), hard_state=HardState(1))
    node.stand()
    assert not node.vote(1, 1, (1, 1), pre_vote=True).granted
    assert node.plays(RaftRole.PROSPECTIVE)


def test_restarted_leader_does_not_lead_its_epoch_again() -> None:
    node = Driven(log=MemoryLog(1), hard_state=HardState(1, voted_for=1, leader_id=1))
    assert node.plays(RaftRole.RESIGNED)
    assert node.fetched_by(2).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert only_vote(node.tick()).pre_vote


def test_restarted_follower_returns_to_its_leader() -> None:
    node = Driven(hard_state=HardState(5, leader_id=3))
    assert (node.node.role, node.node.leader_id) == (RaftRole.FOLLOWER, 3)
    assert node.fetch()[0] == 3


def test_epoch_is_not_below_that_of_the_log() -> None:
    """A log from before there was a `quorum-state`."""
    node = Driven(voters=[1], log=MemoryLog(1, 4), hard_state=None)
    assert node.node.epoch == 4
    node.tick(0)
    assert node.node.epoch == 5


def test_observer_never_stands() -> None:
    node = Driven(9, hard_state=None)
    assert node.plays(RaftRole.UNATTACHED)
    target, _ = node.fetch()
    assert target in (1, 2, 3)
    assert node.node.deadline_ms is None
    node.follow(2, 5)
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.UNATTACHED)
    assert node.fetch()[0] in (1, 2, 3)
    assert node.node.deadline_ms is None


def test_observer_votes_if_asked() -> None:
    """It may be a voter by a record that it has not seen (Raft dissertation §4.1)."""
    node = Driven(9)
    assert node.vote(2, 5).granted


def end(node: Driven, *successors: int, epoch: int = 5, leader: int = 2) -> None:
    request = EndEpochRequest(epoch, leader, successors)
    response, effects = node.node.handle_end_epoch(request, node.now)
    assert response.error is ErrorCode.NONE
    node.carry_out(effects)


def test_first_successor_stands_at_once_without_asking() -> None:
    node = Driven()
    node.follow(2, 5)
    end(node, 1, 3)
    assert node.plays(RaftRole.CANDIDATE)
    assert node.stored == HardState(6, voted_for=1)


def test_other_successors_wait_and_grant_pre_votes() -> None:
    node = Driven()
    node.follow(2, 5)
    node.answer(ok(5, 2))
    end(node, 3, 1)
    assert node.plays(RaftRole.UNATTACHED)
    assert node.vote(3, 5, pre_vote=True).granted
    assert only_vote(node.stand()).pre_vote
    assert node.now >= SETTINGS.election_timeout_ms // 2


def test_end_of_an_older_epoch_is_refused() -> None:
    node = Driven()
    node.follow(2, 5)
    response, effects = node.node.handle_end_epoch(EndEpochRequest(4, 3, (1,)), node.now)
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert effects.requests == ()
    assert node.node.leader_id == 2


def test_leader_that_was_elected_again_is_followed_in_its_new_epoch() -> None:
    node = Driven()
    node.follow(2, 5)
    assert node.follow(2, 6).epoch == 6
    assert node.stored == HardState(6, leader_id=2)
    end(node, 1, epoch=7)
    assert node.stored == HardState(8, voted_for=1)


def test_second_leader_of_an_epoch_is_not_believed() -> None:
    node = Driven()
    node.follow(2, 5)
    assert node.follow(3, 5).error is ErrorCode.INVALID_REQUEST
    assert node.node.leader_id == 2
