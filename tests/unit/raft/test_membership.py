"""Changing the voters: Raft dissertation §4, KIP-853."""

from random import Random

from headrace.errors import ErrorCode
from headrace.raft.messages import HardState, RaftRole, Voter
from headrace.raft.raft_node import RaftNode
from tests.unit.raft.memory import Entry, MemoryLog
from tests.unit.raft.nodes import SETTINGS, Driven, ok, only_vote, voters_of


def established(*voters: int) -> Driven:
    """A leader, all voters caught up, and its first record committed."""
    node = Driven(voters=voters, log=MemoryLog(1), hard_state=HardState(1))
    if len(voters) == 1:
        node.tick(0)
        node.flush()
    else:
        node.become_leader()
    for voter in node.others:
        node.fetched_by(voter)
    return node


def add(node: Driven, voter: int) -> ErrorCode:
    error, effects = node.node.add_voter(Voter(voter), node.now)
    node.carry_out(effects)
    return error


def remove(node: Driven, voter: int) -> ErrorCode:
    error, effects = node.node.remove_voter(voter, node.now)
    node.carry_out(effects)
    return error


def test_observer_that_caught_up_becomes_a_voter() -> None:
    node = established(1, 2, 3)
    assert add(node, 4) is ErrorCode.REQUEST_TIMED_OUT
    node.fetched_by(4, 0)
    assert add(node, 4) is ErrorCode.REQUEST_TIMED_OUT
    node.fetched_by(4)
    assert add(node, 4) is ErrorCode.NONE
    assert node.node.voters == voters_of(1, 2, 3, 4)


def test_new_voters_count_from_the_moment_their_record_is_appended() -> None:
    node = established(1, 2, 3)
    node.fetched_by(4)
    add(node, 4)
    node.flush()
    node.fetched_by(2)
    assert node.node.high_watermark == 2, "two of four"
    node.fetched_by(4)
    assert node.node.high_watermark == 3


def test_observer_that_caught_up_long_ago_is_no_voter_yet() -> None:
    node = established(1)
    node.fetched_by(2)
    node.now += SETTINGS.fetch_timeout_ms + 1
    assert add(node, 2) is ErrorCode.REQUEST_TIMED_OUT


def test_single_voter_gets_a_second() -> None:
    node = established(1)
    node.fetched_by(2)
    assert add(node, 2) is ErrorCode.NONE
    node.flush()
    assert node.node.high_watermark == 2
    node.fetched_by(2)
    assert node.node.high_watermark == 3


def test_one_change_at_a_time() -> None:
    node = established(1, 2, 3)
    node.fetched_by(4)
    assert add(node, 4) is ErrorCode.NONE
    assert remove(node, 3) is ErrorCode.REQUEST_TIMED_OUT
    node.flush()
    for voter in (2, 3, 4):
        node.fetched_by(voter)
    assert remove(node, 3) is ErrorCode.NONE


def test_no_change_before_the_leaders_first_record_is_committed() -> None:
    """The hole in the first version of the algorithm: two leaders, each with its own change."""
    node = Driven()
    node.become_leader()
    for voter in (2, 3):
        node.fetched_by(voter, 0)
    assert remove(node, 3) is ErrorCode.REQUEST_TIMED_OUT


def test_no_change_if_only_records_of_earlier_leaders_are_committed() -> None:
    node = Driven(log=MemoryLog(1), hard_state=HardState(1))
    node.follow(2, 2)
    node.answer(ok(2, 2, 1))
    node.granted(2, only_vote(node.become_candidate()))
    node.fetched_by(2)
    assert node.node.high_watermark == node.node.epoch_start_offset == 1
    assert remove(node, 3) is ErrorCode.REQUEST_TIMED_OUT
    node.flush()
    assert remove(node, 3) is ErrorCode.NONE


def test_unknown_and_known_voters() -> None:
    node = established(1, 2, 3)
    assert add(node, 3) is ErrorCode.DUPLICATE_VOTER
    assert remove(node, 4) is ErrorCode.VOTER_NOT_FOUND
    assert remove(established(1), 1) is ErrorCode.INVALID_REQUEST


def test_voters_are_not_changed_to_those_that_could_not_commit_it() -> None:
    node = established(1, 2, 3)
    node.now += SETTINGS.fetch_timeout_ms
    node.fetched_by(2)
    node.now += 1
    assert remove(node, 2) is ErrorCode.REQUEST_TIMED_OUT, "3 is silent, and would be needed"
    assert remove(node, 3) is ErrorCode.NONE


def test_only_a_leader_changes_voters() -> None:
    node = Driven()
    assert add(node, 4) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert remove(node, 3) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_removed_leader_leads_until_its_removal_is_committed() -> None:
    node = established(1, 2, 3)
    assert remove(node, 1) is ErrorCode.NONE
    node.flush()
    assert node.node.voters == voters_of(2, 3)
    node.fetched_by(2)
    assert node.node.high_watermark == 2, "it does not count itself any more"
    assert node.node.is_leader
    response = node.fetched_by(3)
    assert node.node.high_watermark == 3
    assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.plays(RaftRole.RESIGNED)
    node.tick()
    assert node.plays(RaftRole.UNATTACHED)
    assert node.fetch()[0] in (2, 3)


def test_removed_voter_stands_while_its_removal_may_not_be_committed() -> None:
    """Raft dissertation §4.2.2: only it may have the record, and so all the others' votes."""
    node = Driven(voters=[1, 2])
    node.follow(2, 5)
    node.answer(ok(5, 2, 0), Entry(5, "a"), Entry(5, voters_of(2)))
    assert not node.node.is_voter
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.PROSPECTIVE)
    vote = only_vote(node.granted(2, only_vote(node.stand())))
    node.granted(2, vote)
    assert node.node.is_leader


def test_removed_voter_does_not_stand_once_its_removal_is_committed() -> None:
    node = Driven(voters=[1, 2])
    node.follow(2, 5)
    node.answer(ok(5, 2, 2), Entry(5, "a"), Entry(5, voters_of(2)))
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.UNATTACHED)
    assert node.fetch()[0] == 2


def test_observer_becomes_a_voter_by_the_log() -> None:
    node = Driven(4)
    node.follow(2, 5)
    node.answer(ok(5, 2), Entry(5, voters_of(1, 2, 3, 4)))
    assert node.node.is_voter
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.PROSPECTIVE)


def test_voters_of_the_log_hold_after_a_restart() -> None:
    node = RaftNode(
        SETTINGS,
        1,
        bytes(16),
        voters_of(1),
        HardState(3),
        MemoryLog(1, 2, 3),
        Random(1),
        0,
        [(1, voters_of(1, 2)), (2, voters_of(2, 1, 3))],
    )
    assert node.voters == voters_of(1, 2, 3)


def test_voter_that_is_added_and_falls_silent_is_told_who_leads() -> None:
    node = established(1, 2)
    node.fetched_by(9)
    add(node, 9)
    told = []
    for _ in range(8):
        node.flush()
        node.fetched_by(2)
        told += [voter for voter, _ in node.wait(300).requests]
    assert told == [9]
