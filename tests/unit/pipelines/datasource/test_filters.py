"""Filters that Spark pushes down: they leave out what cannot match, and nothing else."""

import sys
from datetime import UTC, datetime
from types import ModuleType

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from headrace.pipelines.datasource.filters import OffsetFilter, spark_pushes_filters, taken
from headrace.pipelines.datasource.read_options import read_options
from headrace.types import TopicPartition

TOPIC, PARTITION, OFFSET, TIME, VALUE = (
    (name,) for name in ("topic", "partition", "offset", "timestamp", "value")
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000


def pruned_by(*filters: Filter) -> OffsetFilter:
    pruning, rest = taken(filters)
    assert rest == []
    return pruning


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (EqualTo(TOPIC, "b"), "b"),
        (EqualNullSafe(TOPIC, "b"), "b"),
        (Not(EqualTo(TOPIC, "b")), "a aa c"),
        (In(TOPIC, ("a", "c")), "a c"),
        (In(TOPIC, ["a", "c"]), "a c"),  # type: ignore[arg-type]
        (Not(In(TOPIC, ("a", "c"))), "aa b"),
        (GreaterThan(TOPIC, "aa"), "b c"),
        (GreaterThanOrEqual(TOPIC, "aa"), "aa b c"),
        (LessThan(TOPIC, "b"), "a aa"),
        (LessThanOrEqual(TOPIC, "b"), "a aa b"),
        (StringStartsWith(TOPIC, "a"), "a aa"),
        (StringEndsWith(TOPIC, "c"), "c"),
        (StringContains(TOPIC, "b"), "b"),
    ],
)
def test_topics(given: Filter, kept: str) -> None:
    pruning = pruned_by(given)
    assert [t for t in ("a", "aa", "b", "c") if pruning.keeps(TopicPartition(t, 0))] == kept.split()


def test_partitions() -> None:
    pruning = pruned_by(In(PARTITION, (1, 2, 3)), LessThan(PARTITION, 3), EqualTo(TOPIC, "a"))
    kept = [n for n in range(5) if pruning.keeps(TopicPartition("a", n))]
    assert kept == [1, 2]
    assert not pruning.keeps(TopicPartition("b", 1))


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ([EqualTo(OFFSET, 5)], (5, 6)),
        ([EqualNullSafe(OFFSET, 5)], (5, 6)),
        ([GreaterThan(OFFSET, 5)], (6, 10)),
        ([GreaterThanOrEqual(OFFSET, 5)], (5, 10)),
        ([LessThan(OFFSET, 5)], (0, 5)),
        ([LessThanOrEqual(OFFSET, 5)], (0, 6)),
        ([GreaterThan(OFFSET, 2), GreaterThan(OFFSET, 4), LessThan(OFFSET, 8)], (5, 8)),
        ([LessThan(OFFSET, 100), LessThan(OFFSET, 50)], (0, 10)),
    ],
)
def test_offsets(filters: list[Filter], kept: tuple[int, int]) -> None:
    assert pruned_by(*filters).within(0, 10) == kept


def test_some_offsets_are_narrowed_to_a_range_and_left_to_spark() -> None:
    given = In(OFFSET, (7, 3))
    pruning, rest = taken([given])
    assert pruning.within(0, 10) == (3, 8)
    assert rest == [given]


@pytest.mark.parametrize(
    ("given", "since_ms"),
    [
        (GreaterThan(TIME, NOON), NOON_MS),
        (GreaterThanOrEqual(TIME, NOON), NOON_MS),
        (EqualTo(TIME, NOON), NOON_MS),
        (In(TIME, (NOON.replace(hour=13), NOON)), NOON_MS),
        (GreaterThan(TIME, NOON.replace(microsecond=1999)), NOON_MS + 1),
        (GreaterThan(TIME, NOON.replace(tzinfo=None)), NOON_MS),
        # Older records may come after younger ones.
        (LessThan(TIME, NOON), None),
        (LessThanOrEqual(TIME, NOON), None),
        (Not(EqualTo(TIME, NOON)), None),
        (Not(GreaterThan(TIME, NOON)), None),
    ],
)
def test_only_a_lower_bound_of_time_prunes_and_spark_looks_again(
    given: Filter, since_ms: int | None
) -> None:
    pruning, rest = taken([given])
    assert pruning.since_ms == since_ms
    assert rest == [given]


def test_the_latest_lower_bound_counts() -> None:
    pruning, _ = taken([GreaterThan(TIME, NOON), GreaterThan(TIME, NOON.replace(hour=11))])
    assert pruning.since_ms == NOON_MS


@pytest.mark.parametrize("name", ["topic", "partition", "offset", "timestamp", "timestampType"])
def test_columns_that_are_never_null(name: str) -> None:
    assert pruned_by(IsNotNull((name,)), Not(IsNull((name,)))) == OffsetFilter()


@pytest.mark.parametrize(
    "given",
    [
        IsNotNull(VALUE),
        IsNull(TOPIC),
        EqualTo(VALUE, b"x"),
        EqualTo(TOPIC, None),
        In(TOPIC, ("a", None)),
        In(TOPIC, ()),
        Not(In(PARTITION, (1, None))),
        EqualNullSafe(OFFSET, None),
        Not(EqualTo(OFFSET, 5)),
        EqualTo(("topic", "inner"), "a"),
    ],
)
def test_left_to_spark(given: Filter) -> None:
    assert taken([given]) == (OffsetFilter(), [given])


def test_filters_are_taken_on_request_in_the_worker_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = read_options({"subscribe": "a", "pushFilters": "true"})
    assert not spark_pushes_filters(asked)
    worker = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, worker, ModuleType(worker))
    assert spark_pushes_filters(asked)
    assert not spark_pushes_filters(read_options({"subscribe": "a"}))
