"""Brokers that tests of transactions share."""

from collections.abc import Iterator

import pytest

from tests.support import BrokerProcess

# The smallest possible: the first request for a coordinator creates the topic.
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all these tests, each with topics and transactional ids of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker


@pytest.fixture(params=[False, True], ids=["version 2", "version 1"])
def old(request: pytest.FixtureRequest) -> bool:
    """Whether producers are older than transactions version 2."""
    is_old: bool = request.param
    return is_old
