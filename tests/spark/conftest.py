"""One Spark session for all tests of a process: starting one takes ten seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.pipelines.session import session
from headrace.testing import Broker
from tests.spark.processes import QUICK_JAVA


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, as `headrace.pipelines.session` makes it."""
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    made = session("tests", master="local[2]", config=QUICK_JAVA | warehouse)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def spark_broker() -> Iterator[Broker]:
    """A broker for all of them; a test that stops or breaks one takes its own."""
    with Broker() as broker:
        yield broker
