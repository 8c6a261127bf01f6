"""Replica placement."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.placement import place, ring

RACKLESS = {1: None, 2: None, 3: None, 4: None}

clusters = st.dictionaries(
    st.integers(0, 50), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8
)


@given(clusters, st.integers(1, 40), st.integers(0, 100), st.data())
def test_replicas_are_different_brokers_and_leaders_are_spread_evenly(
    brokers: dict[int, str | None], count: int, first: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(count, factor, brokers, first)
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(brokers)
    leaders = Counter(replicas[0] for replicas in placed)
    shares = [leaders[broker_id] for broker_id in brokers]
    assert max(shares) - min(shares) <= 1


@given(clusters, st.integers(1, 20), st.integers(0, 20), st.data())
def test_no_rack_gets_a_second_replica_before_every_rack_has_one(
    brokers: dict[int, str | None], count: int, first: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    for replicas in place(count, factor, brokers, first):
        racks = {brokers[broker_id] for broker_id in replicas}
        assert len(racks) == min(factor, len(set(brokers.values())))


@given(clusters, st.integers(1, 20), st.integers(1, 20), st.integers(0, 20))
def test_placing_in_two_steps_is_placing_at_once(
    brokers: dict[int, str | None], earlier: int, later: int, first: int
) -> None:
    at_once = place(earlier + later, 1, brokers, first)
    assert at_once[:earlier] == place(earlier, 1, brokers, first)
    assert at_once[earlier:] == place(later, 1, brokers, first, start_partition=earlier)


def test_followers_of_one_leader_are_not_always_the_same() -> None:
    placed = place(12, 2, RACKLESS, 0)
    assert {replicas[1] for replicas in placed if replicas[0] == 1} == {2, 3, 4}


def test_neighbours_on_the_ring_are_in_different_racks() -> None:
    brokers = {1: "a", 2: "a", 3: "b", 4: "b", 5: None, 6: "a"}
    assert ring(brokers) == [1, 3, 5, 2, 4, 6]


@pytest.mark.parametrize("brokers", [{}, {1: None}, {1: "a", 2: "a"}])
def test_more_replicas_than_live_brokers_are_refused(brokers: dict[int, str | None]) -> None:
    with pytest.raises(KafkaError, match=f"there are {len(brokers)}; lower the repl") as caught:
        place(1, 3, brokers, 0)
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
