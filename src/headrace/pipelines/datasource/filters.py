"""Pushdown of Spark's filters: excluded partitions and offsets are not fetched.

Rule: a pushed filter may exclude too few rows, never a row that matches. Filters that are not
applied exactly are returned to Spark, which applies them again.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

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

from headrace.pipelines.datasource.read_options import ReadOptions
from headrace.types import TopicPartition

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")

_TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, given: bool(value == given),
    EqualNullSafe: lambda value, given: bool(value == given),
    GreaterThan: lambda value, given: bool(value > given),
    GreaterThanOrEqual: lambda value, given: bool(value >= given),
    LessThan: lambda value, given: bool(value < given),
    LessThanOrEqual: lambda value, given: bool(value <= given),
    In: lambda value, given: value in given,
    StringContains: lambda value, given: given in value,
    StringEndsWith: lambda value, given: bool(value.endswith(given)),
    StringStartsWith: lambda value, given: bool(value.startswith(given)),
}


@dataclass
class OffsetFilter:
    """The partitions and offsets that are left to read by the pushed filters."""

    on_topic: tuple[Filter, ...] = ()
    on_partition: tuple[Filter, ...] = ()
    first_offset: int = 0
    end_offset: int | None = None
    since_ms: int | None = None

    def keeps(self, tp: TopicPartition) -> bool:
        """Whether records of a partition can match."""
        return all(_holds(condition, tp.topic) for condition in self.on_topic) and all(
            _holds(condition, tp.partition) for condition in self.on_partition
        )

    def within(self, start: int, end: int) -> tuple[int, int]:
        """The part of a range of offsets in which records can match."""
        until = end if self.end_offset is None else min(end, self.end_offset)
        return max(start, self.first_offset), until

    def take(self, given: Filter) -> bool:
        """Apply a filter as far as possible; returns whether Spark need not apply it again."""
        match given:
            case IsNotNull(attribute=(name,)):
                return name in _NEVER_NULL
            case Not(child=IsNull(attribute=(name,))):
                return name in _NEVER_NULL
        match _column(given):
            case "topic" if _is_about(given, str):
                self.on_topic += (given,)
                return True
            case "partition" if _is_about(given, int):
                self.on_partition += (given,)
                return True
            case "offset" if _is_about(given, int):
                return self._take_offset(given)
            case "timestamp" if _is_about(given, datetime):
                self._take_timestamp(given)
        return False

    def _take_offset(self, given: Filter) -> bool:
        match given:
            case EqualTo(value=value) | EqualNullSafe(value=value):
                self._narrow(value, value + 1)
            case GreaterThan(value=value):
                self._narrow(value + 1, None)
            case GreaterThanOrEqual(value=value):
                self._narrow(value, None)
            case LessThan(value=value):
                self._narrow(0, value)
            case LessThanOrEqual(value=value):
                self._narrow(0, value + 1)
            case In(value=values):
                # All offsets between the first and the last are read, so Spark must filter again.
                self._narrow(min(values), max(values) + 1)
                return False
            case _:
                return False
        return True

    def _narrow(self, first: int, end: int | None) -> None:
        self.first_offset = max(self.first_offset, first)
        if end is not None:
            self.end_offset = end if self.end_offset is None else min(self.end_offset, end)

    def _take_timestamp(self, given: Filter) -> None:
        """Apply a timestamp filter: a lower bound skips all records before the first that matches.

        An upper bound cannot, because older records may follow newer ones.
        """
        match given:
            case (
                EqualTo(value=value)
                | EqualNullSafe(value=value)
                | GreaterThan(value=value)
                | GreaterThanOrEqual(value=value)
            ):
                since_ms = _ms(value)
            case In(value=values):
                since_ms = min(_ms(value) for value in values)
            case _:
                return
        self.since_ms = max(since_ms, self.since_ms or 0)


def taken(filters: Iterable[Filter]) -> tuple[OffsetFilter, list[Filter]]:
    """The offset filter, and the filters that Spark has to apply itself."""
    pruning = OffsetFilter()
    return pruning, [candidate for candidate in filters if not pruning.take(candidate)]


def spark_pushes_filters(options: ReadOptions) -> bool:
    """Whether a read accepts filters, and Spark started this process to push them down.

    Spark refuses a reader that accepts filters unless `spark.sql.python.filterPushdown.enabled` is
    set. The setting cannot be read here, but only with it does Spark run this worker.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    running = _PUSHDOWN_WORKER in sys.modules or getattr(spec, "name", "") == _PUSHDOWN_WORKER
    return options.push_filters and running


def _column(given: Filter) -> str | None:
    inner = given.child if isinstance(given, Not) else given
    attribute: tuple[str, ...] = getattr(inner, "attribute", ())
    return attribute[0] if len(attribute) == 1 else None


def _is_about(given: Filter, kind: type) -> bool:
    """Whether a filter only compares with values of this type: null has other rules."""
    inner = given.child if isinstance(given, Not) else given
    if type(inner) not in _TESTS:
        return False
    value = getattr(inner, "value", None)
    if not isinstance(inner, In):
        return isinstance(value, kind)
    # Spark passes a list, although its own types say tuple.
    if not isinstance(value, tuple | list):
        return False
    return bool(value) and all(isinstance(item, kind) for item in value)


def _holds(given: Filter, value: str | int) -> bool:
    if isinstance(given, Not):
        return not _holds(given.child, value)
    return _TESTS[type(given)](value, getattr(given, "value", None))


def _ms(value: datetime) -> int:
    """Milliseconds since 1970, rounded down: records have no finer time."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return max(0, (aware - _EPOCH) // timedelta(milliseconds=1))
