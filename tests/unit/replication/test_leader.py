"""What a leader makes of its followers' fetches: commits, and who is in sync."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.leader import HighWatermark, IsrProposal, LeaderState

LAG_MS = 10_000
OWN_EPOCH = 11


def anybody(_: int, __: int) -> bool:
    return True


def nobody(_: int, __: int) -> bool:
    return False


def lead(**settings: Any) -> LeaderState:
    """Broker 1 leads in epoch 5; its log ends at 100, and 98 are committed."""
    values: dict[str, Any] = {
        "node_id": 1,
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "leader_epoch": 5,
        "partition_epoch": 7,
        "log_end_offset": 100,
        "persisted_offset": 100,
        "high_watermark": 98,
        "now_ms": 0,
    } | settings
    values["high_watermark"] = HighWatermark(values["high_watermark"], 0, values["log_end_offset"])
    return LeaderState(**values)


def after(leader: LeaderState, event: Callable[..., bool], *values: Any, **settings: Any) -> int:
    """The high watermark after an event, which says whether it moved."""
    before = leader.high_watermark.offset
    has_moved = event(*values, **settings)
    assert has_moved is (leader.high_watermark.offset > before)
    return leader.high_watermark.offset


def fetch(
    leader: LeaderState, broker_id: int, offset: int, now_ms: int = 0, **settings: Any
) -> int:
    epoch = settings.get("epoch", broker_id * 10)
    may_join = settings.get("may_join", anybody)
    return after(leader, leader.fetched, broker_id, epoch, offset, 0, now_ms, may_join)


def append(leader: LeaderState, end_offset: int, now_ms: int = 0) -> int:
    leader.appended(end_offset, now_ms)
    return after(leader, leader.persisted, end_offset)


def propose(leader: LeaderState, now_ms: int, **settings: Any) -> tuple[int, ...] | None:
    may_join = settings.get("may_join", anybody)
    after(leader, leader.choose_joining, now_ms, LAG_MS, may_join)
    proposal = leader.propose(now_ms, LAG_MS, OWN_EPOCH, may_join)
    return None if proposal is None else proposal.isr


def test_a_high_watermark_that_was_kept_is_believed_as_far_as_there_is_a_log() -> None:
    assert HighWatermark(7, 2, 9).offset == 7
    assert HighWatermark(12, 2, 9).offset == 9, "a crash took the rest"
    assert HighWatermark(0, 2, 9).offset == 2, "only committed records are deleted"


def test_a_high_watermark_follows_its_leader_as_far_as_there_are_records() -> None:
    high_watermark = HighWatermark(5, 0, 10)
    assert high_watermark.advance(8, 10)
    assert not high_watermark.advance(6, 10), "it does not go back"
    assert high_watermark.advance(15, 10)
    assert not high_watermark.advance(20, 10)
    assert high_watermark.offset == 10
    high_watermark.log_start_moved(4)
    assert high_watermark.offset == 10
    high_watermark.log_start_moved(12)
    assert high_watermark.offset == 12


def test_only_a_truncation_lowers_a_high_watermark() -> None:
    high_watermark = HighWatermark(8, 0, 10)
    assert high_watermark.truncated(8) == 0
    assert high_watermark.offset == 8
    assert high_watermark.truncated(5) == 3
    assert high_watermark.offset == 5


def test_a_single_replica_commits_what_it_has_persisted() -> None:
    leader = lead(replicas=(1,), isr=(1,), min_insync_replicas=2)
    leader.appended(105, 0)
    assert leader.high_watermark.offset == 98
    assert after(leader, leader.persisted, 105) == 105


def test_committed_is_what_every_in_sync_replica_has() -> None:
    leader = lead()
    assert fetch(leader, 2, 100) == 98, "nothing is known of broker 3 yet"
    assert fetch(leader, 3, 99) == 99
    assert fetch(leader, 3, 100) == 100


def test_the_leaders_own_copy_counts_when_it_is_persisted() -> None:
    leader = lead(isr=(1,), persisted_offset=98)
    leader.appended(110, 0)
    assert leader.high_watermark.offset == 98
    assert after(leader, leader.persisted, 105) == 105


def test_the_high_watermark_never_goes_back() -> None:
    leader = lead()
    fetch(leader, 2, 100)
    fetch(leader, 3, 100)
    assert fetch(leader, 3, 40) == 100, "a follower that lost its log takes nothing back"


def test_a_follower_that_does_not_keep_up_leaves_after_the_lag_time() -> None:
    leader = lead()
    fetch(leader, 2, 100)
    fetch(leader, 3, 100)
    append(leader, 110, now_ms=1000)
    fetch(leader, 2, 110, now_ms=1001)
    assert propose(leader, 1000 + LAG_MS) is None
    assert propose(leader, 1001 + LAG_MS) == (1, 2)
    assert leader.high_watermark.offset == 100, "a proposal alone commits nothing"
    assert after(leader, leader.proposal_accepted, (1, 2), 8) == 110
    assert leader.partition_epoch == 8


def test_a_follower_of_an_idle_partition_stays_however_long_nothing_comes() -> None:
    leader = lead()
    for broker_id in (2, 3):
        fetch(leader, broker_id, 100)
    assert propose(leader, 1_000_000) is None
    append(leader, 101, now_ms=1_000_000)
    assert propose(leader, 1_000_000 + LAG_MS) is None
    assert propose(leader, 1_000_001 + LAG_MS) == (1,)


def test_who_is_never_heard_of_has_the_lag_time_too() -> None:
    leader = lead()
    assert propose(leader, LAG_MS) is None
    assert propose(leader, LAG_MS + 1) == (1,)


def test_a_follower_behind_a_steady_stream_is_in_sync() -> None:
    leader = lead()
    fetch(leader, 3, 100)
    for now_ms in range(0, 5 * LAG_MS, 1000):
        fetch(leader, 2, leader.log_end_offset, now_ms)
        append(leader, leader.log_end_offset + 10, now_ms)
        # Never at the end, but always where the end was when it asked the last time.
        fetch(leader, 2, leader.log_end_offset - 5, now_ms + 500)
        fetch(leader, 3, leader.log_end_offset, now_ms + 500)
        assert propose(leader, now_ms + 500) is None


def test_a_follower_comes_back_once_it_has_all_that_is_committed() -> None:
    leader = lead(isr=(1, 2), high_watermark=100)
    fetch(leader, 2, 100)
    fetch(leader, 3, 50)
    assert not leader.can_grow()
    fetch(leader, 3, 99, now_ms=1)
    assert not leader.can_grow()
    fetch(leader, 3, 100, now_ms=2)
    assert leader.can_grow()
    assert propose(leader, 2) == (1, 2, 3)
    assert leader.pending == IsrProposal((1, 2, 3), (OWN_EPOCH, 20, 30), 5, 7)
    assert leader.isr == (1, 2)
    assert leader.maximal_isr == (1, 2, 3)


def test_a_leader_alone_waits_for_who_is_about_to_join() -> None:
    leader = lead(isr=(1,), replicas=(1, 2), high_watermark=100)
    fetch(leader, 2, 60)
    assert append(leader, 110) == 110, "who is far behind is not waited for"
    # It has all there was when it asked, though not what came since.
    fetch(leader, 2, 100, now_ms=1)
    assert append(leader, 120, now_ms=2) == 110
    assert not leader.can_grow()
    assert fetch(leader, 2, 110, now_ms=3) == 110
    assert leader.can_grow()


def test_nobody_waits_long_for_who_does_not_join_after_all() -> None:
    leader = lead(isr=(1,), replicas=(1, 2), high_watermark=100)
    fetch(leader, 2, 100, now_ms=0)
    assert append(leader, 110, now_ms=1) == 100
    assert propose(leader, LAG_MS, may_join=nobody) is None
    assert leader.high_watermark.offset == 110
    assert leader.joining == set()


def test_one_that_was_not_alive_when_it_fetched_can_join_later() -> None:
    leader = lead(isr=(1, 2), high_watermark=100)
    fetch(leader, 2, 100)
    fetch(leader, 3, 100, may_join=nobody)
    assert not leader.can_grow()
    assert propose(leader, 5, may_join=nobody) is None
    assert propose(leader, 5) == (1, 2, 3)


def test_it_must_have_what_was_there_when_the_leadership_began() -> None:
    leader = lead(isr=(1, 2))
    fetch(leader, 3, 98)
    fetch(leader, 3, 99, now_ms=1)
    leader.joining.add(3)
    assert not leader.can_grow(), "99 are more than is committed, and less than the leader has"
    fetch(leader, 3, 100, now_ms=2)
    assert leader.can_grow()


def test_while_the_answer_is_open_both_lists_count() -> None:
    leader = lead(isr=(1, 2), high_watermark=100)
    fetch(leader, 2, 100)
    fetch(leader, 3, 100)
    assert propose(leader, 0) == (1, 2, 3)
    append(leader, 110)
    assert fetch(leader, 2, 110) == 100, "broker 3 may be in sync by now, and has not got it"
    assert propose(leader, 1_000) is None, "one proposal at a time"
    assert fetch(leader, 3, 110) == 110


def test_a_refused_proposal_counts_no_more() -> None:
    leader = lead(isr=(1, 2), high_watermark=100)
    fetch(leader, 2, 100)
    fetch(leader, 3, 100)
    propose(leader, 0)
    append(leader, 110)
    fetch(leader, 2, 110)
    assert leader.pending is not None
    assert after(leader, leader.proposal_refused, leader.pending) == 110
    assert leader.isr == (1, 2)


def test_the_metadata_log_settles_what_no_answer_told() -> None:
    leader = lead(isr=(1, 2), high_watermark=100)
    fetch(leader, 2, 100)
    fetch(leader, 3, 100)
    propose(leader, 0)
    leader.update((1, 2, 3), (1, 2, 3), 8)
    assert leader.pending is None
    assert leader.isr == (1, 2, 3)
    leader.update((1, 2, 3), (1,), 8)
    leader.update((1, 2, 3), (1,), 3)
    assert leader.isr == (1, 2, 3), "an old state changes nothing"


def test_an_answer_to_an_older_proposal_refuses_nothing() -> None:
    leader = lead(isr=(1, 2), high_watermark=100)
    fetch(leader, 3, 100)
    propose(leader, 0)
    old = leader.pending
    assert old is not None
    leader.update((1, 2, 3), (1, 2), 8)
    fetch(leader, 3, 100)
    propose(leader, 0)
    leader.proposal_refused(old)
    assert leader.pending is not None


def test_replicas_come_and_go_by_reassignment() -> None:
    leader = lead(isr=(1, 2, 3), high_watermark=100)
    for broker_id in (2, 3):
        fetch(leader, broker_id, 100)
    leader.update((1, 2, 3, 4), (1, 2, 3), 8)
    fetch(leader, 4, 100)
    assert propose(leader, 0) == (1, 2, 3, 4)
    leader.proposal_accepted((1, 2, 3, 4), 9)
    leader.update((1, 2, 4), (1, 2, 4), 10)
    append(leader, 110)
    fetch(leader, 2, 110)
    assert fetch(leader, 4, 110) == 110, "broker 3 counts no more"
    with pytest.raises(KafkaError) as refused:
        fetch(leader, 3, 110)
    assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_an_answer_tells_nothing_of_replicas_but_the_log_does() -> None:
    leader = lead(isr=(1, 2))
    leader.proposal_accepted((1, 2, 3), 8)
    leader.update((1, 3), (1, 3), 8)
    assert (leader.replicas, leader.isr) == ((1, 3), (1, 3))


def test_an_incarnation_that_has_a_successor_is_not_believed() -> None:
    leader = lead()
    fetch(leader, 2, 100, epoch=31)
    with pytest.raises(KafkaError) as refused:
        fetch(leader, 2, 100, epoch=30)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.followers[2].broker_epoch == 31


def test_records_are_gone_once_all_in_sync_replicas_have_dropped_them() -> None:
    leader = lead(isr=(1, 2))
    leader.fetched(2, 20, 100, 10, 0, anybody)
    leader.fetched(3, 30, 50, 0, 0, anybody)
    assert leader.low_watermark == 10


def test_nothing_is_committed_with_too_few_in_sync() -> None:
    leader = lead(isr=(1,), min_insync_replicas=2)
    assert append(leader, 105) == 98
    assert fetch(leader, 2, 105) == 98, "it is not in sync until the controller says so"
    assert after(leader, leader.update, (1, 2, 3), (1, 2), 8) == 105
    # What is committed stays so when one of them goes.
    assert after(leader, leader.update, (1, 2, 3), (1,), 9) == 105
    assert append(leader, 110) == 105
    assert after(leader, leader.set_min_insync_replicas, 1) == 110


def test_a_partition_with_fewer_replicas_than_are_asked_for_needs_all_of_them() -> None:
    leader = lead(replicas=(1, 2), isr=(1, 2), min_insync_replicas=3)
    assert fetch(leader, 2, 100) == 100
    assert after(leader, leader.update, (1, 2), (1,), 8) == 100
    assert append(leader, 105) == 100


def test_a_replica_whose_log_is_lost_does_not_join() -> None:
    leader = lead(high_watermark=100)
    for broker_id in (2, 3):
        fetch(leader, broker_id, 100)
    # Its disk failed: it has fetched everything, and nothing is appended.
    leader.update((1, 2, 3), (1, 2), 8, lost_replicas=(3,))
    assert propose(leader, 1) is None
    # Not even by a fetch that was on its way.
    fetch(leader, 3, 100)
    assert propose(leader, 2) is None
    # Found again, and with everything, it does.
    fetch(leader, 3, 0)
    fetch(leader, 3, 100)
    leader.update((1, 2, 3), (1, 2), 9, lost_replicas=())
    assert propose(leader, 3) == (1, 2, 3)


def test_a_replica_that_is_lost_has_to_fetch_anew() -> None:
    leader = lead(high_watermark=100)
    for broker_id in (2, 3):
        fetch(leader, broker_id, 100)
    leader.update((1, 2, 3), (1, 2), 8, lost_replicas=(3,))
    leader.update((1, 2, 3), (1, 2), 9, lost_replicas=())
    assert propose(leader, 1) is None
    fetch(leader, 3, 100)
    assert propose(leader, 2) == (1, 2, 3)


def test_a_loss_is_heard_of_though_the_answer_to_a_proposal_came_first() -> None:
    leader = lead(high_watermark=100)
    for broker_id in (2, 3):
        fetch(leader, broker_id, 100)
    leader.proposal_accepted((1, 2), 9)
    leader.update((1, 2, 3), (1, 2), 9, lost_replicas=(3,))
    assert propose(leader, 1) is None


def test_a_member_that_could_not_join_stays_only_while_it_lacks_nothing() -> None:
    """Its disk is full: whoever asks for all replicas would wait for the usual lag."""
    leader = lead()
    for broker_id in (2, 3):
        fetch(leader, broker_id, 100)

    def may_join(broker_id: int, _: int) -> bool:
        return broker_id != 3

    assert propose(leader, LAG_MS, may_join=may_join) is None
    append(leader, 101, LAG_MS)
    fetch(leader, 2, 101, LAG_MS)
    assert propose(leader, LAG_MS + 900, may_join=may_join) is None, "it may be on its way"
    assert propose(leader, LAG_MS + 1100, may_join=may_join) == (1, 2)
    assert after(leader, leader.proposal_accepted, (1, 2), 8) == 101
