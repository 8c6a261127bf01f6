"""Pipelines read from YAML: what each key becomes, and every way a file can be wrong."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.spec import load, yaml_file
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeadLetters,
    Decode,
    DeduplicateStep,
    DeltaSink,
    FileSink,
    FormatSource,
    IcebergSink,
    OnError,
    OutputMode,
    Pipeline,
    PostgresSink,
    PythonStep,
    Sink,
    SourceLocation,
    SpecError,
    SpecErrors,
    SqlStep,
    TopicSink,
    TopicSource,
    Trigger,
    Watermark,
)
from headrace.pipelines.spec.yaml_file import CHARACTERS_MAX

FILE = Path("/pipelines/orders.yaml")

WHOLE = """\
pipeline: orders-by-region
description: Orders and revenue of each region.
broker: { bootstrap.servers: "127.0.0.1:9092", client.id: orders }
checkpoint: ./checkpoints/orders
trigger: 5 seconds
parallelism: 4
group: reports
sources:
  orders:
    topic: orders
    starting: latest
    decode:
      format: json
      schema: order_id BIGINT, region STRING, cents BIGINT, at TIMESTAMP
      on_error: drop
      keep: [key, { timestamp: received }]
      options: { mode: PERMISSIVE }
    watermark: { column: at, delay: 1 minute }
  audits:
    topics: [a, b]
    options: { startingOffsets: earliest, maxOffsetsPerTrigger: 1000 }
  regions: { format: csv, path: regions.csv, schema: "region STRING", options: { header: true } }
steps:
  unique_orders: { deduplicate: orders, keys: [order_id] }
  per_minute:
    sql: |
      SELECT window.start AS minute, count(*) AS orders
      FROM unique_orders GROUP BY window(at, '1 minute')
  sessions: { python: "sessions.py:sessionize", inputs: orders }
sinks:
  totals: { from: per_minute, topic: totals, key: minute, mode: update, trigger: available-now }
  lake: { from: orders, parquet: ./lake, partition_by: [region] }
  table: { from: orders, delta: s3://bucket/table }
  ice: { from: orders, iceberg: { table: sales.orders, catalog: { type: sql } } }
  rows: { from: orders, postgresql: { dsn: host=db, table: orders, keys: order_id, create: no } }
  screen: { from: orders, console: 5 }
dead_letters: orders-dead
spark: { spark.sql.session.timeZone: UTC }
"""


def parse(text: str, **variables: str) -> Pipeline:
    return yaml_file.parse(text, FILE, variables)


def problems(text: str, **variables: str) -> list[str]:
    """What is wrong with a file, without the path before the line numbers."""
    with pytest.raises(SpecError) as caught:
        parse(text, **variables)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{FILE}:") for line in lines)
    return [line.removeprefix(f"{FILE}:") for line in lines]


def at(line: int) -> SourceLocation:
    return SourceLocation(str(FILE), line)


def test_whole_file_becomes_a_pipeline() -> None:
    assert parse(WHOLE.replace("create: no", "create: false")) == Pipeline(
        name="orders-by-region",
        description="Orders and revenue of each region.",
        broker={"bootstrap.servers": "127.0.0.1:9092", "client.id": "orders"},
        directory=Path("/pipelines"),
        checkpoint="/pipelines/checkpoints/orders",
        trigger=Trigger("5 seconds"),
        parallelism=4,
        group="reports",
        sources=(
            TopicSource(
                "orders",
                topics=("orders",),
                decode=Decode(
                    format="json",
                    schema="order_id BIGINT, region STRING, cents BIGINT, at TIMESTAMP",
                    on_error=OnError.DROP,
                    keep={"key": "key", "timestamp": "received"},
                    options={"mode": "PERMISSIVE"},
                    place=at(12),
                ),
                options={"startingOffsets": "latest"},
                watermark=Watermark("at", "1 minute"),
                place=at(9),
            ),
            TopicSource(
                "audits",
                topics=("a", "b"),
                options={"startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000"},
                place=at(19),
            ),
            FormatSource(
                "regions",
                "csv",
                path="/pipelines/regions.csv",
                schema="region STRING",
                options={"header": "true"},
                place=at(22),
            ),
        ),
        steps=(
            DeduplicateStep("unique_orders", "orders", ("order_id",), place=at(24)),
            SqlStep(
                "per_minute",
                "SELECT window.start AS minute, count(*) AS orders\n"
                "FROM unique_orders GROUP BY window(at, '1 minute')\n",
                place=at(25),
                sql_place=at(27),
            ),
            PythonStep("sessions", "sessions.py:sessionize", ("orders",), place=at(29)),
        ),
        sinks=(
            Sink(
                "totals",
                "per_minute",
                TopicSink(topic="totals", key="minute"),
                OutputMode.UPDATE,
                Trigger(available_now=True),
                at(31),
            ),
            Sink(
                "lake", "orders", FileSink("parquet", "/pipelines/lake", ("region",)), place=at(32)
            ),
            Sink("table", "orders", DeltaSink("s3://bucket/table"), place=at(33)),
            Sink("ice", "orders", IcebergSink("sales.orders", {"type": "sql"}), place=at(34)),
            Sink(
                "rows",
                "orders",
                PostgresSink("host=db", "orders", ("order_id",), create=False),
                place=at(35),
            ),
            Sink("screen", "orders", ConsoleSink(5), place=at(36)),
        ),
        dead_letters=DeadLetters("orders-dead", place=at(37)),
        spark={"spark.sql.session.timeZone": "UTC"},
        place=at(1),
    )


MINIMAL = """\
pipeline: small
sources:
  a: { topic: a }
sinks:
  b: { from: a, topic: b }
"""


def test_what_is_not_said_has_its_default() -> None:
    pipeline = parse(MINIMAL)
    assert pipeline.checkpoint == "/pipelines/headrace-pipelines/small"
    assert pipeline.trigger == Trigger("0 seconds")
    assert pipeline.steps == () and pipeline.dead_letters is None
    [source] = pipeline.sources
    # All that was written before the pipeline first ran counts too.
    assert source.options == {"startingOffsets": "earliest"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("paralelism: 4", "unknown key 'paralelism' in the pipeline; did you mean 'parallelism'?"),
        (
            "zzz: 4",
            "unknown key 'zzz' in the pipeline; the keys are pipeline, description, broker,"
            " checkpoint, trigger, parallelism, group, dead_letters, spark, sources, steps, sinks",
        ),
        (
            "parallelism: many",
            "'parallelism' in the pipeline must be a whole number of at least 1, not 'many'",
        ),
        (
            "parallelism: 0",
            "'parallelism' in the pipeline must be a whole number of at least 1, not '0'",
        ),
        (
            "trigger: 5 secs",
            "'trigger' in the pipeline must be available-now or a duration such as '10 seconds'"
            " or '5 minutes', not '5 secs'",
        ),
        ("trigger: [5]", "'trigger' in the pipeline must be available-now or a duration such as"),
        ("description:", "'description' in the pipeline has no value"),
        ("group: ~", "'group' in the pipeline has no value"),
        ("group: {}", "'group' in the pipeline must be text, not a mapping"),
        (
            "broker: [a]",
            "'broker' in the pipeline must be a mapping of names to values, not a list",
        ),
        ("broker: { a: }", "'a' in the pipeline has no value"),
        ("broker: { a: [b] }", "'a' in the pipeline must be a single value"),
        ("steps: none", "'steps' in the pipeline must be a mapping of names, not 'none'"),
        ("dead_letters: { topics: x }", "unknown key 'topics' in the dead letters of the pipeline"),
        ("dead_letters: {}", "the dead letters of the pipeline lacks 'topic'"),
        ("dead_letters: [x]", "the dead letters of the pipeline must be a mapping, not a list"),
        ("pipeline: again", "key 'pipeline' is there twice, first in line 1"),
        ("? [a]\n: b", "a key must be text, not a list or a mapping"),
        ("group: !thing x", "the tag '!thing' means nothing here: leave it out"),
        ("group: !!python/name:os.system x", "the tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("group: ${NOT_SET}", "the environment variable NOT_SET is not set: set it, or write"),
        ("group: ${a-b}", "${a-b} is not the name of a variable: write ${NAME} or"),
    ],
)
def test_wrong_line_of_the_pipeline(line: str, message: str) -> None:
    [problem] = problems(f"{MINIMAL}{line}\n")
    assert problem.startswith(f"6: {message}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{ topc: a }", "unknown key 'topc' in source 'x'; did you mean 'topic'?"),
        ("{ topic: a, patern: b }", "unknown key 'patern' in source 'x'; did you mean 'pattern'?"),
        ("{ options: {} }", "source 'x' lacks one of topic, topics, pattern, format"),
        ("{ topic: a, topics: [b] }", "source 'x' has both 'topic' and 'topics': give one of them"),
        ("{ topic: a, format: b }", "source 'x' has both 'topic' and 'format': give one of them"),
        ("", "source 'x' has no value; it has one of topic, topics, pattern, format"),
        ("a", "source 'x' must be a mapping, not 'a'; it has one of topic,"),
        ("{ topics: [] }", "'topics' in source 'x' is empty"),
        ("{ topics: [[a]] }", "'topics' in source 'x' must be text, not a list"),
        ("{ topic: '' }", "'topic' in source 'x' must be text, not ''"),
        ("{ pattern: '(' }", "'pattern' in source 'x' is not a regular expression: missing ),"),
        ("{ topic: a, path: b }", "unknown key 'path' in source 'x'; the keys are topic, topics,"),
        ("{ topic: a, decode: jsn }", "'format' in the decode of source 'x' must be one of json,"),
        ("{ topic: a, decode: {} }", "the decode of source 'x' lacks 'format'"),
        ("{ topic: a, decode: [] }", "the decode of source 'x' must be a mapping, not a list;"),
        (
            "{ topic: a, decode: { format: raw, keep: [kee] } }",
            "'keep' in the decode of source 'x' must be one of key, value, topic, partition,"
            " offset, timestamp, timestampType, headers, not 'kee'; did you mean 'key'?",
        ),
        (
            "{ topic: a, decode: { format: raw, keep: [key, key] } }",
            "'keep' in the decode of source 'x' names 'key' twice",
        ),
        (
            "{ topic: a, decode: { format: raw, keep: [key, { offset: key }] } }",
            "'keep' in the decode of source 'x' gives two columns the name 'key'",
        ),
        (
            "{ topic: a, decode: { format: json, on_error: ignore } }",
            "'on_error' in the decode of source 'x' must be one of dead-letter, drop, fail, not",
        ),
        (
            "{ topic: a, decode: { format: json, schema: b, schema_file: none.avsc } }",
            "'schema_file' in the decode of source 'x' cannot be read: /pipelines/none.avsc: No",
        ),
        ("{ topic: a, watermark: at }", "the watermark of source 'x' must be a mapping, not 'at'"),
        ("{ topic: a, watermark: { column: at } }", "the watermark of source 'x' lacks 'delay'"),
        (
            "{ topic: a, watermark: { column: at, delay: soon } }",
            "'delay' in the watermark of source 'x' must be a duration such as '10 seconds' or"
            " '5 minutes', not 'soon'",
        ),
        ("{ topic: a, streaming: yes }", "'streaming' in source 'x' must be true or false, not"),
        (
            "{ topic: a, starting: yesterday }",
            "'starting' in source 'x' must be earliest, latest or an instant such as"
            " 2026-01-31T12:00:00Z, not 'yesterday'",
        ),
        (
            "{ topic: a, starting: '2026-01-31 12:00:00' }",
            "'starting' in source 'x' is an instant without its zone: write 2026-01-31T12:00:00Z",
        ),
        (
            "{ topic: a, starting: latest, options: { startingTimestamp: 5 } }",
            "source 'x' has 'starting' and the option 'startingTimestamp': give one of them",
        ),
        ("{ topic: a, topic: b }", "key 'topic' is there twice, first in line 6"),
    ],
)
def test_wrong_source(source: str, message: str) -> None:
    text = MINIMAL.replace("sinks:", f"  # The line before it.\n\n  x: {source}\nsinks:")
    [problem] = problems(text)
    assert problem.startswith(f"6: {message}")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("steps: { s: { sqll: SELECT 1 } }", "unknown key 'sqll' in step 's'; did you mean 'sql'?"),
        ("steps: { s: { inputs: [a] } }", "step 's' lacks one of sql, python, deduplicate"),
        ("steps: { s: { deduplicate: a } }", "step 's' lacks 'keys'"),
        ("steps: { s: { sql: '  ' } }", "'sql' in step 's' must be text, not '  '"),
        ("sinks: { t: { topic: b, mod: append } }", "unknown key 'mod' in sink 't'; did you mean"),
        ("sinks: { t: { from: a, topc: b } }", "unknown key 'topc' in sink 't'; did you mean"),
        ("sinks: { t: { from: a } }", "sink 't' lacks one of topic, topic_expression, parquet,"),
        ("sinks: { t: { from: a, console: lots } }", "'rows' in the console of sink 't' must be a"),
        (
            "sinks: { t: { from: a, postgresql: { table: b } } }",
            "the postgresql table of sink 't' lacks 'dsn'",
        ),
        (
            "sinks: { t: { from: a, postgresql: { dsn: x, tabel: y } } }",
            "unknown key 'tabel' in the postgresql table of sink 't'; did you mean 'table'?",
        ),
        (
            "sinks: { t: { from: a, iceberg: x } }",
            "the iceberg table of sink 't' must be a mapping",
        ),
        (
            "sinks: { t: { from: a, parquet: x, csv: y } }",
            "sink 't' has both 'parquet' and 'csv': give one of them",
        ),
        (
            "sinks: { t: { from: a, topic: x, mode: replace } }",
            "'mode' in sink 't' must be one of append, update, complete, not 'replace'",
        ),
    ],
)
def test_wrong_step_or_sink(part: str, message: str) -> None:
    text = f"pipeline: p\nsources: {{ a: {{ topic: a }} }}\n{part}\n"
    found = problems(
        text if "sinks" in part else f"{text}sinks: {{ b: {{ from: a, topic: b }} }}\n"
    )
    assert found[0].startswith(f"3: {message}")


def test_everything_wrong_is_told_at_once_in_the_order_of_lines() -> None:
    text = "pipeline: p\nsources:\n  a: { topc: x }\nparallelism: many\nsinks:\n  b: { topic: c }\n"
    assert [line.split(":")[0] for line in problems(text)] == ["3", "4", "6"]
    with pytest.raises(SpecErrors) as caught:
        parse(text)
    assert [error.place for error in caught.value.errors] == [at(3), at(4), at(6)]
    assert caught.value.place == at(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty: headrace pipeline init writes one to start"),
        ("# nothing\n", "1: the file is empty"),
        ("[a, b]", "1: the pipeline must be a mapping, not a list"),
        ("just text", "1: the pipeline must be a mapping, not 'just text'"),
        ("a: b\n c: d\n", "2: not valid YAML: "),
        ("a: [b\n", "2: not valid YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("pipeline: p\nbroker: { a: ${B} }\n", "2: not valid YAML: "),
        ("a: b\n---\nc: d\n", "2: not valid YAML: expected a single document in the stream"),
        ("a: b\nc: \x07\n", "2: not valid YAML: special characters are not allowed"),
        ("a: *nothing\n", "1: not valid YAML: found undefined alias"),
        ("a:\n  b: &x [*x]\n", "2: nested too deeply: more than 30 levels"),
        ("[" * 40, "1: nested too deeply: more than 30 levels"),
        ("a: b\n" * CHARACTERS_MAX, f"1: too large for a pipeline: more than {CHARACTERS_MAX}"),
    ],
)
def test_what_is_no_pipeline_file_at_all(text: str, message: str) -> None:
    [problem] = problems(text)
    assert problem.startswith(message)


def test_variable_in_braces_is_told_to_be_quoted() -> None:
    [problem] = problems("pipeline: p\nbroker: { a: ${B} }\n")
    assert problem.endswith("; put quotes around ${...} inside { } and [ ]")


def test_few_lines_cannot_stand_for_millions_of_values() -> None:
    lines = ["x-0: &a0 [z, z, z, z, z, z, z, z, z, z]"]
    for level in range(1, 10):
        lines.append(f"x-{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    [problem] = problems("\n".join(lines))
    assert "too large: with its aliases more than 20000 values" in problem


def test_anchors_aliases_and_merges_are_yaml_as_usual() -> None:
    text = """\
pipeline: p
broker: localhost
x-decode: &decode { format: json, schema: "id BIGINT", on_error: drop }
sources:
  a: { topic: a, decode: *decode }
  b: { topic: b, decode: { <<: *decode, on_error: fail } }
  c: { topic: c, decode: { on_error: fail, <<: [ { format: csv }, *decode ] } }
sinks:
  d: { from: a, console: {} }
"""
    a, b, c = parse(text).sources
    assert isinstance(a, TopicSource) and isinstance(b, TopicSource) and isinstance(c, TopicSource)
    assert (a.decode.format, a.decode.on_error) == ("json", OnError.DROP)
    assert (b.decode.format, b.decode.schema, b.decode.on_error) == (
        "json",
        "id BIGINT",
        OnError.FAIL,
    )
    assert (c.decode.format, c.decode.schema) == ("csv", "id BIGINT")
    problem = problems(text.replace("<<: *decode", "<<: [x]"))[0]
    assert problem.startswith("6: what << takes in must be a mapping")


def test_text_is_what_it_looks_like_and_not_what_yaml_makes_of_it() -> None:
    text = (
        MINIMAL + "description: no\ngroup: 2026-01-31\nspark: { a: 010, b: 1e3, c: off, d: '' }\n"
    )
    pipeline = parse(text)
    assert (pipeline.description, pipeline.group) == ("no", "2026-01-31")
    assert pipeline.spark == {"a": "010", "b": "1e3", "c": "off", "d": ""}


def test_variables_of_the_environment_and_the_directory() -> None:
    text = MINIMAL + "broker: ${HOST:-localhost}:${PORT}\ngroup: $${PORT}\n"
    text += "spark: { uri: 'sqlite:///${PIPELINE_DIR}/catalog.db' }\n"
    pipeline = parse(text, PORT="9092")
    assert pipeline.broker == {"bootstrap.servers": "localhost:9092"}
    assert pipeline.group == "${PORT}"
    assert pipeline.spark == {"uri": "sqlite:////pipelines/catalog.db"}


def test_variable_that_is_not_set_is_told_with_its_own_line() -> None:
    sql = "steps:\n  s:\n    sql: |\n      SELECT *\n      FROM ${TABLE}\n"
    [problem] = problems(MINIMAL + sql)
    assert problem.startswith("10: the environment variable TABLE is not set")


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("earliest", {"startingOffsets": "earliest"}),
        ("latest", {"startingOffsets": "latest"}),
        ("1970-01-01T00:00:01Z", {"startingTimestamp": "1000"}),
        ("1970-01-01T01:00:01.5+01:00", {"startingTimestamp": "1500"}),
    ],
)
def test_start_becomes_options_of_the_data_source(given: str, options: dict[str, str]) -> None:
    [source] = parse(MINIMAL.replace("topic: a }", f"topic: a, starting: '{given}' }}")).sources
    assert source.options == options


@given(st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_any_instant_starts_at_its_millisecond(instant: datetime) -> None:
    text = MINIMAL.replace("topic: a }", f"topic: a, starting: '{instant.isoformat()}' }}")
    [source] = parse(text).sources
    told = int(source.options["startingTimestamp"])
    assert abs(told / 1000 - instant.timestamp()) < 0.001


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("lake", "/pipelines/lake"),
        ("./lake", "/pipelines/lake"),
        ("/data/lake", "/data/lake"),
        ("../lake", "/pipelines/../lake"),
        ("s3://bucket/lake", "s3://bucket/lake"),
        ("hdfs:/lake", "hdfs:/lake"),
        ("~/lake", str(Path.home() / "lake")),
    ],
)
def test_paths_start_from_the_file_and_uris_are_left_alone(given: str, path: str) -> None:
    [sink] = parse(MINIMAL.replace("topic: b }", f"parquet: '{given}' }}")).sinks
    assert sink.target == FileSink("parquet", path)


@pytest.mark.parametrize(
    "text", ["1 second", "90 seconds", "1 hour 30 minutes", "2  DAYS", "0 seconds"]
)
def test_durations_are_sparks(text: str) -> None:
    assert parse(f"{MINIMAL}trigger: {text}\n").trigger == Trigger(" ".join(text.split()))


@pytest.mark.parametrize(
    "text", ["5", "5s", "seconds", "-1 second", "1 month", "1.5 hours", "1second"]
)
def test_what_is_no_duration(text: str) -> None:
    assert "must be available-now or a duration" in problems(f"{MINIMAL}trigger: {text}\n")[0]


def test_schema_can_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.ddl").write_text("id BIGINT")
    decode = "{ format: json, schema_file: a.ddl, on_error: drop }"
    path = tmp_path / "p.yaml"
    path.write_text(f"broker: x\n{MINIMAL}".replace("topic: a }", f"topic: a, decode: {decode} }}"))
    [source] = load(path).sources
    assert isinstance(source, TopicSource) and source.decode.schema == "id BIGINT"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: No such file or directory"):
        load(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="Is a directory"):
        yaml_file.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"pipeline: caf\xe9")
    with pytest.raises(SpecError, match=r"latin\.yaml:1: not UTF-8 text"):
        load(tmp_path / "latin.yaml")
    with pytest.raises(SpecError, match=r"a pipeline is a \.yaml, \.yml or \.py file"):
        load(tmp_path / "pipeline.json")


def test_load_checks_what_it_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_text(f"{MINIMAL}broker: localhost\n".replace("from: a", "from: c"))
    with pytest.raises(
        SpecError, match=r"p.yml:5: sink 'b' is from 'c', which is no source or step"
    ):
        load(path)
