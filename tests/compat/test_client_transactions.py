"""Transactions of our client on a broker of Apache Kafka: the tests that a broker of ours passes.

It takes Kafka from Maven; where that cannot be fetched the tests say why.
"""

from collections.abc import Iterator

import pytest

from tests.compat.apache import apache_kafka
from tests.integration.client.test_transactions import (
    open_producer,
    test_a_copy_goes_on_where_its_offsets_are,
    test_a_member_that_has_left_commits_nothing,
    test_a_producer_that_is_replaced_learns_it_and_its_work_is_gone,
    test_a_record_that_fails_aborts_its_block_and_not_the_next,
    test_asyncio_has_the_same,
    test_closing_in_a_transaction_aborts_it,
    test_columns_have_what_rows_have,
    test_readers_see_up_to_what_is_open,
    test_what_is_committed_counts_and_what_is_aborted_does_not,
    tp,
    version,
)
from tests.integration.conftest import topic
from tools.kafka_broker import KafkaBroker

__all__ = [
    "open_producer",
    "test_a_copy_goes_on_where_its_offsets_are",
    "test_a_member_that_has_left_commits_nothing",
    "test_a_producer_that_is_replaced_learns_it_and_its_work_is_gone",
    "test_a_record_that_fails_aborts_its_block_and_not_the_next",
    "test_asyncio_has_the_same",
    "test_closing_in_a_transaction_aborts_it",
    "test_columns_have_what_rows_have",
    "test_readers_see_up_to_what_is_open",
    "test_what_is_committed_counts_and_what_is_aborted_does_not",
    "topic",
    "tp",
    "version",
]


@pytest.fixture(scope="module", params=[2, 1], ids=["transactions v2", "transactions v1"])
def kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaBroker]:
    """Apache Kafka in place of a broker of ours, with either version of its transactions."""
    with apache_kafka(tmp_path_factory.mktemp("kafka"), request.param) as broker:
        yield broker


@pytest.fixture
def address(kafka: KafkaBroker) -> str:
    return kafka.bootstrap_servers
