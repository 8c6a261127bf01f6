"""Leading: Raft §5.3 and §5.4.2, check-quorum, handing over."""

import pytest

from headrace.errors import ErrorCode
from headrace.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    FetchRequest,
    HardState,
    OffsetAndEpoch,
    RaftRole,
    ReplicaProgress,
)
from tests.unit.raft.memory import MemoryLog
from tests.unit.raft.nodes import SETTINGS, Driven, directory_of


def leader(*epochs: int, voters: tuple[int, ...] = (1, 2, 3), epoch: int = 0) -> Driven:
    """A leader whose log had these epochs before its LeaderChange."""
    node = Driven(voters=voters, log=MemoryLog(*epochs), hard_state=HardState(epoch))
    node.become_leader()
    return node


def test_record_is_committed_when_a_majority_has_flushed_it() -> None:
    node = leader()
    assert node.node.high_watermark == -1
    assert node.fetched_by(2, 0).high_watermark == -1
    assert node.fetched_by(2, 1).high_watermark == 1
    node.write()
    node.flush()
    assert node.node.high_watermark == 1
    assert node.fetched_by(3, 2).high_watermark == 2


def test_leader_does_not_count_itself_before_its_own_flush() -> None:
    node = leader()
    node.fetched_by(2)
    node.write()
    node.fetched_by(2)
    assert node.node.high_watermark == 1
    node.flush()
    assert node.node.high_watermark == 2


def test_majority_without_the_leader_commits_too() -> None:
    node = leader()
    node.write()
    node.fetched_by(2)
    node.fetched_by(3)
    assert node.node.high_watermark == 2


def test_two_of_four_are_no_majority() -> None:
    node = leader(voters=(1, 2, 3, 4))
    node.fetched_by(2)
    assert node.node.high_watermark == -1
    node.fetched_by(3)
    assert node.node.high_watermark == 1


def test_observers_do_not_count() -> None:
    node = leader(voters=(1, 2, 3))
    node.fetched_by(8)
    node.fetched_by(9)
    assert node.node.high_watermark == -1


def test_records_of_earlier_epochs_are_committed_only_with_one_of_its_own() -> None:
    """Raft §5.4.2, figure 8: a majority has the record of epoch 2, and it may still be lost."""
    node = leader(1, 2, epoch=3)
    assert (node.node.epoch, node.node.epoch_start_offset) == (4, 2)
    node.fetched_by(2, 2)
    assert node.node.high_watermark == -1
    voter = Driven(2, log=MemoryLog(1, 2), hard_state=HardState(4, voted_for=1))
    assert voter.vote(3, 5, (3, 2)).granted, "and this candidate does not have it"
    node.fetched_by(2, 3)
    assert node.node.high_watermark == 3


def test_high_watermark_does_not_fall_when_a_replica_falls_back() -> None:
    node = leader()
    node.write()
    node.flush()
    node.fetched_by(2)
    assert node.node.high_watermark == 2
    node.fetched_by(2, 0)
    assert node.node.high_watermark == 2


def test_new_high_watermark_wakes_those_who_wait_for_it() -> None:
    node = leader()
    request = FetchRequest(2, directory_of(2), 1, 1, 1, -1)
    _, effects = node.node.handle_fetch(request, node.now)
    assert effects.wake_fetches
    _, effects = node.node.handle_fetch(request, node.now)
    assert not effects.wake_fetches


def test_looking_again_at_a_parked_fetch_is_no_sign_of_life() -> None:
    node = leader()
    node.fetched_by(2)
    before = node.node.progress(node.now)
    node.now += 400
    node.node.answer_fetch(FetchRequest(2, directory_of(2), 1, 1, 1, 1))
    assert node.node.progress(node.now)[0][1:] == before[0][1:]


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_fetch_of_another_epoch_is_refused_and_counts_for_nothing(
    epoch: int, error: ErrorCode
) -> None:
    node = leader()
    response = node.fetched_by(2, epoch=epoch)
    assert (response.error, response.epoch, response.leader_id) == (error, 1, 1)
    assert node.node.high_watermark == -1
    assert node.node.is_leader


def test_follower_says_who_leads() -> None:
    node = Driven()
    node.follow(2, 5)
    response = node.fetched_by(3)
    assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (response.epoch, response.leader_id) == (5, 2)


# Where the logs part.


def test_log_that_ends_in_an_unknown_epoch_is_sent_back() -> None:
    node = leader(1, 1, 3, 3, epoch=3)
    response = node.fetched_by(2, 4, last_epoch=2)
    assert response.diverging == OffsetAndEpoch(2, 1)
    assert not response.records_follow
    assert node.node.high_watermark == -1


def test_log_that_is_longer_in_a_known_epoch_is_sent_back() -> None:
    node = leader(1, 1, 3, epoch=3)
    assert node.fetched_by(2, 5, last_epoch=1).diverging == OffsetAndEpoch(2, 1)
    assert node.fetched_by(2, 2, last_epoch=1).records_follow


def test_log_beyond_the_leaders_is_sent_back() -> None:
    node = leader(1, epoch=1)
    assert node.fetched_by(2, 9, last_epoch=2).diverging == OffsetAndEpoch(2, 2)


def test_empty_log_gets_everything() -> None:
    node = leader(1, 2, epoch=2)
    assert node.fetched_by(2, 0, last_epoch=0).records_follow


def test_log_without_a_common_epoch_is_sent_back_to_the_start() -> None:
    node = leader(3, 3, epoch=3)
    assert node.fetched_by(2, 5, last_epoch=2).diverging == OffsetAndEpoch(0, 0)


def with_snapshot(*epochs: int, at: int) -> Driven:
    log = MemoryLog(*epochs)
    log.take_snapshot(at, None)
    node = Driven(log=log, hard_state=HardState(epochs[-1]))
    node.become_leader()
    return node


def test_replica_before_the_logs_start_gets_the_snapshot() -> None:
    node = with_snapshot(1, 1, 2, 2, at=3)
    response = node.fetched_by(2, 1, last_epoch=1)
    assert response.snapshot == OffsetAndEpoch(3, 2)
    assert response.log_start_offset == 3
    assert not response.records_follow


def test_replica_at_the_end_of_the_snapshot_gets_records() -> None:
    node = with_snapshot(1, 1, 2, 2, at=2)
    assert node.fetched_by(2, 2, last_epoch=1).records_follow


def test_replica_that_left_before_the_logs_start_gets_the_snapshot() -> None:
    node = with_snapshot(1, 1, 4, 4, at=3)
    assert node.fetched_by(2, 9, last_epoch=2).snapshot == OffsetAndEpoch(3, 4)


def test_snapshot_is_known_to_be_committed() -> None:
    assert with_snapshot(1, 1, 2, 2, at=3).node.high_watermark == 3


# Keeping in touch.


def test_voters_that_do_not_fetch_are_told_again() -> None:
    node = leader()
    request = BeginEpochRequest(1, 1)
    node.node.failed(2, request, node.now, refused=True)
    node.node.answered(3, request, BeginEpochResponse(1, 1), node.now)
    node.fetched_by(3)
    effects = node.wait(SETTINGS.fetch_timeout_ms // 2)
    assert effects.requests == ((2, request),)


def test_voter_that_has_not_answered_is_not_told_twice() -> None:
    node = leader()
    effects = node.wait(SETTINGS.fetch_timeout_ms // 2)
    assert effects.requests == ()


def test_leader_that_is_elected_again_tells_all_of_it() -> None:
    node = leader()
    node.node.resign(node.now)
    effects = node.become_leader()
    assert effects.requests == ((2, BeginEpochRequest(2, 1)), (3, BeginEpochRequest(2, 1)))


def test_leader_without_a_majority_resigns() -> None:
    """Raft dissertation §6.2: it would make its clients wait for nothing."""
    node = leader()
    start = node.now
    node.now += 600
    node.fetched_by(2)
    node.wait(SETTINGS.fetch_timeout_ms - 600)
    assert node.node.is_leader
    while node.node.is_leader:
        effects = node.tick()
    assert node.now == start + 600 + SETTINGS.fetch_timeout_ms
    assert effects.wake_fetches
    assert effects.requests == tuple((v, EndEpochRequest(1, 1, (2, 3))) for v in (2, 3))
    assert (node.node.role, node.node.leader_id) == (RaftRole.RESIGNED, -1)


def test_in_five_two_silent_voters_do_not_matter() -> None:
    node = leader(voters=(1, 2, 3, 4, 5))
    for _ in range(10):
        node.now += 300
        node.fetched_by(2)
        node.fetched_by(5)
        node.tick(node.now)
    assert node.node.is_leader
    node.now += 900
    node.fetched_by(2)
    node.wait(150)
    assert node.plays(RaftRole.RESIGNED)


def test_observers_do_not_keep_a_leader() -> None:
    node = leader()
    node.now += SETTINGS.fetch_timeout_ms
    node.fetched_by(9)
    node.tick(node.now)
    assert node.plays(RaftRole.RESIGNED)


def test_fetching_a_snapshot_is_a_sign_of_life() -> None:
    node = leader()
    node.now += SETTINGS.fetch_timeout_ms
    assert node.node.handle_fetch_snapshot(3, 1, node.now)[0] is ErrorCode.NONE
    node.tick(node.now)
    assert node.node.is_leader
    assert node.node.handle_fetch_snapshot(3, 0, node.now)[0] is ErrorCode.FENCED_LEADER_EPOCH


def test_only_a_leader_has_snapshots_to_fetch() -> None:
    node = Driven()
    node.follow(2, 5)
    error, _ = node.node.handle_fetch_snapshot(3, 5, node.now)
    assert error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_fetch_of_a_log_that_has_left_is_a_sign_of_life() -> None:
    node = leader(1, 3, epoch=3)
    node.now += SETTINGS.fetch_timeout_ms
    assert node.fetched_by(3, 5, last_epoch=2).diverging is not None
    node.tick(node.now)
    assert node.node.is_leader
    voters, _ = node.node.progress(node.now)
    assert voters[2].end_offset == -1


def test_consumer_of_the_log_is_no_replica() -> None:
    node = leader()
    assert node.fetched_by(-1).records_follow
    assert node.node.handle_fetch_snapshot(-1, 1, node.now)[0] is ErrorCode.NONE
    assert node.node.progress(node.now)[1] == []


def test_single_voter_needs_nobody() -> None:
    node = Driven(voters=[1])
    node.tick(0)
    assert node.node.deadline_ms is None


# Handing over.


def test_leader_that_resigns_names_the_best_successor_first() -> None:
    node = leader(voters=(1, 2, 3, 4))
    node.write()
    node.fetched_by(2, 1)
    node.fetched_by(4, 2)
    effects = node.node.resign(node.now)
    request = EndEpochRequest(1, 1, (4, 2, 3))
    assert effects.requests == ((2, request), (3, request), (4, request))
    assert node.fetched_by(2).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_resigned_leader_stands_again_after_a_while() -> None:
    node = leader()
    node.node.resign(node.now)
    start = node.now
    node.tick()
    assert node.plays(RaftRole.PROSPECTIVE)
    assert node.now >= start + SETTINGS.election_timeout_ms


def test_leadership_goes_to_a_voter_that_has_all_records() -> None:
    node = leader()
    node.fetched_by(2)
    assert node.node.transfer(9, node.now)[0] is ErrorCode.VOTER_NOT_FOUND
    assert node.node.transfer(3, node.now)[0] is ErrorCode.REQUEST_TIMED_OUT
    error, effects = node.node.transfer(2, node.now)
    assert error is ErrorCode.NONE
    assert effects.requests[0] == (2, EndEpochRequest(1, 1, (2, 3)))


def test_only_a_leader_can_hand_over() -> None:
    node = Driven()
    node.follow(2, 5)
    assert node.node.transfer(3, 0)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.node.resign(0).requests == ()
    assert node.node.leader_id == 2


# DescribeQuorum.


def test_progress_of_voters_and_observers() -> None:
    node = leader()
    node.now = 5000
    node.fetched_by(2, 0)
    node.fetched_by(9, 1)
    node.now = 5100
    node.write()
    node.fetched_by(2, 1)
    voters, observers = node.node.progress(5200)
    assert voters == [
        ReplicaProgress(1, directory_of(1), 2, 5200, 5200),
        ReplicaProgress(2, directory_of(2), 1, 5100, 5000),
        ReplicaProgress(3, bytes(16), -1, -1, -1),
    ]
    assert observers == [ReplicaProgress(9, directory_of(9), 1, 5000, 5000)]


def test_silent_observers_are_forgotten() -> None:
    node = Driven(voters=[1])
    node.tick(0)
    node.fetched_by(8)
    node.now = 400_000
    node.fetched_by(9)
    assert [replica.node_id for replica in node.node.progress(node.now)[1]] == [9]


def test_follower_knows_no_progress() -> None:
    node = Driven()
    assert node.node.progress(0) == ([], [])
