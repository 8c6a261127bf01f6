"""Sinks of a pipeline: each batch is written once, however often it is run.

Its functions are imported on first use: they need Spark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.pipelines.sinks.sink_queries import check, dead_letters_writer, writer

__all__ = ["check", "dead_letters_writer", "writer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.pipelines.sinks import sink_queries as starting  # noqa: PLC0415 - it needs Spark

    return getattr(starting, name)
