"""What is checked of a whole pipeline before Spark starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.pipelines.spec import yaml_file
from headrace.pipelines.spec.checks import PARTS_MAX, check
from headrace.pipelines.spec.model import (
    ConsoleSink,
    Decode,
    Pipeline,
    PythonStep,
    Sink,
    SpecError,
    TopicSink,
    TopicSource,
)

TOP = """\
pipeline: p
broker: localhost:9092
dead_letters: dead
sources:
  orders:
    topic: orders
    decode: { format: json, schema: "id BIGINT, region STRING, at TIMESTAMP" }
  regions: { format: csv, path: regions.csv, schema: region STRING }
"""
SINK = "sinks: { out: { from: orders, topic: out } }\n"


def checked(text: str, directory: Path = Path("/pipelines")) -> Pipeline:
    pipeline = yaml_file.parse(text, directory / "p.yaml", {})
    check(pipeline)
    return pipeline


def problems(text: str, directory: Path = Path("/pipelines")) -> list[str]:
    with pytest.raises(SpecError) as caught:
        checked(text, directory)
    prefix = f"{directory}/p.yaml:"
    return [line.removeprefix(prefix) for line in str(caught.value).splitlines()]


def test_sound_pipelines_pass() -> None:
    steps = """\
steps:
  last: { sql: SELECT * FROM joined }
  joined: { sql: SELECT orders.* FROM Orders JOIN regions USING (region) }
  unique: { deduplicate: orders, keys: [ID] }
sinks:
  out: { from: LAST, topic: out }
  lake: { from: orders, parquet: lake, partition_by: region }
  pg: { from: unique, mode: update, postgresql: { dsn: host=x, table: t, keys: id } }
"""
    assert checked(TOP + steps).name == "p"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1st: { topic: a }", "source '1st': its name is the name of a table: letters, digits and"),
        ("a-b: { topic: a }", "source 'a-b': its name is the name of a table"),
        ("from: { topic: a }", "source 'from': its name is a word of SQL; use another"),
        ("Orders: { topic: a }", "the name 'Orders' is that of another source or step, first at"),
        ("a: { topic: 'a b' }", "source 'a': 'a b' is not a topic name: use letters of a-z,"),
        ("a: { topics: [b, ..] }", "source 'a': '..' is not a topic name"),
        (
            "a: { topic: a, decode: json }",
            "decode of source 'a' lacks 'schema' for format json: id BIGINT, at TIMESTAMP",
        ),
        ("a: { topic: a, decode: avro }", "decode of source 'a' lacks 'schema' for format avro:"),
        (
            "a: { topic: a, decode: { format: raw, schema: id INT } }",
            "decode of source 'a' has a schema, which format raw does not take",
        ),
        (
            "a: { topic: a, decode: { format: json, schema: id INT, framing: confluent } }",
            "decode of source 'a' has framing confluent, which only format avro can have",
        ),
        (
            "a: { topic: a, decode: { format: csv, schema: id INTT } }",
            "the schema in decode of source 'a': 'INTT' in 'id INTT' is no type of Spark; did you",
        ),
        (
            "a: { topic: a, decode: { format: avro, schema: '{}' } }",
            "the schema in decode of source 'a': ",
        ),
        (
            "a: { topic: a, decode: { format: json, schema: key INT, keep: key } }",
            "the schema in decode of source 'a': it has a column 'key', and keep gives another",
        ),
        (
            "a: { topic: a, watermark: { column: a.b, delay: 1 day } }",
            "the watermark of source 'a'",
        ),
        (
            "a: { topic: a, watermark: { column: tmestamp, delay: 1 day } }",
            "the watermark of source 'a': there is no column 'tmestamp' in source 'a'; did you mean"
            " 'timestamp'?",
        ),
        (
            "a: { topic: a, streaming: false, watermark: { column: timestamp, delay: 1 day } }",
            "source 'a' is a table, which has no watermark: only a stream has",
        ),
        (
            "a: { topic: a, options: { maxOffsetPerTrigger: 5 } }",
            "source 'a': unknown option 'maxOffsetPerTrigger' of format \"headrace\"; did you mean"
            " maxOffsetsPerTrigger?",
        ),
        (
            "a: { topic: a, options: { subscribe: b } }",
            "source 'a': option subscribe is set by topic, topics and pattern: leave it out",
        ),
        (
            "a: { topic: a, options: { endingOffsets: latest } }",
            "source 'a': option endingOffsets is",
        ),
        (
            "a: { topic: a, streaming: false, starting: latest }",
            "source 'a': option startingOffsets",
        ),
        ("a: { format: csv }", "source 'a' lacks 'path': where are its files?"),
        (
            "a: { format: json, path: x, streaming: true }",
            "source 'a' lacks 'schema', which a stream",
        ),
        ("a: { format: csv, path: x, schema: id }", "the schema of source 'a': 'id' is no column"),
        (
            "a: { pattern: 'd.*', decode: { format: json, schema: id INT } }",
            "source 'a' also reads the topic of its dead letters, 'dead': they would go round",
        ),
    ],
)
def test_wrong_source(source: str, message: str) -> None:
    found = problems(f"{TOP}  {source}\n{SINK}")
    assert found[0].startswith(f"9: {message}")
    assert "\n" not in found[0]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "s: { sql: SELECT * FROM order }",
            "step 's' reads 'order', which is no source or step; did you mean 'orders'? there are"
            " orders, regions, s",
        ),
        (
            "s: { sql: SELECT * FROM countries }",
            "step 's' reads 'countries', which is no source or step; there are orders, regions, s;"
            " a table of Spark's catalog has its database first: default.countries",
        ),
        (
            "s: { deduplicate: nothing, keys: id }",
            "step 's' reads 'nothing', which is no source or",
        ),
        ("s: { sql: SELECT * FROM s }", "step 's' reads itself"),
        (
            "s: { sql: SELECT * FROM t }, t: { sql: TABLE s }",
            "steps read each other in a circle: s <-",
        ),
        (
            "s: { sql: DROP TABLE orders }",
            "step 's' must be a query: one that begins with SELECT or",
        ),
        ("orders: { sql: SELECT 1 }", "the name 'orders' is that of another source or step, first"),
        (
            "s: { deduplicate: orders, keys: [idd] }",
            "'keys' of step 's': there is no column 'idd' in source 'orders'; did you mean 'id'?",
        ),
        ("s: { deduplicate: orders, keys: [id, id] }", "'keys' of step 's' has 'id' twice"),
        ("s: { python: nothing }", "step 's': 'nothing' names no function: write file.py:name or"),
        (
            "s: { python: 'none.py:f' }",
            "step 's': none.py cannot be read: No such file or directory",
        ),
        (
            "s: { python: 'steps.py:summ', inputs: orders }",
            "step 's': there is no function 'summ' in",
        ),
        (
            "s: { python: 'steps.py:total' }",
            "step 's': total takes 1 DataFrames, but 'inputs' names",
        ),
        ("s: { python: 'steps.py:any', inputs: [orders, orders] }", "step 's' has an input twice"),
        (
            "s: { sql: SELECT 1, watermark: { column: 'a b', delay: 1 day } }",
            "the watermark of step",
        ),
    ],
)
def test_wrong_step(step: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def total(a, spark): ...\ndef any(*frames): ...\n")
    found = problems(f"{TOP}steps: {{ {step} }}\n{SINK}", tmp_path)
    assert found[0].startswith(f"9: {message}")


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (
            "a b: { from: orders, topic: b }",
            "the name of a sink is also that of a directory: letters",
        ),
        ("../b: { from: orders, topic: b }", "the name of a sink is also that of a directory"),
        ("_b: { from: orders, topic: b }", "the name of a sink is also that of a directory"),
        ("OUT: { from: orders, topic: b }", "the name 'OUT' is that of another sink, first at"),
        (
            "dead-letters-orders: { from: orders, topic: b }",
            "the name of sink 'dead-letters-orders' is that of the query for dead letters",
        ),
        (
            "b: { from: ordrs, topic: b }",
            "sink 'b' is from 'ordrs', which is no source or step; did you mean 'orders'?",
        ),
        (
            "b: { from: regions, topic: b }",
            "sink 'b' reads only tables (regions), and no stream: set",
        ),
        (
            "b: { from: orders, parquet: b, mode: complete }",
            "sink 'b' writes each row once: its mode must be append, not complete",
        ),
        ("b: { from: orders, delta: b, mode: update }", "sink 'b' writes each row once"),
        (
            "b: { from: orders, mode: update, postgresql: { dsn: x, table: y } }",
            "sink 'b' needs 'keys' in mode update: rows that change are found by them",
        ),
        (
            "b: { from: orders, postgresql: { dsn: x, table: y, keys: [idd] } }",
            "'keys' of sink 'b': there is no column 'idd' in source 'orders'",
        ),
        (
            "b: { from: orders, csv: b, partition_by: [day] }",
            "'partition_by' of sink 'b': there is",
        ),
        (
            "b: { from: orders, csv: b, partition_by: [id, id] }",
            "'partition_by' of sink 'b' has 'id'",
        ),
        (
            "b: { from: orders, csv: lake/ }, c: { from: orders, csv: lake }",
            "sink 'c' has the path of",
        ),
        (
            "b: { from: orders, csv: headrace-pipelines/p }",
            "sink 'b' has the path of the checkpoint",
        ),
        ("b: { from: orders, topic: 'b/c' }", "sink 'b': 'b/c' is not a topic name"),
        ("b: { from: orders, topic: b, options: { kafka.acks: 1 } }", "sink 'b': "),
        (
            "b: { from: orders, topic: b, options: { topik: c } }",
            "sink 'b': unknown option 'topik'",
        ),
        (
            "b: { from: orders, topic: orders }",
            "sink 'b' writes topic 'orders', which it reads as source 'orders': records would go",
        ),
    ],
)
def test_wrong_sink(sink: str, message: str) -> None:
    found = problems(f"{TOP}sinks: {{ out: {{ from: orders, topic: out }}, {sink} }}\n")
    assert found[0].startswith(f"9: {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pipeline: p", "pipeline: a/b", "1: the pipeline's name is also that of a directory"),
        ("broker: localhost:9092\n", "", "1: source 'orders' has a topic, but 'broker' has no"),
        ("broker: localhost:9092", "broker: { retries: x }", "1: source 'orders' has a topic, but"),
        (
            "broker: localhost:9092",
            "broker: { bootstrap.servers: a, bootstrap.server: b }",
            "1: 'broker' of the pipeline: unknown option 'bootstrap.server'",
        ),
        (
            "dead_letters: dead\n",
            "",
            "6: source 'orders' sends what it cannot decode to dead letters, but the pipeline has"
            " no 'dead_letters': give it a topic, or set on_error to drop or fail",
        ),
        ("dead_letters: dead", "dead_letters: a/b", "3: dead_letters: 'a/b' is not a topic name"),
        (
            "dead_letters: dead",
            "dead_letters: orders",
            "5: source 'orders' also reads the topic of",
        ),
        (SINK, "sinks: {}\n", "1: the pipeline has no sink: nothing would be run"),
    ],
)
def test_wrong_pipeline(old: str, new: str, message: str) -> None:
    text = f"{TOP}{SINK}"
    assert old in text
    assert problems(text.replace(old, new))[0].startswith(message)


def test_unknown_table_is_told_with_the_line_it_stands_in() -> None:
    steps = "steps:\n  s:\n    sql: |\n      SELECT *\n      FROM ordrs\n"
    [problem] = problems(f"{TOP}{steps}{SINK}")
    assert problem.startswith("13: step 's' reads 'ordrs'")


def test_all_that_is_wrong_is_told_at_once() -> None:
    text = TOP + "steps:\n  s: { sql: SELECT * FROM x }\nsinks:\n  a: { from: y, topic: a }\n"
    assert [line.split(":")[0] for line in problems(text)] == ["10", "12"]


def test_same_topic_of_another_cluster_is_a_mirror() -> None:
    sink = (
        "sinks: { b: { from: orders, topic: orders, options: { kafka.bootstrap.servers: x } } }\n"
    )
    assert checked(TOP + sink)


def test_broker_can_be_said_for_each_part() -> None:
    text = "pipeline: p\nsources: { a: { topic: a, options: { kafka.bootstrap.servers: x } } }\n"
    assert checked(f"{text}sinks: {{ b: {{ from: a, console: {{}} }} }}\n")


def test_function_may_make_the_stream_and_sql_may_read_a_catalog() -> None:
    def stream(spark: object) -> object:
        return spark

    sink = Sink("out", "made", ConsoleSink())
    check(Pipeline("p", (), (sink,), (PythonStep("made", stream, ()),)))
    text = "pipeline: p\nsources: {}\nsteps: { made: { sql: SELECT * FROM default.events } }\n"
    assert checked(f"{text}sinks: {{ b: {{ from: made, console: {{}} }} }}\n")


def test_pipeline_made_of_values_is_checked_without_places() -> None:
    source = TopicSource("a", topics=("a",), pattern="b")
    sink = Sink("out", "a", TopicSink())
    pipeline = Pipeline("p", (source,), (sink,), broker={"bootstrap.servers": "x"})
    with pytest.raises(SpecError) as caught:
        check(pipeline)
    assert str(caught.value).splitlines() == [
        "source 'a' must have topics or a pattern: one of them",
        "sink 'out' must have a topic or a topic_expression: one of them",
    ]
    decoded = replace(source, pattern=None, decode=Decode("json", schema="id INT"))
    with pytest.raises(SpecError, match="sends what it cannot decode to dead letters"):
        check(replace(pipeline, sources=(decoded,)))


def test_number_of_parts_is_bounded() -> None:
    sinks = tuple(Sink(f"s{at}", "a", ConsoleSink()) for at in range(PARTS_MAX))
    source = TopicSource("a", topics=("a",), options={"kafka.bootstrap.servers": "x"})
    with pytest.raises(SpecError, match=f"has {PARTS_MAX + 1} parts, and at most {PARTS_MAX}"):
        check(Pipeline("p", (source,), sinks))
    check(Pipeline("p", (source,), sinks[1:]))


def test_longest_chain_of_steps_is_followed_to_its_end() -> None:
    steps = {f"s{at}": f"SELECT * FROM s{at + 1}" for at in range(PARTS_MAX - 3)}
    lines = "".join(f"  {name}: {{ sql: {sql} }}\n" for name, sql in steps.items())
    last = f"  s{PARTS_MAX - 3}: {{ sql: SELECT * FROM a }}\n"
    text = f"pipeline: p\nbroker: x\nsources: {{ a: {{ topic: a }} }}\nsteps:\n{lines}{last}"
    assert checked(f"{text}sinks: {{ b: {{ from: s0, console: {{}} }} }}\n")
