from typing import Any

import pytest

from headrace.pipelines.run.progress import (
    BATCHES_KEPT,
    OTHER_REASONS,
    REASONS_MAX,
    BatchProgress,
    ProgressTally,
    QueryProgress,
    distance,
    lag,
    merged,
    positions_of,
    rows_out,
)
from headrace.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def report(
    batch: int,
    end: dict[str, Any] | None,
    latest: dict[str, Any] | None,
    *,
    rows: int = 0,
    ran: bool = True,
    out: int | None = -1,
    observed: int | None = None,
    reasons: dict[str, int] | None = None,
) -> dict[str, Any]:
    """What Spark says of a batch, as far as anybody reads it."""
    metrics: dict[str, Any] = {} if observed is None else {"headrace_output": {"rows": observed}}
    if reasons is not None:
        counted = [{"item": reason, "count": count} for reason, count in reasons.items()]
        metrics["headrace_dead_letters"] = {"reasons": counted}
    return {
        "batchId": batch,
        "timestamp": f"2026-01-31T10:00:{batch % 60:02}.000Z",
        "numInputRows": rows,
        "processedRowsPerSecond": rows / 2,
        "durationMs": {"triggerExecution": 2000, **({"addBatch": 1900} if ran else {})},
        "sources": [{"startOffset": None, "endOffset": end, "latestOffset": latest}],
        "sink": {"numOutputRows": out},
        "observedMetrics": metrics,
    }


def test_positions_are_those_of_topics_and_of_nothing_else() -> None:
    assert positions_of({"a": {"0": 5, "1": 7}}) == {A0: 5, A1: 7}
    assert positions_of({"logOffset": 3}) == {}
    assert positions_of(None) == {}
    assert positions_of(42) == {}


def test_of_two_readers_of_a_partition_the_slower_counts() -> None:
    assert merged([{"a": {"0": 5}}, {"a": {"0": 3, "1": 1}}, {"logOffset": 9}]) == {A0: 3, A1: 1}


def test_lag_is_summed_over_partitions_and_sources() -> None:
    ends = [{"a": {"0": 5, "1": 7}}, {"b": {"0": 1}}, {"logOffset": 3}]
    latest = [{"a": {"0": 9, "1": 7}}, {"b": {"0": 4}}, {"logOffset": 8}]
    assert lag(ends, latest) == 7
    assert lag([{"logOffset": 3}], [{"logOffset": 3}]) is None
    assert lag([], []) is None


def test_a_log_that_was_cut_is_no_negative_lag() -> None:
    assert distance({A0: 9}, {A0: 5, A1: 2}) == 2


def test_a_tally_sums_up_batches() -> None:
    tally = ProgressTally("lake", bounded=False)
    tally.add([report(0, {"a": {"0": 10}}, {"a": {"0": 15}}, rows=10, out=4)])
    tally.add([report(1, {"a": {"0": 15}}, {"a": {"0": 15}}, rows=5, out=3)])
    found = tally.progress
    assert (found.batches, found.batch, found.rows_in, found.rows_out) == (2, 1, 15, 7)
    assert (found.lag, found.batch_ms, found.rows_per_second) == (0, 2000, 2.5)
    assert found.average == 15 / 4
    assert found.positions == {A0: 15}


def test_reports_that_come_twice_count_once() -> None:
    tally = ProgressTally("lake", bounded=False)
    reports = [report(n, {"a": {"0": n}}, {"a": {"0": 9}}, rows=1) for n in range(3)]
    for _ in range(2):
        tally.add(reports)
    assert (tally.progress.batches, tally.progress.rows_in, tally.seen) == (3, 3, 2)


def test_a_trigger_without_data_is_no_batch_but_tells_the_lag() -> None:
    tally = ProgressTally("lake", bounded=False)
    tally.add([report(0, {"a": {"0": 10}}, {"a": {"0": 10}}, rows=10)])
    tally.add([report(1, {"a": {"0": 10}}, {"a": {"0": 12}}, ran=False)])
    assert (tally.progress.batches, tally.progress.lag) == (1, 2)
    assert tally.progress.rows_per_second == 0
    tally.add([report(1, {"a": {"0": 12}}, {"a": {"0": 12}}, rows=2)])
    assert (tally.progress.batches, tally.progress.rows_in) == (2, 12)


def test_a_bounded_query_goes_to_where_its_topics_ended_at_its_start() -> None:
    tally = ProgressTally("lake", bounded=True)
    tally.add([report(0, {"a": {"0": 5}}, {"a": {"0": 20}}, rows=5)])
    assert (tally.progress.remaining, tally.progress.fraction) == (15, 0.25)
    tally.add([report(1, {"a": {"0": 20}}, {"a": {"0": 90}}, rows=15)])
    assert (tally.progress.remaining, tally.progress.lag) == (0, 70)
    assert tally.progress.fraction == 1


@pytest.mark.parametrize(
    ("lag_", "rows", "fraction"), [(None, 5, None), (0, 0, 1.0), (30, 10, 0.25), (0, 10, 1.0)]
)
def test_without_a_bound_the_lag_is_what_is_left(
    lag_: int | None, rows: int, fraction: float | None
) -> None:
    assert QueryProgress("q", lag=lag_, rows_in=rows).fraction == fraction


def test_rows_that_the_sink_does_not_count_are_counted_on_the_way() -> None:
    assert rows_out(report(0, None, None, out=3, observed=9)) == 3
    assert rows_out(report(0, None, None, observed=9)) == 9
    assert rows_out(report(0, None, None)) is None


def test_a_source_that_does_not_say_where_it_is_stays_where_it_was() -> None:
    tally = ProgressTally("lake", bounded=False)
    tally.add([report(0, {"a": {"0": 10}}, {"a": {"0": 10}}, rows=10)])
    tally.add([report(1, None, None, ran=False)])
    assert tally.progress.positions == {A0: 10}
    tally.end()
    assert not tally.progress.active


def test_the_newest_batches_are_kept_up_to_a_bound() -> None:
    tally = ProgressTally("lake", bounded=False)
    for number in range(BATCHES_KEPT + 5):
        tally.add([report(number, {"a": {"0": 1}}, {"a": {"0": 1}}, rows=number, out=1)])
        tally.add([report(number + 1, {"a": {"0": 1}}, {"a": {"0": 1}}, ran=False)])
    found = tally.progress.recent
    assert [batch.batch for batch in found] == list(range(5, BATCHES_KEPT + 5))
    assert found[0] == BatchProgress(5, "2026-01-31T10:00:05.000Z", 5, 1, 2000)
    assert tally.progress.reported == "2026-01-31T10:00:25.000Z", "a trigger without data counts"


def test_dead_letters_are_summed_by_reason_and_the_reasons_are_bounded() -> None:
    tally = ProgressTally("dead-letters-orders", bounded=False)
    tally.add([report(0, None, None, reasons={"not JSON": 2, "id is no BIGINT": 1})])
    tally.add([report(1, None, None, reasons={"not JSON": 3})])
    tally.add([report(2, None, None)])
    assert tally.progress.reasons == {"not JSON": 5, "id is no BIGINT": 1}
    tally.add([report(3, None, None, reasons={f"f{n} is no INT": 1 for n in range(50)})])
    assert len(tally.progress.reasons) == REASONS_MAX + 1
    assert tally.progress.reasons[OTHER_REASONS] == 50 + 2 - REASONS_MAX
    assert sum(tally.progress.reasons.values()) == 56
