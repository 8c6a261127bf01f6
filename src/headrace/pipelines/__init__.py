"""Data pipelines on Spark: the `headrace` data source, and pipelines declared in a file."""
