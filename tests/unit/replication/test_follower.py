"""What a follower asks next, and what it makes of the answers."""

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from headrace.replication.follower import (
    FetchAction,
    FetchDecision,
    FetchPosition,
    FollowedPartition,
    FollowerState,
    PartitionKey,
    decide,
    decide_out_of_range,
    position_of,
    protect_committed,
    truncation_offset,
)

TOPIC = bytes(15) + b"\x0a"


class EpochLog:
    """A log as its epochs tell it: `entries` are (epoch, start offset)."""

    def __init__(self, end_offset: int, *entries: tuple[int, int], start_offset: int = 0) -> None:
        self.log_start_offset = start_offset
        self.log_end_offset = end_offset
        self.entries = entries

    @property
    def latest_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if not self.entries or epoch > self.latest_epoch or epoch < 0:
            return -1, -1
        ends = [*(start for _, start in self.entries[1:]), self.log_end_offset]
        for (known, _), end in reversed(list(zip(self.entries, ends, strict=True))):
            if known <= epoch:
                return known, end
        return epoch, self.entries[0][1]


def answer(
    error: ErrorCode = ErrorCode.NONE, diverging: tuple[int, int] | None = None
) -> PartitionData:
    data = PartitionData(error_code=error)
    if diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
    return data


def test_an_answer_without_error_is_appended() -> None:
    assert decide(answer(), EpochLog(10, (0, 0))) == FetchDecision(FetchAction.APPEND)


@pytest.mark.parametrize(
    ("error", "act"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, FetchAction.LOCATE),
        (ErrorCode.FENCED_LEADER_EPOCH, FetchAction.GIVE_UP),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, FetchAction.RETRY),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FetchAction.RETRY),
        (ErrorCode.UNKNOWN_TOPIC_ID, FetchAction.RETRY),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, FetchAction.RETRY),
        (ErrorCode.INCONSISTENT_TOPIC_ID, FetchAction.RETRY),
        (ErrorCode.KAFKA_STORAGE_ERROR, FetchAction.RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, FetchAction.RETRY),
    ],
)
def test_what_errors_mean(error: ErrorCode, act: FetchAction) -> None:
    assert decide(answer(error), EpochLog(10, (0, 0))).act is act


def test_a_tail_of_the_same_epoch_that_the_leader_lacks_is_cut() -> None:
    assert decide(answer(diverging=(3, 98)), EpochLog(100, (3, 0))) == FetchDecision(
        FetchAction.TRUNCATE, 98, 98
    )


def test_a_tail_of_an_epoch_that_the_leader_lacks_is_cut_where_it_begins() -> None:
    # The leader has epoch 3 up to 120, this replica only up to 90, and then its own epoch 4.
    log = EpochLog(100, (3, 0), (4, 90))
    assert decide(answer(diverging=(3, 120)), log) == FetchDecision(FetchAction.TRUNCATE, 90, 120)


def test_the_shorter_of_both_is_kept() -> None:
    log = EpochLog(100, (3, 0), (4, 90))
    assert truncation_offset(log, 3, 80) == 80


def test_an_epoch_this_replica_lacks_is_cut_at_the_next_older_one() -> None:
    # The leader's largest epoch not above 5 is 4; here 4 wrote nothing, 3 ended at 60.
    log = EpochLog(100, (3, 0), (5, 60))
    assert truncation_offset(log, 4, 70) == 60


def test_epochs_older_than_all_that_is_kept_cut_to_the_start() -> None:
    log = EpochLog(100, (5, 40), start_offset=40)
    assert truncation_offset(log, 2, 70) == 40


def test_nothing_beyond_the_end_is_cut() -> None:
    assert truncation_offset(EpochLog(50, (3, 0)), 3, 80) == 50
    assert truncation_offset(EpochLog(50), 3, 80) == 50
    assert truncation_offset(EpochLog(50, (3, 0)), -1, 30) == 30


def fetch_round(follower: EpochLog, leader: EpochLog) -> FetchDecision:
    """A fetch as a leader checks it (KIP-595)."""
    epoch, end = leader.end_offset_for_epoch(follower.latest_epoch)
    if end < 0 or (epoch == follower.latest_epoch and end >= follower.log_end_offset):
        return decide(answer(), follower)
    return decide(answer(diverging=(epoch, end)), follower)


def cut(log: EpochLog, offset: int) -> EpochLog:
    return EpochLog(offset, *(entry for entry in log.entries if entry[1] < offset))


def test_logs_that_parted_twice_are_cut_to_what_both_have() -> None:
    # Unclean elections: 0..50 by epoch 1 is common; then one led in 2 and 5, the other in 3 and 6.
    follower = EpochLog(100, (1, 0), (2, 50), (5, 80))
    leader = EpochLog(120, (1, 0), (3, 60), (6, 90))
    cuts = []
    while (verdict := fetch_round(follower, leader)).act is FetchAction.TRUNCATE:
        cuts.append(verdict.offset)
        follower = cut(follower, verdict.offset)
        assert len(cuts) < 5
    assert cuts == [80, 50]
    assert follower.log_end_offset == 50


def test_an_epoch_that_wrote_nothing_is_cut_off_too() -> None:
    follower = EpochLog(100, (1, 0), (2, 100))
    leader = EpochLog(105, (1, 0), (3, 105))
    assert fetch_round(follower, leader) == FetchDecision(FetchAction.TRUNCATE, 100, 105)
    assert fetch_round(cut(follower, 100), leader) == FetchDecision(FetchAction.APPEND)


def test_a_log_that_ends_before_the_leaders_begins_anew_there() -> None:
    assert decide_out_of_range(EpochLog(10, (0, 0)), 50, 90) == FetchDecision(
        FetchAction.RESTART, 50
    )
    assert decide_out_of_range(EpochLog(0), 50, 50) == FetchDecision(FetchAction.RESTART, 50)


def test_a_log_that_ends_after_the_leaders_is_cut() -> None:
    assert decide_out_of_range(EpochLog(100), 20, 90) == FetchDecision(FetchAction.TRUNCATE, 90, 90)


def test_a_log_that_is_in_range_by_now_is_tried_again() -> None:
    assert decide_out_of_range(EpochLog(50), 20, 90) == FetchDecision(FetchAction.RETRY)
    assert decide_out_of_range(EpochLog(20), 20, 20) == FetchDecision(FetchAction.RETRY)


def followed(partition: int = 0, offset: int = 0, epoch: int = 5) -> FollowedPartition:
    key = PartitionKey(TOPIC, partition)
    return FollowedPartition(key, "orders", epoch, FetchPosition(offset, 4, 0), 1000)


def asked(follower: FollowerState, now: float = 0.0) -> list[FetchPartition] | None:
    request = FetchRequest()
    if not follower.fill(request, now):
        return None
    return [partition for topic in request.topics for partition in topic.partitions]


def offsets(follower: FollowerState, now: float = 0.0) -> dict[int, int] | None:
    found = asked(follower, now)
    return None if found is None else {entry.partition: entry.fetch_offset for entry in found}


def response(*partitions: PartitionData) -> FetchResponse:
    topic = FetchableTopicResponse(topic_id=TOPIC, partitions=list(partitions))
    return FetchResponse(session_id=7, responses=[topic])


def answered(follower: FollowerState, *partitions: PartitionData) -> list[int]:
    answers = follower.answered(response(*partitions))
    assert answers is not None
    return [entry.followed.key.partition for entry in answers]


def test_a_fetch_says_where_the_log_ends_and_who_wrote_its_end() -> None:
    follower = FollowerState()
    log = EpochLog(100, (3, 0), (4, 90), start_offset=20)
    follower.add(FollowedPartition(PartitionKey(TOPIC, 6), "orders", 5, position_of(log), 1000))
    (one,) = asked(follower) or []
    assert one.partition == 6
    assert one.current_leader_epoch == 5
    assert one.fetch_offset == 100
    assert one.last_fetched_epoch == 4
    assert one.log_start_offset == 20
    assert one.partition_max_bytes == 1000


def test_without_partitions_there_is_nothing_to_ask() -> None:
    follower = FollowerState()
    assert asked(follower) is None
    follower.add(followed())
    follower.remove(PartitionKey(TOPIC, 0))
    assert asked(follower) is None
    assert len(follower) == 0


def test_a_partition_that_grew_is_fetched_from_its_new_end() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.add(followed(1))
    assert offsets(follower) == {0: 0, 1: 0}
    assert answered(follower, PartitionData(partition_index=1)) == [1]
    follower.moved(PartitionKey(TOPIC, 1), FetchPosition(8, 5, 0))
    assert offsets(follower) == {1: 8}


def test_an_answer_to_a_partition_that_was_removed_is_dropped() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.add(followed(1))
    asked(follower)
    follower.remove(PartitionKey(TOPIC, 0))
    assert answered(follower, PartitionData(), PartitionData(partition_index=1)) == [1]


def test_an_answer_of_an_older_epoch_is_dropped() -> None:
    follower = FollowerState()
    follower.add(followed(0, epoch=5))
    asked(follower)
    follower.add(followed(0, epoch=6))
    assert answered(follower, PartitionData()) == []
    (one,) = asked(follower) or []
    assert one.current_leader_epoch == 6


def test_whether_an_answer_is_still_wanted_is_asked_when_its_turn_comes() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.add(followed(1))
    asked(follower)
    answers = follower.answered(response(PartitionData(), PartitionData(partition_index=1)))
    assert answers is not None
    assert next(answers).followed.key.partition == 0
    follower.remove(PartitionKey(TOPIC, 1))
    assert list(answers) == []


def test_a_delayed_partition_is_left_out_until_its_time_comes() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.add(followed(1))
    asked(follower)
    answered(follower)
    follower.delay(PartitionKey(TOPIC, 0), 5.0)
    assert follower.due == 5.0
    assert offsets(follower, 4.9) == {}
    answered(follower)
    assert offsets(follower, 5.0) == {0: 0}
    assert follower.due is None


def test_when_all_are_delayed_there_is_nothing_to_ask() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.delay(PartitionKey(TOPIC, 0), 5.0)
    assert asked(follower, 1.0) is None
    assert offsets(follower, 6.0) == {0: 0}


def test_a_partition_may_move_while_it_is_delayed() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.delay(PartitionKey(TOPIC, 0), 5.0)
    follower.moved(PartitionKey(TOPIC, 0), FetchPosition(9, 4, 0))
    assert asked(follower, 1.0) is None
    assert offsets(follower, 5.0) == {0: 9}


def test_a_new_epoch_ends_the_delay_of_the_old_one() -> None:
    follower = FollowerState()
    follower.add(followed(0, epoch=5))
    follower.delay(PartitionKey(TOPIC, 0), 5.0)
    follower.add(followed(0, epoch=6))
    assert offsets(follower, 1.0) == {0: 0}
    answered(follower)
    follower.delay(PartitionKey(TOPIC, 0), 9.0)
    assert asked(follower, 5.0) is None


def test_the_later_of_two_delays_holds() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.delay(PartitionKey(TOPIC, 0), 5.0)
    follower.delay(PartitionKey(TOPIC, 0), 7.0)
    assert asked(follower, 6.0) is None
    assert offsets(follower, 7.0) == {0: 0}


def test_one_that_was_given_up_waits_for_a_new_epoch() -> None:
    follower = FollowerState()
    follower.add(followed(0, epoch=5))
    asked(follower)
    answered(follower)
    follower.give_up(PartitionKey(TOPIC, 0))
    follower.delay(PartitionKey(TOPIC, 0), 1.0)
    follower.moved(PartitionKey(TOPIC, 0), FetchPosition(3, 4, 0))
    assert asked(follower, 1000.0) is None
    follower.add(followed(0, epoch=6))
    assert offsets(follower, 1000.0) == {0: 0}


def test_a_session_that_is_lost_loses_no_partition() -> None:
    follower = FollowerState()
    follower.add(followed(0))
    follower.add(followed(1))
    asked(follower)
    answered(follower)
    assert offsets(follower) == {}
    error = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert follower.answered(error) is None
    assert offsets(follower) == {0: 0, 1: 0}
    follower.failed()
    assert offsets(follower) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("verdict", "high_watermark", "is_compacted", "may_lose", "act"),
    [
        (FetchDecision(FetchAction.TRUNCATE, 10, 12), 10, False, False, FetchAction.TRUNCATE),
        (FetchDecision(FetchAction.TRUNCATE, 10, 12), 11, False, False, FetchAction.KEEP),
        (FetchDecision(FetchAction.TRUNCATE, 10, 12), 11, False, True, FetchAction.TRUNCATE),
        # An epoch of which compaction has left nothing: the leader goes further all the same.
        (FetchDecision(FetchAction.TRUNCATE, 10, 12), 12, True, False, FetchAction.TRUNCATE),
        (FetchDecision(FetchAction.TRUNCATE, 10, 12), 13, True, False, FetchAction.KEEP),
        # What retention took away the leader knows to be gone.
        (FetchDecision(FetchAction.RESTART, 50), 20, False, False, FetchAction.RESTART),
        (FetchDecision(FetchAction.RETRY), 20, False, False, FetchAction.RETRY),
    ],
)
def test_committed_records_are_protected(
    verdict: FetchDecision,
    high_watermark: int,
    is_compacted: bool,
    may_lose: bool,
    act: FetchAction,
) -> None:
    found = protect_committed(
        verdict, high_watermark, is_compacted=is_compacted, may_lose_committed=may_lose
    )
    assert found == verdict._replace(act=act)
