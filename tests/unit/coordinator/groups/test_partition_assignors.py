"""The assignors of the coordinator: each partition once, to a subscriber, fairly, and sticky."""

from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.groups.partition_assignors import (
    ASSIGNORS,
    Assignment,
    SubscribedMember,
    assign_range,
    assign_uniform,
)

TOPICS = [bytes([number]) * 16 for number in range(1, 6)]


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, SubscribedMember], dict[bytes, int]]:
    """Members with any subscriptions, and targets that may be of other topics or too large."""
    sizes = {topic: draw(st.integers(0, 8)) for topic in TOPICS if draw(st.booleans())}
    same = draw(st.none() | st.frozensets(st.sampled_from(TOPICS)))
    members = {}
    free = {(topic, partition) for topic in TOPICS for partition in range(10)}
    for number in range(draw(st.integers(1, 6))):
        topics = draw(st.frozensets(st.sampled_from(TOPICS))) if same is None else same
        had = draw(st.frozensets(st.sampled_from(sorted(free)), max_size=12)) if free else set()
        free -= had
        target = {
            topic: frozenset(partition for name, partition in had if name == topic)
            for topic in {topic for topic, _ in had}
        }
        instance = draw(st.none() | st.just(f"i{number}"))
        members[f"m{number}"] = SubscribedMember(topics, target, instance)
    return members, sizes


def pairs(assignment: Assignment) -> list[tuple[str, bytes, int]]:
    return [
        (member, topic, partition)
        for member, topics in assignment.items()
        for topic, partitions in topics.items()
        for partition in partitions
    ]


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_with_a_subscriber_is_assigned_once_to_one(
    group: tuple[dict[str, SubscribedMember], dict[bytes, int]], assignor: str
) -> None:
    members, sizes = group
    found = pairs(ASSIGNORS[assignor](members, sizes))
    assert all(topic in members[member].topics for member, topic, _ in found)
    assert sorted((topic, partition) for _, topic, partition in found) == sorted(
        (topic, partition)
        for topic, size in sizes.items()
        for partition in range(size)
        if any(topic in member.topics for member in members.values())
    )


@given(groups())
def test_uniform_leaves_nobody_who_could_take_a_partition_of_a_busier_member(
    group: tuple[dict[str, SubscribedMember], dict[bytes, int]],
) -> None:
    members, sizes = group
    assignment = assign_uniform(members, sizes)
    loads = {member: sum(map(len, topics.values())) for member, topics in assignment.items()}
    for giver, topic, _ in pairs(assignment):
        for taker, member in members.items():
            if topic in member.topics:
                assert loads[giver] - loads[taker] <= 1


@given(groups())
def test_uniform_is_settled_once_it_is_fair(
    group: tuple[dict[str, SubscribedMember], dict[bytes, int]],
) -> None:
    members, sizes = group
    first = assign_uniform(members, sizes)
    again = {name: member._replace(partitions=first[name]) for name, member in members.items()}
    assert assign_uniform(again, sizes) == first


def test_uniform_moves_no_more_partitions_than_a_new_member_gets() -> None:
    topic = TOPICS[0]
    members = {f"m{number}": SubscribedMember(frozenset({topic}), {}) for number in range(3)}
    before = assign_uniform(members, {topic: 12})
    members = {name: each._replace(partitions=before[name]) for name, each in members.items()}
    members["new"] = SubscribedMember(frozenset({topic}), {})
    after = assign_uniform(members, {topic: 12})
    assert len(after["new"][topic]) == 3
    assert all(after[name][topic] < before[name][topic] for name in before)


def test_range_gives_the_same_ranges_of_topics_of_the_same_size() -> None:
    one, two = TOPICS[:2]
    both = frozenset({one, two})
    members = {name: SubscribedMember(both, {}) for name in ("b", "a", "c")}
    assignment = assign_range(members, {one: 5, two: 5})
    assert {name: sorted(topics[one]) for name, topics in assignment.items()} == {
        "a": [0, 1],
        "b": [2, 3],
        "c": [4],
    }
    assert all(topics[one] == topics[two] for topics in assignment.values())


def test_range_puts_static_members_first() -> None:
    topic = TOPICS[0]
    members = {
        "a": SubscribedMember(frozenset({topic}), {}),
        "z": SubscribedMember(frozenset({topic}), {}, "i"),
    }
    assert assign_range(members, {topic: 2}) == {"a": {topic: {1}}, "z": {topic: {0}}}


def test_ten_thousand_partitions_and_members_are_assigned_in_a_turn_of_the_loop() -> None:
    topics = frozenset(TOPICS)
    sizes = dict.fromkeys(TOPICS, 2_000)
    members = {f"m{number}": SubscribedMember(topics, {}) for number in range(1_000)}
    began = process_time()
    assignment = assign_uniform(members, sizes)
    assert process_time() - began < 1.0
    assert {sum(map(len, each.values())) for each in assignment.values()} == {10}
