"""DescribeTransactions and ListTransactions."""

import pytest

from headrace.coordinator.transactions.decisions import ProducerIdAndEpoch
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_transactions import TopicData, TransactionState
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from tests.unit.coordinator.transactions.driving import (
    FIRST_PRODUCER_ID,
    START_MS,
    TIMEOUT_MS,
    A,
    B,
    Shell,
)


@pytest.fixture
def shell() -> Shell:
    """Three ids: one that waits, one open since a while, one being committed."""
    shell = Shell()
    shell.start("waiting")
    shell.add(shell.start("open"), A, transactional_id="open")
    shell.advance(5_000)
    producer = shell.start("ending")
    shell.add(producer, B, A, A._replace(partition=3), transactional_id="ending")
    shell.end(producer, True, transactional_id="ending")
    return shell


def test_describe(shell: Shell) -> None:
    assert shell.shard.describe("ending") == TransactionState(
        transactional_id="ending",
        transaction_state="PrepareCommit",
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_start_time_ms=START_MS + 5_000,
        producer_id=FIRST_PRODUCER_ID + 2,
        producer_epoch=1,
        topics=[
            TopicData(topic="b", partitions=[1]),
            TopicData(topic="a", partitions=[0, 3]),
        ],
    )
    assert shell.shard.describe("waiting").transaction_state == "Empty"
    assert shell.shard.describe("none").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert shell.shard.describe("").error_code == ErrorCode.INVALID_REQUEST


def test_an_id_is_described_as_it_is_committed(shell: Shell) -> None:
    shell.is_holding = True
    waiting = ProducerIdAndEpoch(FIRST_PRODUCER_ID, 0)
    shell.add_request(waiting, A, transactional_id="waiting")
    assert shell.state("waiting") == "Empty"
    shell.release()
    assert shell.state("waiting") == "Ongoing"


@pytest.mark.parametrize(
    ("request_", "ids"),
    [
        (ListTransactionsRequest(), ["waiting", "open", "ending"]),
        (ListTransactionsRequest(state_filters=["Ongoing", "PrepareCommit"]), ["open", "ending"]),
        (ListTransactionsRequest(state_filters=["Dead"]), []),
        (ListTransactionsRequest(state_filters=["ongoing"]), []),
        (ListTransactionsRequest(producer_id_filters=[FIRST_PRODUCER_ID + 1, 7]), ["open"]),
        # What has not begun has no start, as in Kafka.
        (ListTransactionsRequest(duration_filter=4_999), ["waiting", "open"]),
        (ListTransactionsRequest(duration_filter=5_000), ["waiting"]),
        (ListTransactionsRequest(duration_filter=0, state_filters=["Ongoing"]), ["open"]),
    ],
)
def test_list(shell: Shell, request_: ListTransactionsRequest, ids: list[str]) -> None:
    answer = shell.shard.list(request_, shell.now_ms)
    assert [
        transaction_state.transactional_id for transaction_state in answer.transaction_states
    ] == ids


def test_listed_ids_say_what_they_are(shell: Shell) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Dead", "Odd"])
    answer = shell.shard.list(request, shell.now_ms)
    [one] = answer.transaction_states
    assert (one.transactional_id, one.producer_id) == ("open", FIRST_PRODUCER_ID + 1)
    assert one.transaction_state == "Ongoing"
    assert answer.unknown_state_filters == ["Odd"]
