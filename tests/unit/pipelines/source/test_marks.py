"""What a task leaves with its rows, and what the next attempt makes of it."""

import pytest

from headrace.client.consumer.offsets import OffsetAndMetadata
from headrace.pipelines.source.marks import Mark, newest
from headrace.types import TopicPartition


def test_a_mark_comes_back_as_it_was_committed() -> None:
    mark = Mark(7, 1234)
    offsets = mark.offsets(["a", "b"])
    assert offsets.keys() == {TopicPartition("a", 0), TopicPartition("b", 0)}
    # The offset of what comes next, as any group has it.
    assert {one.offset for one in offsets.values()} == {8}
    assert newest(offsets.values()) == mark


def test_the_newest_of_several_topics_counts() -> None:
    old, new = Mark(3, 30), Mark(4, 40)
    offsets = old.offsets(["a", "b"]) | new.offsets(["b"]) | Mark(2, 20).offsets(["c"])
    assert newest(offsets.values()) == new
    assert newest([]) is None


@pytest.mark.parametrize("metadata", ["", "rows", "[1]", "{}", '{"rows": "many"}'])
def test_a_mark_without_a_count_still_says_which_batch(metadata: str) -> None:
    assert newest([OffsetAndMetadata(1, metadata)]) == Mark(0, None)
