"""Plans of where replicas should be: what every plan keeps to, and the simple cases by hand."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.admin.reassignment_plan import Assignment, CannotPlan, make_plan
from headrace.types import TopicPartition

Racks = dict[int, str | None]


def bare(*brokers: int) -> Racks:
    return dict.fromkeys(brokers)


def spread(brokers: int, partitions: int, replicas: int, topic: str = "t") -> Assignment:
    """Replicas round a ring: even, and rising."""
    return {
        TopicPartition(topic, index): tuple(
            (index + shift) % brokers + 1 for shift in range(replicas)
        )
        for index in range(partitions)
    }


def applied(assignment: Assignment, after: Assignment) -> dict[TopicPartition, tuple[int, ...]]:
    return {**assignment, **after}


def loads(assignment: Assignment, brokers: Mapping[int, object]) -> list[int]:
    count = Counter(broker for replicas in assignment.values() for broker in replicas)
    return [count[broker] for broker in brokers]


def leads(assignment: Assignment, brokers: Mapping[int, object]) -> list[int]:
    count = Counter(replicas[0] for replicas in assignment.values())
    return [count[broker] for broker in brokers]


def is_even(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1


@st.composite
def clusters(draw: st.DrawFn, racks: int = 0) -> tuple[Racks, Assignment]:
    """Brokers that may have replicas, and an assignment to these and others, however uneven."""
    known = draw(st.lists(st.integers(0, 9), min_size=2, max_size=7, unique=True))
    allowed = draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
    assignment: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in "abc"[: draw(st.integers(1, 3))]:
        replicas = draw(st.integers(1, min(len(allowed), 3)))
        for index in range(draw(st.integers(1, 8))):
            chosen = st.lists(
                st.sampled_from(known), min_size=replicas, max_size=replicas, unique=True
            )
            assignment[TopicPartition(topic, index)] = tuple(draw(chosen))
    names = [f"r{number}" for number in range(racks)]
    return {
        broker: draw(st.sampled_from(names)) if names else None for broker in allowed
    }, assignment


@given(clusters(), st.booleans())
def test_a_plan_keeps_replication_factors_and_leaves_nothing_on_other_brokers(
    case: tuple[Racks, Assignment], balance: bool
) -> None:
    brokers, assignment = case
    plan = make_plan(brokers, assignment, balance=balance)
    for tp, replicas in applied(assignment, plan.after).items():
        assert len(set(replicas)) == len(replicas) == len(assignment[tp])
        assert set(replicas) <= set(brokers)
    assert all(plan.before[tp] == assignment[tp] != plan.after[tp] for tp in plan.after)


@given(clusters())
def test_replicas_and_leaders_are_even_within_one(case: tuple[Racks, Assignment]) -> None:
    brokers, assignment = case
    after = applied(assignment, make_plan(brokers, assignment).after)
    assert is_even(loads(after, brokers))
    if len({len(replicas) for replicas in after.values()}) == 1:
        assert is_even(leads(after, brokers))


@given(clusters())
def test_no_more_replicas_move_than_evenness_demands(case: tuple[Racks, Assignment]) -> None:
    brokers, assignment = case
    plan = make_plan(brokers, assignment)
    total = sum(map(len, assignment.values()))
    before = loads(assignment, brokers)
    least, most = total // len(brokers), -(-total // len(brokers))
    strangers = total - sum(before)
    # Every replica of another broker moves, and what a broker has too much.
    surplus = sum(max(load - most, 0) for load in before)
    lack = sum(max(least - load, 0) for load in before)
    moved = sum(map(len, plan.added().values()))
    assert moved >= max(strangers + surplus, lack)
    # Now and then a partition is already where it should go, and another must make way.
    assert moved <= max(strangers + surplus, lack) + len(brokers)


@given(clusters())
def test_without_balancing_only_replicas_of_other_brokers_move(
    case: tuple[Racks, Assignment],
) -> None:
    brokers, assignment = case
    plan = make_plan(brokers, assignment, balance=False)
    for tp, replicas in plan.after.items():
        gone = set(assignment[tp]) - set(replicas)
        assert gone == set(assignment[tp]) - set(brokers)


@given(clusters(racks=3))
def test_no_rack_has_a_second_replica_before_every_rack_has_one(
    case: tuple[Racks, Assignment],
) -> None:
    brokers, assignment = case
    room = Counter(brokers.values())
    for replicas in applied(assignment, make_plan(brokers, assignment).after).values():
        share = Counter(brokers[broker] for broker in replicas)
        for rack, count in share.items():
            for other, size in room.items():
                assert count - 1 <= share[other] or share[other] == size, (rack, other)


@given(clusters(racks=2), st.randoms(use_true_random=False))
def test_the_order_of_arguments_does_not_matter(
    case: tuple[Racks, Assignment], random: Random
) -> None:
    brokers, assignment = case
    plan = make_plan(brokers, assignment)
    shuffled_brokers = list(brokers.items())
    shuffled = list(assignment.items())
    random.shuffle(shuffled_brokers)
    random.shuffle(shuffled)
    assert make_plan(dict(shuffled_brokers), dict(shuffled)) == plan


@given(clusters(racks=2))
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(case: tuple[Racks, Assignment]) -> None:
    brokers, assignment = case
    after = applied(assignment, make_plan(brokers, assignment).after)
    assert make_plan(brokers, after).added() == {}


@pytest.mark.parametrize(("partitions", "replicas"), [(12, 1), (12, 2), (12, 3), (100, 3), (7, 2)])
def test_a_new_broker_gets_its_share_and_nothing_else_moves(partitions: int, replicas: int) -> None:
    assignment = spread(3, partitions, replicas)
    brokers = bare(1, 2, 3, 4)
    plan = make_plan(brokers, assignment)
    after = applied(assignment, plan.after)
    added = plan.added()
    assert set(added.values()) == {(4,)}
    assert len(added) == partitions * replicas // 4
    assert is_even(loads(after, brokers))
    assert is_even(leads(after, brokers))


@pytest.mark.parametrize(("partitions", "replicas"), [(12, 1), (12, 2), (12, 3), (100, 3), (9, 2)])
def test_draining_a_broker_moves_what_is_on_it_and_nothing_else(
    partitions: int, replicas: int
) -> None:
    assignment = spread(4, partitions, replicas)
    brokers = bare(1, 2, 4)
    plan = make_plan(brokers, assignment, balance=False)
    after = applied(assignment, plan.after)
    assert plan.added().keys() == {tp for tp, found in assignment.items() if 3 in found}
    assert is_even(loads(after, brokers))
    assert is_even(leads(after, brokers))


def test_what_is_even_stays_as_it_is() -> None:
    assert make_plan(bare(1, 2, 3), spread(3, 12, 2)).after == {}


def test_every_topic_gives_its_share_to_a_new_broker() -> None:
    assignment = {**spread(3, 8, 3, "a"), **spread(3, 8, 3, "b")}
    added = make_plan(bare(1, 2, 3, 4), assignment).added()
    assert Counter(tp.topic for tp in added) == {"a": 6, "b": 6}


def test_of_a_topic_the_smallest_partitions_move() -> None:
    assignment = {TopicPartition("t", index): (1,) for index in range(4)}
    sizes = {TopicPartition("t", index): size for index, size in enumerate([9, 2, 1, 8])}
    plan = make_plan(bare(1, 2), assignment, sizes=sizes)
    assert plan.added() == {TopicPartition("t", 1): (2,), TopicPartition("t", 2): (2,)}
    assert plan.moved_bytes(sizes) == 3


@pytest.mark.parametrize("partitions", [4, 6, 9])
def test_every_topic_is_spread_over_those_who_stay(partitions: int) -> None:
    topics = {name: spread(4, partitions, 3, name) for name in "abcde"}
    assignment = {tp: entry for topic in topics.values() for tp, entry in topic.items()}
    brokers = bare(1, 2, 3)
    after = applied(assignment, make_plan(brokers, assignment, balance=False).after)
    for topic in topics.values():
        mine = {tp: after[tp] for tp in topic}
        assert is_even(loads(mine, brokers))
        assert is_even(leads(mine, brokers))


def test_leaders_become_even_without_moving_data() -> None:
    assignment = {TopicPartition("t", index): (1, 2, 3) for index in range(6)}
    plan = make_plan(bare(1, 2, 3), assignment)
    assert plan.added() == {}
    assert len(plan.after) == 4
    assert leads(applied(assignment, plan.after), bare(1, 2, 3)) == [2, 2, 2]


def test_a_leader_that_leads_only_what_others_could_is_relieved_through_a_third() -> None:
    # 1 leads twice and shares nothing with 3, which leads nothing: 2 hands one on.
    tps = [TopicPartition("t", index) for index in range(3)]
    assignment = dict(zip(tps, [(1, 2), (1, 2), (2, 3)], strict=True))
    after = applied(assignment, make_plan(bare(1, 2, 3), assignment, balance=False).after)
    assert leads(after, bare(1, 2, 3)) == [1, 1, 1]


def test_a_third_broker_makes_way_where_a_partition_is_already_there() -> None:
    # 1 has two too many, but 2 has both partitions; 3 takes one of 2's and 2 none of 1's.
    tps = [TopicPartition("t", index) for index in range(3)]
    assignment = dict(zip(tps, [(1, 2), (1, 2), (1, 3)], strict=True))
    after = applied(assignment, make_plan(bare(1, 2, 3), assignment).after)
    assert is_even(loads(after, bare(1, 2, 3)))


def test_replicas_move_to_racks_that_have_none() -> None:
    brokers: Racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    assignment = {TopicPartition("t", index): (1, 2) for index in range(4)}
    after = applied(assignment, make_plan(brokers, assignment).after)
    assert all(
        {brokers[replica] for replica in replicas} == {"a", "b"} for replicas in after.values()
    )
    assert loads(after, brokers) == [2, 2, 2, 2]


def test_draining_keeps_racks_apart() -> None:
    brokers: Racks = {1: "a", 2: "b", 4: "c"}
    assignment = {TopicPartition("t", 0): (1, 3)}
    plan = make_plan(brokers | {5: "a"}, assignment, balance=False)
    assert plan.added()[TopicPartition("t", 0)] in [(2,), (4,)]


def test_more_replicas_are_added_and_fewer_taken_away() -> None:
    assignment = spread(3, 6, 1)
    brokers = bare(1, 2, 3)
    more = applied(assignment, make_plan(brokers, assignment, replication_factor=3).after)
    assert all(set(replicas) == {1, 2, 3} for replicas in more.values())
    assert leads(more, brokers) == [2, 2, 2]
    fewer = applied(more, make_plan(brokers, more, replication_factor=2).after)
    assert {len(replicas) for replicas in fewer.values()} == {2}
    assert is_even(loads(fewer, brokers))


def test_too_few_brokers_are_told() -> None:
    with pytest.raises(CannotPlan, match=r"t-0 needs 3 replicas, and only 2 brokers may have some"):
        make_plan(bare(1, 2), spread(3, 1, 3))
    with pytest.raises(CannotPlan, match=r"no broker is left"):
        make_plan({}, spread(3, 1, 3))
