from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.pipelines.locations import (
    checkpoint_root,
    local_directory,
    notes_directory,
    query_checkpoint,
    query_name,
)
from headrace.pipelines.run.checkpoints import (
    CheckpointResetRefused,
    claim,
    differences,
    do_resets,
    fingerprint,
    noted_start,
    plan_resets,
    query_parts,
    starting_at,
    target_text,
    topic_sources,
)
from headrace.pipelines.run.errors import CheckpointMismatch
from headrace.pipelines.run.queries import client_properties, group_of, reads
from headrace.pipelines.run.run_state import AlreadyRunning, locked
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeltaSink,
    FileSink,
    IcebergSink,
    OnError,
    OutputMode,
    Pipeline,
    PostgresSink,
    SqlStep,
    TopicSink,
    TopicSource,
)
from tests.unit.pipelines.run.pipelines import (
    JSON,
    LAKE,
    ORDERS,
    PLACED,
    TOTALS,
    TOTALS_STEP,
    UNIQUE,
    orders_pipeline,
)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return orders_pipeline(tmp_path)


def with_checkpoints(pipeline: Pipeline) -> None:
    """As if every query had run before."""
    for part in query_parts(pipeline):
        claim(pipeline, part, allow_changes=False)
        directory = Path(query_checkpoint(pipeline, query_name(part)))
        directory.mkdir(parents=True)
        (directory / "metadata").write_text('{"id":"1"}')


def test_every_sink_and_every_source_with_dead_letters_has_a_query(pipeline: Pipeline) -> None:
    assert [query_name(part) for part in query_parts(pipeline)] == [
        "totals",
        "lake",
        "dead-letters-orders",
    ]
    for decode in (replace(JSON, format="raw"), replace(JSON, on_error=OnError.DROP)):
        without = replace(pipeline, sources=(replace(ORDERS, decode=decode),))
        assert [query_name(part) for part in query_parts(without)] == ["totals", "lake"]


def test_a_source_that_no_sink_needs_has_no_dead_letters(pipeline: Pipeline) -> None:
    other = replace(ORDERS, name="other")
    with_other = replace(pipeline, sources=(*pipeline.sources, other))
    assert "dead-letters-other" not in [query_name(part) for part in query_parts(with_other)]


def test_locations_are_paths_of_this_machine_or_elsewhere(tmp_path: Path) -> None:
    assert local_directory("/a/b") == Path("/a/b")
    assert local_directory("file:///a/b%20c") == Path("/a/b c")
    assert local_directory("s3a://bucket/a") is None
    pipeline = replace(orders_pipeline(tmp_path), checkpoint="relative/place")
    assert checkpoint_root(pipeline) == str(tmp_path / "relative" / "place")
    assert notes_directory(pipeline) == tmp_path / "relative" / "place" / "_headrace"
    assert checkpoint_root(replace(pipeline, checkpoint="")) == str(
        tmp_path / "headrace-pipelines" / "orders"
    )


def test_notes_of_a_run_whose_checkpoints_are_elsewhere_are_here(tmp_path: Path) -> None:
    pipeline = replace(orders_pipeline(tmp_path), checkpoint="hdfs://name/dir/")
    assert query_checkpoint(pipeline, "lake") == "hdfs://name/dir/lake"
    assert notes_directory(pipeline) == tmp_path / "headrace-pipelines" / "orders" / "_headrace"


def test_a_query_is_known_by_what_it_reads_keeps_and_fills(pipeline: Pipeline) -> None:
    assert fingerprint(pipeline, TOTALS) == {
        "pipeline": "orders",
        "source orders": "topics orders",
        "step unique_orders": "first of orders by order_id",
        "step per_region": "SELECT region, count(*) AS n FROM unique_orders GROUP BY region",
        "sink": "a topic",
        "output mode": "update",
    }
    assert fingerprint(pipeline, ORDERS) == {"pipeline": "orders", "source orders": "topics orders"}


def test_a_step_without_state_may_change(pipeline: Pipeline) -> None:
    changed = replace(PLACED, sql="SELECT *, lower(region) AS r FROM orders WHERE order_id > 5")
    other = replace(pipeline, steps=(UNIQUE, TOTALS_STEP, changed))
    assert fingerprint(other, LAKE) == fingerprint(pipeline, LAKE)


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from orders",
        "SELECT DISTINCT region FROM orders",
        "SELECT * FROM orders JOIN regions USING (region)",
        "SELECT region FROM orders\nGROUP\nBY region",
    ],
)
def test_a_step_with_state_may_not_change(pipeline: Pipeline, sql: str) -> None:
    changed = replace(pipeline, steps=(SqlStep("placed", sql),))
    [phrase] = differences(fingerprint(pipeline, LAKE), fingerprint(changed, LAKE))
    assert phrase == "step placed is new"


def test_a_pattern_and_a_stream_of_files_are_known_too(pipeline: Pipeline) -> None:
    source = TopicSource("orders", pattern="orders-.*")
    assert fingerprint(replace(pipeline, sources=(source,)), LAKE)["source orders"] == (
        "topics like orders-.*"
    )
    assert target_text(DeltaSink("./t")) == "the Delta table ./t"
    assert target_text(IcebergSink("a.b")) == "the Iceberg table a.b"
    assert target_text(PostgresSink("host=secret", "t")) == "the PostgreSQL table t"
    assert target_text(ConsoleSink()) == "the terminal"


def test_a_pipeline_may_move_with_its_files(pipeline: Pipeline, tmp_path: Path) -> None:
    near = replace(LAKE, target=FileSink("parquet", str(tmp_path / "lake")))
    assert fingerprint(pipeline, near)["sink"] == "parquet files in lake"
    far = replace(LAKE, target=FileSink("parquet", "/elsewhere/lake"))
    assert fingerprint(pipeline, far)["sink"] == "parquet files in /elsewhere/lake"


def test_what_is_different_is_said(pipeline: Pipeline) -> None:
    old = fingerprint(pipeline, TOTALS)
    moved = replace(
        pipeline,
        sources=(replace(ORDERS, topics=("orders-2",)),),
        steps=(replace(TOTALS_STEP, sql=TOTALS_STEP.sql.replace("unique_orders", "orders")),),
    )
    assert differences(old, fingerprint(moved, replace(TOTALS, mode=OutputMode.COMPLETE))) == [
        "source orders was topics orders and is topics orders-2",
        "step per_region is different",
        "output mode was update and is complete",
        "step unique_orders is gone",
    ]
    assert differences(old, old) == []


def test_a_checkpoint_of_another_query_is_refused(pipeline: Pipeline) -> None:
    with_checkpoints(pipeline)
    claim(pipeline, LAKE, allow_changes=False)
    moved = replace(LAKE, target=FileSink("parquet", "./elsewhere"))
    with pytest.raises(CheckpointMismatch) as caught:
        claim(pipeline, moved, allow_changes=False)
    assert str(caught.value) == (
        "pipeline orders, sink lake (orders.yaml:21): its checkpoint belongs to another query (sink"
        " was parquet files in ./lake and is parquet files in ./elsewhere); take the change back,"
        " begin anew with `headrace pipeline reset orders.yaml --sink lake`, or go on all the same"
        " with --allow-changes"
    )
    claim(pipeline, moved, allow_changes=True)
    claim(pipeline, moved, allow_changes=False)


def test_a_checkpoint_of_another_pipeline_is_refused(pipeline: Pipeline) -> None:
    with_checkpoints(pipeline)
    with pytest.raises(CheckpointMismatch, match="pipeline was orders and is clicks"):
        claim(replace(pipeline, name="clicks"), LAKE, allow_changes=False)


def test_a_query_without_a_checkpoint_may_be_any(pipeline: Pipeline) -> None:
    claim(pipeline, LAKE, allow_changes=False)
    claim(pipeline, replace(LAKE, target=TopicSink(topic="t")), allow_changes=False)


def test_a_reset_removes_checkpoints_and_says_which(pipeline: Pipeline, tmp_path: Path) -> None:
    with_checkpoints(pipeline)
    resets = plan_resets(pipeline)
    assert [(reset.query, reset.checkpoint) for reset in resets] == [
        (name, str(tmp_path / "checkpoints" / name))
        for name in ("totals", "lake", "dead-letters-orders")
    ]
    do_resets(pipeline, resets, None)
    left = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert left == ["_headrace"]
    claim(pipeline, replace(LAKE, target=TopicSink(topic="t")), allow_changes=False)
    assert [plan_reset.checkpoint for plan_reset in plan_resets(pipeline)] == [None, None, None]


def test_a_reset_of_one_sink_leaves_the_others(pipeline: Pipeline, tmp_path: Path) -> None:
    with_checkpoints(pipeline)
    do_resets(pipeline, plan_resets(pipeline, ["lake"]), "latest")
    assert not (tmp_path / "checkpoints" / "lake").exists()
    assert (tmp_path / "checkpoints" / "totals").exists()
    assert noted_start(pipeline, LAKE) == "latest"
    assert noted_start(pipeline, TOTALS) is None
    do_resets(pipeline, plan_resets(pipeline, ["lake"]), None)
    assert noted_start(pipeline, LAKE) is None


def test_a_pipeline_that_runs_is_not_reset(pipeline: Pipeline) -> None:
    with_checkpoints(pipeline)
    with locked(notes_directory(pipeline), "orders"), pytest.raises(AlreadyRunning):
        do_resets(pipeline, plan_resets(pipeline), None)
    assert all(plan_reset.checkpoint for plan_reset in plan_resets(pipeline))


def test_resets_that_cannot_be_made_are_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigError, match="no sink or query lakes; it has totals, lake, dead-"):
        plan_resets(pipeline, ["lakes"])
    with pytest.raises(
        CheckpointResetRefused, match="s3a://b/c/totals, where this command cannot remove it"
    ):
        plan_resets(replace(pipeline, checkpoint="s3a://b/c"))
    far = replace(LAKE, target=FileSink("parquet", "s3a://b/lake"))
    with pytest.raises(CheckpointResetRefused, match="give it another path"):
        plan_resets(replace(pipeline, sinks=(far,)))


def test_a_reset_says_where_topics_begin(pipeline: Pipeline) -> None:
    given = {"startingTimestamp": "5", "groupOffsets": "start", "maxOffsetsPerTrigger": "9"}
    pipeline = replace(pipeline, sources=(replace(ORDERS, options=given), *pipeline.sources[1:]))
    assert starting_at(pipeline, None) is pipeline
    [orders, regions] = starting_at(pipeline, "latest").sources
    assert orders.options == {"maxOffsetsPerTrigger": "9", "startingOffsets": "latest"}
    assert regions == pipeline.sources[1]
    [orders, _] = starting_at(pipeline, "1714564800000").sources
    assert orders.options == {
        "maxOffsetsPerTrigger": "9",
        "startingTimestamp": "1714564800000",
        "startingOffsetsByTimestampStrategy": "latest",
    }


def test_each_query_has_a_group_at_the_brokers_of_its_sources(pipeline: Pipeline) -> None:
    assert topic_sources(pipeline, TOTALS) == [ORDERS]
    assert topic_sources(pipeline, ORDERS) == [ORDERS]
    assert group_of(pipeline, LAKE, ORDERS) == "orders.lake"
    assert group_of(replace(pipeline, group="g"), ORDERS, ORDERS) == "g.dead-letters-orders"
    own = replace(ORDERS, options={"GroupId": "mine", "kafka.bootstrap.servers": "far:1"})
    assert group_of(pipeline, LAKE, own) == "mine"
    assert client_properties(pipeline, ORDERS) == {"bootstrap.servers": "127.0.0.1:9092"}
    assert client_properties(pipeline, own) == {"bootstrap.servers": "far:1"}


def test_a_source_reads_topics_it_names_or_matches() -> None:
    assert reads(ORDERS, "orders")
    assert not reads(ORDERS, "orders-2")
    assert reads(TopicSource("o", pattern="orders-.*"), "orders-2")
    assert not reads(TopicSource("o", pattern="orders-.*"), "my-orders-2")
