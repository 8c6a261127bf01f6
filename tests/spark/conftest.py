"""One Spark session for all tests that need Spark: starting one takes ten seconds."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.pipelines.session import session
from headrace.testing import Broker


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, as `headrace.pipelines.session` makes it."""
    made = session("tests", master="local[2]")
    yield made
    if "HEADRACE_SPARKD" not in os.environ:
        made.stop()


@pytest.fixture(scope="session")
def spark_broker() -> Iterator[Broker]:
    """A broker for all of them; a test that stops or breaks one takes its own."""
    with Broker() as broker:
        yield broker
