"""Where Spark finds the data source: `spark.read.format("headrace")` imports this by its name."""

from headrace.pipelines.source import DefaultSource

__all__ = ["DefaultSource"]
