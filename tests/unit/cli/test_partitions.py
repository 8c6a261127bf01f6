import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.partitions import (
    ChosenPartitions,
    chosen_partitions,
    parse_partitions,
    partitions_text,
)
from headrace.client.admin.admin import Admin
from headrace.client.errors import SomeFailed
from headrace.errors import UnknownTopic
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import AdminBrokers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("a", ()), ("a:3", (3,)), ("a:2,0,2", (0, 2)), ("a:0-2,7", (0, 1, 2, 7)), ("a:4-4", (4,))],
)
def test_partitions_are_named_singly_and_in_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_partitions(text) == ChosenPartitions("a", numbers)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "a:",
        "a:,",
        "a:x",
        "a:1-",
        "a:-1",
        "a:2-1",
        "a:1-2-3",
        "a:1.5",
        "a:²",
        "a:0-999999",
    ],
)
def test_anything_else_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not of the form"):
        parse_partitions(text)


@given(st.sets(st.integers(0, 30), min_size=1))
def test_what_is_printed_can_be_given_back(numbers: set[int]) -> None:
    text = partitions_text(TopicPartition("a", number) for number in numbers)
    assert parse_partitions(text) == ChosenPartitions("a", tuple(sorted(numbers)))


def test_topics_are_printed_one_after_the_other() -> None:
    partitions = [TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)]
    assert partitions_text(partitions) == "a:0 b:0,1"
    assert partitions_text([]) == ""


def test_a_topic_without_numbers_is_all_of_it() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a", 3)
    brokers.add_topic("b", 2)
    chosen = [ChosenPartitions("b", ()), ChosenPartitions("a", (2,)), ChosenPartitions("a", (0, 2))]
    with Admin.over(brokers.new_cluster()) as admin:
        assert partitions_text(chosen_partitions(admin, chosen)) == "a:0,2 b:0,1"
        with pytest.raises(UnknownTopic, match="topic b has no partition 2; it has 2, numbered"):
            chosen_partitions(admin, [ChosenPartitions("b", (2,))])
        with pytest.raises(SomeFailed, match="topic nope does not exist"):
            chosen_partitions(admin, [ChosenPartitions("nope", ())])
