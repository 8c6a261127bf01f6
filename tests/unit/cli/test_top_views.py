"""The views of `headrace top`: values, order, filter, texts."""

import pytest

from headrace.cli.top_views import (
    TEXT_CHARS_MAX,
    VIEW_NAMES,
    AtLeast,
    TopData,
    View,
    cells,
    document,
    rate_text,
    rows_in_order,
    seconds_text,
    views,
)
from headrace.monitoring.broker_metrics import BrokerMetrics, ListenerConnections
from headrace.monitoring.cluster_status import (
    BrokerStatus,
    ClusterStatus,
    GroupStatus,
    TopicStatus,
)
from headrace.monitoring.problems import Problem
from headrace.pipelines.run.progress import QueryProgress
from headrace.pipelines.run.run_state import RunPhase, RunState


def broker(node_id: int, *, fenced: bool = False, lagging: int = 0) -> BrokerStatus:
    address = f"h:{9090 + node_id}"
    return BrokerStatus(
        node_id, address, None, fenced, 4, 6, lagging, 10.5, 2_000_000, 1000, 250, 1, None
    )


def topic(
    name: str, rate: float | None, *, internal: bool = False, offline: int = 0
) -> TopicStatus:
    return TopicStatus(name, internal, 3, 2, 1234, rate, 5_000, 0, offline)


def group(name: str, lag: int | None, lag_s: float | None, *, least: bool = False) -> GroupStatus:
    return GroupStatus(name, "Stable", "classic", 1, 2, ("a", "b"), lag, lag_s, least)


def status(**parts: object) -> ClusterStatus:
    whole: dict[str, object] = {
        "version": 1,
        "time_ms": 1_700_000_000_000,
        "cluster_id": "id",
        "controller_id": 1,
        "brokers": {2: broker(2, lagging=1), 1: broker(1), 10: broker(10, fenced=True)},
        "topics": {
            "slow": topic("slow", 1.0),
            "fast": topic("fast", 900.0, offline=1),
            "new": topic("new", None),
            "__consumer_offsets": topic("__consumer_offsets", 5.0, internal=True),
        },
        "groups": {"g": group("g", 5, 3.0), "old": group("old", 70, 600.0, least=True)},
        "quorum": None,
        "problems": (Problem("stalled-group", "group g", "stands still", "group", "g"),),
        "messages_per_s": 901.0,
        "size_bytes": 10_000,
    }
    return ClusterStatus(**{**whole, **parts})  # type: ignore[arg-type]


def view(name: str, data: TopData | None = None, *, internal: bool = False) -> View:
    return views(data or TopData(status()), internal=internal)[VIEW_NAMES.index(name)]


def names(found: View, column: int = 0) -> list[object]:
    return [row.values[column] for row in rows_in_order(found)]


def test_views_have_the_names_that_are_chosen_by() -> None:
    assert tuple(entry.name for entry in views(TopData(status()), internal=False)) == VIEW_NAMES


def test_each_view_has_an_order_of_its_own() -> None:
    assert names(view("brokers")) == [1, 2, 10]
    assert names(view("topics")) == ["fast", "slow", "new"]
    assert names(view("groups")) == ["old", "g"]


def test_unknown_values_come_last_in_either_order() -> None:
    topics = view("topics")
    for descending in (False, True):
        assert topics.arranged(1, descending, "")[-1].values[0] == "new"


def test_internal_topics_are_shown_when_asked_for() -> None:
    assert "__consumer_offsets" in names(view("topics", internal=True))


def test_a_filter_looks_at_all_texts_of_a_row() -> None:
    groups = view("groups")
    assert len(groups.arranged(0, False, "STABLE")) == 2
    assert [row.values[0] for row in groups.arranged(0, False, "OL")] == ["old"]
    assert groups.arranged(0, False, "70") == []


def test_what_is_wrong_stands_out() -> None:
    assert [row.urgency for row in rows_in_order(view("brokers"))] == ["", "warning", "critical"]
    assert rows_in_order(view("topics"))[0].urgency == "critical"
    assert rows_in_order(view("groups"))[1].urgency == "warning"
    [problem] = view("problems").rows
    assert problem.values == ("warning", "group g", "stands still")


def test_parts_that_could_not_be_sampled_are_problems() -> None:
    data = TopData(status(errors={"groups": "no right"}))
    assert ("warning", "sampling groups", "no right") in [
        row.values for row in view("problems", data).rows
    ]


def test_brokers_have_figures_of_their_metrics() -> None:
    listeners = (ListenerConnections("PLAINTEXT", 12, 0.5, 1, 0),)
    own = BrokerMetrics("http://h:1/metrics", 1, cpu=0.25, listeners=listeners)
    gone = BrokerMetrics("http://h:2/metrics", error="connection refused")
    data = TopData(status(), (own, gone), has_metrics=True)
    [first, *_] = view("brokers", data).documents()
    assert {"id": 2, "cpu": None, "connections": None}.items() <= first.items()
    one = next(row for row in view("brokers", data).documents() if row["id"] == 1)
    assert {"cpu": 0.25, "connections": 12, "disk_free": 0.25}.items() <= one.items()
    connections = view("connections", data)
    assert cells(connections, rows_in_order(connections))[0][:3] == ["1", "PLAINTEXT", "12"]
    assert names(connections, 1) == ["PLAINTEXT", "connection refused"]
    assert document(data, ())["errors"] == {"http://h:2/metrics": "connection refused"}


def test_pipelines_have_a_row_for_each_query() -> None:
    query = QueryProgress("totals", batches=3, rows_per_second=120.0, batch_ms=250, lag=7)
    letters = QueryProgress("dead-letters-orders", reasons={"not JSON": 1500, "empty": 1})
    running = RunState("orders", 1, "h", "", "", phase=RunPhase.RUNNING, queries=(query, letters))
    failed = RunState("lake", 1, "h", "", "", phase=RunPhase.FAILED, error="no space")
    found = view("pipelines", TopData(status(), pipelines=(running, failed)))
    assert cells(found, found.rows)[0][:6] == ["orders", "running", "totals", "120", "250 ms", "7"]
    assert cells(found, found.rows)[1][7] == "1,501"
    assert [row.urgency for row in found.rows] == ["", "", "critical"]
    assert found.rows[2].values[-1] == "no space"


def test_json_has_the_values_and_says_what_is_at_least() -> None:
    whole = document(TopData(status()), views(TopData(status()), internal=False))
    assert whole["topics"][0]["messages_per_s"] == 1.0
    assert {"name": "old", "lag_s": 600.0, "lag_s_is_at_least": True}.items() <= whole["groups"][
        1
    ].items()
    assert "lag_s_is_at_least" not in whole["groups"][0]
    assert whole["pipelines"] == []


def test_names_cannot_command_the_terminal_nor_fill_it() -> None:
    name = "\x1b[2J\u202e" + 1_000_000 * "x"
    hostile = view("groups", TopData(status(groups={name: group(name, 1, 1.0)})))
    [[shown, *_]] = cells(hostile, hostile.rows)
    assert shown.startswith("\\x1b[2J\\u202exxx")
    assert len(shown) < TEXT_CHARS_MAX + 20


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.003, "3 ms"), (4.25, "4.2 s"), (200, "3 min"), (9000, "2 h"), (500_000, "6 d")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
    assert seconds_text(AtLeast(seconds)) == f"> {text}"


def test_small_rates_keep_a_digit() -> None:
    assert [rate_text(rate) for rate in (0, 0.25, 42.4, 12345.6)] == ["0", "0.2", "42", "12,346"]
