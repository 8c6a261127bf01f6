"""Steps on streams: queries, functions and deduplication, with windows, joins and state."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from headrace.pipelines.frames.dataframes import sink_frame
from headrace.pipelines.spec.model import (
    BuildError,
    ConsoleSink,
    DeduplicateStep,
    FormatSource,
    Pipeline,
    PythonStep,
    Sink,
    Source,
    SourceLocation,
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
    return Pipeline("clicks", tuple(sources), (sink,), steps, directory=streams.root, parallelism=1)


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
    windows = {
        "tumbling": "window(at, '1 minute')",
        "sliding": "window(at, '1 minute', '30 seconds')",
        "session": "session_window(at, '45 seconds')",
    }
    counts = [
        SqlStep(kind, f"SELECT {window} AS w, user, count(*) AS n FROM clicks GROUP BY 1, 2")
        for kind, window in windows.items()
    ]
    each = [
        f"SELECT '{kind}', date_format(w.start, 'HH:mm:ss'), user, n FROM {kind}"
        for kind in windows
    ]
    all_of_them = SqlStep("counts", "\nUNION ALL\n".join(each))
    assert rows(spark, pipeline(streams, [streams.source("clicks")], *counts, all_of_them)) == [
        ("session", "10:00:10", "a", 2),
        ("session", "10:03:00", "b", 1),
        ("sliding", "09:59:30", "a", 1),
        ("sliding", "10:00:00", "a", 2),
        ("sliding", "10:00:30", "a", 1),
        ("sliding", "10:02:30", "b", 1),
        ("sliding", "10:03:00", "b", 1),
        ("tumbling", "10:00:00", "a", 2),
        ("tumbling", "10:03:00", "b", 1),
    ]


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
    assert rows(spark, pipeline(streams, sources, joined, named)) == [("Ann", 1, 7)]


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
    table = FormatSource(
        "table", "json", path="clicks", schema=CLICKS, watermark=Watermark("at", "1 minute")
    )
    union = SqlStep("both", "SELECT user FROM once UNION ALL SELECT user FROM clicks")
    made = pipeline(
        streams,
        [table, streams.source("clicks")],
        DeduplicateStep("once", "table", ("user",)),
        union,
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


RATE = FormatSource("ticks", "rate", streaming=True)
PLACE = SourceLocation("ticks.yaml", 7)


def refusal(spark: SparkSession, step: Step, directory: Path = Path()) -> str:
    sink = Sink("out", step.name, ConsoleSink())
    made = Pipeline("ticks", (RATE,), (sink,), (step,), directory=directory)
    with pytest.raises(BuildError) as caught:
        sink_frame(spark, made, sink)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT 1\nFROM tick", "9: step s: there is no table tick; did you mean ticks?"),
        (
            "SELECT valeu FROM ticks",
            "8: step s: a column, variable, or function parameter with name `valeu` cannot be"
            " resolved. Did you mean one of the following? [`value`, `timestamp`]; correct",
        ),
        (
            "\n\nSELEC 1",
            "10: step s: syntax error at or near 'SELEC'; a step is one query, SELECT ... or"
            " WITH ... SELECT ...",
        ),
        ("DROP TABLE ticks", "8: step s: syntax error at or near 'DROP'; a step is one query"),
        (
            "SELECT 1; SELECT 2",
            "8: step s: syntax error at or near ';'; a step is one query",
        ),
    ],
)
def test_a_query_that_is_wrong_is_told_with_its_line(
    spark: SparkSession, sql: str, text: str
) -> None:
    step = SqlStep("s", sql, place=PLACE, sql_place=SourceLocation("ticks.yaml", 8))
    assert refusal(spark, step).startswith(f"ticks.yaml:{text}")


def test_watermarks_and_keys_that_are_wrong_are_told(spark: SparkSession) -> None:
    def watermark(column: str, delay: str) -> str:
        return refusal(
            spark, SqlStep("s", "TABLE ticks", watermark=Watermark(column, delay), place=PLACE)
        )

    assert watermark("at", "1 minute").startswith("ticks.yaml:7: step s: a column")
    assert "step s: the event time `value` has the invalid type" in watermark("value", "1 minute")
    assert "soon" in watermark("timestamp", "soon")
    duplicates = DeduplicateStep("s", "ticks", ("id",), place=PLACE)
    assert refusal(spark, duplicates).startswith("ticks.yaml:7: step s: cannot resolve column name")


def raises(ticks: DataFrame) -> DataFrame:
    raise LookupError("no\nluck")


def misnames(ticks: DataFrame) -> DataFrame:
    return ticks.select("valeu")


def forgets(ticks: DataFrame) -> None:
    ticks.select("value")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (raises, "raises failed at test_frames_steps.py:{line}: LookupError: no luck"),
        (misnames, "misnames failed at test_frames_steps.py:{line}: a column"),
        (forgets, "forgets returned nothing and not a DataFrame; return the frame it makes"),
        ("broken.py:step", "{directory}/broken.py:2: cannot be imported: ZeroDivisionError"),
        ("syntax.py:step", "{directory}/syntax.py:1: not valid Python"),
        ("none.py:step", "{directory}/none.py: no such file; correct `python` of the step"),
        ("fine.py:stop", "fine.py:stop: there is no function 'stop' in fine.py"),
        ("no_such_package.x:step", "no_such_package.x:step: No module named 'no_such_package'"),
    ],
)
def test_a_function_that_is_wrong_is_told_with_its_line(
    spark: SparkSession, tmp_path: Path, function: str | Callable[..., Any], text: str
) -> None:
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    (tmp_path / "syntax.py").write_text("def step(:\n")
    (tmp_path / "fine.py").write_text("def step(ticks):\n    return ticks\n")
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 0) + 1
    expected = text.format(line=line, directory=tmp_path)
    step = PythonStep("s", function, ("ticks",), place=PLACE)
    assert refusal(spark, step, tmp_path).startswith(f"ticks.yaml:7: step s: {expected}")


def test_a_sink_of_tables_only_is_refused(spark: SparkSession, streams: Streams) -> None:
    streams.add("people", {"user": "a"})
    people = FormatSource("people", "json", path="people", schema="user STRING")
    with pytest.raises(BuildError, match="sink out: all it reads are tables; set streaming: true"):
        frame_of(spark, pipeline(streams, [people]))


def test_a_source_spark_cannot_read_is_told(spark: SparkSession, streams: Streams) -> None:
    def text(source: Source) -> str:
        with pytest.raises(BuildError) as caught:
            frame_of(spark, pipeline(streams, [source]))
        return str(caught.value)

    nowhere = FormatSource("s", "json", path="nowhere", schema="a INT", place=PLACE)
    assert text(nowhere).startswith("ticks.yaml:7: source s: path does not exist: file:")
    unknown = FormatSource("s", "no.such.format", place=PLACE)
    assert text(unknown).startswith(
        "ticks.yaml:7: source s: failed to find the data source: no.such"
    )
    streams.add("files", {"a": 1})
    untyped = FormatSource("s", "json", path="files", streaming=True, place=PLACE)
    assert "schema" in text(untyped).lower()


def test_names_and_settings_of_a_pipeline_stay_its_own(
    spark: SparkSession, streams: Streams
) -> None:
    streams.add("clicks", click("a", "10:00:00"))
    spark.range(3).createOrReplaceTempView("clicks")
    try:
        spark.conf.set("spark.sql.caseSensitive", "false")
        made = pipeline(
            streams, [streams.source("clicks")], SqlStep("users", "SELECT user FROM clicks")
        )
        made = replace(made, spark={"spark.sql.session.timeZone": "Asia/Tokyo"})
        frame = frame_of(spark, made)
        assert frame.columns == ["user"]
        assert spark.table("clicks").columns == ["id"]
        assert not spark.catalog.tableExists("users")
        own = frame.sparkSession
        assert own.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert own.conf.get("spark.sql.caseSensitive") == "false"
        assert own.conf.get("spark.sql.shuffle.partitions") == "1"
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    finally:
        spark.catalog.dropTempView("clicks")
        spark.conf.unset("spark.sql.caseSensitive")
