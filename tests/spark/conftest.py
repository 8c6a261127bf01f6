"""One Spark session for all tests of a process: starting one takes ten seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.pipelines.session import session
from headrace.testing import Broker
from tests.spark.processes import QUICK_JAVA


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, made by `headrace.pipelines.session`."""
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    made = session("tests", master="local[2]", config=QUICK_JAVA | warehouse)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def spark_broker() -> Iterator[Broker]:
    """A broker for all tests; a test that stops or breaks a broker takes its own."""
    with Broker() as broker:
        yield broker
