"""Pipelines as values, for tests of what runs them."""

from pathlib import Path

from headrace.pipelines.spec.model import (
    DeadLetters,
    Decode,
    DeduplicateStep,
    FileSink,
    FormatSource,
    OnError,
    OutputMode,
    Pipeline,
    PythonStep,
    Sink,
    SourceLocation,
    SqlStep,
    TopicSink,
    TopicSource,
)

JSON = Decode("json", "order_id BIGINT, region STRING", on_error=OnError.DEAD_LETTER)
ORDERS = TopicSource(
    "orders", topics=("orders",), decode=JSON, place=SourceLocation("orders.yaml", 5)
)
REGIONS = FormatSource("regions", "csv", path="regions.csv")
UNIQUE = DeduplicateStep("unique_orders", "orders", ("order_id",))
TOTALS_SQL = "SELECT region, count(*) AS n\nFROM unique_orders GROUP BY region"
TOTALS_STEP = SqlStep("per_region", TOTALS_SQL, place=SourceLocation("orders.yaml", 12))
PLACED = SqlStep("placed", "SELECT *, upper(region) AS r FROM orders")
SESSIONS = PythonStep("sessions", "sessions.py:sessionize", ("orders",))
TOTALS = Sink(
    "totals",
    "per_region",
    TopicSink(topic="totals"),
    mode=OutputMode.UPDATE,
    place=SourceLocation("orders.yaml", 20),
)
LAKE = Sink(
    "lake", "placed", FileSink("parquet", "./lake"), place=SourceLocation("orders.yaml", 21)
)


def orders_pipeline(directory: Path) -> Pipeline:
    """A topic, counted into another one and kept in files."""
    return Pipeline(
        "orders",
        sources=(ORDERS, REGIONS),
        steps=(UNIQUE, TOTALS_STEP, PLACED, SESSIONS),
        sinks=(TOTALS, LAKE),
        broker={"bootstrap.servers": "127.0.0.1:9092"},
        directory=directory,
        checkpoint=str(directory / "checkpoints"),
        dead_letters=DeadLetters("dead"),
        place=SourceLocation("orders.yaml", 1),
    )
