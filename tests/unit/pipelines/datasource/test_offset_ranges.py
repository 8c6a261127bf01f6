"""How ranges are shared out among tasks."""

import pytest

from headrace.pipelines.datasource.offset_ranges import (
    SPLIT_OFFSETS_MIN,
    OffsetRange,
    parallelism,
    split,
)
from headrace.pipelines.datasource.read_options import ReadOptions, read_options
from headrace.pipelines.session import PARALLELISM_VARIABLE, tasks_at_once


def options(**given: str) -> ReadOptions:
    return read_options({"subscribe": "a"} | given)


def sizes(ranges: list[OffsetRange]) -> list[int]:
    return [entry.end - entry.start for entry in ranges]


def test_one_big_partition_uses_every_core() -> None:
    whole = OffsetRange("a", 0, 7, 1_000_007)
    pieces = split([whole], options(), 4)
    assert sizes(pieces) == [250_000] * 4
    assert [piece.start for piece in pieces] == [7, 250_007, 500_007, 750_007]
    assert pieces[-1].end == whole.end


def test_small_ranges_stay_whole() -> None:
    ranges = [OffsetRange("a", 0, 0, SPLIT_OFFSETS_MIN), OffsetRange("a", 1, 5, 6)]
    assert split(ranges, options(), 16) == ranges


def test_as_many_partitions_as_cores_stay_whole_unless_one_is_larger() -> None:
    equal = [OffsetRange("a", number, 0, 1_000_000) for number in range(4)]
    assert split(equal, options(), 4) == equal
    skewed = [OffsetRange("a", 0, 0, 1_000_000), OffsetRange("a", 1, 0, 200_000)]
    assert sizes(split(skewed, options(), 3)) == [333_333, 333_333, 333_334, 200_000]


def test_empty_and_backward_ranges_are_left_out() -> None:
    assert split([OffsetRange("a", 0, 5, 5), OffsetRange("a", 1, 9, 5)], options(), 4) == []


def test_smaller_pieces_on_request() -> None:
    ranges = [OffsetRange("a", 0, 0, 75), OffsetRange("a", 1, 0, 25)]
    assert sizes(split(ranges, options(minPartitions="4"), 1)) == [25] * 4
    assert sizes(split(ranges, options(maxRecordsPerPartition="30"), 1)) == [25] * 4
    assert sizes(split([OffsetRange("a", 0, 0, 3)], options(minPartitions="9"), 1)) == [1] * 3


def test_no_pieces_where_order_matters() -> None:
    ranges = [OffsetRange("a", 0, 0, 1_000_000), OffsetRange("a", 1, 0, 5)]
    wanted = options(splitPartitions="false", minPartitions="9")
    assert split(ranges, wanted, 4) == ranges


def test_cores_are_those_the_session_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARALLELISM_VARIABLE, "12")
    assert parallelism() == 12
    monkeypatch.setenv(PARALLELISM_VARIABLE, "")
    assert parallelism() >= 1


@pytest.mark.parametrize(
    ("master", "tasks"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,2]", 3),
        ("local-cluster[2,1,1024]", 2),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_what_a_master_runs_at_once(master: str, tasks: int | None) -> None:
    assert tasks_at_once(master, {}) == tasks
    assert tasks_at_once(master, {"spark.default.parallelism": "7"}) == 7
