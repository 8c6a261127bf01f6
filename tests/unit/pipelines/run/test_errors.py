from pathlib import Path
from textwrap import dedent

import pytest

from headrace.client.errors import TimedOut, Unreachable
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.pipelines.run.errors import (
    PipelineFailed,
    RaisedError,
    condition_of,
    explain,
    first_sentences,
    headrace_error,
    label,
    message_of,
    python_error,
    sql_fragment,
)
from headrace.pipelines.spec.model import BuildError, Pipeline, SourceLocation
from tests.unit.pipelines.run.pipelines import LAKE, ORDERS, TOTALS, orders_pipeline

# As Spark 4.3 says it, with the lines in between left out.
PYTHON_EXCEPTION = "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
TRACEBACK = "Traceback (most recent call last):\n"
STREAMING_QUERY = " SQLSTATE: 38000\n=== Streaming Query ===\nIdentifier: lake [id = 24e1e50f]\n"
IN_A_READER = (
    f"{PYTHON_EXCEPTION}{TRACEBACK}"
    '  File "/site-packages/headrace/pipelines/datasource/readers.py", line 226, in _lose\n'
    '    raise DataLoss(f"{what}; {_ADVICE}")\n'
    "headrace.pipelines.datasource.errors.DataLoss: orders-0: offsets 5 to 9 are gone: expired;"
    " set failOnDataLoss to false to go on with what is left, or start over with a new checkpoint\n"
    f"{STREAMING_QUERY}"
)
IN_A_FUNCTION = (
    f"{PYTHON_EXCEPTION}{TRACEBACK}"
    '  File "/site-packages/pyspark/worker.py", line 47, in main\n'
    "    process()\n"
    '  File "/home-of-it/sessions.py", line 12, in sessionize\n'
    "    return 1 // 0\n"
    "           ~~^^~~\n"
    f"ZeroDivisionError: integer division or modulo by zero\n{STREAMING_QUERY}"
)
IN_A_QUERY = (
    "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return"
    " NULL instead. SQLSTATE: 22012\n"
    "== SQL (line 3, position 1) ==\ncount(*) AS n\n^^^^^^^^\n\n=== Streaming Query ===\n"
)
IN_A_QUERY_OF_A_BATCH = (
    f"An exception was raised by the Python Proxy. Return Message: {TRACEBACK}"
    '  File "/src/headrace/pipelines/sinks/files.py", line 40, in write\n'
    f"pyspark.errors.exceptions.captured.ArithmeticException: {IN_A_QUERY}"
)
UNRESOLVED = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name"
    " `nosuch` cannot be resolved. Did you mean one of the following? [`id`]. SQLSTATE: 42703;"
    " line 1 pos 7;\n'Project ['nosuch]\n+- Range (0, 3, step=1)\n"
)
MKDIRS = dedent("""\
    An error occurred while calling o296.start.
    : java.io.IOException: Mkdirs failed to create file:/proc/nope (exists=false, cwd=file:/here)
    \tat org.apache.spark.sql.execution.streaming.checkpointing.open(File.scala:1)
    """)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return orders_pipeline(tmp_path)


def told(pipeline: Pipeline, text: str) -> str:
    """The line a user reads for a failure of the sink `lake`."""
    failure = explain(pipeline, LAKE, RuntimeError(text))
    line = str(failure)
    assert "\n" not in line
    prefix = "pipeline orders, sink lake (orders.yaml:21): "
    assert line.startswith(prefix), line
    return line.removeprefix(prefix)


def test_our_own_errors_are_told_as_they_are(pipeline: Pipeline) -> None:
    assert told(pipeline, IN_A_READER) == (
        "orders-0: offsets 5 to 9 are gone: expired; set failOnDataLoss to false to go on with what"
        " is left, or begin anew with `headrace pipeline reset orders.yaml --sink lake`"
    )
    error = HeadraceError("no broker answers at 1.2.3.4:9092;\n start one.")
    assert str(explain(pipeline, ORDERS, error)) == (
        "pipeline orders, source orders (orders.yaml:5): no broker answers at 1.2.3.4:9092; start"
        " one"
    )
    coded = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic t does not exist; create it")
    assert str(explain(pipeline, None, coded)) == (
        "pipeline orders: topic t does not exist; create it"
    )


def test_what_names_the_pipeline_already_is_left_alone(pipeline: Pipeline) -> None:
    error = HeadraceError("pipeline orders, sink lake: no space; make some")
    assert str(explain(pipeline, LAKE, error)) == "pipeline orders, sink lake: no space; make some"
    failure = PipelineFailed("as it was")
    assert explain(pipeline, LAKE, failure) is failure


def test_a_part_that_cannot_be_built_names_itself(pipeline: Pipeline) -> None:
    error = BuildError(
        SourceLocation("orders.yaml", 13), "step placed", "no column `m`", "correct it"
    )
    assert str(explain(pipeline, LAKE, error)) == (
        "pipeline orders, step placed (orders.yaml:13): no column `m`; correct it"
    )
    assert str(explain(pipeline, LAKE, BuildError(None, "source x", "odd"))) == (
        "pipeline orders, source x: odd"
    )


def test_an_exception_of_a_function_names_its_step_and_line(pipeline: Pipeline) -> None:
    assert str(explain(pipeline, LAKE, RuntimeError(IN_A_FUNCTION))) == (
        "pipeline orders, step sessions: sessions.py:12: ZeroDivisionError: integer division or"
        " modulo by zero; correct the function, and run it again: it goes on where it was"
    )


def test_an_error_of_a_query_names_the_step_it_quotes(pipeline: Pipeline) -> None:
    assert str(explain(pipeline, TOTALS, RuntimeError(IN_A_QUERY))) == (
        "pipeline orders, step per_region (orders.yaml:12): Division by zero. Use `try_divide` to"
        " tolerate divisor being 0 and return NULL instead; correct the query, and check it with"
        " `headrace pipeline check --plan`"
    )
    assert explain(pipeline, TOTALS, RuntimeError(IN_A_QUERY_OF_A_BATCH)).args == (
        explain(pipeline, TOTALS, RuntimeError(IN_A_QUERY)).args
    )
    assert told(pipeline, UNRESOLVED).startswith(
        "A column, variable, or function parameter with name `nosuch` cannot be resolved. Did you"
        " mean one of the following? [`id`]; correct the query"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "assertion failed: There are [1] sources in the checkpoint offsets and now there are"
            " [2] sources requested by the query. Cannot continue.",
            "its checkpoint is that of a query with 1 sources, and it has 2; take back the change,"
            " or begin anew with `headrace pipeline reset orders.yaml --sink lake`",
        ),
        (
            "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match",
            "its checkpoint has the state of other groups, joins or keys than the query has now;"
            " take back the change, or begin anew with `headrace pipeline reset orders.yaml"
            " --sink lake`",
        ),
        (
            MKDIRS,
            "Spark may not write file:/proc/nope; let the user who runs it write there, or choose"
            " another `checkpoint` or path",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x/regions.csv. SQLSTATE: 42K03",
            "there is no file or directory file:/x/regions.csv; see the `path` of its sources",
        ),
        (
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'fastavro'",
            "Python has no module fastavro where Spark's workers run; install the package that"
            " brings it, on every machine of the cluster",
        ),
        (
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append."
            " This output mode is not supported",
            "groups never end without a watermark, so a sink with mode append would wait for ever;"
            " give the source a `watermark` and group by a window of its column, or the sink"
            " `mode: update`",
        ),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: avro. Make sure",
            "Spark knows no format avro; see the `format` of its sources, and whether the package"
            " that brings it is installed",
        ),
        (
            "java.lang.OutOfMemoryError: Java heap space",
            "Spark ran out of memory; give it more with `--conf spark.driver.memory=4g`, or less at"
            " once with the source's option maxOffsetsPerTrigger",
        ),
    ],
)
def test_what_spark_says_becomes_a_line_with_a_remedy(
    pipeline: Pipeline, text: str, expected: str
) -> None:
    assert told(pipeline, text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("java.io.IOException: No space left on device", "a disk is full; make room where"),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update", "another process uses its checkpoint"),
        ("Malformed log file: missing version", "is incomplete or damaged; restore it"),
        ("Python worker exited unexpectedly (crashed)", "a Python process of Spark's died; see"),
        ("Answer from Java side is empty", "Spark's Java process died; see the end of"),
        ("Could not parse Master URL: 'odd'", "Spark knows no master odd; give --master"),
        ("Java gateway process exited before sending", "Spark's Java process did not start; see"),
        ("All masters are unresponsive! Giving up.", "no Spark master answers; see --master"),
    ],
)
def test_other_failures_name_what_to_look_at(pipeline: Pipeline, text: str, words: str) -> None:
    assert words in told(pipeline, text)


def test_what_nobody_knows_is_told_with_the_log(pipeline: Pipeline, tmp_path: Path) -> None:
    log = tmp_path / "checkpoints" / "_headrace" / "spark.log"
    text = "java.lang.IllegalStateException: odd thing. It happened.\n\tat org.x.Y(Z.scala:1)"
    assert told(pipeline, text) == f"odd thing. It happened; see {log} for all that Spark says"
    assert told(pipeline, "") == f"RuntimeError; see {log} for all that Spark says"


def test_a_slow_start_of_a_worker_passes(pipeline: Pipeline) -> None:
    slow = explain(pipeline, LAKE, RuntimeError("Python worker failed to connect back."))
    assert slow.passes
    assert "took too long to start" in str(slow)
    assert not explain(pipeline, LAKE, RuntimeError(IN_A_READER)).passes


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("no broker at a:1"),
        TimedOut("gave up after 30 s: a:1"),
        RuntimeError("\nheadrace.client.errors.Unreachable: no broker at a:1\n\n\tat org.x"),
        RuntimeError("\nheadrace.net.outgoing.ConnectionFailed: a:1: reset; start it\n"),
    ],
)
def test_brokers_that_do_not_answer_are_an_outage(pipeline: Pipeline, error: Exception) -> None:
    assert explain(pipeline, LAKE, error).outage
    assert not explain(pipeline, LAKE, RuntimeError(IN_A_READER)).outage


def test_labels_name_the_innermost_part(pipeline: Pipeline) -> None:
    assert label(pipeline, None) == "pipeline orders"
    assert label(pipeline, LAKE, pipeline.steps[1]) == (
        "pipeline orders, step per_region (orders.yaml:12)"
    )


def test_the_last_of_our_errors_in_a_traceback_counts() -> None:
    text = "headrace.client.errors.Unreachable: a; b\n\nDuring handling\nheadrace.x.Y: c; d\n"
    assert headrace_error(text) == RaisedError("Y", "c; d")
    assert headrace_error("headrace 0.2.0 ready") is None
    plan = "\n=== Streaming Query ===\nLogical Plan:\nheadrace.DecodeError: record , offset#3"
    assert headrace_error(f"Stream closed{plan}") is None
    assert headrace_error(f"x\nheadrace.A: b{plan}") == RaisedError("A", "b")


def test_parts_of_a_message() -> None:
    assert condition_of(UNRESOLVED) == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert condition_of("[1] or [2] sources") is None
    assert sql_fragment(IN_A_QUERY) == "count(*) AS n"
    assert sql_fragment(UNRESOLVED) is None
    assert message_of(MKDIRS).startswith("Mkdirs failed to create file:/proc/nope")
    assert python_error("no traceback") is None
    assert python_error("Traceback (most recent call last):\n  odd") is None
    assert first_sentences("One. Two. Three. Four.") == "One. Two. Three"
    assert len(first_sentences("word " * 200)) <= 404
