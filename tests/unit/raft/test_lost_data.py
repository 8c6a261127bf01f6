"""Nodes that start without data: new ones, and voters whose disk was lost.

Unlike in Raft, where a voter never forgets, a wiped one comes back under its old id. It may have
voted and promised records before, so it must not count again before it has them again.
"""

from headrace.raft.messages import (
    LOST_DIRECTORY_ID,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    HardState,
    RaftRole,
)
from tests.unit.raft.memory import Entry, MemoryLog
from tests.unit.raft.nodes import SETTINGS, Driven, directory_of, ok

LOST = LOST_DIRECTORY_ID


def blank(node_id: int = 1) -> Driven:
    return Driven(node_id, hard_state=None)


def leader(*epochs: int) -> Driven:
    node = Driven(log=MemoryLog(*epochs), hard_state=HardState(epochs[-1] if epochs else 0))
    node.become_leader()
    return node


def test_cluster_is_founded_by_nodes_without_data() -> None:
    node = blank()
    assert node.node.hard_state == HardState(may_vote=False)
    assert node.vote(2, 0, pre_vote=True).granted
    assert node.node.hard_state == HardState(may_vote=False)
    assert node.vote(2, 1).granted
    assert node.stored == HardState(1, voted_for=2, may_vote=True)


def test_node_without_data_stands_with_an_empty_log() -> None:
    node = blank()
    node.become_leader()
    assert node.stored == HardState(1, voted_for=1, leader_id=1, may_vote=True)


def test_node_without_data_votes_for_nobody_with_records() -> None:
    """The records may not be all that this node helped to commit before it lost its own."""
    node = blank()
    for pre_vote in (True, False):
        assert not node.vote(2, 5, (4, 9), pre_vote=pre_vote).granted
    assert node.stored == HardState(5, may_vote=False)


def test_old_data_without_a_quorum_state_may_vote_only_alone() -> None:
    """The file had the votes that were given; only a voter that needs no other has none to keep."""
    alone = Driven(voters=(1,), log=MemoryLog(1), hard_state=None)
    assert alone.node.hard_state == HardState(1)
    node = Driven(log=MemoryLog(1), hard_state=None)
    assert node.node.hard_state == HardState(1, may_vote=False, recovering=True)


def test_quorum_state_that_is_older_than_the_log_has_lost_votes() -> None:
    alone = Driven(voters=(1,), log=MemoryLog(1, 5), hard_state=HardState(3, voted_for=1))
    assert alone.node.hard_state == HardState(5)
    node = Driven(log=MemoryLog(1, 5), hard_state=HardState(3, voted_for=2))
    assert node.node.hard_state == HardState(5, may_vote=False, recovering=True)
    assert not node.vote(3, 6, (5, 9)).granted


def recovering(*epochs: int) -> Driven:
    """A voter of epoch 5 whose log was damaged, with what it has fetched again since."""
    hard = HardState(5, voted_for=2, leader_id=2, may_vote=False, recovering=True)
    return Driven(log=MemoryLog(*epochs), hard_state=hard)


def test_recovering_voter_votes_for_nobody_not_even_for_an_empty_log() -> None:
    """Two of three with damaged logs would found an empty cluster in the place of theirs."""
    node = recovering()
    for pre_vote in (True, False):
        assert not node.vote(2, 6, pre_vote=pre_vote).granted
        assert not node.vote(3, 6, (5, 100), pre_vote=pre_vote).granted
    assert node.stored == HardState(6, may_vote=False, recovering=True)


def test_recovering_voter_does_not_stand() -> None:
    for node in (recovering(), recovering(1, 2)):
        node.wait(SETTINGS.fetch_timeout_ms)
        node.wait(10 * SETTINGS.election_timeout_ms)
        assert node.plays(RaftRole.UNATTACHED)
        assert node.node.epoch == 5
        _, effects = node.node.handle_end_epoch(EndEpochRequest(5, 2, (1,)), node.now)
        assert effects.requests == ()


def test_leader_that_lost_its_log_does_not_stand_again() -> None:
    hard = HardState(5, voted_for=1, leader_id=1, may_vote=False, recovering=True)
    node = Driven(hard_state=hard)
    node.wait(10 * SETTINGS.election_timeout_ms)
    assert node.plays(RaftRole.UNATTACHED)


def test_recovering_voter_votes_again_once_it_has_what_was_committed() -> None:
    node = recovering()
    node.answer(ok(5, 2), Entry(4, "a"))
    node.answer(ok(5, 2, 3), Entry(4, "b"))
    assert node.stored is not None and node.stored.recovering
    node.answer(ok(5, 2, 3), Entry(5, "c"))
    assert node.stored == HardState(5, voted_for=2, leader_id=2)
    assert node.fetch()[1].directory_id == directory_of(1)


def test_new_epoch_does_not_end_a_recovery() -> None:
    node = recovering(1)
    node.follow(3, 7)
    assert node.stored == HardState(7, leader_id=3, may_vote=False, recovering=True)


def test_node_without_data_says_so_when_it_fetches() -> None:
    node = blank()
    node.follow(2, 5)
    assert node.stored == HardState(5, leader_id=2, may_vote=False)
    assert node.fetch()[1].directory_id == LOST


def test_node_may_vote_again_once_it_has_what_was_committed() -> None:
    node = blank()
    node.follow(2, 5)
    node.answer(ok(5, 2), Entry(4, "a"))
    node.answer(ok(5, 2, 3), Entry(4, "b"))
    node.answer(ok(5, 2, 4), Entry(5, "c"), flush=False)
    assert node.stored == HardState(5, leader_id=2, may_vote=False)
    node.flush()
    assert node.stored == HardState(5, leader_id=2, may_vote=True)
    assert node.fetch()[1].directory_id == directory_of(1)


def test_node_may_vote_again_when_it_learns_that_it_has_what_was_committed() -> None:
    node = blank()
    node.follow(2, 5)
    node.answer(ok(5, 2), Entry(4, "a"))
    node.answer(ok(5, 2, 1), flush=False)
    assert node.stored == HardState(5, leader_id=2, may_vote=True)


def test_node_that_is_not_there_yet_does_not_stand_or_vote() -> None:
    node = blank()
    node.follow(2, 5)
    node.answer(ok(5, 2), Entry(4, "a"))
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.UNATTACHED)
    assert not node.vote(3, 6, (5, 9)).granted
    request = EndEpochRequest(6, 2, (1,))
    _, effects = node.node.handle_end_epoch(request, node.now)
    assert effects.requests == ()


def test_node_that_is_not_there_yet_is_so_after_a_restart_too() -> None:
    node = Driven(log=MemoryLog(1), hard_state=HardState(5, leader_id=2, may_vote=False))
    assert node.fetch()[1].directory_id == LOST
    node.wait(SETTINGS.fetch_timeout_ms)
    assert node.plays(RaftRole.UNATTACHED)


def test_mark_of_one_leader_is_not_that_of_the_next() -> None:
    node = blank()
    node.follow(2, 5)
    node.answer(ok(5, 2, 2), Entry(4, "a"))
    node.follow(3, 6)
    node.answer(ok(6, 3, 9), Entry(4, "b"), Entry(4, "c"))
    node.answer(ok(6, 3, 9))
    assert node.stored is not None and not node.stored.may_vote


def test_leader_does_not_count_a_voter_without_data() -> None:
    node = leader(1, 1)
    node.fetched_by(2, directory_id=LOST)
    assert node.node.high_watermark == -1
    node.now += SETTINGS.fetch_timeout_ms
    node.fetched_by(2, directory_id=LOST)
    node.tick(node.now)
    assert node.plays(RaftRole.RESIGNED)


def test_high_watermark_is_told_to_it_when_a_majority_has_confirmed_the_leader() -> None:
    """Else a leader that was replaced unnoticed could take it for its own majority."""
    node = leader(1, 1)
    node.fetched_by(3)
    assert node.node.high_watermark == 3
    assert node.fetched_by(2, 0, directory_id=LOST).high_watermark == -1
    node.fetched_by(3)
    assert node.fetched_by(2, 0, directory_id=LOST).high_watermark == -1, "sent before, perhaps"
    node.fetched_by(3)
    assert node.fetched_by(2, 0, directory_id=LOST).high_watermark == 3


def test_confirming_fetch_wakes_the_one_that_waits() -> None:
    node = leader(1, 1)
    node.fetched_by(3)
    node.fetched_by(2, directory_id=LOST)
    node.fetched_by(3)
    request = FetchRequest(3, directory_of(3), node.node.epoch, 3, 2, 3)
    _, effects = node.node.handle_fetch(request, node.now)
    assert effects.wake_fetches


def test_no_high_watermark_before_the_leaders_first_record_is_committed() -> None:
    """An older one may be below what earlier leaders committed."""
    node = Driven(log=MemoryLog(1, 1), hard_state=HardState(1))
    node.follow(2, 2)
    node.answer(ok(2, 2, 1))
    assert node.node.high_watermark == 1
    node.become_leader()
    assert node.fetched_by(9, 0, directory_id=LOST).high_watermark == -1
    assert node.fetched_by(9, 0).high_watermark == 1


def test_voter_that_needs_the_snapshot_learns_no_high_watermark_with_it() -> None:
    log = MemoryLog(1, 1, 1)
    log.take_snapshot(2, None)
    node = Driven(log=log, hard_state=HardState(1))
    node.become_leader()
    node.fetched_by(3)
    response = node.fetched_by(2, 0, directory_id=LOST)
    assert (response.snapshot, response.high_watermark) == (log.snapshot, -1)
    assert node.fetched_by(2, 2, directory_id=LOST).high_watermark == -1
    node.fetched_by(3)
    node.fetched_by(3)
    assert node.fetched_by(2, 2, directory_id=LOST).high_watermark == 4


def test_observer_without_data_needs_no_confirmation() -> None:
    node = leader(1, 1)
    node.fetched_by(3)
    assert node.fetched_by(9, 0, directory_id=LOST).high_watermark == 3


def test_founding_voters_count_at_once() -> None:
    node = blank()
    node.become_leader()
    response = node.fetched_by(2, 0, directory_id=LOST)
    assert response.high_watermark == 0
    assert node.fetched_by(2, 1, directory_id=LOST).high_watermark == 1


def test_founding_voter_that_loses_its_data_is_found_out() -> None:
    node = blank()
    node.become_leader()
    node.write()
    node.fetched_by(2, 0, directory_id=LOST)
    node.fetched_by(2, 2)
    node.flush()
    assert node.node.high_watermark == 2
    assert node.fetched_by(2, 0, directory_id=LOST).high_watermark == -1
    node.write()
    node.flush()
    node.fetched_by(2, 3, directory_id=LOST)
    assert node.node.high_watermark == 2


def test_founding_voter_that_falls_back_is_found_out() -> None:
    node = blank()
    node.become_leader()
    node.fetched_by(2, 0, directory_id=LOST)
    assert node.fetched_by(2, 1, directory_id=LOST).high_watermark == 1
    assert node.fetched_by(2, 0, directory_id=LOST).high_watermark == -1


def test_voter_that_loses_its_data_again_has_to_wait_again() -> None:
    node = leader(1, 1)
    for _ in range(2):
        node.fetched_by(3)
        assert node.fetched_by(2, 0, directory_id=LOST).high_watermark == -1
        node.fetched_by(3)
        node.fetched_by(3)
        assert node.fetched_by(2, directory_id=LOST).high_watermark == 3
        node.fetched_by(2)


def test_founder_may_vote_after_the_first_answer() -> None:
    node = blank()
    node.follow(2, 1)
    node.answer(FetchResponse(1, 2, high_watermark=0), Entry(1, "leader"))
    assert node.stored == HardState(1, leader_id=2, may_vote=True)
