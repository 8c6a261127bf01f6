"""Heartbeats: who is silent, who returns, who may go."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.brokers import Heartbeats, heartbeat
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from tests.unit.metadata.active import SESSION_MS, Active
from tests.unit.metadata.clusters import cluster, directory_of, standing

STAYS = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
FENCED = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True)
MAY_GO = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True, should_shut_down=True)


def test_a_heartbeat_changes_nothing_of_a_broker_that_lives() -> None:
    active = Active(1, topics={"a": [[1]]})
    assert active.beat(1) == STAYS
    assert active.records == []


@pytest.mark.parametrize(
    ("broker_id", "epoch", "code"),
    [(9, 0, ErrorCode.BROKER_ID_NOT_REGISTERED), (1, 7, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_a_heartbeat_of_somebody_else_is_refused(
    broker_id: int, epoch: int, code: ErrorCode
) -> None:
    image = cluster(1)
    heartbeats = Heartbeats(SESSION_MS, image, 10, 0)
    request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
    with pytest.raises(KafkaError) as caught:
        heartbeat(image, request, heartbeats, offset=10, now_ms=900, unclean_by_default=False)
    assert caught.value.code is code
    silent = [heartbeats.expired_brokers(image, now_ms) for now_ms in range(0, SESSION_MS + 1, 250)]
    assert silent == [()] * 10 + [(1,)]


def test_a_session_is_over_when_nothing_was_heard_for_its_whole_time() -> None:
    active = Active(1, 2, 3)
    assert active.pass_ms(SESSION_MS - 1, 1) == ()
    active.beat(2)
    assert active.pass_ms(1, 1) == (3,)
    assert active.pass_ms(SESSION_MS - 2, 1) == ()
    assert active.pass_ms(1, 1) == (2,)
    # Those who are fenced are not fenced again.
    assert active.pass_ms(2 * SESSION_MS, 1) == ()


def test_a_controller_that_was_stopped_itself_fences_nobody() -> None:
    active = Active(1, 2)
    active.now_ms += 10 * SESSION_MS
    assert active.heartbeats.expired_brokers(active.image, active.now_ms) == ()
    # Of the stop, the interval to the next planned check counts.
    assert active.pass_ms(SESSION_MS - SESSION_MS // 10 - 1, 1) == ()
    assert active.pass_ms(1, 1) == (2,)


def test_of_time_in_which_the_controller_was_busy_only_the_planned_interval_counts() -> None:
    active = Active(1, 2)
    planned_ms = SESSION_MS // 10
    assert active.pass_ms(SESSION_MS - planned_ms - 1, 1) == ()
    active.now_ms += SESSION_MS // 4
    assert active.heartbeats.expired_brokers(active.image, active.now_ms) == ()
    # What broker 2 was silent for before still counts.
    assert active.pass_ms(1, 1) == (2,)


@given(interval_ms=st.integers(50, 4 * SESSION_MS))
@example(interval_ms=SESSION_MS // 5 + 1)
def test_a_dead_broker_is_fenced_however_late_each_check_is(interval_ms: int) -> None:
    active = Active(1, 2)
    began_ms = active.now_ms
    bound_ms = SESSION_MS + max(SESSION_MS, interval_ms) + interval_ms
    silent: tuple[int, ...] = ()
    while not silent and active.now_ms - began_ms <= bound_ms:
        active.now_ms += interval_ms
        active.beat(1)
        silent = active.heartbeats.expired_brokers(active.image, active.now_ms)
    assert silent == (2,)
    assert SESSION_MS <= active.now_ms - began_ms <= bound_ms


def test_a_heartbeat_restores_the_time_that_a_late_controller_may_forgive() -> None:
    active = Active(1)
    for _ in range(20):
        active.now_ms += 3 * SESSION_MS
        assert active.heartbeats.expired_brokers(active.image, active.now_ms) == ()
        active.beat(1)


def test_a_broker_registers_fenced_and_is_unfenced_when_it_knows_of_its_registration() -> None:
    active = Active(1, topics={"a": [[1]]})
    epoch = active.register(1, incarnation=9)
    behind = active.beat(1, epoch - 1)
    assert behind == BrokerHeartbeatResponse(is_caught_up=False, is_fenced=True)
    assert active.beat(1, epoch, want_fence=True) == FENCED
    assert active.beat(1, epoch) == STAYS
    assert standing(active.image, "a") == [(1, 2, 2, (1,))]
    assert not active.image.brokers[1].fenced


def test_a_new_run_has_a_session_of_its_own() -> None:
    active = Active(1, 2)
    active.pass_ms(SESSION_MS - 1, 2)
    active.register(1, incarnation=9)
    active.beat(1)
    assert active.pass_ms(SESSION_MS - 1, 2) == ()
    assert active.pass_ms(1, 2) == (1,)


def test_the_session_of_a_broker_lasts_until_it_is_silent_or_leaves() -> None:
    active = Active(1, 2, 3)
    other = [bytes([9]) * 16]
    active.pass_ms(SESSION_MS - 1, 2, 3)
    with pytest.raises(KafkaError, match="DUPLICATE_BROKER_REGISTRATION"):
        active.register(1, incarnation=9, log_dirs=other)
    active.pass_ms(1, 2, 3)
    active.register(1, incarnation=9, log_dirs=other)
    # The process that was silent comes back: now it is the duplicate.
    with pytest.raises(KafkaError, match="DUPLICATE_BROKER_REGISTRATION"):
        active.register(1, incarnation=1)
    assert active.beat(2, want_shut_down=True) == MAY_GO
    assert active.register(2, incarnation=10, log_dirs=[bytes([10]) * 16])
    # A controller that becomes active gives a session to those only that are not fenced.
    active.take_office()
    with pytest.raises(KafkaError, match="DUPLICATE_BROKER_REGISTRATION"):
        active.register(3, incarnation=11, log_dirs=[bytes([11]) * 16])
    assert active.register(2, incarnation=11, log_dirs=[bytes([11]) * 16])


def test_a_late_controller_gives_no_session_back_that_was_over() -> None:
    active = Active(1, 2)
    active.pass_ms(SESSION_MS, 1)
    active.now_ms += SESSION_MS
    active.heartbeats.expired_brokers(active.image, active.now_ms)
    assert not active.heartbeats.has_session(2, active.now_ms)


def test_a_broker_that_was_stopped_returns_only_when_it_knows_that_it_was_fenced() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    before = active.offset - 1
    assert active.pass_ms(SESSION_MS, 2) == (1,)
    # It does not know yet that it leads nothing, and must not be given a lease.
    assert active.beat(1, before).is_fenced
    assert active.beat(1, before + 1) == STAYS


def test_a_broker_fenced_under_an_earlier_controller_knows_it_before_it_returns() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    active.pass_ms(SESSION_MS, 2)
    active.take_office()
    assert active.beat(1, active.offset - 2).is_fenced
    assert not active.beat(1, active.offset - 1).is_fenced


def test_a_broker_that_asks_for_it_is_fenced() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    assert active.beat(1, want_fence=True) == FENCED
    assert active.image.brokers[1].fenced
    assert standing(active.image, "a") == [(2, 1, 1, (2,))]
    assert active.beat(1, want_fence=True) == FENCED


def test_a_broker_shuts_down_when_the_others_know_who_leads_in_its_place() -> None:
    active = Active(1, 2, 3, topics={"a": [[1, 2, 3], [2, 1]]})
    assert active.beat(1, want_shut_down=True) == STAYS
    handed_over = active.offset - 1
    assert standing(active.image, "a") == [(2, 1, 1, (2, 3)), (2, 0, 1, (2,))]
    assert active.image.brokers[1].in_controlled_shutdown
    active.beat(2, handed_over)
    assert active.beat(1, want_shut_down=True) == STAYS
    active.beat(3, handed_over - 1)
    assert active.beat(1, want_shut_down=True) == STAYS
    active.beat(3, handed_over)
    assert active.beat(1, want_shut_down=True) == MAY_GO
    assert active.image.brokers[1].fenced
    assert active.beat(1, want_shut_down=True) == MAY_GO


def test_a_broker_that_leads_nothing_may_go_at_once() -> None:
    active = Active(1, 2, topics={"a": [[2, 1]]})
    assert active.beat(1, want_shut_down=True) == MAY_GO
    assert standing(active.image, "a") == [(2, 0, 1, (2,))]


def test_the_last_broker_may_go_at_once() -> None:
    active = Active(1, 2, topics={"a": [[1]]})
    active.beat(2, want_fence=True)
    assert active.beat(1, want_shut_down=True) == MAY_GO
    assert standing(active.image, "a") == [(-1, 1, 1, (1,))]
    assert active.register(1, incarnation=9)
    assert active.beat(1) == STAYS
    assert standing(active.image, "a") == [(1, 2, 2, (1,))]


def test_a_broker_goes_on_shutting_down_under_a_new_controller() -> None:
    active = Active(1, 2, topics={"a": [[1, 2]]})
    assert active.beat(1, want_shut_down=True) == STAYS
    active.take_office()
    assert active.beat(1, want_shut_down=True).should_shut_down


def test_directories_that_failed_are_taken_off_the_registration() -> None:
    first, second = directory_of(1), bytes([3]) * 16
    active = Active(1, 2)
    active.register(1, incarnation=9, log_dirs=[first, second])
    active.beat(1, offline=[first])
    assert active.image.brokers[1].log_dirs == (second,)
    assert not active.image.brokers[1].fenced
    known = active.offset
    active.beat(1, offline=[first])
    active.beat(1, offline=[first, second])
    assert active.offset == known
