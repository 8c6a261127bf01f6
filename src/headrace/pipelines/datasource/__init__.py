"""The Spark data source `headrace`: topics as DataFrames, without a jar.

Nothing is imported here: options are checked where there is no Spark.
"""
