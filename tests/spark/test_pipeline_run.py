"""A pipeline file from its sources to its sinks, on real Spark and a real broker."""

import json
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from headrace import Admin, Producer
from headrace.client.tracing import context_of, send_span
from headrace.pipelines.locations import notes_directory
from headrace.pipelines.run.checkpoints import do_resets, plan_resets, query_parts
from headrace.pipelines.run.queries import StopRequest
from headrace.pipelines.run.run_state import AlreadyRunning, RunPhase, RunState, read_state
from headrace.pipelines.run.runner import check_plan, run
from headrace.pipelines.spec import load
from headrace.testing import Broker
from headrace.testing.time_limits import scaled
from tests.spark.pipelines import received, run_now, send, write_pipeline
from tests.spark.processes import QUICK_START
from tests.support import BrokerProcess, headrace_command

MINUTES = ("10:00", "10:01", "10:05")
ORDERS_PIPELINE = """
    sources:
      orders:
        topic: run-orders
        decode:
          format: json
          schema: order_id BIGINT, region STRING, cents BIGINT, at TIMESTAMP
          keep: [key, { timestamp: received }]
        watermark: { column: at, delay: 1 minute }
      regions:
        format: csv
        path: regions.csv
        schema: region STRING, country STRING
        options: { header: true }
    steps:
      unique_orders: { deduplicate: orders, keys: [order_id] }
      per_minute:
        sql: |
          SELECT window.start AS minute, region, count(*) AS orders, sum(cents) AS cents
          FROM unique_orders GROUP BY window(at, '1 minute'), region
      placed:
        sql: |
          SELECT order_id, country, to_date(at) AS day
          FROM orders JOIN regions USING (region)
    sinks:
      totals: { from: per_minute, topic: run-totals, key: region }
      lake: { from: placed, parquet: ./lake, partition_by: [day] }
    dead_letters: run-dead
"""


# Two have the same mistake, in different values.
BAD = (b"{bad", b'{"order_id": 1, "cents": "a"}', b'{"order_id": 2, "cents": "is no b"}')


def order(number: int, minute: str) -> dict[str, object]:
    region = "north" if number % 2 else "south"
    at = f"2026-01-01T{minute}:00Z"
    return {"order_id": number, "region": region, "cents": number, "at": at}


def test_orders_are_counted_kept_and_sorted_out(
    spark: SparkSession, spark_broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "regions.csv").write_text("region,country\nnorth,se\nsouth,it\n")
    path = write_pipeline(tmp_path, spark_broker, "run-orders", ORDERS_PIPELINE)
    spark_broker.create_topic("run-orders", partitions=2)
    for topic in ("run-totals", "run-dead"):
        spark_broker.create_topic(topic)
    orders = [order(number, MINUTES[number % 3]) for number in range(30)]
    send(spark_broker, "run-orders", [*orders, orders[0], *BAD, order(99, "11:00")])
    seen: list[RunState] = []

    state = run_now(path, on_progress=seen.append)

    assert state.phase is RunPhase.FINISHED
    rows = {query.name: (query.rows_in, query.rows_out, query.lag) for query in state.queries}
    assert rows == {
        "totals": (35, 6, 0),
        "lake": (35, 32, 0),
        "dead-letters-orders": (35, 3, 0),
    }
    assert [query.fraction for query in state.queries] == [1, 1, 1]
    reasons = {query.name: query.reasons for query in state.queries if query.reasons}
    assert reasons == {"dead-letters-orders": {"not JSON": 1, "cents is no BIGINT": 2}}
    for progress in state.queries:
        assert sum(batch.rows_in for batch in progress.recent) == progress.rows_in
        assert progress.recent[-1].batch == progress.batch
    assert [node.id for node in state.graph.nodes if node.kind != "step"] == [
        "source orders",
        "source regions",
        "sink totals",
        "sink lake",
        "dead-letters-orders",
    ]
    expected = Counter((entry["region"], entry["at"]) for entry in orders)
    totals = [json.loads(row.value or b"") for row in received(spark_broker, "run-totals")]
    assert {
        (total["region"], total["minute"].replace(".000", "")): total["orders"] for total in totals
    } == (expected)
    lake = spark.read.parquet(str(tmp_path / "lake"))
    assert {(row.order_id, row.country) for row in lake.collect()} == {
        (number, "se" if number % 2 else "it") for number in (*range(30), 99)
    }
    letters = received(spark_broker, "run-dead")
    [dead] = [letter for letter in letters if letter.value == b"{bad"]
    headers = {name: (value or b"").decode() for name, value in dead.headers}
    assert len(letters) == len(BAD)
    assert (headers["headrace.pipeline"], headers["headrace.source"]) == ("run-orders", "orders")
    assert list(dict.fromkeys(entry.phase for entry in seen)) == [
        RunPhase.STARTING,
        RunPhase.RUNNING,
        RunPhase.FINISHED,
    ]
    with Admin(bootstrap_servers=spark_broker.bootstrap_servers) as admin:
        for query in rows:
            group = admin.describe_group(f"run-orders.{query}")
            [positions] = admin.group_progress([group]).values()
            assert sum(entry.lag or 0 for entry in positions) == 0
            assert sum(entry.committed_offset or 0 for entry in positions) == 35

    # Later runs go on, a reset query begins where it is told.
    pipeline = load(path)
    do_resets(pipeline, plan_resets(pipeline, ["totals"]), "latest")
    send(spark_broker, "run-orders", [order(100, "12:00")])
    again = run_now(path)
    assert {query.name: query.rows_in for query in again.queries} == {
        "totals": 0,
        "lake": 1,
        "dead-letters-orders": 1,
    }
    written = read_state(notes_directory(pipeline))
    assert written is not None
    assert [query.name for query in written.queries] == list(rows)


def test_the_context_of_a_trace_goes_through_source_sink_and_dead_letters(
    spark: SparkSession, spark_broker: Broker, tmp_path: Path
) -> None:
    tracer = TracerProvider().get_tracer("test")
    topic = spark_broker.create_topic("run-traced")
    for name in ("run-traced-out", "run-traced-dead"):
        spark_broker.create_topic(name)
    traces: dict[bytes, int] = {}
    with Producer(bootstrap_servers=spark_broker.bootstrap_servers) as producer:
        for value in (b'{"n": 1}', b'{"n": 2}', b"{bad"):
            with tracer.start_as_current_span("order") as span:
                traces[value] = span.get_span_context().trace_id
                with send_span(topic, [("kind", b"tea")], tracer) as headers:
                    producer.send(topic, value, headers=headers)
    path = write_pipeline(
        tmp_path,
        spark_broker,
        "run-traced",
        """
        sources:
          numbers:
            topic: run-traced
            decode: { format: json, schema: n BIGINT, keep: [value, headers] }
        sinks:
          copy: { from: numbers, topic: run-traced-out, value: value, headers: headers }
        dead_letters: run-traced-dead
        """,
    )
    run_now(path)
    arrived = received(spark_broker, "run-traced-out")
    letters = received(spark_broker, "run-traced-dead")
    assert (len(arrived), len(letters)) == (2, 1)
    for record in (*arrived, *letters):
        context = get_current_span(context_of(record)).get_span_context()
        assert context.trace_id == traces[record.value or b""]
        assert ("kind", b"tea") in record.headers


def test_a_run_stops_between_batches_when_it_is_asked_to(
    spark: SparkSession, spark_broker: Broker, tmp_path: Path
) -> None:
    topic = spark_broker.create_topic("run-endless")
    send(spark_broker, topic, [{"n": 1}])
    path = write_pipeline(
        tmp_path,
        spark_broker,
        "run-endless",
        """
        sources: { numbers: { topic: run-endless } }
        sinks: { lake: { from: numbers, json: ./lake, trigger: 200 milliseconds } }
        """,
    )
    stop = StopRequest()
    done = threading.Event()
    states: list[RunState] = []

    def watch(state: RunState) -> None:
        if state.queries and state.queries[0].rows_in == 2:
            done.set()
        elif state.queries and state.queries[0].rows_in == 1 and not states:
            states.append(state)
            send(spark_broker, topic, [{"n": 2}])

    ended: list[RunState] = []
    thread = threading.Thread(
        target=lambda: ended.append(run(load(path), on_progress=watch, stop=stop))
    )
    thread.start()
    assert done.wait(scaled(120))
    with pytest.raises(AlreadyRunning, match="pipeline run-endless is already run by process"):
        run_now(path)
    stop.request()
    thread.join(scaled(60))
    [state] = ended
    assert state.phase is RunPhase.STOPPED
    assert [(query.rows_in, query.rows_out, query.active) for query in state.queries] == [
        (2, 2, False)
    ]
    with Admin(bootstrap_servers=spark_broker.bootstrap_servers) as admin:
        offsets = admin.group_offsets("run-endless.lake")
    assert [value.offset for value in offsets.values()] == [2]
    assert run_now(path).queries[0].rows_in == 0


def test_a_run_goes_on_after_its_broker_was_away(
    spark: SparkSession, start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start_broker()
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("outage")
    send(broker, "outage", [{"n": 1}])
    path = write_pipeline(
        tmp_path,
        broker,
        "run-outage",
        """
        sources:
          numbers: { topic: outage, options: { kafka.request.timeout.ms: 1000 } }
        sinks: { lake: { from: numbers, json: ./lake, trigger: 100 milliseconds } }
        """,
    )
    stop = StopRequest()
    steps: list[str] = []

    def watch(state: RunState) -> None:
        [query] = state.queries or [None]
        if query is None:
            return
        if query.rows_in == 1 and not steps:
            steps.append("killed")
            broker.kill()
        elif query.waiting_for is not None and steps == ["killed"]:
            steps.append("restarted")
            broker.restart()
            send(broker, "outage", [{"n": 2}])
        elif query.rows_in == 2:
            stop.request()

    warnings: list[str] = []
    state = run(load(path), on_progress=watch, on_warning=warnings.append, stop=stop)
    assert (state.phase, steps) == (RunPhase.STOPPED, ["killed", "restarted"])
    assert [query.rows_out for query in state.queries] == [2]
    waiting, going_on = [line for line in warnings if "broker" in line]
    assert waiting.endswith("; waiting, and going on when the brokers answer")
    assert "the brokers answer again after" in going_on


def test_a_plan_is_made_without_reading_anything(
    spark: SparkSession, spark_broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "regions.csv").write_text("region,country\n")
    text = ORDERS_PIPELINE.replace("run-", "plan-")
    pipeline = load(write_pipeline(tmp_path, spark_broker, "run-plan", text))
    check_plan(pipeline)
    assert len(list(query_parts(pipeline))) == 3
    assert not (tmp_path / "checkpoints").exists()


def scrape(url: str) -> dict[tuple[str, ...], float]:
    """Samples of a listener for Prometheus by name and labels, read by Prometheus's own parser."""
    with urllib.request.urlopen(url, timeout=scaled(5)) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.timeout(300)
def test_the_command_runs_quietly_and_stops_when_told(spark_broker: Broker, tmp_path: Path) -> None:
    topic = spark_broker.create_topic("run-command")
    send(spark_broker, topic, [{"n": number} for number in range(5)])
    path = write_pipeline(
        tmp_path,
        spark_broker,
        "run-command",
        """
        sources:
          numbers:
            topic: run-command
            decode: { format: json, schema: n BIGINT, on_error: fail }
        sinks:
          lake: { from: numbers, json: ./lake }
        """,
    )

    def headrace(command: str, *more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [headrace_command(), "pipeline", command, str(path), *more],
            capture_output=True,
            text=True,
            timeout=scaled(120),
            check=False,
        )

    began = time.time()
    with subprocess.Popen(
        [
            *(headrace_command(), "pipeline", "run", str(path), "--master", "local[2]"),
            *("--metrics-listen", "127.0.0.1:0", *QUICK_START),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("metrics: ").strip()
        lines = [process.stderr.readline().rstrip() for _ in range(3)]
        scraped = scrape(url)
        status = json.loads(headrace("status", "--json").stdout)
        stopped = headrace("stop", "--timeout", "60")
        out, err = process.communicate(timeout=scaled(60))
    assert lines[:2] == [
        "pipeline run-command: starting Spark",
        "pipeline run-command: running",
    ]
    assert lines[2].startswith("lake: batch 0, 5 rows, ")
    assert (status["phase"], status["pid"]) == ("running", process.pid)
    query = ("run-command", "lake")
    assert scraped["headrace_pipeline_rows_in_total", *query] == 5
    assert scraped["headrace_pipeline_rows_out_total", *query] == 5
    assert scraped["headrace_pipeline_batches_total", *query] == 1
    assert scraped["headrace_pipeline_batch_seconds", *query] > 0
    assert scraped["headrace_pipeline_lag_records", *query] == 0
    assert scraped["headrace_pipeline_active", *query] == 1
    assert scraped["headrace_pipeline_phase", "run-command", "running"] == 1
    # Spark's report is of this run, and of this time zone or another.
    assert began < scraped["headrace_pipeline_last_report_timestamp_seconds", *query] < time.time()
    with pytest.raises(OSError, match="refused"):
        scrape(url)
    assert (stopped.returncode, stopped.stdout) == (0, "stopped pipeline run-command\n")
    assert (process.returncode, out) == (0, "")
    assert [line.split()[:4] for line in err.splitlines()] == [
        ["pipeline", "run-command:", "stopping", "after"],
        ["QUERY", "BATCHES", "ROWS", "IN"],
        ["lake", "1", "5", "5"],
    ]
    assert json.loads(headrace("status", "--json").stdout)["phase"] == "stopped"

    # What needs no Spark to be seen is told at once.
    path.write_text(path.read_text().replace("json: ./lake", "json: ./elsewhere"))
    refused = headrace("run", "--available-now")
    assert refused.returncode == 1
    [line] = refused.stderr.splitlines()
    assert line.startswith("headrace: pipeline run-command, sink lake (")
    assert "(sink was json files in lake and is json files in elsewhere); take the" in line
