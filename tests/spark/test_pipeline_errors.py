"""Whatever ends a pipeline ends it with a line: the pipeline, its part, what happened, a remedy.

The records are few and the queries small: what is tested is what a user reads.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace import Admin, TopicPartition
from headrace.errors import HeadraceError
from headrace.pipelines.run.errors import CheckpointMismatch, PipelineFailed
from headrace.pipelines.run.runner import check_plan
from headrace.pipelines.spec import load
from headrace.testing import Broker
from tests.spark.pipelines import run_now, send, write_pipeline
from tests.support import unused_port

Write = Callable[[str, str], Path]

AVRO = '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}'


@pytest.fixture
def write(spark: SparkSession, spark_broker: Broker, tmp_path: Path) -> Write:
    """Write a pipeline of that name, in which `$topic` is a topic of that name with one record."""

    def write(name: str, text: str) -> Path:
        if not (tmp_path / "pipeline.yaml").exists():
            send(spark_broker, spark_broker.create_topic(name), [{"n": 1}])
        return write_pipeline(tmp_path, spark_broker, name, text.replace("$topic", name))

    return write


def failure(path: Path, **options: bool) -> str:
    """The line that a run of a pipeline ends with, without the directory of the test."""
    with pytest.raises(HeadraceError) as caught:
        run_now(path, **options)
    return one_line(caught.value, path)


def one_line(error: HeadraceError, path: Path) -> str:
    line = str(error).replace(f"{path.parent}/", "")
    assert "\n" not in line
    assert "Traceback" not in line
    return line


def simple(decode: str, sink: str = "json: ./out") -> str:
    """A pipeline without steps."""
    return f"""
        sources: {{ numbers: {{ topic: $topic, decode: {decode} }} }}
        sinks: {{ out: {{ from: numbers, {sink} }} }}
    """


def test_a_record_that_is_no_json_names_itself(write: Write, spark_broker: Broker) -> None:
    path = write("errors-json", simple("{ format: json, schema: n BIGINT, on_error: fail }"))
    send(spark_broker, "errors-json", [b"{bad"])
    line = failure(path)
    assert line.startswith(
        "pipeline errors-json: source numbers: record errors-json-0@1 is no json"
    )
    assert "on_error" in line


def test_a_record_that_is_no_avro_names_itself(write: Write) -> None:
    decode = f"{{ format: avro, schema: '{AVRO}', on_error: fail }}"
    line = failure(write("errors-avro", simple(decode)))
    assert line.startswith(
        "pipeline errors-avro: source numbers: record errors-avro-0@0 is no avro"
    )
    assert "on_error" in line


def test_a_dropped_topic(write: Write, spark_broker: Broker) -> None:
    path = write("errors-dropped", simple("{ format: raw }"))
    run_now(path)
    with Admin(bootstrap_servers=spark_broker.bootstrap_servers) as admin:
        admin.delete_topic("errors-dropped")
    line = failure(path)
    assert line.startswith("pipeline errors-dropped, sink out (pipeline.yaml:")
    assert "errors-dropped" in line.partition("): ")[2]
    assert "; " in line


def test_offsets_that_expired(write: Write, spark_broker: Broker, tmp_path: Path) -> None:
    path = write("errors-expired", simple("{ format: raw }"))
    assert run_now(path).queries[0].rows_in == 1
    send(spark_broker, "errors-expired", [1, 2, 3, 4])
    with Admin(bootstrap_servers=spark_broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition("errors-expired", 0): 3})
    line = failure(path)
    assert line.startswith("pipeline errors-expired, sink out (pipeline.yaml:")
    assert "errors-expired-0" in line
    assert "failOnDataLoss" in line
    tolerant = path.read_text().replace("decode:", "options: { failOnDataLoss: false }, decode:")
    path.write_text(tolerant)
    assert run_now(path).queries[0].rows_in == 2


def test_a_checkpoint_of_another_query(write: Write, spark_broker: Broker) -> None:
    path = write("errors-other", simple("{ format: raw }"))
    run_now(path)
    spark_broker.create_topic("errors-other-2")
    both = """
        sources: { numbers: { topic: $topic }, more: { topic: $topic-2 } }
        steps: { both: { sql: SELECT * FROM numbers UNION ALL SELECT * FROM more } }
        sinks: { out: { from: both, json: ./out } }
    """
    write("errors-other", both)
    with pytest.raises(CheckpointMismatch) as caught:
        run_now(path)
    line = one_line(caught.value, path)
    assert line == (
        "pipeline errors-other, sink out (pipeline.yaml:9): its checkpoint belongs to another query"
        " (source more is new); take the change back, begin anew with `headrace pipeline reset"
        " pipeline.yaml --sink out`, or go on all the same with --allow-changes"
    )
    # Whoever insists hears it from Spark.
    line = failure(path, allow_changes=True)
    assert "its checkpoint is that of a query with 1 sources, and it has 2; take back" in line


def test_a_broker_that_is_not_there(write: Write, spark_broker: Broker) -> None:
    path = write("errors-away", simple("{ format: raw }"))
    address = f"127.0.0.1:{unused_port()}"
    settings = f'"{address}", request.timeout.ms: 1000'
    path.write_text(path.read_text().replace(f'"{spark_broker.bootstrap_servers}"', settings))
    line = failure(path)
    assert line.startswith("pipeline errors-away, sink out (pipeline.yaml:")
    assert address in line
    assert "; " in line


def test_sql_that_is_wrong_is_found_by_a_plan_and_by_a_run(write: Write) -> None:
    steps = """
        sources:
          numbers: { topic: $topic, decode: { format: json, schema: n BIGINT, on_error: drop } }
        steps:
          doubled:
            sql: |
              SELECT n,
                2 * m AS twice
              FROM numbers
        sinks: { out: { from: doubled, json: ./out } }
    """
    path = write("errors-sql", steps)
    with pytest.raises(PipelineFailed) as caught:
        check_plan(load(path))
    line = one_line(caught.value, path)
    assert line.startswith("pipeline errors-sql, step doubled (pipeline.yaml:13): ")
    assert "`m` cannot be resolved" in line
    assert failure(path) == line
    write("errors-sql", steps.replace("2 * m AS twice", "1 / (n - 1) AS twice"))
    line = failure(path)
    assert line.startswith("pipeline errors-sql, step doubled (pipeline.yaml:")
    assert "Division by zero" in line


def test_a_mode_that_would_never_write_is_found_by_a_plan(write: Write) -> None:
    path = write(
        "errors-mode",
        """
        sources: { numbers: { topic: $topic } }
        steps: { counted: { sql: SELECT count(*) AS n FROM numbers } }
        sinks: { out: { from: counted, json: ./out } }
        """,
    )
    with pytest.raises(PipelineFailed, match=r"without a watermark.*`mode: update`"):
        check_plan(load(path))


def test_an_exception_in_a_function_names_its_line(write: Write, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from pyspark.sql.functions import udf\n\n\n"
        "@udf('long')\ndef invert(value):\n    return 1 // (len(value) - 8)\n\n\n"
        "def inverted(numbers):\n    return numbers.select(invert('value').alias('n'))\n"
    )
    path = write(
        "errors-python",
        """
        sources: { numbers: { topic: $topic } }
        steps: { inverse: { python: "odd.py:inverted", inputs: [numbers] } }
        sinks: { out: { from: inverse, json: ./out } }
        """,
    )
    line = failure(path)
    assert line.startswith("pipeline errors-python, step inverse (pipeline.yaml:")
    assert "odd.py:6: ZeroDivisionError: " in line


def test_what_is_missing_is_named(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("errors-library", simple("{ format: raw }", "delta: ./table"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "deltalake", None)
        line = failure(path)
    assert line.startswith("pipeline errors-library, sink out")
    assert "pip install 'headrace[" in line
    path = write(
        "errors-library",
        """
        sources:
          numbers: { topic: $topic }
          names: { format: csv, path: none.csv, schema: n BIGINT }
        steps: { named: { sql: SELECT numbers.* FROM numbers CROSS JOIN names } }
        sinks: { out: { from: named, json: ./out } }
        """,
    )
    line = failure(path)
    assert line.startswith("pipeline errors-library, source names (pipeline.yaml:")
    assert "none.csv" in line


def test_a_mistake_in_the_last_query_leaves_no_checkpoint_of_the_first(write: Write) -> None:
    path = write(
        "errors-half",
        """
        sources:
          numbers: { topic: $topic, decode: { format: json, schema: n BIGINT, on_error: drop } }
        steps: { wrong: { sql: SELECT m FROM numbers } }
        sinks:
          right: { from: numbers, json: ./right }
          other: { from: wrong, json: ./other }
        """,
    )
    assert "step wrong" in failure(path)
    assert not (path.parent / "checkpoints" / "right").exists()
    assert not (path.parent / "right").exists()
