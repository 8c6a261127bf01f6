"""Limits on a rate: credit is earned by time, spent by charges, and never more than a burst."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rates import TokenBucket


def test_a_charge_within_the_credit_waits_for_nothing() -> None:
    limit = TokenBucket(100.0, burst_s=10, now=0.0, first_s=1)
    assert limit.charge(100, 0.0) == 0.0
    assert limit.charge(50, 0.0) == pytest.approx(0.5)
    assert limit.wait_s(0.25) == pytest.approx(0.25)
    assert limit.wait_s(0.5) == 0.0


def test_credit_grows_up_to_the_burst() -> None:
    limit = TokenBucket(100.0, burst_s=10, now=0.0, first_s=1)
    assert limit.credit(0.0) == 100
    assert limit.credit(5.0) == 600
    assert limit.credit(1000.0) == 1000
    assert limit.charge(1100, 1000.0) == pytest.approx(1.0)


def test_a_clock_that_stands_still_or_goes_back_earns_nothing() -> None:
    limit = TokenBucket(100.0, burst_s=10, now=5.0, first_s=0)
    assert limit.credit(4.0) == 0
    assert limit.credit(6.0) == 100


def test_debt_is_earned_at_the_new_rate_after_a_change() -> None:
    limit = TokenBucket(10.0, burst_s=10, now=0.0, first_s=0)
    assert limit.charge(1000, 0.0) == pytest.approx(100.0)
    limit.change(1000.0, 10, 0.0)
    assert limit.wait_s(0.0) == pytest.approx(1.0)


def test_credit_is_cut_to_the_burst_of_a_lower_rate() -> None:
    limit = TokenBucket(1000.0, burst_s=10, now=0.0, first_s=10)
    limit.change(1.0, 10, 0.0)
    assert limit.credit(0.0) == 10


@given(
    st.lists(st.tuples(st.floats(0.001, 2.0), st.floats(1.0, 5000.0)), min_size=1, max_size=50),
    st.floats(10.0, 1000.0),
)
def test_whoever_waits_as_told_stays_within_rate_and_burst(
    charges: list[tuple[float, float]], rate: float
) -> None:
    now, spent = 0.0, 0.0
    limit = TokenBucket(rate, burst_s=2.0, now=now, first_s=1.0)
    for pause, amount in charges:
        now += pause
        spent += amount
        now += limit.charge(amount, now)
        assert spent <= rate * (now + 2.0) * (1 + 1e-9)
