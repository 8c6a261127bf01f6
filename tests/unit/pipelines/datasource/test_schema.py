"""The columns of a topic are those of Spark's Kafka source, in Spark's words and in Arrow's."""

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.pipelines.datasource.record_columns import COLUMNS, arrow_schema, spark_schema


@pytest.mark.parametrize("columns", [COLUMNS, ("value",), ("headers", "offset", "timestamp")])
def test_arrow_and_spark_agree_to_the_letter(columns: tuple[str, ...]) -> None:
    expected = to_arrow_schema(spark_schema(columns), timezone="UTC")
    assert arrow_schema(columns).equals(expected, check_metadata=True)
    assert arrow_schema(columns).names == list(columns)
