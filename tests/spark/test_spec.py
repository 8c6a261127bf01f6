"""What is said of pipelines without Spark, compared with what Spark says."""

import re

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.pipelines.spec.checks import ddl_columns
from headrace.pipelines.spec.dependencies import tables_read
from tests.unit.pipelines.spec.queries import QUERIES
from tests.unit.pipelines.spec.schemas import SCHEMAS


def test_tables_of_queries_are_those_of_sparks_parser(spark: SparkSession) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()
    differing = {}
    for sql, _ in QUERIES:
        plan = parser.parsePlan(sql).toString()
        names = re.findall(r"UnresolvedRelation \[([^\],]+)\]", plan)
        # A name given by WITH is one of these too, until Spark has looked for it.
        given = re.findall(r"(\w+)(?:\([^)]*\))? AS \(", sql)
        found, expected = ({name.lower() for name in some} for some in (tables_read(sql), names))
        if found not in (expected, expected - {name.lower() for name in given}):
            differing[sql] = (found, expected)
    assert differing == {}


@pytest.mark.usefixtures("spark")
def test_columns_of_schemas_are_those_of_spark() -> None:
    for schema, columns in SCHEMAS:
        parsed = StructType.fromDDL(schema)
        assert isinstance(parsed, StructType)
        assert parsed.names == columns == list(ddl_columns(schema))
