from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.backoff import FIRST_S, MOST_S, Backoff


@given(attempts=st.integers(0, 10_000), seed=st.integers(0, 1000))
def test_pauses_double_up_to_a_limit_and_vary_by_a_fifth(attempts: int, seed: int) -> None:
    expected = min(FIRST_S * 2**attempts, MOST_S) if attempts < 64 else MOST_S
    assert 0.8 * expected <= Backoff().delay_s(attempts, Random(seed)) <= 1.2 * expected
