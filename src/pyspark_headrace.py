"""Where Spark finds the data source: `spark.read.format("headrace")` imports this by its name."""

from headrace.pipelines.source.datasource import DefaultSource

__all__ = ["DefaultSource"]
