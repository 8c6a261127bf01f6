"""What targets decide without Spark, a server or a table."""

import doctest
import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from rich.console import Console

from headrace.pipelines.locations import resolve
from headrace.pipelines.sinks import delta, lake_files
from headrace.pipelines.sinks.console import heading, table
from headrace.pipelines.sinks.files import has_rows
from headrace.pipelines.sinks.target import (
    MicroBatch,
    SinkFailed,
    TargetError,
    library,
    named,
    one_line,
)
from headrace.pipelines.sinks.topic import options
from headrace.pipelines.spec.model import SourceLocation, SpecError, TopicSink

PLACE = SourceLocation("orders.yaml", 7)


@pytest.mark.parametrize("module", [delta, lake_files])
def test_examples_in_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_importing_the_sinks_needs_no_optional_library() -> None:
    modules = "pyspark pyarrow deltalake pyiceberg psycopg"
    code = (
        "import sys, headrace.pipelines.sinks\n"
        f"found = [name for name in {modules.split()} if name in sys.modules]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_what_it_exports_is_an_attribute() -> None:
    import headrace.pipelines.sinks as package

    assert callable(package.writer) and callable(package.dead_letters_writer)
    with pytest.raises(AttributeError, match="no attribute 'stop'"):
        _ = package.stop


def test_paths_start_from_the_pipeline() -> None:
    here = Path("/pipelines")
    assert resolve(here, "lake") == "/pipelines/lake"
    assert resolve(here, "/lake") == "/lake"
    assert resolve(here, "s3a://bucket/lake") == "s3a://bucket/lake"
    assert resolve(here, "file:/lake") == "file:/lake"


def test_options_of_a_topic() -> None:
    broker = {"kafka.bootstrap.servers": "a:1", "kafka.linger.ms": "1"}
    sink = TopicSink("orders", options={"kafka.linger.ms": "50"})
    assert options(sink, broker) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.linger.ms": "50",
        "topic": "orders",
    }
    assert "topic" not in options(TopicSink(topic_expression="region"), broker)


@pytest.mark.parametrize(
    ("name", "data", "is_headed", "wanted"),
    [
        ("a.csv", b"id\n", True, False),
        ("a.csv", b"id\n7\n", True, True),
        ("a.csv", b"7\n", False, True),
        ("a.json", b"", False, False),
        ("a.json.gz", gzip.compress(b"", mtime=0), False, False),
        ("a.json.gz", gzip.compress(b"{}\n", mtime=0), False, True),
    ],
)
def test_files_of_text_without_rows(
    tmp_path: Path, name: str, data: bytes, is_headed: bool, wanted: bool
) -> None:
    (tmp_path / name).write_bytes(data)
    assert has_rows(tmp_path / name, "csv", is_headed=is_headed) is wanted


ROWS = pa.schema({"id": pa.int16(), "tags": pa.list_(pa.string())})


def test_schemas_that_fit() -> None:
    large = pa.schema(
        [("id", pa.int32()), ("tags", pa.large_list(pa.large_string())), ("more", pa.date32())]
    )
    lake_files.check_fit("t", large, ROWS, smallest_int=32)


@pytest.mark.parametrize(
    ("has", "said"),
    [
        (pa.schema({"id": pa.int16()}), "t has no column tags, only id; add it"),
        (
            pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string())}),
            "column id of t is int64, and that of the rows is int16; cast it",
        ),
        (
            pa.schema([*ROWS, pa.field("day", pa.date32(), nullable=False)]),
            "t needs a column day, which the rows have not; add it",
        ),
    ],
)
def test_schemas_that_do_not_fit(has: pa.Schema, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        lake_files.check_fit("t", has, ROWS)


def test_types_have_names_by_what_they_hold() -> None:
    kind = pa.map_(pa.string(), pa.struct({"at": pa.timestamp("us", tz="+00:00")}))
    assert lake_files.type_name(kind) == "map<string, struct<at: timestamp[us, tz=UTC]>>"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (TargetError("no table; make one"), "no table; make one"),
        (
            PermissionError(13, "Permission denied", "/lake"),
            "/lake: permission denied; let the user who runs Spark write there",
        ),
        (OSError("odd\nerror"), "odd error"),
        (
            AnalysisException("[X] no map in csv. SQLSTATE: 1"),
            "Spark cannot write this; [X] no map",
        ),
        (
            AnalysisException("x" * 1000),
            "x...",
        ),
    ],
)
def test_errors_of_a_target_name_pipeline_and_sink(raised: Exception, said: str) -> None:
    with pytest.raises(SinkFailed) as caught, named("orders", "lake"):
        raise raised
    assert str(caught.value).startswith("pipeline orders, sink lake: ")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_errors_of_others_go_through() -> None:
    with pytest.raises(SpecError), named("orders", "lake"):
        raise SpecError(PLACE, "not a matter of the target")


def test_a_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(TargetError, match=r"nowhere is not installed; pip install 'headrace\[x\]'"):
        library("nowhere.module", extra="x")


def test_long_texts_are_cut() -> None:
    assert one_line("a\n  b") == "a b"
    assert len(one_line("a" * 9999)) == 400


def test_a_writer_is_another_one_after_a_reset() -> None:
    one, two = (MicroBatch("p", "s", query, 0).writer for query in ("q1", "q2"))
    assert one == "headrace:p.s:q1" != two


def test_the_terminal_is_told_what_it_is_not_shown() -> None:
    assert heading("totals", 3, 1234, 2) == "totals, batch 3: 1,234 rows; the first 2 are shown"
    assert heading("totals", 3, 1, 1) == "totals, batch 3: 1 row"


def test_no_value_is_markup_or_moves_the_cursor() -> None:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(table(["a", "[b]"], [(1, None), (b"\xff2", "[red]x\x1b[2J")]))
    text = capture.get()
    assert "[b]" in text and "null" in text and "[red]x" in text
    assert "\x1b" not in text
