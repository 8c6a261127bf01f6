"""A driver at brokers with TLS and logins, which keeps all that Spark shows of it.

Arguments: a directory, and the properties of a client as JSON, whose references to secrets are for
this process and its workers. Standard input has a private key and a wrong password, which are given
to Spark as they are. It reads, writes and runs a pipeline, and leaves in the directory checkpoints,
the event log, Spark's log, pages of the UI, plans, errors. Prints counts of records as JSON.
"""

import contextlib
import io
import json
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.pipelines import session
from headrace.pipelines.run.runner import check_plan, run
from headrace.pipelines.spec import load
from headrace.testing.time_limits import scaled
from tests.spark.processes import JAVA_OPTIONS

LOG = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""
PIPELINE = """
pipeline: secured
broker: {broker}
checkpoint: ./pipeline
trigger: available-now
sources:
  orders: {{ topic: orders, starting: earliest }}
sinks:
  copy: {{ from: orders, topic: copied }}
  files: {{ from: orders, parquet: ./files }}
"""
PAGES = ("jobs", "stages", "environment", "sql?details=true&planDescription=true", "allexecutors")


def main(directory: Path, client: dict[str, str]) -> None:
    literal, wrong = json.load(sys.stdin)
    spark = _session(directory)
    options = {f"kafka.{name}": text for name, text in client.items()}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        counts = _work(spark, directory, options | literal)
        _fail(spark, options | wrong)
    path = directory / "pipeline.yaml"
    path.write_text(PIPELINE.format(broker=json.dumps(client)))
    pipeline = load(path)
    check_plan(pipeline)
    state = run(pipeline, available_now=True)
    counts |= {query.name: query.rows_in for query in state.queries}
    (directory / "shown.txt").write_text(f"{shown.getvalue()}\n{pipeline!r}\n{state!r}")
    _keep_pages(spark, directory)
    spark.stop()
    print(json.dumps(counts))


def _session(directory: Path) -> SparkSession:
    (directory / "events").mkdir()
    log = directory / "log4j2.properties"
    log.write_text(LOG.format(file=directory / "spark.log"))
    return session(
        "secured",
        master="local[2]",
        config={
            "spark.driver.extraJavaOptions": " ".join(
                (*JAVA_OPTIONS, f"-Dlog4j2.configurationFile={log}")
            ),
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (directory / "events").as_uri(),
            # Logical plans are where Spark shows the options of a query.
            "spark.sql.ui.explainMode": "extended",
            "spark.sql.planChangeLog.level": "INFO",
            "spark.log.level": "INFO",
        },
    )


def _work(spark: SparkSession, directory: Path, options: dict[str, str]) -> dict[str, Any]:
    """A batch read, a batch write and a stream that writes exactly once."""
    orders = spark.read.format("headrace").options(**options, subscribe="orders").load()
    orders.explain("extended")
    count = orders.count()
    rows = orders.selectExpr("value")
    rows.write.format("headrace").mode("append").options(**options, topic="written").save()
    stream = spark.readStream.format("headrace").options(**options, subscribe="orders")
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .selectExpr("value")
        .writeStream.format("headrace")
        .options(**options, topic="streamed")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    print(query.recentProgress)
    return {"batch": count, "written": _count(spark, options, "written")} | {
        "streamed": _count(spark, options, "streamed")
    }


def _count(spark: SparkSession, options: dict[str, str], topic: str) -> int:
    frame: DataFrame = spark.read.format("headrace").options(**options, subscribe=topic).load()
    return frame.count()


def _fail(spark: SparkSession, options: dict[str, str]) -> None:
    """A read that the brokers refuse, with all that Python says of it."""
    try:
        _count(spark, options, "orders")
    except PySparkException:
        print(traceback.format_exc())


def _keep_pages(spark: SparkSession, directory: Path) -> None:
    address, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    for number, page in enumerate(PAGES):
        url = f"{address}/api/v1/applications/{application}/{page}"
        with urllib.request.urlopen(url, timeout=scaled(10)) as answer:
            (directory / f"page-{number}.json").write_bytes(answer.read())
    for page in ("SQL", "StreamingQuery", "environment"):
        with urllib.request.urlopen(f"{address}/{page}/", timeout=scaled(10)) as answer:
            (directory / f"{page}.html").write_bytes(answer.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
