"""Counting voters."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.raft.voters import VoteCount, held_by_majority, majority


@given(st.lists(st.integers(-1, 20), min_size=1, max_size=9))
def test_what_a_majority_holds(offsets: list[int]) -> None:
    held = held_by_majority(offsets)
    assert sum(offset >= held for offset in offsets) > len(offsets) / 2
    assert not sum(offset > held for offset in offsets) > len(offsets) / 2


@given(st.integers(1, 9))
def test_two_majorities_share_a_voter(count: int) -> None:
    assert 2 * majority(count) > count
    assert 2 * (majority(count) - 1) <= count


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_round_is_won_or_lost_but_not_both(voters: int, answers: list[tuple[int, bool]]) -> None:
    count = VoteCount(range(voters))
    first: dict[int, bool] = {}
    for voter, granted in answers:
        count.count(voter, granted=granted)
        if voter < voters:
            first.setdefault(voter, granted)
    granted_by = [voter for voter, granted in first.items() if granted]
    assert count.granted == tuple(sorted(granted_by))
    assert count.won == (len(granted_by) > voters / 2)
    assert count.lost == (voters - (len(first) - len(granted_by)) <= voters / 2)
    assert not (count.won and count.lost)
