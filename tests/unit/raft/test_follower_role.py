"""Following: pulling the log, truncating it, snapshots."""

import pytest

from headrace.errors import ErrorCode
from headrace.raft.divergence import CommittedRecordsLost
from headrace.raft.messages import (
    BOOTSTRAP,
    FetchRequest,
    FetchResponse,
    HardState,
    OffsetAndEpoch,
    RaftRole,
    RaftSettings,
)
from tests.unit.raft.memory import Entry, MemoryLog
from tests.unit.raft.nodes import SETTINGS, Driven, directory_of, ok, only_vote, voters_of


def follower(*epochs: int, epoch: int = 5) -> Driven:
    node = Driven(log=MemoryLog(*epochs), hard_state=HardState(epochs[-1] if epochs else 0))
    node.follow(2, epoch)
    return node


def test_follower_fetches_from_the_end_of_its_log() -> None:
    node = follower(1, 3)
    assert node.fetch() == (2, FetchRequest(1, directory_of(1), 5, 2, 3, -1))


def test_one_fetch_at_a_time() -> None:
    node = follower()
    node.fetch()
    assert node.node.next_fetch(node.now) is None


def test_follower_promises_only_what_is_flushed() -> None:
    node = follower()
    node.answer(ok(5, 2), Entry(5, "a"), flush=False)
    assert node.node.next_fetch(node.now) is None
    node.flush()
    assert node.fetch()[1].offset == 1


def test_follower_learns_the_high_watermark_as_far_as_its_log_goes() -> None:
    node = follower()
    node.answer(ok(5, 2, 3), Entry(5, "a"), flush=False)
    assert node.node.high_watermark == 1
    node.flush()
    node.answer(ok(5, 2, 3), Entry(5, "b"), Entry(5, "c"), Entry(5, "d"))
    assert node.node.high_watermark == 3
    node.answer(ok(5, 2, 2))
    assert node.node.high_watermark == 3


def test_answer_of_an_earlier_leader_is_dropped() -> None:
    node = follower()
    leader, request = node.fetch()
    node.follow(3, 6)
    assert node.fetch()[0] == 3, "the older fetch is given up"
    effects = node.node.answered(leader, request, ok(5, 2, 1), node.now)
    assert not effects.append
    assert node.node.leader_id == 3


def test_every_answer_gives_the_leader_more_time() -> None:
    node = follower()
    for _ in range(3):
        node.wait(SETTINGS.fetch_timeout_ms - 1)
        assert node.plays(RaftRole.FOLLOWER)
        node.answer(ok(5, 2))
    node.fetch()
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.PROSPECTIVE)


def test_late_answer_of_the_leader_ends_doubts_about_it() -> None:
    node = follower()
    leader, request = node.fetch()
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.PROSPECTIVE)
    effects = node.node.answered(leader, request, ok(5, 2, 1), node.now)
    assert effects.append
    assert node.plays(RaftRole.FOLLOWER)


def test_answer_is_dropped_if_there_was_another_epoch_in_between() -> None:
    """The log may have been truncated and grown since."""
    node = follower()
    leader, request = node.fetch()
    node.vote(3, 6)
    effects = node.node.answered(leader, request, ok(5, 2, 1), node.now)
    assert not effects.append
    assert node.node.epoch == 6


def test_diverging_log_is_truncated_and_asked_about_again() -> None:
    node = follower(1, 2, 2, 4)
    effects = node.answer(FetchResponse(5, 2, diverging=OffsetAndEpoch(7, 3)))
    assert effects.truncate_to == 3
    assert not effects.append
    assert node.fetch()[1].last_epoch == 2
    assert node.node.high_watermark == -1


def test_log_that_is_too_long_in_an_epoch_is_cut_to_the_leaders() -> None:
    node = follower(1, 2, 2, 2)
    assert node.answer(FetchResponse(5, 2, diverging=OffsetAndEpoch(2, 2))).truncate_to == 2


def test_committed_records_are_never_truncated() -> None:
    node = follower(1, 2)
    node.answer(ok(5, 2, 2))
    with pytest.raises(CommittedRecordsLost):
        node.answer(FetchResponse(5, 2, diverging=OffsetAndEpoch(1, 1)))


def test_truncation_takes_back_new_voters() -> None:
    node = follower()
    node.answer(ok(5, 2), Entry(5, "a"), Entry(5, voters_of(2, 3)))
    assert node.node.voters == voters_of(2, 3)
    assert not node.node.is_voter
    node.follow(3, 6)
    node.answer(FetchResponse(6, 3, diverging=OffsetAndEpoch(1, 5)))
    assert node.node.voters == voters_of(1, 2, 3)
    assert node.node.is_voter


def test_fetch_before_the_leaders_log_brings_its_snapshot() -> None:
    node = follower(1)
    snapshot = OffsetAndEpoch(9, 4)
    effects = node.answer(FetchResponse(5, 2, snapshot=snapshot))
    assert effects.fetch_snapshot == node.node.wanted_snapshot == snapshot
    assert not effects.append
    assert node.node.next_fetch(node.now) is None
    leader_log = MemoryLog(*[4] * 9)
    leader_log.take_snapshot(9, voters_of(1, 2))
    node.log.install(leader_log)
    node.node.snapshot_installed(snapshot, voters_of(1, 2), node.now)
    assert node.node.high_watermark == 9
    assert node.node.voters == voters_of(1, 2)
    assert node.fetch() == (2, FetchRequest(1, directory_of(1), 5, 9, 4, 9))
    assert [voter for voter, _ in node.wait(SETTINGS.fetch_timeout_ms).requests] == [2]


def test_pieces_of_a_snapshot_are_signs_of_life() -> None:
    node = follower()
    node.answer(FetchResponse(5, 2, snapshot=OffsetAndEpoch(9, 4)))
    for _ in range(3):
        node.wait(SETTINGS.fetch_timeout_ms - 1)
        assert node.plays(RaftRole.FOLLOWER)
        node.node.snapshot_piece(node.now)
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.PROSPECTIVE)
    assert node.node.wanted_snapshot is not None, "it may still come"
    node.vote(3, 6, (5, 9))
    assert node.node.wanted_snapshot is None


def test_snapshot_that_does_not_come_is_asked_for_again() -> None:
    node = follower()
    node.answer(FetchResponse(5, 2, snapshot=OffsetAndEpoch(9, 4)))
    node.node.snapshot_failed(node.now)
    assert node.node.next_fetch(node.now) is None
    node.wait(SETTINGS.retry_backoff_ms)
    assert node.fetch()[1].offset == 0


def test_new_leader_ends_the_wait_for_a_snapshot() -> None:
    node = follower()
    node.answer(FetchResponse(5, 2, snapshot=OffsetAndEpoch(9, 4)))
    node.follow(3, 6)
    assert node.node.wanted_snapshot is None
    assert node.fetch()[0] == 3


def test_leader_that_has_resigned_is_replaced_at_once() -> None:
    node = follower()
    leader, request = node.fetch()
    response = FetchResponse(5, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert only_vote(node.node.answered(leader, request, response, node.now)).pre_vote


def test_fenced_follower_turns_to_the_new_leader() -> None:
    node = follower()
    leader, request = node.fetch()
    response = FetchResponse(7, 3, ErrorCode.FENCED_LEADER_EPOCH)
    effects = node.node.answered(leader, request, response, node.now)
    assert effects.hard_state == HardState(7, leader_id=3)
    assert node.fetch()[0] == 3


def test_other_errors_of_the_leader_are_waited_out() -> None:
    node = follower()
    leader, request = node.fetch()
    response = FetchResponse(5, 2, ErrorCode.UNKNOWN_SERVER_ERROR)
    node.node.answered(leader, request, response, node.now)
    assert node.plays(RaftRole.FOLLOWER)
    assert node.node.next_fetch(node.now) is None
    node.wait(SETTINGS.retry_backoff_ms)
    assert node.fetch()[0] == 2


def test_answer_that_makes_no_sense_is_not_asked_for_again_at_once() -> None:
    node = follower()
    for response in (ok(5, 3, 9), ok(4, 2, 9)):
        effects = node.answer(response, flush=False)
        assert not effects.append
        assert node.node.next_fetch(node.now) is None
        node.wait(SETTINGS.retry_backoff_ms)
    assert (node.node.leader_id, node.node.high_watermark) == (2, -1)


def test_new_epoch_ends_the_pause_after_a_failure() -> None:
    node = follower()
    leader, request = node.fetch()
    node.node.failed(leader, request, node.now, refused=False)
    assert node.node.next_fetch(node.now) is None
    node.follow(3, 6)
    assert node.fetch()[0] == 3


def test_observer_finds_the_leader_by_asking_voters() -> None:
    node = Driven(9)
    somebody, request = node.fetch()
    response = FetchResponse(5, 2, ErrorCode.FENCED_LEADER_EPOCH)
    node.node.answered(somebody, request, response, node.now)
    assert node.fetch()[0] == 2


def test_observer_whose_leader_is_gone_asks_others_in_measure() -> None:
    """They may not have noticed yet, and name the same leader."""
    node = Driven(9)
    node.follow(2, 5)
    node.answer(ok(5, 2))
    asked = []
    while node.now < 1000:
        target, request = node.fetch()
        asked.append(target)
        if target == 2:
            node.node.failed(2, request, node.now, refused=True)
        else:
            response = FetchResponse(5, 2, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            node.node.answered(target, request, response, node.now)
        if node.node.deadline_ms is not None:
            node.tick()
    assert len(asked) < 50
    assert set(asked) == {1, 2, 3}


def test_node_without_voters_asks_a_bootstrap_server() -> None:
    node = Driven(9, voters=[])
    target, request = node.fetch()
    assert target == BOOTSTRAP
    response = FetchResponse(5, 2, ErrorCode.FENCED_LEADER_EPOCH)
    node.node.answered(target, request, response, node.now)
    assert node.fetch()[0] == 2


def test_bootstrap_servers_are_asked_as_well_if_there_are_any() -> None:
    node = Driven(9, settings=RaftSettings(has_bootstrap_servers=True))
    asked = set()
    for _ in range(40):
        target, request = node.fetch()
        asked.add(target)
        node.node.failed(target, request, node.now, refused=True)
        node.tick()
    assert asked == {BOOTSTRAP, 1, 2, 3}
