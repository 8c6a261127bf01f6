"""A step in Python: a function from DataFrames to a DataFrame."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def without_robots(clicks: DataFrame) -> DataFrame:
    """The clicks of people, with the page each was on."""
    return (
        clicks.where(~f.lower("agent").rlike("bot|crawler|spider"))
        .withColumn("page", f.parse_url("url", f.lit("PATH")))
        .select("visitor", "page", "at")
    )
