"""The mark that a task leaves with its rows, as the next attempt finds it."""

import pytest

from headrace.client.types import OffsetAndMetadata
from headrace.pipelines.datasource.exactly_once import BatchMark, mark_offsets, newest
from headrace.types import TopicPartition

A, B, C = (TopicPartition(name, 0) for name in "abc")


def test_a_mark_comes_back_as_it_was_committed() -> None:
    offsets = mark_offsets(7, 1234, ["a", "b"], {"a": "id-a", "b": "id-b"})
    assert offsets.keys() == {A, B}
    # The offset of what comes next, as any group has it.
    assert {offset.offset for offset in offsets.values()} == {8}
    assert newest(offsets) == BatchMark(7, 1234, 2, {"a": "id-a", "b": "id-b"})


def test_the_newest_of_several_topics_counts() -> None:
    old, new = mark_offsets(3, 30, ["a", "b"], {}), mark_offsets(4, 40, ["b"], {"b": "id-b"})
    offsets = old | new | mark_offsets(2, 20, ["c"], {})
    assert newest(offsets) == BatchMark(4, 40, 1, {"b": "id-b"})
    assert newest({}) is None


@pytest.mark.parametrize("metadata", ["", "rows", "[1]", "{}", '{"rows": "many"}'])
def test_a_mark_without_a_count_still_says_which_batch(metadata: str) -> None:
    assert newest({A: OffsetAndMetadata(1, metadata)}) == BatchMark(0, None)


def test_a_topic_with_another_id_has_lost_the_rows() -> None:
    mark = newest(mark_offsets(0, 5, ["a", "b"], {"a": "id-a", "b": "id-b"}))
    assert mark is not None
    assert mark.kept({"a": "id-a", "b": "id-b"}) == ["a", "b"]
    assert mark.kept({"a": "another", "b": "id-b"}) == ["b"]
    assert mark.kept({}) == []


def test_a_mark_that_went_with_its_topic_is_missed_by_the_count() -> None:
    offsets = mark_offsets(0, 5, ["a", "b"], {"a": "id-a", "b": "id-b"})
    del offsets[A]
    mark = newest(offsets)
    assert mark is not None
    assert (mark.topic_count, mark.kept({"a": "new", "b": "id-b"})) == (2, ["b"])
