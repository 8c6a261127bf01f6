"""The views of `headrace top`: rows of values from the state of a cluster, sorted and filtered.

Rule: pure. Values stay values until they are shown: 9 sorts before 10, and unknown ones come last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.cli.output import bytes_text
from headrace.cli.terminal_text import printable
from headrace.monitoring.broker_metrics import BrokerMetrics
from headrace.monitoring.cluster_status import BrokerStatus, ClusterStatus
from headrace.pipelines.run.run_state import RunState

Value: TypeAlias = str | int | float | None


class AtLeast(float):
    """A number that is known to be no smaller than this."""


# A name that is longer is cut before anything else is done to it: it may be a megabyte long.
TEXT_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, its key in JSON, and the text of its values.

    Text is to the left, numbers to the right and sorted from the largest, except ids. Optional
    columns are left out first where a terminal is narrow.
    """

    heading: str
    key: str
    text: Callable[[Any], str] | None = None
    is_optional: bool = False
    is_id: bool = False

    def shown(self, value: Value) -> str:
        """A value as it is shown."""
        if value is None:
            return "" if self.text is None else "-"
        if self.text is None:
            return printable(str(value)[:TEXT_CHARS_MAX])
        return self.text(value)


@dataclass(frozen=True, slots=True)
class Row:
    """The values of a row, and how urgent it is: "", "warning" or "critical"."""

    values: tuple[Value, ...]
    urgency: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A table of one kind of things. `sort` is the column that it is sorted by at first."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    sort: int = 0
    # The text in place of a table without rows.
    empty: str = ""

    def arranged(self, sort: int, descending: bool, wanted: str) -> list[Row]:
        """The rows with the text in one of their texts, in order; unknown values come last."""
        needle = wanted.casefold()
        rows = [row for row in self.rows if not needle or self._has(row, needle)]
        known = [row for row in rows if row.values[sort] is not None]
        unknown = [row for row in rows if row.values[sort] is None]
        known.sort(key=lambda row: _sort_key(row.values[sort]), reverse=descending)
        return known + unknown

    def _has(self, row: Row, needle: str) -> bool:
        return any(
            isinstance(value, str) and needle in value[:TEXT_CHARS_MAX].casefold()
            for value in row.values
        )

    def descends(self, column: int) -> bool:
        """Whether a column is sorted from the largest value: numbers are."""
        return self.columns[column].text is not None and not self.columns[column].is_id

    def documents(self) -> list[dict[str, Value]]:
        """The rows as objects of JSON."""
        return [
            {
                name: value
                for column, cell in zip(self.columns, row.values, strict=True)
                for name, value in _members(column.key, cell)
            }
            for row in self.rows
        ]


def _members(key: str, value: Value) -> Iterator[tuple[str, Value]]:
    yield key, value
    if isinstance(value, AtLeast):
        yield f"{key}_is_at_least", True


def _sort_key(value: Value) -> Any:
    return value[:TEXT_CHARS_MAX].casefold() if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class TopData:
    """The data of all views: the state of the cluster, metrics of brokers, and pipelines."""

    state: ClusterStatus
    metrics: tuple[BrokerMetrics, ...] = ()
    pipelines: tuple[RunState, ...] = ()
    # Whether metrics and pipelines were asked for.
    has_metrics: bool = False
    has_pipelines: bool = False


def views(data: TopData, *, internal: bool) -> tuple[View, ...]:
    """All views, in the order of their keys."""
    return (
        _brokers(data),
        _topics(data.state, internal),
        _groups(data.state),
        _connections(data),
        _pipelines(data),
        _problems(data.state),
    )


VIEW_NAMES = ("brokers", "topics", "groups", "connections", "pipelines", "problems")


def _brokers(data: TopData) -> View:
    figures = {sample.node_id: sample for sample in data.metrics if sample.node_id is not None}
    columns = [
        Column("ID", "id", count_text, is_id=True),
        Column("ADDRESS", "address"),
        Column("STATE", "state"),
        Column("MSG/S", "messages_per_s", rate_text),
        Column("LEADERS", "leaders", count_text),
        Column("REPLICAS", "replicas", count_text, is_optional=True),
        Column("BEHIND", "behind", count_text),
        Column("SIZE", "size_bytes", bytes_text),
        Column("DISK FREE", "disk_free", share_text),
        Column("RACK", "rack", is_optional=True),
    ]
    if data.has_metrics:
        columns[7:7] = [
            Column("CPU", "cpu", share_text),
            Column("MEMORY", "memory_bytes", bytes_text),
            Column("CONNECTIONS", "connections", count_text),
            Column("REQUESTS/S", "requests_per_s", rate_text),
            Column("BYTES IN/S", "bytes_in_per_s", bytes_text, is_optional=True),
            Column("BYTES OUT/S", "bytes_out_per_s", bytes_text, is_optional=True),
            Column("LOOP LAG", "loop_lag_s", seconds_text),
        ]
    rows = (_broker(broker, figures, data.has_metrics) for broker in data.state.brokers.values())
    return View("brokers", tuple(columns), tuple(rows), empty="no broker answers")


def _broker(broker: BrokerStatus, figures: Mapping[int, BrokerMetrics], more: bool) -> Row:
    state = "down" if broker.is_fenced else "no answer" if broker.error else "up"
    free = None
    if broker.usable_bytes is not None and broker.total_bytes:
        free = broker.usable_bytes / broker.total_bytes
    own = figures.get(broker.node_id) or BrokerMetrics("")
    measured = (
        own.cpu,
        own.memory_bytes,
        own.connections,
        own.requests_per_s,
        own.bytes_in_per_s,
        own.bytes_out_per_s,
        own.loop_lag_s,
    )
    return Row(
        (
            broker.node_id,
            broker.address,
            state,
            broker.messages_per_s,
            broker.leaders,
            broker.replicas,
            broker.lagging,
            *(measured if more else ()),
            broker.size_bytes,
            free,
            broker.rack,
        ),
        "critical" if state != "up" else "warning" if broker.lagging else "",
    )


def _topics(state: ClusterStatus, internal: bool) -> View:
    columns = (
        Column("TOPIC", "name"),
        Column("MSG/S", "messages_per_s", rate_text),
        Column("PARTITIONS", "partitions", count_text),
        Column("REPLICAS", "replicas", count_text, is_optional=True),
        Column("MESSAGES", "messages", count_text),
        Column("SIZE", "size_bytes", bytes_text),
        Column("UNDER-REPLICATED", "under_replicated", count_text),
        Column("OFFLINE", "offline", count_text),
    )
    rows = tuple(
        Row(
            (
                topic.name,
                topic.messages_per_s,
                topic.partitions,
                topic.replication_factor,
                topic.messages,
                topic.size_bytes,
                topic.under_replicated,
                topic.offline,
            ),
            "critical" if topic.offline else "warning" if topic.under_replicated else "",
        )
        for topic in state.topics.values()
        if internal or not topic.is_internal
    )
    return View("topics", columns, rows, sort=1, empty="no topics; i shows internal ones")


def _groups(state: ClusterStatus) -> View:
    columns = (
        Column("GROUP", "name"),
        Column("STATE", "state"),
        Column("LAG", "lag", count_text),
        Column("LAG TIME", "lag_s", seconds_text),
        Column("MEMBERS", "members", count_text),
        Column("TYPE", "type", is_optional=True),
        Column("COORDINATOR", "coordinator", count_text, is_optional=True),
        Column("TOPICS", "topics", is_optional=True),
    )
    stalled = {problem.name for problem in state.problems if problem.kind == "group"}
    rows = tuple(
        Row(
            (
                group.name,
                group.state,
                group.lag,
                AtLeast(group.lag_s) if group.lag_s and group.is_at_least else group.lag_s,
                group.members,
                group.kind,
                group.coordinator,
                ", ".join(group.topics),
            ),
            "warning" if group.name in stalled else "",
        )
        for group in state.groups.values()
    )
    return View("groups", columns, rows, sort=2, empty="no consumer groups")


def _connections(data: TopData) -> View:
    columns = (
        Column("BROKER", "broker", count_text, is_id=True),
        Column("LISTENER", "listener"),
        Column("OPEN", "open", count_text),
        Column("NEW/S", "accepted_per_s", rate_text),
        Column("LOGIN FAILURES", "login_failures", count_text),
        Column("TLS FAILURES", "tls_failures", count_text),
        Column("URL", "url", is_optional=True),
    )
    rows = []
    for broker in data.metrics:
        if broker.error is not None:
            unknown = (broker.node_id, broker.error, None, None, None, None, broker.url)
            rows.append(Row(unknown, "warning"))
        rows += [
            Row(
                (
                    broker.node_id,
                    listener.listener,
                    listener.open,
                    listener.accepted_per_s,
                    listener.login_failures,
                    listener.tls_failures,
                    broker.url,
                )
            )
            for listener in broker.listeners
        ]
    empty = "say where brokers show their metrics: --metrics HOST:PORT, of their `admin.listener`"
    return View("connections", columns, tuple(rows), sort=2, empty=empty)


def _pipelines(data: TopData) -> View:
    columns = (
        Column("PIPELINE", "pipeline"),
        Column("PHASE", "phase"),
        Column("QUERY", "query"),
        Column("ROWS/S", "rows_per_s", rate_text),
        Column("BATCH TIME", "batch_s", seconds_text),
        Column("LAG", "lag", count_text),
        Column("BATCHES", "batches", count_text, is_optional=True),
        Column("DEAD LETTERS", "dead_letters", count_text, is_optional=True),
        Column("NOTE", "note", is_optional=True),
    )
    rows = []
    for run in data.pipelines:
        urgency = "critical" if run.phase.value in ("failed", "killed") else ""
        if not run.queries:
            none = (None, None, None, None, None)
            rows.append(Row((run.pipeline, run.phase.value, "", *none, run.error), urgency))
        rows += [
            Row(
                (
                    run.pipeline,
                    run.phase.value,
                    query.name,
                    None if run.phase.over else query.rows_per_second,
                    query.batch_ms / 1000,
                    query.lag,
                    query.batches,
                    sum(query.reasons.values()) if query.reasons else None,
                    run.error or query.waiting_for,
                ),
                urgency or ("warning" if query.waiting_for else ""),
            )
            for query in run.queries
        ]
    empty = "say which pipelines run here: --pipeline FILE"
    return View("pipelines", columns, tuple(rows), empty=empty)


def _problems(state: ClusterStatus) -> View:
    columns = (
        Column("SEVERITY", "severity"),
        Column("SUBJECT", "subject"),
        Column("DETAIL", "detail"),
    )
    rows = [
        Row((problem.severity, problem.subject, problem.detail), problem.severity)
        for problem in state.problems
    ]
    rows += [
        Row(("warning", f"sampling {part}", text), "warning") for part, text in state.errors.items()
    ]
    return View("problems", columns, tuple(rows), empty="nothing is wrong")


def document(data: TopData, all_views: Iterable[View]) -> dict[str, Any]:
    """All that is known, as a JSON document."""
    state = data.state
    return {
        "time_ms": state.time_ms,
        "cluster_id": state.cluster_id,
        "controller": state.controller_id,
        "messages_per_s": state.messages_per_s,
        "size_bytes": state.size_bytes,
        **{view.name: view.documents() for view in all_views},
        "errors": {
            **state.errors,
            **{sample.url: sample.error for sample in data.metrics if sample.error is not None},
        },
    }


def rate_text(value: float) -> str:
    """A rate per second: 0, 0.3, 42, 12,345."""
    return f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"


def count_text(value: int) -> str:
    """A number with separators."""
    return f"{value:,}"


def share_text(value: float) -> str:
    """A share in percent."""
    return f"{value:.0%}"


def seconds_text(value: float) -> str:
    """A duration: 3 ms, 4.2 s, 3 min, 2 h, 5 d."""
    if isinstance(value, AtLeast):
        return f"> {seconds_text(float(value))}"
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60)):
        if value >= 2 * seconds:
            return f"{value / seconds:.0f} {unit}"
    return f"{value:.1f} s"


def cells(view: View, rows: Sequence[Row]) -> list[list[str]]:
    """The texts of rows."""
    return [
        [column.shown(value) for column, value in zip(view.columns, row.values, strict=True)]
        for row in rows
    ]


def rows_in_order(view: View) -> list[Row]:
    """The rows of a view in its own order."""
    return view.arranged(view.sort, view.descends(view.sort), "")
