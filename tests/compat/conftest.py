"""One Spark session for all compat tests: jars are only loaded when Java starts."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.pipelines.session import session
from tests.spark.processes import QUICK_JAVA
from tools.kafka_connector import ConnectorMissing, connector_jars


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with headrace's data source and Spark's own connector."""
    try:
        jars = connector_jars()
    except ConnectorMissing as error:
        pytest.skip(str(error))
    config = {"spark.jars": ",".join(str(jar) for jar in jars)}
    made = session("compat", master="local[2]", config=QUICK_JAVA | config)
    yield made
    made.stop()
