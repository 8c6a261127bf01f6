"""Ranges of offsets of a search: never too small, and no larger than they must be."""

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.client.types import OffsetAndTimestamp
from headrace.errors import UnknownTopic
from headrace.search.expressions import parse_expression
from headrace.search.scan_ranges import (
    ScanBounds,
    ScanRange,
    SearchRequest,
    scan_bounds,
    scan_ranges,
    scan_windows,
)
from headrace.types import TopicPartition


class Logs:
    """Two partitions with the offsets [100, 200); the record at offset n has the time 10 n ms."""

    def partitions_for(self, topic: str) -> list[int] | None:
        return [0, 1] if topic == "orders" else None

    def beginning_offsets(self, *partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions[0], 100)

    def end_offsets(self, *partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions[0], 200)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {
            tp: OffsetAndTimestamp(max(moment // 10, 100), moment, 0) if moment < 2000 else None
            for tp, moment in times.items()
        }


def ranges(expression: str = "", **given: Any) -> dict[int, tuple[int, int]]:
    request = SearchRequest(topic=given.pop("topic", "orders"), **given)
    found = scan_ranges(Logs(), request, scan_bounds(parse_expression(expression)))
    return {tp.partition: (start, end) for tp, (start, end) in found.items()}


def test_everything_is_read_unless_something_is_said() -> None:
    assert ranges() == ranges("a or partition = 1") == {0: (100, 200), 1: (100, 200)}
    assert ranges("not partition = 1 and not offset > 150") == ranges()


def test_an_expression_bounds_what_is_read() -> None:
    assert ranges("partition = 1 and a") == {1: (100, 200)}
    assert ranges("partition in (1, 7) and offset >= 150 and offset < 160") == {1: (150, 160)}
    assert ranges("partition = 0 and partition = 1") == {}
    assert ranges("offset = 150 and partition = 0") == {0: (150, 151)}
    assert ranges("timestamp >= 1500 and partition = 0") == {0: (150, 200)}
    # Late records may have early timestamps.
    assert ranges("timestamp < 1500 and partition = 0") == {0: (100, 200)}
    assert ranges("timestamp > 5000") == {}


def test_a_request_bounds_what_is_read() -> None:
    assert ranges(partitions=(1,), from_ms=1200, to_ms=1300) == {1: (120, 130)}
    assert ranges(from_ms=5000) == {}
    assert ranges("timestamp > 1100", to_ms=5000, from_ms=1200, partitions=(0,)) == {0: (120, 200)}
    given: dict[str, Any] = {"start_offsets": {0: 50, 1: 190}, "end_offsets": {0: 110, 1: 300}}
    assert ranges(**given) == {0: (100, 110), 1: (190, 200)}


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownTopic, match="absent"):
        ranges(topic="absent")
    with pytest.raises(UnknownTopic, match="7"):
        ranges(partitions=(0, 7))


def test_windows_for_the_newest_grow_and_cover_every_offset_once() -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    whole = {first: ScanRange(0, 100_000), second: ScanRange(99, 120)}
    windows = list(scan_windows(whole, newest_first=True))
    assert windows[0] == {first: ScanRange(95_000, 100_000), second: ScanRange(99, 120)}
    assert [window[first] for window in windows[1:]] == [
        ScanRange(85_000, 95_000),
        ScanRange(65_000, 85_000),
        ScanRange(25_000, 65_000),
        ScanRange(0, 25_000),
    ]
    assert all(second not in window for window in windows[1:])
    assert list(scan_windows(whole, newest_first=False)) == [whole]
    assert list(scan_windows({}, newest_first=False)) == []


def test_bounds_within_others_are_the_narrower() -> None:
    one = ScanBounds(frozenset((1, 2)), 10, 50, 7)
    other = ScanBounds(frozenset((2, 3)), 20, 90)
    assert one.within(other) == other.within(one) == ScanBounds(frozenset((2,)), 20, 50, 7)
