"""The Spark data source `headrace`: topics as DataFrames, without a jar."""

from headrace.pipelines.source.datasource import DefaultSource

__all__ = ["DefaultSource"]
