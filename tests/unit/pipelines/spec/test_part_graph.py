"""The graph of a pipeline's parts: what reads what, in words without secrets."""

from dataclasses import replace
from pathlib import Path

from headrace.pipelines.spec.model import (
    DeltaSink,
    FileSink,
    IcebergSink,
    PostgresSink,
    PythonStep,
    Sink,
    SqlStep,
    Target,
    TopicSink,
    TopicSource,
)
from headrace.pipelines.spec.part_graph import PARTS_MAX, graph_of
from tests.unit.pipelines.run.pipelines import SESSIONS, orders_pipeline


def test_parts_that_sinks_need_are_nodes_and_what_they_read_are_edges(tmp_path: Path) -> None:
    graph = graph_of(orders_pipeline(tmp_path))
    assert [(node.id, node.detail, node.topics, node.query) for node in graph.nodes] == [
        ("source orders", "topic orders", ("orders",), ""),
        ("step unique_orders", "first of equal order_id", (), ""),
        ("step per_region", "SQL", (), ""),
        ("step placed", "SQL", (), ""),
        ("sink totals", "topic totals", ("totals",), "totals"),
        ("sink lake", "parquet files in ./lake", (), "lake"),
        ("dead-letters-orders", "topic dead", ("dead",), "dead-letters-orders"),
    ]
    assert set(graph.edges) == {
        ("source orders", "step unique_orders"),
        ("step unique_orders", "step per_region"),
        ("source orders", "step placed"),
        ("step per_region", "sink totals"),
        ("step placed", "sink lake"),
        ("source orders", "dead-letters-orders"),
    }


def test_no_secret_of_a_sink_is_in_its_text(tmp_path: Path) -> None:
    pipeline = orders_pipeline(tmp_path)
    targets: list[tuple[Target, str]] = [
        (
            FileSink("json", "s3a://key:SECRET@bucket/lake?signature=SECRET"),
            "json files in s3a://bucket/lake",
        ),
        (
            DeltaSink("abfss://box@account.net/t", options={"k": "SECRET"}),
            "Delta table abfss://box@account.net/t",
        ),
        (IcebergSink("a.b", {"token": "SECRET"}), "Iceberg table a.b"),
        (PostgresSink("postgresql://u:SECRET@h/db", "totals"), "PostgreSQL table totals"),
        (TopicSink(topic_expression="concat(region)"), "topics by an expression"),
    ]
    for target, text in targets:
        graph = graph_of(replace(pipeline, sinks=(Sink("out", "orders", target),)))
        [sink] = [node for node in graph.nodes if node.kind == "sink"]
        assert sink.detail == text
        assert "SECRET" not in repr(graph)


def test_python_steps_and_patterns_are_told_by_their_names(tmp_path: Path) -> None:
    def clean(frame: object) -> object:
        return frame

    source = TopicSource("all", pattern="orders-.*")
    steps = (
        SESSIONS,
        PythonStep("cleaned", clean, ("ALL",)),
        SqlStep("t", "SELECT * FROM Cleaned"),
    )
    pipeline = replace(
        orders_pipeline(tmp_path),
        sources=(source,),
        steps=steps,
        sinks=(Sink("out", "T", FileSink("csv", "x")),),
    )
    graph = graph_of(pipeline)
    assert [node.detail for node in graph.nodes] == [
        "topics orders-.*",
        "Python clean",
        "SQL",
        "csv files in x",
    ]
    assert graph.edges == (
        ("source all", "step cleaned"),
        ("step cleaned", "step t"),
        ("step t", "sink out"),
    )


def test_a_graph_is_bounded(tmp_path: Path) -> None:
    sinks = tuple(Sink(f"s{n}", "orders", FileSink("csv", "x" * 500)) for n in range(300))
    graph = graph_of(replace(orders_pipeline(tmp_path), sinks=sinks))
    assert len(graph.nodes) == PARTS_MAX
    assert {end for edge in graph.edges for end in edge} <= {node.id for node in graph.nodes}
    assert max(len(node.detail) for node in graph.nodes) == 120
