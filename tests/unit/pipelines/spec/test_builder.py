"""Pipelines declared in Python: the same as a file says, with the place of each call."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headrace import pipelines
from headrace.pipelines.spec import builder as arguments
from headrace.pipelines.spec import yaml_file
from headrace.pipelines.spec.builder import Builder
from headrace.pipelines.spec.model import (
    DeduplicateStep,
    Pipeline,
    PythonStep,
    SpecError,
    SqlStep,
    Watermark,
)
from headrace.pipelines.spec.sections import Section, SectionVariants
from headrace.pipelines.spec.table import (
    CONSOLE,
    DEAD_LETTERS,
    DECODE,
    ICEBERG,
    POSTGRESQL,
    SETTINGS,
    SINK,
    SOURCE,
    WATERMARK,
)

HERE = Path(__file__).resolve().parent


def without_places(value: Any) -> Any:
    """A pipeline as plain values, all of it but where it was declared."""
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return {
            name: without_places(getattr(value, name))
            for name in fields
            if not name.endswith("place")
        }
    return [without_places(entry) for entry in value] if isinstance(value, tuple) else value


def declared() -> Builder:
    builder = pipelines.pipeline(
        "p",
        description="All of it.",
        broker="localhost:9092",
        trigger="5 seconds",
        parallelism=4,
        dead_letters={"topic": "dead", "options": {"kafka.linger.ms": 5}},
        spark={"spark.sql.session.timeZone": "UTC", "spark.ui.enabled": True},
    )
    builder.source(
        "orders",
        topic="orders",
        decode=pipelines.json("id BIGINT, at TIMESTAMP", keep=["key", {"offset": "position"}]),
        watermark={"column": "at", "delay": "1 minute"},
        options={"maxOffsetsPerTrigger": 1000},
    )
    builder.source("lines", topics=["a", "b"], decode=pipelines.csv("id INT", on_error="drop"))
    builder.source("regions", format="csv", path=Path("regions.csv"), schema="region STRING")
    builder.deduplicate("unique", "orders", ["id"])
    builder.sql("counted", "SELECT count(*) AS n FROM unique")
    builder.sink("out", "counted", topic="out", mode="update", trigger="available-now")
    builder.sink("lake", "orders", parquet="lake", partition_by="id")
    builder.sink("rows", "orders", postgresql={"dsn": "host=x", "table": "t", "create": False})
    builder.sink("screen", "orders", console=5)
    return builder


SAME = """\
pipeline: p
description: All of it.
broker: localhost:9092
trigger: 5 seconds
parallelism: 4
dead_letters: { topic: dead, options: { kafka.linger.ms: 5 } }
spark: { spark.sql.session.timeZone: UTC, spark.ui.enabled: true }
sources:
  orders:
    topic: orders
    decode:
      format: json
      schema: id BIGINT, at TIMESTAMP
      keep: [key, { offset: position }]
    watermark: { column: at, delay: 1 minute }
    options: { maxOffsetsPerTrigger: 1000 }
  lines: { topics: [a, b], decode: { format: csv, schema: id INT, on_error: drop } }
  regions: { format: csv, path: regions.csv, schema: region STRING }
steps:
  unique: { deduplicate: orders, keys: [id] }
  counted: { sql: SELECT count(*) AS n FROM unique }
sinks:
  out: { from: counted, topic: out, mode: update, trigger: available-now }
  lake: { from: orders, parquet: lake, partition_by: id }
  rows: { from: orders, postgresql: { dsn: host=x, table: t, create: false } }
  screen: { from: orders, console: 5 }
"""


def test_python_and_yaml_say_the_same() -> None:
    from_python = declared().build()
    from_yaml = yaml_file.parse(SAME, HERE / "p.yaml", {})
    assert without_places(from_python) == without_places(from_yaml)
    pipelines.check(from_python)


def test_every_part_knows_the_line_of_its_call() -> None:
    pipeline = declared().build()
    lines = Path(__file__).read_text().splitlines()
    parts = (*pipeline.sources, *pipeline.steps, *pipeline.sinks)
    for part in parts:
        assert part.place is not None and Path(part.place.file).absolute() == Path(__file__)
        around = " ".join(lines[part.place.line - 1 : part.place.line + 1])
        assert f'"{part.name}"' in around
    assert pipeline.place is not None
    assert "pipelines.pipeline(" in lines[pipeline.place.line - 1]


def test_functions_are_steps_and_stay_functions() -> None:
    builder = pipelines.pipeline("p", broker="x")
    builder.source("orders", topic="orders")

    @builder.step
    def large(orders: str, spark: str, least: int = 10) -> str:
        return f"{orders} {spark}"

    @builder.step(
        name="both", inputs=[large, "orders"], watermark={"column": "at", "delay": "1 day"}
    )
    def joined(a: str, b: str) -> str:
        return a + b

    @builder.step
    def made(spark: str, *more: str, limit: int = 5) -> str:
        return spark

    builder.deduplicate("unique", joined, "id")
    builder.sink("out", joined, topic="out")
    assert large("a", "b") == "a b"
    pipeline = builder.build()
    pipelines.check(pipeline)
    first, second, third, fourth = pipeline.steps
    assert isinstance(first, PythonStep) and isinstance(second, PythonStep)
    assert (first.name, first.inputs, first.function) == ("large", ("orders",), large)
    assert (second.name, second.inputs, second.function) == ("both", ("large", "orders"), joined)
    assert second.watermark == Watermark("at", "1 day")
    assert isinstance(third, PythonStep) and third.inputs == ()
    assert isinstance(fourth, DeduplicateStep) and fourth.input == "both"
    assert pipeline.sinks[0].input == "both"
    lines = Path(__file__).read_text().splitlines()
    assert first.place is not None
    assert lines[first.place.line - 1].strip() == "@builder.step"


def test_sql_has_the_place_of_its_call() -> None:
    builder = pipelines.pipeline("p")
    builder.sql("s", "SELECT 1", watermark={"column": "at", "delay": "1 day"})
    [step] = builder.build().steps
    assert isinstance(step, SqlStep) and step.sql_place == step.place
    assert step.watermark == Watermark("at", "1 day")


def test_avro_schemas_are_text_or_values() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    assert pipelines.avro(schema, framing="confluent") == {
        "format": "avro",
        "schema": '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}',
        "framing": "confluent",
    }
    assert pipelines.avro("{}")["schema"] == "{}"


# Called with what a type checker would not let pass.
WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda p: p.source("a", topc="x"), "unknown key 'topc' in source 'a'; did you mean 'topic'?"),
    (lambda p: p.source("a"), "source 'a' lacks one of topic, topics, pattern, format"),
    (lambda p: p.source("a", topic="x", decode="jsn"), "'format' in the decode of source 'a' must"),
    (lambda p: p.source("a", topic=object()), "source 'a' has a value that a file could not have"),
    (lambda p: p.source("a", topic=b"x"), "source 'a' has a value that a file could not have"),
    (
        lambda p: p.sink("a", "b", topic="x", mode="all"),
        "'mode' in sink 'a' must be one of append,",
    ),
    (
        lambda p: p.sink("a", len, topic="x"),
        "len is no step of the pipeline: decorate it with step",
    ),
    (lambda p: p.sql("a", ""), "'sql' in step 'a' must be text, not ''"),
    (lambda p: p.deduplicate("a", "b", []), "'keys' in step 'a' is empty"),
    (
        lambda p: cast("Any", pipelines).pipeline("p", triger="5"),
        "unknown key 'triger' in the pipeline; did you",
    ),
    (lambda p: pipelines.pipeline("p", trigger="5"), "'trigger' in the pipeline must be"),
]


@pytest.mark.parametrize(("act", "message"), WRONG)
def test_what_is_wrong_is_told_at_the_call(act: Callable[[Any], object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        act(pipelines.pipeline("p"))
    place = caught.value.place
    assert place is not None and Path(place.file).absolute() == Path(__file__)
    assert "lambda p:" in Path(__file__).read_text().splitlines()[place.line - 1]
    assert str(caught.value).startswith(f"{place}: {message}")


def test_none_is_as_if_not_given() -> None:
    builder = pipelines.pipeline("p", group=cast("str", None))
    builder.source("a", topic="a", starting=cast("str", None))
    assert builder.build().group == ""


def keys(section: Section | SectionVariants) -> set[str]:
    sections = section.sections if isinstance(section, SectionVariants) else (section,)
    return {name for section in sections for name in section.names()}


@pytest.mark.parametrize(
    ("hints", "names"),
    [
        (arguments.SourceKeys, keys(SOURCE)),
        (arguments.SinkKeys, keys(SINK) - {"from"}),
        (arguments.PipelineSettings, {key.name for key in SETTINGS}),
        (arguments.WatermarkKeys, keys(WATERMARK)),
        (arguments.DeadLetterKeys, keys(DEAD_LETTERS)),
        (arguments.DecodeKeys, keys(DECODE) - {"format", "schema", "schema_file"}),
        (arguments.IcebergKeys, keys(ICEBERG)),
        (arguments.PostgresKeys, keys(POSTGRESQL)),
        (arguments.ConsoleKeys, keys(CONSOLE)),
    ],
)
def test_editors_are_told_of_every_key(hints: type, names: set[str]) -> None:
    assert set(hints.__annotations__) == names


def test_pipeline_fields_all_come_from_a_key_or_the_place() -> None:
    fields = {field.name for field in dataclasses.fields(Pipeline)}
    settings = {key.field or key.name for key in SETTINGS}
    assert fields == settings | {"name", "sources", "steps", "sinks", "directory", "place"}
