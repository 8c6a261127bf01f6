"""The limit on bytes a second for replicas that are being moved."""

from random import Random

import pytest

from headrace.replication.throttle import Throttle, is_throttled


def test_nothing_waits_before_bytes_have_passed() -> None:
    assert Throttle(100).wait_s(0.0) == 0.0


def test_a_second_of_bytes_may_come_at_once() -> None:
    throttle = Throttle(100)
    throttle.record(100, 10.0)
    assert throttle.wait_s(10.0) == 0.0


def test_more_than_that_is_waited_for() -> None:
    throttle = Throttle(100)
    throttle.record(350, 10.0)
    assert throttle.wait_s(10.0) == pytest.approx(2.5)
    assert throttle.wait_s(12.0) == pytest.approx(0.5)
    assert throttle.wait_s(12.5) == 0.0


def test_idleness_saves_up_no_more_than_a_second() -> None:
    throttle = Throttle(100)
    throttle.record(1, 10.0)
    throttle.record(300, 10_000.0)
    assert throttle.wait_s(10_000.0) == pytest.approx(2.0)


def test_what_is_owed_is_paid_at_the_new_rate() -> None:
    throttle = Throttle(100)
    throttle.record(1100, 0.0)
    assert throttle.wait_s(0.0) == pytest.approx(10.0)
    throttle.change_rate(1000, 0.0)
    assert throttle.rate == 1000
    assert throttle.wait_s(0.0) == pytest.approx(1.0)


def test_a_new_rate_is_no_second_start() -> None:
    throttle = Throttle(100)
    throttle.change_rate(200, 5.0)
    throttle.record(400, 5.0)
    assert throttle.wait_s(5.0) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_average_is_kept(seed: int) -> None:
    rng, throttle, now, passed = Random(seed), Throttle(1000), 0.0, 0
    while now < 100.0:
        now += throttle.wait_s(now) + rng.random() / 10
        size = rng.randrange(3000)
        throttle.record(size, now)
        passed += size
    now += throttle.wait_s(now)
    assert passed <= 1000 * (now + 1.0)
    assert passed >= 1000 * now * 0.8


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((), False),
        (("*",), True),
        (("3:1",), True),
        (("0:1", "3:1"), True),
        (("1:3",), False),
        (("3:11", "13:1"), False),
    ],
)
def test_which_replicas_are_throttled(replicas: tuple[str, ...], expected: bool) -> None:
    assert is_throttled(replicas, 3, 1) is expected
