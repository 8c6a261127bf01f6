"""The exactly-once sink on a broker of Apache Kafka: the tests that a broker of ours passes too.

It takes Kafka from Maven; where that cannot be fetched the tests say why.
"""

from collections.abc import Iterator

import pytest

from tests.compat.apache import apache_kafka
from tests.spark.test_exactly_once import (
    source,
    test_a_batch_counts_as_written_by_the_newest_of_its_topics,
    test_a_batch_goes_on_where_some_of_its_tasks_have_failed,
    test_a_batch_of_a_pipeline_in_any_mode_is_written_once,
    test_a_batch_that_was_done_is_not_written_again,
    test_a_batch_write_with_a_name_is_written_once,
    test_a_task_that_is_run_again_finds_its_rows_written,
    test_a_task_that_takes_longer_than_its_transaction_may_is_told_so,
    test_a_task_whose_rows_break_off_writes_none_of_them,
    test_a_timeout_that_the_broker_does_not_allow_is_named,
    test_of_two_attempts_at_once_the_older_one_writes_nothing,
    test_other_rows_than_before_are_refused,
    test_rows_are_written_once_by_processes_that_are_killed_or_wake_up_late,
    test_rows_of_a_task_that_fails_are_never_read,
    test_who_watches_sees_which_batches_are_written,
)
from tools.kafka_broker import KafkaBroker

__all__ = [
    "source",
    "test_a_batch_counts_as_written_by_the_newest_of_its_topics",
    "test_a_batch_goes_on_where_some_of_its_tasks_have_failed",
    "test_a_batch_of_a_pipeline_in_any_mode_is_written_once",
    "test_a_batch_that_was_done_is_not_written_again",
    "test_a_batch_write_with_a_name_is_written_once",
    "test_a_task_that_is_run_again_finds_its_rows_written",
    "test_a_task_that_takes_longer_than_its_transaction_may_is_told_so",
    "test_a_task_whose_rows_break_off_writes_none_of_them",
    "test_a_timeout_that_the_broker_does_not_allow_is_named",
    "test_of_two_attempts_at_once_the_older_one_writes_nothing",
    "test_other_rows_than_before_are_refused",
    "test_rows_are_written_once_by_processes_that_are_killed_or_wake_up_late",
    "test_rows_of_a_task_that_fails_are_never_read",
    "test_who_watches_sees_which_batches_are_written",
]


@pytest.fixture(scope="module", params=[2, 1], ids=["transactions v2", "transactions v1"])
def spark_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaBroker]:
    """Apache Kafka in place of a broker of ours, with either version of its transactions."""
    with apache_kafka(tmp_path_factory.mktemp("kafka"), request.param) as broker:
        yield broker
