import pytest

from headrace.protocol.messages.describe_producers import DescribeProducersRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from headrace.types import TopicPartition
from tests.unit.cli.invoking import document, invoke, use
from tests.unit.client.admin.fake_transactions import START_MS, TransactionBrokers

ORDERS_1 = TopicPartition("orders", 1)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> TransactionBrokers:
    brokers = TransactionBrokers()
    use(brokers, monkeypatch, "transactions")
    monkeypatch.setattr("headrace.cli.transactions.now_ms", lambda: START_MS + 4200)
    return brokers


def test_transactions_are_listed(brokers: TransactionBrokers) -> None:
    assert invoke("transactions", "list").stdout.splitlines() == [
        "TRANSACTIONAL ID  PRODUCER ID  STATE           COORDINATOR",
        "copier            8            Ongoing         2",
        "idle              7            CompleteCommit  1",
    ]


def test_a_list_can_be_limited(brokers: TransactionBrokers) -> None:
    limits = ("--state", "ongoing", "--producer-id", "8", "--duration-ms", "10", "--pattern", "c.*")
    found = document(invoke("transactions", "list", *limits, "--json"))
    assert found == {
        "transactions": [
            {
                "transactional_id": "copier",
                "producer_id": 8,
                "state": "Ongoing",
                "coordinator": 2,
            }
        ]
    }
    request = brokers.sent(ListTransactionsRequest)[0]
    assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [8])
    assert (request.duration_filter, request.transactional_id_pattern) == (10, "c.*")
    nothing = invoke("transactions", "list", "--state", "Dead")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "no such transactions\n"


def test_transactions_are_described_and_missing_ones_named(brokers: TransactionBrokers) -> None:
    result = invoke("transactions", "describe", "copier", "nobody")
    assert result.exit_code == 1
    assert result.stderr == "headrace: transactional id nobody does not exist\n"
    heading, line = result.stdout.splitlines()
    assert heading.split("  ")[0] == "TRANSACTIONAL ID"
    assert " ".join(line.split()) == "copier Ongoing 8 3 4.2 s 60 s 2 invoices:1 orders:0"


def test_transactions_are_described_to_programs(brokers: TransactionBrokers) -> None:
    [found] = document(invoke("transactions", "describe", "idle", "--json"))["transactions"]
    assert (found["state"], found["start_ms"], found["partitions"]) == ("CompleteCommit", None, [])


def test_a_transaction_is_aborted_by_fencing_its_producer(brokers: TransactionBrokers) -> None:
    assert invoke("transactions", "abort", "--transactional-id", "copier").exit_code == 2
    result = invoke("transactions", "abort", "--transactional-id", "copier", "--yes")
    assert result.exit_code == 0
    assert result.stdout == (
        "copier: its producer is fenced, and what it had open is aborted (producer 8, epoch 4)\n"
    )


def test_an_id_that_does_not_exist_is_not_made_by_aborting(brokers: TransactionBrokers) -> None:
    result = invoke("transactions", "abort", "--transactional-id", "nobody", "--yes")
    assert result.exit_code == 1
    assert "transactional id nobody does not exist" in result.stderr
    assert brokers.sent(InitProducerIdRequest) == []


def test_hanging_transactions_are_found_and_aborted(brokers: TransactionBrokers) -> None:
    found = invoke("transactions", "find-hanging", "--max-timeout-ms", "1000")
    assert " ".join(found.stdout.splitlines()[1].split()) == "orders 1 9 1 42 4.2 s ago"
    where = ("--topic", "orders", "--partition", "1")
    result = invoke("transactions", "abort", *where, "--start-offset", "42", "--yes")
    assert result.stdout == (
        "aborted the transaction of producer 9 in orders-1, which began at offset 42\n"
    )
    assert len(brokers.sent(WriteTxnMarkersRequest)) == 1


def test_hanging_transactions_are_looked_for_on_a_chosen_broker(
    brokers: TransactionBrokers,
) -> None:
    for node in (1, 2):
        found = document(
            invoke(
                *("transactions", "find-hanging", "--broker-id", str(node)),
                *("--max-timeout-ms", "1000", "--json"),
            )
        )["hanging"]
        # The fakes' partitions have one replica.
        held = brokers.logs[ORDERS_1].leader == node
        assert [entry["producer_id"] for entry in found] == ([9] if held else [])
        assert brokers.asked(DescribeProducersRequest)[-1] == node


def test_producers_of_partitions_are_described(brokers: TransactionBrokers) -> None:
    found = invoke("transactions", "describe-producers", "invoices:1")
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert lines == [
        "TOPIC PARTITION PRODUCER ID EPOCH LAST SEQUENCE COORDINATOR EPOCH START OFFSET"
        " LAST WRITTEN",
        "invoices 1 7 0 11 1 4.2 s ago",
        "invoices 1 8 3 11 2 5 4.2 s ago",
    ]
    leader = brokers.logs[TopicPartition("orders", 0)].leader
    [first] = document(
        invoke(
            *("transactions", "describe-producers", "orders:0"),
            *("--broker-id", str(leader), "--json"),
        )
    )["producers"]
    assert (first["topic"], first["producer_id"], first["start_offset"]) == ("orders", 8, 100)
    assert (first["coordinator_epoch"], first["last_sequence"]) == (2, 11)


def test_a_broker_without_the_partition_is_named(brokers: TransactionBrokers) -> None:
    other = 3 - brokers.logs[TopicPartition("orders", 0)].leader
    found = invoke("transactions", "describe-producers", "orders:0", "--broker-id", str(other))
    assert found.exit_code == 1
    assert "orders-0" in found.stderr


def test_what_may_still_be_written_to_does_not_hang(brokers: TransactionBrokers) -> None:
    found = invoke("transactions", "find-hanging", "orders", "--max-timeout-ms", "5000")
    assert (found.exit_code, found.stdout) == (0, "")
    assert document(invoke("transactions", "find-hanging", "--json")) == {"hanging": []}


def test_what_a_coordinator_ends_is_not_ended_in_one_partition(brokers: TransactionBrokers) -> None:
    where = ("--topic", "orders", "--partition", "0")
    result = invoke("transactions", "abort", *where, "--producer-id", "8", "--yes")
    assert result.exit_code == 1
    assert "abort it as a whole with --transactional-id copier" in result.stderr
    assert brokers.sent(WriteTxnMarkersRequest) == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--transactional-id", "copier", "--topic", "orders"],
        ["--transactional-id", "copier", "--producer-id", "8"],
        ["--topic", "orders", "--start-offset", "1"],
        ["--topic", "orders", "--partition", "1"],
        ["--topic", "orders", "--partition", "1", "--start-offset", "1", "--producer-id", "8"],
    ],
)
def test_options_that_do_not_name_one_transaction_are_wrong_usage(
    brokers: TransactionBrokers, arguments: list[str]
) -> None:
    assert invoke("transactions", "abort", "--yes", *arguments).exit_code == 2
    assert brokers.sent(WriteTxnMarkersRequest) == []
