"""Targets of pipelines with real Spark: each batch once, whoever runs it again and why."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as arrow_dataset
import pyarrow.orc as arrow_orc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from headrace.pipelines import sinks
from headrace.pipelines.sinks.target import SinkFailed
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeltaSink,
    FileSink,
    IcebergSink,
    OutputMode,
    Pipeline,
    PostgresSink,
    Sink,
    SourceLocation,
    SpecError,
    Target,
    Trigger,
)
from tests.integration.client.postgres import postgres_server

SCHEMA = "id BIGINT, region STRING, at TIMESTAMP, tags ARRAY<STRING>"
PIPELINE = Pipeline("orders", sources=(), sinks=())
NOW = Trigger(available_now=True)
PLACE = SourceLocation("orders.yaml", 12)

Row = dict[str, Any]


@dataclass
class Query:
    """A query from JSON files into a target, run to the end of its input each time."""

    spark: SparkSession
    directory: Path
    target: Target
    mode: OutputMode = OutputMode.APPEND
    name: str = "out"
    transform: Callable[[DataFrame], DataFrame] = lambda frame: frame

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def feed(self, rows: list[Row]) -> None:
        """One more file, which is one more batch."""
        folder = self.directory / "in"
        folder.mkdir(exist_ok=True)
        number = len(list(folder.iterdir()))
        file = folder / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark reads files in the order of their times.
        os.utime(file, (number, number))

    def run(self) -> None:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        frame = self.transform(reader.json(str(self.directory / "in")))
        pipeline = replace(PIPELINE, directory=self.directory)
        sink = Sink(self.name, "rows", self.target, self.mode, place=PLACE)
        writer = sinks.writer(
            self.spark, pipeline, sink, frame, checkpoint=str(self.checkpoint), trigger=NOW
        )
        writer.start().awaitTermination()

    def forget_last_commit(self) -> None:
        """As a driver leaves it that dies when the target has the batch and Spark does not know."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / f"{last}").unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def reset(self) -> None:
        self.checkpoint.rename(self.directory / "old-checkpoint")


def rows(start: int, stop: int) -> list[Row]:
    return [
        {
            "id": number,
            "region": ("north", "south")[number % 2],
            "at": f"2026-01-01T00:00:{number % 60:02}.5Z",
            "tags": ["a", f"{number}"],
        }
        for number in range(start, stop)
    ]


def ids(found: list[Row]) -> list[int]:
    return sorted(row["id"] for row in found)


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def iceberg(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "warehouse").mkdir()
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    return {"type": "sql", "uri": catalog, "warehouse": f"file://{tmp_path}/warehouse"}


def read_files(directory: Path, format: str = "parquet") -> list[Row]:
    """As anybody does who knows nothing of Spark or of us."""
    if format == "orc":
        files = directory.glob("*.orc")
        return [row for file in files for row in arrow_orc.read_table(file).to_pylist()]
    found = arrow_dataset.dataset(directory, format=format, partitioning="hive")
    return list(found.to_table().to_pylist())


def query_postgres(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


@dataclass
class Case:
    """A target and how to read what it has."""

    target: Target
    read: Callable[[], list[Row]]


@pytest.fixture(params=["parquet", "delta", "iceberg", "postgresql"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    match request.param:
        case "parquet":
            sink = FileSink("parquet", "lake", partition_by=("region",))
            return Case(sink, lambda: read_files(tmp_path / "lake"))
        case "delta":
            table = tmp_path / "table"
            return Case(
                DeltaSink("table", partition_by=("region",)),
                lambda: list(DeltaTable(table).to_pyarrow_table().to_pylist()),
            )
        case "iceberg":
            catalog = request.getfixturevalue("iceberg")

            def scan() -> list[Row]:
                table = load_catalog("default", **catalog).load_table("shop.orders")
                return list(table.scan().to_arrow().to_pylist())

            return Case(IcebergSink("shop.orders", catalog), scan)
        case _:
            dsn = request.getfixturevalue("dsn")
            names = ("id", "region", "at", "tags")

            def select() -> list[Row]:
                found = query_postgres(dsn, f"SELECT {', '.join(names)} FROM added")
                return [dict(zip(names, row, strict=True)) for row in found]

            return Case(PostgresSink(dsn, "added"), select)


def deduplicated(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["id"])


def test_a_batch_that_spark_runs_again_is_not_there_twice(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    # With state, which a batch must bring forward even when nobody needs its rows.
    query = Query(spark, tmp_path, case.target, transform=deduplicated)
    query.feed(rows(0, 10))
    query.feed(rows(5, 20))
    query.run()
    query.forget_last_commit()
    query.feed(rows(0, 30))
    query.run()
    found = case.read()
    assert ids(found) == list(range(30))
    [row] = [row for row in found if row["id"] == 7]
    assert (row["region"], row["tags"]) == ("south", ["a", "7"])
    assert row["at"].isoformat().startswith("2026-01-01T00:00:07.5")
    # Numbers start from 0 again, and must not be taken for those of before.
    query.reset()
    query.run()
    assert ids(case.read()) == sorted([*range(30), *range(30)])


def test_a_driver_that_dies_while_files_are_moved(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(spark, tmp_path, FileSink("parquet", "lake", partition_by=("region",)))
    query.feed(rows(0, 10))
    rename = os.rename
    # At the decision; then at the first file, at the second one, at the last step.
    for survived in (0, 1, 1, 1):
        steps = iter(range(survived))

        def dying(source: Any, target: Any, steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise OSError("killed")
            rename(source, target)

        monkeypatch.setattr(os, "rename", dying)
        with pytest.raises(StreamingQueryException, match="killed"):
            query.run()
    monkeypatch.undo()
    query.run()
    assert ids(read_files(tmp_path / "lake")) == list(range(10))
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 10


@pytest.mark.parametrize("format", ["json", "csv", "orc"])
def test_other_formats_and_batches_without_rows(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    lake = tmp_path / "the lake"
    query = Query(
        spark,
        tmp_path,
        FileSink(format, "the lake"),
        transform=lambda frame: frame.select("id").where("id < 5"),
    )
    query.feed(rows(0, 10))
    query.feed(rows(10, 20))
    query.run()
    assert len(list(lake.glob(f"batch-000000-*.{format}"))) == 1
    assert list(lake.glob("batch-000001-*")) == []
    found = spark.read.schema("id BIGINT").format(format).load(str(lake)).collect()
    assert sorted(row.id for row in found) == list(range(5))


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("region").count()


def test_rows_of_a_database_are_replaced_by_their_keys(
    spark: SparkSession, tmp_path: Path, dsn: str
) -> None:
    sink = PostgresSink(dsn, "totals", ("region",))
    query = Query(spark, tmp_path, sink, OutputMode.UPDATE, "totals", counted)
    query.feed(rows(0, 10))
    query.feed(rows(0, 4))
    query.run()
    query.forget_last_commit()
    query.feed([])
    query.feed(rows(1, 2))
    query.run()
    found = query_postgres(dsn, 'SELECT region, "count" FROM totals ORDER BY region')
    assert found == [("north", 7), ("south", 8)]
    kept = query_postgres(dsn, "SELECT batch FROM headrace_batches WHERE sink = 'totals'")
    assert kept == [(3,)]


def test_the_last_of_equal_keys_counts(spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    sink = PostgresSink(dsn, "latest", ("region",))
    query = Query(spark, tmp_path, sink, transform=lambda frame: frame.select("region", "id"))
    query.feed(rows(0, 10))
    query.run()
    found = query_postgres(dsn, "SELECT region, id FROM latest ORDER BY region")
    assert found == [("north", 8), ("south", 9)]


def test_a_table_has_types_for_all_columns(spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    columns = (
        "id",
        "CAST(1.50 AS DECIMAL(9, 2)) AS price",
        "CAST('b' AS BINARY) AS raw",
        "CAST(at AS DATE) AS day",
        "CAST('2026-07-01 12:00:00' AS TIMESTAMP_NTZ) AS wall",
        "at",
        "id = 1 AS is_one",
        "named_struct('r', region) AS nested",
        "CAST(NULL AS INT) AS nothing",
        "concat('tab\t', 'line\n', 'back\\\\') AS `odd \"text\"`",
    )
    query = Query(
        spark,
        tmp_path,
        PostgresSink(dsn, "typed", ("id",)),
        transform=lambda frame: frame.selectExpr(*columns),
    )
    query.feed(rows(1, 2))
    query.run()
    [row] = query_postgres(dsn, "SELECT * FROM typed")
    assert row == (
        1,
        Decimal("1.50"),
        b"b",
        date(2026, 1, 1),
        datetime(2026, 7, 1, 12),
        datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        True,
        {"r": "south"},
        None,
        "tab\tline\nback\\",
    )
    query.feed([{"id": 2, "region": "a\0b"}])
    said = failure(query)
    assert "NUL" in said or "\\u0000" in said


def test_the_terminal_shows_the_first_rows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(spark, tmp_path, ConsoleSink(rows=3), OutputMode.UPDATE, transform=counted)
    query.feed([{"region": f"r{number}"} for number in range(10)])
    query.feed([])
    query.run()
    text = capsys.readouterr().out
    assert "out, batch 0: 10 rows; the first 3 are shown" in text
    assert text.count("│ r") == 3
    assert "batch 1" not in text


def failure(query: Query) -> str:
    """The one line that a user sees of it, which Spark wraps if the query had started."""
    with pytest.raises((SinkFailed, SpecError, StreamingQueryException)) as caught:
        query.run()
    lines = str(caught.value).splitlines()
    if isinstance(caught.value, StreamingQueryException):
        marked = "headrace.pipelines.sinks.target.SinkFailed: "
        lines = [line.removeprefix(marked) for line in lines if line.startswith(marked)]
    [line] = lines
    return line


def test_tables_that_do_not_fit_the_rows(
    spark: SparkSession, tmp_path: Path, dsn: str, iceberg: dict[str, str]
) -> None:
    targets: list[Target] = [DeltaSink("table"), IcebergSink("shop.t", iceberg)]
    targets.append(PostgresSink(dsn, "narrow"))
    for number, target in enumerate(targets):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        query = Query(spark, directory, target, transform=lambda frame: frame.select("id"))
        query.feed(rows(0, 3))
        query.run()
        query.reset()
        query.transform = lambda frame: frame.select("id", "region")
        said = failure(query)
        assert said.startswith("pipeline orders, sink out: ") and ";" in said
        assert "has no column region, only id; add it to the table" in said
        query.transform = lambda frame: frame.selectExpr("concat('n', id) AS id")
        said = failure(query)
        assert "cast " in said and "id" in said


def test_targets_that_are_not_there(
    spark: SparkSession, tmp_path: Path, dsn: str, iceberg: dict[str, str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    nobody = PostgresSink("host=127.0.0.1 port=1 dbname=x", "t")
    lost = iceberg | {"uri": f"sqlite:///{tmp_path}/no/where.db"}
    cases: list[tuple[Target, str]] = [
        (FileSink("parquet", "file/lake"), "not a directory; a file is in the way"),
        (FileSink("orc", "s3a://b/lake"), "no file system for s3a://b/lake: java.lang.Runtime"),
        (DeltaSink("s3a://b/table"), "; add the connector of that store to spark.jars.packages"),
        (FileSink("csv", "lake"), "Spark cannot write this; "),
        (FileSink("csv", "lake", ("city",)), "orders.yaml:12: sink out: partition_by: there is no"),
        (nobody, "PostgreSQL does not let us in: "),
        (PostgresSink(dsn, "missing", create=False), 'relation "missing" does not exist; create'),
        (PostgresSink(dsn, "t", ("city",)), "orders.yaml:12: sink out: keys: there is no column"),
        (IcebergSink("shop.t", lost), "unable to open database file; check its properties"),
        (IcebergSink("t", iceberg), "Iceberg table t: "),
        (DeltaSink("file/table"), "file/table: not a directory; a file is in the way"),
    ]
    query = Query(spark, tmp_path, nobody)
    query.feed(rows(0, 3))
    for query.target, said in cases:
        line = failure(query)
        assert said in line
        assert line.startswith(("pipeline orders, sink out: ", "orders.yaml:12: sink out: "))


@pytest.mark.parametrize(
    ("module", "target", "extra"),
    [
        ("deltalake", DeltaSink("t"), "delta"),
        ("pyiceberg.catalog", IcebergSink("a.t"), "iceberg"),
        ("psycopg", PostgresSink("", "t"), "postgresql"),
    ],
)
def test_libraries_that_are_not_installed(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    target: Target,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    query = Query(spark, tmp_path, target)
    query.feed(rows(0, 1))
    said = f"is not installed; pip install 'headrace[{extra}]'"
    assert failure(query).endswith(f"{module.partition('.')[0]} {said}")
