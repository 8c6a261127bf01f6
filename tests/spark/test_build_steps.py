"""Steps on streams: queries, functions and deduplication, with windows, joins and state."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from headrace.pipelines.build.failures import BuildError
from headrace.pipelines.build.frames import own_session, sink_frame
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeduplicateStep,
    FormatSource,
    Pipeline,
    Place,
    PythonStep,
    Sink,
    Source,
    SqlStep,
    Step,
    Watermark,
)

CLICKS = "user STRING, at TIMESTAMP, n INT"


class Streams:
    """Streams of files: each call of `add` is a batch of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = 0

    def add(self, name: str, *rows: dict[str, Any]) -> None:
        directory = self.root / name
        directory.mkdir(exist_ok=True)
        self._files += 1
        text = "\n".join(map(json.dumps, rows))
        (directory / f"{self._files:04}.json").write_text(text)

    def source(self, name: str, schema: str = CLICKS, delay: str | None = "1 minute") -> Source:
        return FormatSource(
            name,
            "json",
            path=name,
            schema=schema,
            options={"maxFilesPerTrigger": "1"},
            watermark=Watermark("at", delay) if delay else None,
            streaming=True,
        )


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    return Streams(tmp_path)


def click(user: str, at: str, n: int = 1) -> dict[str, Any]:
    return {"user": user, "at": f"2026-01-01T{at}Z", "n": n}


def pipeline(streams: Streams, sources: Sequence[Source], *steps: Step) -> Pipeline:
    read = steps[-1].name if steps else sources[0].name
    sink = Sink("out", read, ConsoleSink())
    return Pipeline("clicks", tuple(sources), (sink,), steps, directory=streams.root)


def frame_of(spark: SparkSession, made: Pipeline) -> DataFrame:
    return sink_frame(spark, made, made.sinks[0])


def rows(spark: SparkSession, made: Pipeline) -> list[tuple[Any, ...]]:
    """What the sink is given by a run over all that is there."""
    given: list[Row] = []
    checkpoint = made.directory / "_checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    query = (
        frame_of(spark, made)
        .writeStream.foreachBatch(lambda batch, _: given.extend(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(tuple(row) for row in given)


def test_tumbling_sliding_and_session_windows(spark: SparkSession, streams: Streams) -> None:
    streams.add("clicks", click("a", "10:00:10"), click("a", "10:00:50"), click("b", "10:03:00"))
    streams.add("clicks", click("b", "12:00:00"))
    late = click("a", "10:00:20")
    streams.add("clicks", late)
    source = streams.source("clicks")

    def counts(window: str) -> list[tuple[Any, ...]]:
        sql = f"""
            SELECT date_format(w.start, 'HH:mm:ss') AS start, user, n FROM (
              SELECT {window} AS w, user, count(*) AS n FROM clicks GROUP BY 1, 2)"""
        return rows(spark, pipeline(streams, [source], SqlStep("counts", sql)))

    assert counts("window(at, '1 minute')") == [("10:00:00", "a", 2), ("10:03:00", "b", 1)]
    assert counts("window(at, '1 minute', '30 seconds')") == [
        ("09:59:30", "a", 1),
        ("10:00:00", "a", 2),
        ("10:00:30", "a", 1),
        ("10:02:30", "b", 1),
        ("10:03:00", "b", 1),
    ]
    assert counts("session_window(at, '45 seconds')") == [("10:00:10", "a", 2), ("10:03:00", "b", 1)]


def test_streams_join_streams_and_tables(spark: SparkSession, streams: Streams) -> None:
    streams.add("clicks", click("a", "10:00:00", 1), click("b", "10:00:00", 2))
    streams.add("buys", click("a", "10:00:30", 7), click("b", "10:09:00", 8))
    streams.add("people", {"user": "a", "name": "Ann"})
    people = FormatSource("people", "json", path="people", schema="user STRING, name STRING")
    joined = SqlStep(
        "joined",
        """
        SELECT c.user, c.n AS clicked, b.n AS bought FROM clicks c JOIN buys b
        ON c.user = b.user AND b.at BETWEEN c.at AND c.at + INTERVAL 1 MINUTE""",
    )
    named = SqlStep("named", "SELECT name, clicked, bought FROM Joined JOIN people USING (user)")
    sources = [streams.source("clicks"), streams.source("buys"), people]
    # The step that reads is declared before the one it reads: order is not the user's business.
    made = pipeline(streams, sources, named, joined)
    made = Pipeline(
        made.name, made.sources, (Sink("out", "named", ConsoleSink()),), made.steps, directory=streams.root
    )
    assert rows(spark, made) == [("Ann", 1, 7)]


def test_duplicates_are_dropped_with_and_without_a_watermark(
    spark: SparkSession, streams: Streams
) -> None:
    streams.add("clicks", click("a", "10:00:00"), click("a", "10:00:01"), click("b", "10:00:00"))
    streams.add("clicks", click("a", "10:00:02"), click("c", "10:00:02"))
    step = DeduplicateStep("once", "clicks", ("user",))
    plans = []
    for delay in ("1 minute", None):
        made = pipeline(streams, [streams.source("clicks", delay=delay)], step)
        assert [row[0] for row in rows(spark, made)] == ["a", "b", "c"]
        plans.append(frame_of(spark, made)._jdf.queryExecution().analyzed().toString())
    assert ["DeduplicateWithinWatermark" in plan for plan in plans] == [True, False]
    table = FormatSource("table", "json", path="clicks", schema=CLICKS, watermark=Watermark("at", "1 minute"))
    union = SqlStep("both", "SELECT user FROM once UNION ALL SELECT user FROM clicks")
    made = pipeline(
        streams, [table, streams.source("clicks")], DeduplicateStep("once", "table", ("user",)), union
    )
    # Tables may have duplicates dropped too, and may be mixed with streams.
    assert frame_of(spark, made).isStreaming


STATEFUL = '''
"""Counts of each user, kept between batches."""
import pandas as pd
from pyspark.sql.streaming import StatefulProcessor
from beside import label


class Counter(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key, rows, timers):
        n = sum(len(part) for part in rows) + (self.count.get()[0] if self.count.exists() else 0)
        self.count.update((n,))
        yield pd.DataFrame({"user": [label(key[0])], "n": [n]})

    def close(self):
        pass


def totals(clicks, spark):
    assert spark.range(1).count() == 1
    return clicks.groupBy("user").transformWithStateInPandas(
        Counter(), outputStructType="user STRING, n BIGINT", outputMode="Append", timeMode="None"
    )
'''


def test_functions_keep_state_and_their_files_reach_the_workers(
    spark: SparkSession, streams: Streams
) -> None:
    (streams.root / "totals.py").write_text(STATEFUL)
    (streams.root / "beside.py").write_text("def label(user):\n    return user.upper()\n")
    streams.add("clicks", click("a", "10:00:00"), click("a", "10:00:01"))
    streams.add("clicks", click("a", "10:00:02"), click("b", "10:00:02"))
    step = PythonStep("totals", "totals.py:totals", ("clicks",))
    made = pipeline(streams, [streams.source("clicks", delay=None)], step)
    assert rows(spark, made) == [("A", 2), ("A", 3), ("B", 1)]
