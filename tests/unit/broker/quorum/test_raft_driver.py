"""Time in which this process did not run is not the silence of others."""

from headrace.broker.quorum.raft_driver import StallMeter
from headrace.raft.messages import RaftRole
from tests.unit.raft.nodes import SETTINGS, Driven, ok

TIMEOUT_MS = SETTINGS.fetch_timeout_ms


def follower() -> Driven:
    node = Driven()
    node.follow(2, 5)
    node.answer(ok(5, 2))
    node.fetch()
    return node


def leader() -> Driven:
    node = Driven()
    node.become_leader()
    node.fetched_by(2)
    return node


def stall(node: Driven, milliseconds: int) -> None:
    """Do not run for so long, and come too late for what was due."""
    node.now += milliseconds
    node.node.stalled(milliseconds)


def test_meter_counts_what_is_beyond_the_interval() -> None:
    meter = StallMeter(100)
    assert [meter.stall_ms(now) for now in (5_000, 5_040, 5_140, 5_300, 9_300)] == [
        *(0, 0, 0, 60),
        3_900,
    ]


def test_follower_that_did_not_run_does_not_doubt_its_leader() -> None:
    node = follower()
    stall(node, TIMEOUT_MS)
    node.tick(node.now)
    assert node.plays(RaftRole.FOLLOWER)
    assert not node.vote(3, 5, (5, 100), pre_vote=True).granted
    node.wait(TIMEOUT_MS)
    assert node.plays(RaftRole.PROSPECTIVE)


def test_process_that_hardly_runs_misses_a_dead_peer_after_a_number_of_turns() -> None:
    for node in (follower(), leader()):
        role, turns, meter = node.node.role, 0, StallMeter(TIMEOUT_MS // 8)
        meter.stall_ms(node.now)
        while node.plays(role):
            node.now += 3 * TIMEOUT_MS
            node.node.stalled(meter.stall_ms(node.now))
            node.tick(node.now)
            turns += 1
        assert turns == 8


def test_every_answer_of_the_leader_renews_what_is_forgiven() -> None:
    node = Driven()
    node.follow(2, 5)
    for _ in range(5):
        leader_id, request = node.fetch()
        stall(node, TIMEOUT_MS - 1)
        node.tick(node.now)
        assert node.plays(RaftRole.FOLLOWER)
        node.node.answered(leader_id, request, ok(5, 2), node.now)


def test_leader_that_did_not_run_does_not_resign() -> None:
    """The fetches of its followers are in its sockets, unread."""
    node = leader()
    stall(node, TIMEOUT_MS)
    node.tick(node.now)
    assert node.node.is_leader
    assert not node.node.is_confirmed(node.now), "another may lead by now, so it promises nothing"
    node.fetched_by(3)
    assert node.node.is_confirmed(node.now)
    node.wait(TIMEOUT_MS)
    assert node.plays(RaftRole.RESIGNED)
