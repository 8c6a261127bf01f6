"""The data source as Spark finds it: `spark.read.format("headrace")` imports this by its name."""

from headrace.pipelines.datasource.default_source import DefaultSource

__all__ = ["DefaultSource"]
