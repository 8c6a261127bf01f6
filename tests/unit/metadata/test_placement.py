"""Replica placement."""

from collections import Counter
from collections.abc import Collection
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.placement import ReplicaLoad, place, ring

RACKLESS = {1: None, 2: None, 3: None, 4: None}

clusters = st.dictionaries(
    st.integers(0, 50), st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8
)
loads = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True), max_size=30)


def spread(counts: Counter[int], brokers: Collection[int]) -> int:
    """How many more the broker with the most has than the one with the fewest."""
    shares = [counts[broker_id] for broker_id in brokers]
    return max(shares) - min(shares)


@given(clusters, st.integers(1, 40), st.integers(0, 100), loads, st.data())
def test_replicas_are_different_brokers_and_a_topics_leaders_are_even(
    brokers: dict[int, str | None],
    count: int,
    first: int,
    held: list[list[int]],
    data: st.DataObject,
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(count, factor, brokers, ReplicaLoad(held), first=first)
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(brokers)
    assert spread(ReplicaLoad(placed).leaders, brokers) <= 1


@given(clusters, st.integers(1, 20), st.integers(0, 20), loads, st.data())
def test_no_rack_gets_a_second_replica_before_every_rack_has_one(
    brokers: dict[int, str | None],
    count: int,
    first: int,
    held: list[list[int]],
    data: st.DataObject,
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    for replicas in place(count, factor, brokers, ReplicaLoad(held), first=first):
        racks = {brokers[broker_id] for broker_id in replicas}
        assert len(racks) == min(factor, len(set(brokers.values())))


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 20), st.data())
def test_without_racks_a_topics_replicas_are_even(
    size: int, count: int, first: int, data: st.DataObject
) -> None:
    brokers = dict.fromkeys(range(size))
    factor = data.draw(st.integers(1, size))
    load = ReplicaLoad(place(count, factor, brokers, ReplicaLoad(), first=first))
    assert spread(load.replicas, brokers) <= 1


@given(clusters, st.integers(1, 20), st.integers(1, 20), st.integers(0, 20), st.data())
def test_a_topic_that_grew_is_as_even_as_one_made_at_once(
    brokers: dict[int, str | None], earlier: int, later: int, first: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    load = ReplicaLoad()
    begun = place(earlier, factor, brokers, load, first=first)
    grown = begun + place(later, factor, brokers, load, present=begun)
    assert spread(ReplicaLoad(grown).leaders, brokers) <= 1
    assert load.leaders == ReplicaLoad(grown).leaders
    assert load.replicas == ReplicaLoad(grown).replicas


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.integers(1, 3))
def test_many_topics_of_few_partitions_are_even_too(counts: list[int], factor: int) -> None:
    brokers = dict.fromkeys((1, 2, 3))
    load, random = ReplicaLoad(), Random(7)
    for count in counts:
        place(count, factor, brokers, load, first=random.randrange(3))
    assert spread(load.leaders, brokers) <= 1
    assert spread(load.replicas, brokers) <= 2


def test_ten_partitions_on_three_brokers() -> None:
    """The example of the requirements: leaders even, replicas even."""
    brokers = dict.fromkeys((1, 2, 3))
    two = ReplicaLoad(place(10, 2, brokers, ReplicaLoad()))
    assert sorted(two.leaders.values()) == [3, 3, 4]
    assert sorted(two.replicas.values()) == [6, 7, 7]
    three = ReplicaLoad(place(10, 3, brokers, ReplicaLoad()))
    assert sorted(three.leaders.values()) == [3, 3, 4]
    assert three.replicas == {1: 10, 2: 10, 3: 10}


@pytest.mark.parametrize(("partitions", "factor", "size"), [(12, 3, 4), (20, 4, 5), (28, 3, 6)])
def test_replicas_are_even_where_the_last_choices_cannot_be(
    partitions: int, factor: int, size: int
) -> None:
    """Choosing one after another leaves the last partitions led by who should follow."""
    brokers = dict.fromkeys(range(size))
    load = ReplicaLoad(place(partitions, factor, brokers, ReplicaLoad()))
    assert spread(load.leaders, brokers) <= 1
    assert spread(load.replicas, brokers) <= 1


def test_an_empty_broker_is_filled_first() -> None:
    load = ReplicaLoad([[1, 2], [2, 1], [1, 2]])
    assert place(1, 2, {1: None, 2: None, 3: None}, load) == [(3, 1)]
    assert load.replicas == {1: 4, 2: 3, 3: 1}
    assert load.leaders == {1: 2, 2: 1, 3: 1}


def test_followers_of_one_leader_are_not_always_the_same() -> None:
    placed = place(12, 2, RACKLESS, ReplicaLoad())
    assert {replicas[1] for replicas in placed if replicas[0] == 1} == {2, 3, 4}


def test_a_leaders_partitions_have_different_heirs() -> None:
    """The first follower in sync takes over, so a failed broker's load falls on all others."""
    placed = place(30, 3, {1: None, 2: None, 3: None}, ReplicaLoad())
    heirs = Counter(replicas[1] for replicas in placed if replicas[0] == 1)
    assert heirs == {2: 5, 3: 5}


def test_neighbours_on_the_ring_are_in_different_racks() -> None:
    brokers = {1: "a", 2: "a", 3: "b", 4: "b", 5: None, 6: "a"}
    assert ring(brokers) == [1, 3, 5, 2, 4, 6]


@pytest.mark.parametrize("brokers", [{}, {1: None}, {1: "a", 2: "a"}])
def test_more_replicas_than_brokers_are_refused(brokers: dict[int, str | None]) -> None:
    with pytest.raises(KafkaError, match=f"there are {len(brokers)}; lower the repl") as caught:
        place(1, 3, brokers, ReplicaLoad())
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_brokers_that_are_down_follow_where_there_are_too_few() -> None:
    load = ReplicaLoad([(8,)])
    placed = place(2, 3, {1: None, 2: None}, load, down=[9, 8])
    assert [sorted(replicas[:2]) for replicas in placed] == [[1, 2], [1, 2]]
    assert {replicas[0] for replicas in placed} == {1, 2}
    # The one that holds less first, then both alike.
    assert [replicas[2] for replicas in placed] == [9, 8]
    assert place(1, 2, {1: None, 2: None}, load, down=[9]) in ([(1, 2)], [(2, 1)])


@pytest.mark.parametrize(
    ("brokers", "text"),
    [({}, "there are 0 and 3 that are down;"), ({1: None}, "there are 1 and 1")],
)
def test_one_broker_at_least_must_live(brokers: dict[int, str | None], text: str) -> None:
    with pytest.raises(KafkaError, match=text):
        place(1, 3, brokers, ReplicaLoad(), down=range(7, 8 if brokers else 10))
