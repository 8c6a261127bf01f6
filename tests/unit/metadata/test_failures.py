"""The failures the requirements describe, as the controller sees them: who leads, who is in sync.

Before each: replicas 1, 2 and 3, led by 1, with log end offsets 100, 99 and 98 and the high
watermark 98. What becomes of the offsets is tested where they are kept, in replication.
"""

from headrace.errors import ErrorCode
from tests.unit.metadata.active import SESSION_MS, Active
from tests.unit.metadata.clusters import standing


def three() -> Active:
    active = Active(1, 2, 3, topics={"a": [[1, 2, 3]]})
    assert standing(active.image, "a") == [(1, 0, 0, (1, 2, 3))]
    return active


def test_a_leader_fails() -> None:
    active = three()
    # 1. The controller detects it by the missing heartbeats, not before the session is over.
    assert active.pass_ms(SESSION_MS - 1, 2, 3) == ()
    assert active.pass_ms(1, 2, 3) == (1,)
    # 2., 3. Broker 2 is elected from the ISR, in a new epoch.
    assert standing(active.image, "a") == [(2, 1, 1, (2, 3))]
    # Fencing: what the old leader still believes is refused.
    assert active.alter(1, [1], leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    # "Follower: broker 1 (when recovered)".
    active.register(1, incarnation=9)
    assert not active.beat(1).is_fenced
    assert standing(active.image, "a") == [(2, 1, 1, (2, 3))]
    assert active.alter(2, [2, 3, 1]).error_code == 0
    assert standing(active.image, "a") == [(2, 1, 2, (2, 3, 1))]


def test_a_follower_fails() -> None:
    active = three()
    # 1., 2. It stops fetching, and after replica.lag.time.max.ms its leader asks for a smaller ISR.
    answer = active.alter(1, [1, 2])
    assert (answer.error_code, answer.isr, answer.leader_epoch) == (0, [1, 2], 0)
    # 3. The leader stays, in its epoch.
    assert standing(active.image, "a") == [(1, 0, 1, (1, 2))]
    # It recovers, catches up and rejoins.
    assert active.alter(1, [1, 2, 3]).error_code == 0
    assert standing(active.image, "a") == [(1, 0, 2, (1, 2, 3))]


def test_a_follower_that_is_silent_leaves_without_its_leader() -> None:
    active = three()
    assert active.pass_ms(SESSION_MS, 1, 2) == (3,)
    assert standing(active.image, "a") == [(1, 0, 1, (1, 2))]
    # The leader does not know yet that 3 is fenced and has to be told.
    assert active.alter(1, [1, 2, 3], partition_epoch=0).error_code == (
        ErrorCode.INVALID_UPDATE_VERSION
    )
    assert active.alter(1, [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert not active.beat(3).is_fenced
    assert active.alter(1, [1, 2, 3]).isr == [1, 2, 3]


def test_the_leader_is_cut_off_with_the_majority_on_the_other_side() -> None:
    active = three()
    assert active.pass_ms(SESSION_MS, 2, 3) == (1,)
    assert standing(active.image, "a") == [(2, 1, 1, (2, 3))]
    # It heals. Broker 1 was alone with what it wanted, and has to follow.
    answer = active.alter(1, [1], leader_epoch=0, partition_epoch=0)
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
    seen_before = 99
    assert active.beat(1, seen_before).is_fenced
    assert not active.beat(1).is_fenced
    assert active.alter(2, [2, 3, 1]).isr == [2, 3, 1]


def test_the_leader_is_cut_off_from_its_followers_alone() -> None:
    active = three()
    # 2. All three are heard of, so the ISR shrinks to the leader; with min.insync.replicas=2
    # writes fail.
    assert active.alter(1, [1]).error_code == 0
    assert active.pass_ms(2 * SESSION_MS, 1, 2, 3) == ()
    assert standing(active.image, "a") == [(1, 0, 1, (1,))]
    # It heals: the followers catch up, the ISR is whole, writes resume.
    assert active.alter(1, [1, 2]).error_code == 0
    assert active.alter(1, [1, 2, 3]).error_code == 0
    assert standing(active.image, "a") == [(1, 0, 3, (1, 2, 3))]


def test_the_last_one_in_sync_fails_and_nobody_else_may_lead() -> None:
    active = three()
    active.alter(1, [1])
    assert active.pass_ms(SESSION_MS, 2, 3) == (1,)
    assert standing(active.image, "a") == [(-1, 1, 2, (1,))]
    active.register(1, incarnation=9)
    assert standing(active.image, "a") == [(-1, 1, 2, (1,))]
    active.beat(1)
    assert standing(active.image, "a") == [(1, 2, 3, (1,))]


def test_all_restart_at_once() -> None:
    active = three()
    for broker_id in (1, 2, 3):
        active.register(broker_id, incarnation=broker_id + 10)
    # The last one to leave has everything that was acknowledged.
    assert standing(active.image, "a") == [(-1, 3, 3, (3,))]
    for broker_id in (1, 2):
        active.beat(broker_id)
    assert standing(active.image, "a") == [(-1, 3, 3, (3,))]
    active.beat(3)
    assert standing(active.image, "a") == [(3, 4, 4, (3,))]


def test_a_whole_cluster_lives_through_a_change_of_controllers() -> None:
    active = three()
    active.pass_ms(SESSION_MS - 1, 1, 2)
    active.take_office()
    assert active.pass_ms(SESSION_MS - 1, 1, 2) == ()
    assert active.pass_ms(1, 1, 2) == (3,)


def test_the_last_one_in_sync_comes_back_with_an_empty_disk() -> None:
    active = Active(1, 2, topics={"a": [[1, 2], [1]]})
    active.register(1, incarnation=9)
    active.beat(1)
    active.alter(2, [2, 1])
    active.pass_ms(SESSION_MS, 1)
    assert standing(active.image, "a") == [(1, 2, 3, (1,)), (1, 2, 2, (1,))]
    active.pass_ms(SESSION_MS)
    active.register(1, incarnation=10, log_dirs=[bytes([3]) * 16])
    active.beat(1)
    active.beat(2)
    # It would have erased what broker 2 has. The other partition has nobody else, and nothing left.
    assert standing(active.image, "a") == [(-1, 3, 5, ()), (1, 4, 4, (1,))]
