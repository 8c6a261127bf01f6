"""What is compacted, when, and which segments become one."""

from dataclasses import dataclass

import pytest

from headrace.config import TopicConfig
from headrace.storage.compaction.plan import GROUP_SEGMENTS_MAX, CompactionPlan, groups, plan

NOW_MS = 1_000_000


@dataclass(frozen=True)
class Part:
    """A segment, as far as a plan looks at it."""

    base_offset: int
    size: int = 100
    newest_ms: int = 0
    first_ms: int = 0
    index_bytes: int = 8

    def age_timestamp(self) -> int:
        return self.newest_ms

    def first_timestamp(self) -> int:
        return self.first_ms


# Three closed segments and the active one.
LOG = (Part(0), Part(10), Part(20), Part(30))


def planned(segments: tuple[Part, ...] = LOG, /, **changes: int) -> CompactionPlan[Part]:
    lags = {name: changes.pop(name) for name in list(changes) if name.endswith("lag_ms")}
    offsets = {
        "clean_offset": 0,
        "log_start_offset": 0,
        "last_stable_offset": 40,
        "recovery_point": 40,
    }
    config = TopicConfig(cleanup_policy=("compact",), **lags)  # type: ignore[arg-type]
    return plan(segments, config, NOW_MS, **(offsets | changes))


@pytest.mark.parametrize(
    ("changes", "bases", "dirty", "end", "ratio"),
    [
        ({}, [0, 10, 20], 0, 30, 1.0),
        ({"clean_offset": 10}, [0, 10, 20], 10, 30, 2 / 3),
        ({"clean_offset": 15}, [0, 10, 20], 15, 30, 2 / 3),
        ({"clean_offset": 30}, [0, 10, 20], 30, 30, 0.0),
        # An offset that cannot be the one that compaction came to.
        ({"clean_offset": 31}, [0, 10, 20], 0, 30, 1.0),
        ({"clean_offset": 3, "log_start_offset": 5}, [0, 10, 20], 5, 30, 1.0),
        # Nothing undecided, and nothing that a crash could take away.
        ({"last_stable_offset": 29}, [0, 10], 0, 20, 1.0),
        ({"recovery_point": 20}, [0, 10], 0, 20, 1.0),
        ({"last_stable_offset": 9}, [], 0, 0, 0.0),
        ({"clean_offset": 25, "last_stable_offset": 20}, [0, 10], 20, 20, 0.0),
    ],
)
def test_plans(
    changes: dict[str, int], bases: list[int], dirty: int, end: int, ratio: float
) -> None:
    found = planned(**changes)
    assert [segment.base_offset for segment in found.segments] == bases
    assert (found.dirty_offset, found.end_offset) == (dirty, end)
    assert found.dirty_ratio == pytest.approx(ratio)
    assert not found.is_overdue


def test_young_records_wait() -> None:
    segments = (Part(0), Part(10, newest_ms=NOW_MS - 5), Part(20), Part(30))
    assert planned(segments, min_compaction_lag_ms=6).end_offset == 10
    assert planned(segments, min_compaction_lag_ms=5).end_offset == 30
    # What was compacted before is not young, whatever its records say.
    assert planned(segments, min_compaction_lag_ms=6, clean_offset=20).end_offset == 30


def test_old_records_do_not_wait() -> None:
    segments = (Part(0), Part(10, first_ms=NOW_MS - 5), Part(20, first_ms=NOW_MS), Part(30))
    strict = TopicConfig(min_cleanable_dirty_ratio=1.0)
    late = planned(segments, max_compaction_lag_ms=4, clean_offset=10)
    assert (late.is_overdue, late.is_due(strict)) == (True, True)
    soon = planned(segments, max_compaction_lag_ms=5, clean_offset=10)
    assert (soon.is_overdue, soon.is_due(strict)) == (False, False)


def test_a_log_is_due_when_more_than_the_ratio_of_it_is_dirty() -> None:
    found = planned(clean_offset=20)
    assert found.is_due(TopicConfig(min_cleanable_dirty_ratio=0.33))
    assert not found.is_due(TopicConfig(min_cleanable_dirty_ratio=0.34))
    assert not planned(clean_offset=30).is_due(TopicConfig(min_cleanable_dirty_ratio=0.0))


def grouped(segments: tuple[Part, ...], end: int, **limits: int) -> list[list[int]]:
    config = TopicConfig(**({"segment_bytes": 250, "segment_index_bytes": 100} | limits))  # type: ignore[arg-type]
    return [[batch.base_offset for batch in group] for group in groups(segments, config, end)]


def test_neighbours_that_fit_one_segment_become_one() -> None:
    parts = (Part(0, 100), Part(10, 100), Part(20, 100), Part(30, 10), Part(40, 300), Part(50, 1))
    assert grouped(parts, 60) == [[0, 10], [20, 30], [40], [50]]
    assert grouped(parts, 60, segment_index_bytes=8) == [[0], [10], [20], [30], [40], [50]]
    assert grouped((), 0) == []


def test_no_segment_gets_more_offsets_than_an_index_can_tell() -> None:
    assert grouped((Part(0), Part(2**31 - 11)), 2**31 - 1) == [[0, 2**31 - 11]]
    assert grouped((Part(0), Part(2**31 - 11)), 2**31) == [[0], [2**31 - 11]]


def test_not_too_many_files_change_at_once() -> None:
    parts = tuple(Part(number, 0) for number in range(GROUP_SEGMENTS_MAX + 1))
    assert [len(entry) for entry in grouped(parts, 100, segment_index_bytes=10_000)] == [
        GROUP_SEGMENTS_MAX,
        1,
    ]
