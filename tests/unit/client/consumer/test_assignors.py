"""How the leader of a group shares out partitions, strategy by strategy."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.client.consumer.assignors import ASSIGNORS, Assignment, Assignor, MemberSubscription
from headrace.client.consumer.consumer_protocol import encode_generation, encode_previous
from headrace.types import TopicPartition

RANGE = ASSIGNORS["range"]
ROUND_ROBIN = ASSIGNORS["roundrobin"]
STICKY = ASSIGNORS["sticky"]
COOPERATIVE = ASSIGNORS["cooperative-sticky"]

TOPICS = ["a", "b", "c", "d"]
MEMBERS = [f"m{number}" for number in range(6)]


def tps(text: str) -> list[TopicPartition]:
    """Partitions in short: "a0 b12"."""
    return [TopicPartition(word[0], int(word[1:])) for word in text.split()]


def all_to(topics: str, *members: str) -> dict[str, MemberSubscription]:
    return {member: MemberSubscription(tuple(topics)) for member in members}


def shown(assignment: Assignment) -> dict[str, str]:
    return {
        member: " ".join(f"{tp.topic}{tp.partition}" for tp in partitions)
        for member, partitions in assignment.items()
    }


def again(
    assignor: Assignor,
    before: Assignment,
    members: Mapping[str, MemberSubscription],
    generation: int = 5,
) -> dict[str, MemberSubscription]:
    """Members that join again with what they had, as the strategy has them tell it."""
    told = {}
    for member, entry in members.items():
        had = [tp for tp in before.get(member, ()) if tp.topic in entry.topics]
        owned = had if assignor.is_cooperative else []
        data = assignor.user_data(had, generation) if member in before else None
        told[member] = MemberSubscription(entry.topics, owned, generation if owned else -1, data)
    return told


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), min_size=1)
equal = st.builds(
    lambda members, topics: {
        member: MemberSubscription(tuple(sorted(topics))) for member in members
    },
    st.sets(st.sampled_from(MEMBERS), min_size=1),
    st.sets(st.sampled_from(TOPICS), min_size=1),
)
mixed = st.dictionaries(
    st.sampled_from(MEMBERS),
    st.sets(st.sampled_from(TOPICS)).map(lambda topics: MemberSubscription(tuple(sorted(topics)))),
    min_size=1,
)


def check_complete(
    assignment: Assignment,
    partition_counts: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
) -> None:
    """Every partition that somebody reads has one owner, which reads it."""
    assert set(assignment) == set(members)
    read = {topic for value in members.values() for topic in value.topics}
    wanted = [
        TopicPartition(topic, number)
        for topic, count in partition_counts.items()
        for number in range(count)
        if topic in read
    ]
    assert sorted(tp for mine in assignment.values() for tp in mine) == sorted(wanted)
    for member, mine in assignment.items():
        assert {tp.topic for tp in mine} <= set(members[member].topics)


def is_as_even_as_can_be(assignment: Assignment, members: Mapping[str, MemberSubscription]) -> bool:
    """No chain of exchanges leads from a member to one with at least two partitions more."""
    for member in members:
        reached, pending = {member}, [member]
        while pending:
            taker = pending.pop()
            for other, theirs in assignment.items():
                if other not in reached and any(tp.topic in members[taker].topics for tp in theirs):
                    reached.add(other)
                    pending.append(other)
        if any(len(assignment[entry]) >= len(assignment[member]) + 2 for entry in reached):
            return False
    return True


@pytest.mark.parametrize("name", ASSIGNORS)
@given(partition_counts=counts, members=mixed)
def test_every_partition_has_one_owner_that_reads_it(
    name: str, partition_counts: dict[str, int], members: dict[str, MemberSubscription]
) -> None:
    assignment = ASSIGNORS[name].assign(partition_counts, members)
    check_complete(assignment, partition_counts, members)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(partition_counts=counts, members=mixed, random=st.randoms(use_true_random=False))
def test_the_order_in_which_members_are_listed_does_not_matter(
    name: str,
    partition_counts: dict[str, int],
    members: dict[str, MemberSubscription],
    random: Random,
) -> None:
    shuffled = list(members.items())
    random.shuffle(shuffled)
    topics = list(partition_counts.items())
    random.shuffle(topics)
    assignor = ASSIGNORS[name]
    assert assignor.assign(dict(topics), dict(shuffled)) == assignor.assign(
        partition_counts, members
    )


@pytest.mark.parametrize("name", ["roundrobin", "sticky", "cooperative-sticky"])
@given(partition_counts=counts, members=equal)
def test_members_with_equal_subscriptions_differ_by_one_at_most(
    name: str, partition_counts: dict[str, int], members: dict[str, MemberSubscription]
) -> None:
    sizes = [len(mine) for mine in ASSIGNORS[name].assign(partition_counts, members).values()]
    assert max(sizes) - min(sizes) <= 1


def test_range_cuts_each_topic_and_topics_alike() -> None:
    assignment = RANGE.assign({"a": 3, "b": 3}, all_to("ab", "x", "y"))
    assert shown(assignment) == {"x": "a0 a1 b0 b1", "y": "a2 b2"}


def test_range_leaves_members_without_when_there_are_more_of_them() -> None:
    assignment = RANGE.assign({"a": 2}, all_to("a", "z", "y", "x"))
    assert shown(assignment) == {"x": "a0", "y": "a1", "z": ""}


def test_range_counts_only_those_who_read_a_topic() -> None:
    members = all_to("a", "x") | all_to("ab", "y")
    assert shown(RANGE.assign({"a": 4, "b": 2}, members)) == {"x": "a0 a1", "y": "a2 a3 b0 b1"}


@given(count=st.integers(0, 20), members=equal)
def test_range_gives_equal_numbers_of_co_partitioned_topics_to_one_member(
    count: int, members: dict[str, MemberSubscription]
) -> None:
    assignment = RANGE.assign(dict.fromkeys(TOPICS, count), members)
    for mine in assignment.values():
        numbers = Counter(tp.partition for tp in mine)
        topics = len(next(iter(members.values())).topics)
        assert set(numbers.values()) <= {topics}


@pytest.mark.parametrize("assignor", [RANGE, ROUND_ROBIN], ids=lambda one: one.name)
def test_static_members_come_first_in_the_order_of_their_instance_ids(assignor: Assignor) -> None:
    members = {
        "1": MemberSubscription("a"),
        "2": MemberSubscription("a", instance_id="second"),
        "3": MemberSubscription("a", instance_id="first"),
    }
    assert shown(assignor.assign({"a": 3}, members)) == {"3": "a0", "2": "a1", "1": "a2"}


def test_round_robin_deals_out_over_all_topics() -> None:
    assignment = ROUND_ROBIN.assign({"a": 3, "b": 3}, all_to("ab", "x", "y"))
    assert shown(assignment) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}


def test_round_robin_passes_over_members_that_do_not_read_a_topic() -> None:
    members = all_to("a", "x") | all_to("ab", "y") | all_to("abc", "z")
    assignment = ROUND_ROBIN.assign({"a": 1, "b": 2, "c": 3}, members)
    assert shown(assignment) == {"x": "a0", "y": "b0", "z": "b1 c0 c1 c2"}


@pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE], ids=lambda one: one.name)
@given(partition_counts=counts, members=mixed)
def test_a_sticky_assignment_is_as_even_as_can_be(
    assignor: Assignor, partition_counts: dict[str, int], members: dict[str, MemberSubscription]
) -> None:
    assignment = assignor.assign(partition_counts, members)
    assert is_as_even_as_can_be(assignment, members)


@given(partition_counts=counts, members=mixed, later=mixed, grown=counts)
def test_a_sticky_assignment_stays_even_when_members_and_topics_change(
    partition_counts: dict[str, int],
    members: dict[str, MemberSubscription],
    later: dict[str, MemberSubscription],
    grown: dict[str, int],
) -> None:
    before = STICKY.assign(partition_counts, members)
    told = again(STICKY, before, later)
    after = STICKY.assign(grown, told)
    check_complete(after, grown, later)
    assert is_as_even_as_can_be(after, later)


@pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE], ids=lambda one: one.name)
@given(partition_counts=counts, members=mixed)
def test_nothing_moves_when_nothing_changed(
    assignor: Assignor, partition_counts: dict[str, int], members: dict[str, MemberSubscription]
) -> None:
    before = assignor.assign(partition_counts, members)
    assert assignor.assign(partition_counts, again(assignor, before, members)) == before


@given(partition_counts=counts, members=equal, gone=st.sets(st.sampled_from(MEMBERS)))
def test_equal_members_that_stay_give_up_only_what_is_above_their_share(
    partition_counts: dict[str, int], members: dict[str, MemberSubscription], gone: set[str]
) -> None:
    topics = next(iter(members.values())).topics
    before = STICKY.assign(partition_counts, members)
    later = {
        member: MemberSubscription(topics)
        for member in MEMBERS
        if member not in gone or member not in members
    } or members
    after = STICKY.assign(partition_counts, again(STICKY, before, later))
    total = sum(partition_counts.get(topic, 0) for topic in topics)
    share, longer = divmod(total, len(later))
    had = [len(before.get(entry, ())) for entry in later]
    # As many as can be have one above the share, and of those who had it, as many as can be keep
    # it: nobody could have moved less.
    keep_more = min(longer, sum(count > share for count in had))
    fewest = sum(max(count - share, 0) for count in had) - keep_more
    moved = sum(len(set(before.get(entry, ())) - set(after[entry])) for entry in later)
    assert moved == fewest


@given(
    partition_counts=counts,
    members=st.dictionaries(
        st.sampled_from(MEMBERS),
        st.builds(
            MemberSubscription,
            st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda one: tuple(sorted(one))),
            st.sets(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9))),
            st.integers(-1, 3),
        ),
        min_size=1,
    ),
)
def test_cooperative_members_are_given_nothing_that_another_still_claims(
    partition_counts: dict[str, int], members: dict[str, MemberSubscription]
) -> None:
    assignment = COOPERATIVE.assign(partition_counts, members)
    claimed = {tp for value in members.values() for tp in value.owned}
    for member, mine in assignment.items():
        assert claimed.intersection(mine) <= set(members[member].owned)


@given(partition_counts=counts, members=mixed, later=mixed)
@example(
    # What is free can make m0 even with the others, if m3 and m2 pass some of it on.
    partition_counts={"a": 4, "d": 4},
    members={"m1": MemberSubscription("a"), "m2": MemberSubscription("d")},
    later={
        "m0": MemberSubscription("d"),
        "m1": MemberSubscription("a"),
        "m2": MemberSubscription("ad"),
        "m3": MemberSubscription("ad"),
    },
)
def test_cooperative_members_have_everything_after_two_rounds(
    partition_counts: dict[str, int],
    members: dict[str, MemberSubscription],
    later: dict[str, MemberSubscription],
) -> None:
    before = COOPERATIVE.assign(partition_counts, members)
    first = COOPERATIVE.assign(partition_counts, again(COOPERATIVE, before, later))
    second = COOPERATIVE.assign(partition_counts, again(COOPERATIVE, first, later, 6))
    check_complete(second, partition_counts, later)
    assert is_as_even_as_can_be(second, later)
    for member, mine in first.items():
        # What was there after the first round stays: nobody has to give anything up twice.
        assert set(mine) <= set(second[member])


def test_a_new_member_takes_from_those_who_have_most() -> None:
    members = {
        "x": MemberSubscription("ab", tps("a0 a1 a2"), 3),
        "y": MemberSubscription("ab", tps("b0 b1 b2"), 3),
        "z": MemberSubscription("ab"),
    }
    kept = shown(COOPERATIVE.assign({"a": 3, "b": 3}, members))
    assert kept == {"x": "a0 a1", "y": "b0 b1", "z": ""}


def test_of_two_claims_the_later_generation_counts() -> None:
    members = {
        "x": MemberSubscription("a", user_data=encode_previous(tps("a0 a1"), 4)),
        "y": MemberSubscription("a", user_data=encode_previous(tps("a1 a2"), 5)),
    }
    assert shown(STICKY.assign({"a": 4}, members)) == {"x": "a0 a3", "y": "a1 a2"}


def test_a_member_with_an_old_form_of_subscription_tells_its_generation_in_user_data() -> None:
    members = {
        "x": MemberSubscription("a", tps("a0"), -1, encode_generation(7)),
        "y": MemberSubscription("a", tps("a0"), 6),
    }
    assert shown(COOPERATIVE.assign({"a": 2}, members)) == {"x": "a0", "y": "a1"}


def test_a_chain_of_exchanges_evens_out_what_no_single_move_can() -> None:
    members = {
        "x": MemberSubscription("ab", user_data=encode_previous(tps("a0 a1 a2 a3"), 1)),
        "y": MemberSubscription("bc", user_data=encode_previous(tps("b0 b1"), 1)),
        "z": MemberSubscription("c"),
    }
    assignment = STICKY.assign({"a": 2, "b": 3, "c": 1}, members)
    assert sorted(map(len, assignment.values())) == [1, 2, 3]
    members["z"] = MemberSubscription("c", user_data=encode_previous([], 1))
    assert is_as_even_as_can_be(assignment, members)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_members_keep_their_partitions_as_a_group_grows_and_shrinks(name: str) -> None:
    assignor = ASSIGNORS[name]
    partition_counts = {f"topic-{number}": 10 for number in range(100)}
    topics = tuple(partition_counts)
    members = {f"m{number:03}": MemberSubscription(topics) for number in range(100)}
    before: Assignment = {"m000": assignor.assign(partition_counts, all_in(topics, "m000"))["m000"]}
    for generation in range(1, 3):
        before = assignor.assign(partition_counts, again(assignor, before, members, generation))
    assert {len(mine) for mine in before.values()} == {10}
    fewer = dict(list(members.items())[:90])
    after = assignor.assign(partition_counts, again(assignor, before, fewer, 3))
    assert all(set(before[entry]) <= set(after[entry]) for entry in fewer)


def all_in(topics: tuple[str, ...], *members: str) -> dict[str, MemberSubscription]:
    return {member: MemberSubscription(topics) for member in members}
