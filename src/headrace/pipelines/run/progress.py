"""Progress of a pipeline's queries, from Spark's reports of each batch. Pure.

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.types import TopicPartition

# The position of a query in its topics, from Spark's reports about its sources.
#
# Pure.
#
# A source of topics has a position like `{"orders": {"0": 42}}`; positions of other sources are
# ignored.


Positions = Mapping[TopicPartition, int]


def positions_of(offset: Any) -> dict[TopicPartition, int]:
    """The offset of each partition in Spark's position of a source."""
    if not isinstance(offset, Mapping):
        return {}
    return {
        TopicPartition(topic, int(partition)): position
        for topic, partitions in offset.items()
        if isinstance(partitions, Mapping)
        for partition, position in partitions.items()
        if isinstance(position, int) and str(partition).isdecimal()
    }


def merged(offsets: Iterable[Any]) -> dict[TopicPartition, int]:
    """The positions of several sources; the minimum if two of them read the same partition.

    Starting from there misses nothing that one of them has not read yet.
    """
    found: dict[TopicPartition, int] = {}
    for offset in offsets:
        for tp, position in positions_of(offset).items():
            found[tp] = min(position, found.get(tp, position))
    return found


def lag(ends: Iterable[Any], latest: Iterable[Any]) -> int | None:
    """The number of offsets between the positions of the sources and the ends of their topics.

    None if no source reports it.
    """
    total: int | None = None
    for at, end in zip(ends, latest, strict=True):
        known = positions_of(end)
        if known:
            total = (total or 0) + distance(positions_of(at), known)
    return total


def distance(start: Positions, end: Positions) -> int:
    """The number of offsets between two positions; a new partition counts from 0."""
    return sum(max(position - start.get(tp, 0), 0) for tp, position in end.items())


# The metric and its column by which a query counts the rows for its sink.
OUTPUT_METRIC = "headrace_output"
OUTPUT_ROWS = "rows"
# The metric and its column by which a query of dead letters counts their reasons.
DEAD_LETTERS_METRIC = "headrace_dead_letters"
DEAD_LETTERS_REASONS = "reasons"

# What the state of a run keeps of each query: its newest batches and its first reasons.
BATCHES_KEPT = 20
REASONS_MAX = 20
OTHER_REASONS = "(other)"


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One finished batch. `started` is ISO 8601 in UTC; `rows_out` is None if not counted."""

    batch: int
    started: str
    rows_in: int
    rows_out: int | None
    batch_ms: int


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The progress of one query.

    `lag` and `remaining` are in offsets, and None if unknown: the first is the distance to the ends
    of the topics, the second to the query's own end if it only reads the records present at its
    start. `rows_out` is None if the sink does not report it. `rows_per_second` and `batch_ms` are
    those of the last batch, `busy_ms` is the total time of all batches. `waiting_for` is the reason
    why the query is paused at the moment. `recent` has the newest batches, oldest first, and
    `reasons` the dead letters of the run by kind of reason. `reported` is the start of the newest
    trigger that Spark reported, ISO 8601 in UTC.
    """

    name: str
    active: bool = True
    batch: int | None = None
    batches: int = 0
    rows_in: int = 0
    rows_out: int | None = None
    rows_per_second: float = 0.0
    batch_ms: int = 0
    busy_ms: int = 0
    lag: int | None = None
    remaining: int | None = None
    waiting_for: str | None = None
    state_rows: int | None = None
    restarts: int = 0
    recent: tuple[BatchProgress, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    reported: str = ""
    positions: Positions = field(default_factory=dict)

    @property
    def average(self) -> float:
        """Rows a second, over the total time of batches."""
        return 1000 * self.rows_in / self.busy_ms if self.busy_ms else 0.0

    @property
    def fraction(self) -> float | None:
        """The share of the input that is read, from 0 to 1; None if unknown."""
        left = self.remaining if self.remaining is not None else self.lag
        if left is None:
            return None
        return self.rows_in / (self.rows_in + left) if self.rows_in + left else 1.0


class ProgressTally:
    """Sums up a query's reports. `bounded` if it ends at the topics' ends as of its start."""

    def __init__(self, name: str, *, bounded: bool) -> None:
        self._name = name
        self._bounded = bounded
        self._seen = -1
        self._targets: Positions | None = None
        self.progress = QueryProgress(name)

    @property
    def seen(self) -> int:
        """The number of the last batch added, -1 if none was."""
        return self._seen

    def add(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Add Spark's reports, oldest first; those of batches added before are skipped."""
        for report in reports:
            if report["batchId"] > self._seen:
                self._add(report)

    def wait(self, reason: str | None) -> None:
        """Note that the query waits for `reason`, or with None continues."""
        self.progress = replace(self.progress, waiting_for=reason)

    def restarted(self) -> None:
        """Count a restart after a failure."""
        self.progress = replace(self.progress, restarts=self.progress.restarts + 1)

    def end(self) -> None:
        """Note that the query has ended."""
        self.progress = replace(self.progress, active=False, waiting_for=None)

    def _add(self, report: Mapping[str, Any]) -> None:
        sources = report["sources"]
        ends = [source["endOffset"] or source["startOffset"] for source in sources]
        latest = [source["latestOffset"] for source in sources]
        at = merged(ends) or self.progress.positions
        if self._bounded and self._targets is None:
            self._targets = merged(latest) or None
        changes: dict[str, Any] = {
            "lag": lag(ends, latest),
            "remaining": None if self._targets is None else distance(at, self._targets),
            "positions": at,
            "reported": str(report.get("timestamp", "")),
        }
        # Spark also reports now and then when there was no data.
        if "addBatch" in report["durationMs"]:
            self._seen = report["batchId"]
            changes |= self._batch(report)
        else:
            changes["rows_per_second"] = 0.0
        self.progress = replace(self.progress, **changes)

    def _batch(self, report: Mapping[str, Any]) -> dict[str, Any]:
        out = rows_out(report)
        took_ms = report["durationMs"].get("triggerExecution", 0)
        operators = report.get("stateOperators") or ()
        state_rows = sum(operator.get("numRowsTotal", 0) for operator in operators)
        batch = BatchProgress(
            report["batchId"],
            str(report.get("timestamp", "")),
            report["numInputRows"],
            out,
            took_ms,
        )
        return {
            "recent": (*self.progress.recent, batch)[-BATCHES_KEPT:],
            "reasons": with_reasons(self.progress.reasons, reasons_of(report)),
            "state_rows": state_rows if operators else None,
            "batch": report["batchId"],
            "batches": self.progress.batches + 1,
            "rows_in": self.progress.rows_in + report["numInputRows"],
            "rows_out": None if out is None else (self.progress.rows_out or 0) + out,
            "rows_per_second": float(report.get("processedRowsPerSecond") or 0.0),
            "batch_ms": took_ms,
            "busy_ms": self.progress.busy_ms + took_ms,
        }


def rows_out(report: Mapping[str, Any]) -> int | None:
    """The rows that a batch wrote to its sink; None if neither Spark nor the query counted them."""
    counted = report["sink"].get("numOutputRows", -1)
    if counted is not None and counted >= 0:
        return int(counted)
    observed = (report.get("observedMetrics") or {}).get(OUTPUT_METRIC)
    return None if observed is None else int(observed[OUTPUT_ROWS])


def reasons_of(report: Mapping[str, Any]) -> dict[str, int]:
    """The dead letters of a batch by kind of reason, as its query counted them."""
    counted = (report.get("observedMetrics") or {}).get(DEAD_LETTERS_METRIC) or {}
    return {entry["item"]: entry["count"] for entry in counted.get(DEAD_LETTERS_REASONS) or ()}


def with_reasons(known: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Both counts together. Reasons beyond the bound count as one."""
    summed = dict(known)
    for reason, count in more.items():
        name = reason if reason in summed or len(summed) < REASONS_MAX else OTHER_REASONS
        summed[name] = summed.get(name, 0) + count
    return summed
