import pytest

from headrace.client.admin.transactions import (
    FencedProducer,
    ProducerState,
    TransactionDescription,
    hanging,
)
from headrace.client.errors import SomeFailed
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.apis import Api
from headrace.protocol.messages.describe_producers import DescribeProducersRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from headrace.types import TopicPartition
from tests.unit.client.admin.fake_transactions import START_MS, TransactionBrokers
from tests.unit.client.admin.fakes import code_of

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
INVOICES_1 = TopicPartition("invoices", 1)


def test_the_transactions_of_every_broker_are_listed() -> None:
    brokers = TransactionBrokers()
    found = brokers.admin(lambda admin: admin.list_transactions())
    assert [(name, entry.state, entry.coordinator) for name, entry in found.items()] == [
        ("copier", "Ongoing", 2),
        ("idle", "CompleteCommit", 1),
    ]
    assert {request.duration_filter for request in brokers.sent(ListTransactionsRequest)} == {-1}


def test_a_list_is_limited_by_the_brokers() -> None:
    brokers = TransactionBrokers()
    found = brokers.admin(lambda admin: admin.list_transactions(["Ongoing"], [7, 8], 100))
    assert list(found) == ["copier"]
    assert {request.duration_filter for request in brokers.sent(ListTransactionsRequest)} == {100}


def test_a_list_is_limited_by_a_pattern() -> None:
    brokers = TransactionBrokers()
    brokers.admin(lambda admin: admin.list_transactions(pattern="copier-.*"))
    assert {
        request.transactional_id_pattern for request in brokers.sent(ListTransactionsRequest)
    } == {"copier-.*"}


def test_a_broker_that_knows_no_patterns_is_not_asked_for_all_instead() -> None:
    brokers = TransactionBrokers(versions={Api.LIST_TRANSACTIONS: 1})
    with pytest.raises(KafkaError, match="does not list by a pattern"):
        brokers.admin(lambda admin: admin.list_transactions(pattern="copier-.*"))
    assert not brokers.sent(ListTransactionsRequest)


def test_a_broker_that_is_loading_is_asked_again() -> None:
    brokers = TransactionBrokers()
    brokers.refusals.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert len(brokers.admin(lambda admin: admin.list_transactions())) == 2


def test_transactions_are_described_by_their_coordinators() -> None:
    brokers = TransactionBrokers()
    found = brokers.admin(lambda admin: admin.describe_transactions(["idle", "copier"]))
    assert found["copier"] == TransactionDescription(
        "copier", "Ongoing", 2, 8, 3, 60_000, START_MS, (INVOICES_1, ORDERS_0)
    )
    assert found["idle"].start_ms is None


def test_an_id_that_is_not_there_is_told_with_those_that_are() -> None:
    brokers = TransactionBrokers()
    with pytest.raises(SomeFailed) as caught:
        brokers.admin(lambda admin: admin.describe_transactions(["copier", "nobody"]))
    assert code_of(caught.value.outcomes["nobody"]) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert caught.value.outcomes["copier"].state == "Ongoing"


def test_producers_are_told_by_the_leaders() -> None:
    brokers = TransactionBrokers()
    brokers.refusals.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    found = brokers.admin(lambda admin: admin.describe_producers([ORDERS_0, INVOICES_1]))
    assert [entry.transaction_start_offset for entry in found[ORDERS_0]] == [100]
    assert [entry.transaction_start_offset for entry in found[INVOICES_1]] == [None, 5]


def test_producers_are_told_by_a_chosen_broker() -> None:
    brokers = TransactionBrokers()
    leader = brokers.logs[ORDERS_0].leader
    brokers.follower = 3 - leader
    found = brokers.admin(lambda admin: admin.describe_producers([ORDERS_0], brokers.follower))
    assert [entry.transaction_start_offset for entry in found[ORDERS_0]] == [100]
    assert brokers.asked(DescribeProducersRequest) == [brokers.follower]


def test_a_chosen_broker_without_a_replica_says_so_at_once() -> None:
    brokers = TransactionBrokers()
    other = 3 - brokers.logs[ORDERS_0].leader
    with pytest.raises(SomeFailed) as caught:
        brokers.admin(lambda admin: admin.describe_producers([ORDERS_0], other))
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(brokers.asked(DescribeProducersRequest)) == 1
    with pytest.raises(KafkaError, match="there is no broker 7; the cluster has 1, 2"):
        brokers.admin(lambda admin: admin.describe_producers([ORDERS_0], 7))


@pytest.mark.parametrize("which", [{"producer_id": 9}, {"start_offset": 42}])
def test_a_hanging_transaction_is_ended_by_a_marker_to_the_leader(which: dict[str, int]) -> None:
    brokers = TransactionBrokers()
    brokers.refusals.extend([ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
    found = brokers.admin(lambda admin: admin.abort_transaction(ORDERS_1, **which))
    assert found.producer_id == 9
    marker = brokers.sent(WriteTxnMarkersRequest)[-1].markers[0]
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (9, 1, False)
    # No marker came before it, so no coordinator's epoch is known.
    assert marker.coordinator_epoch == 0
    assert brokers.asked(WriteTxnMarkersRequest) == [brokers.logs[ORDERS_1].leader] * 2


def test_only_what_is_open_can_be_aborted() -> None:
    brokers = TransactionBrokers()
    with pytest.raises(KafkaError, match="orders-1 has no open transaction of producer 8"):
        brokers.admin(lambda admin: admin.abort_transaction(ORDERS_1, producer_id=8))
    with pytest.raises(KafkaError, match="no open transaction at offset 41"):
        brokers.admin(lambda admin: admin.abort_transaction(ORDERS_1, start_offset=41))
    with pytest.raises(TypeError, match="say which transaction"):
        brokers.admin(lambda admin: admin.abort_transaction(ORDERS_1))
    assert brokers.sent(WriteTxnMarkersRequest) == []


def test_a_producer_is_fenced_once_what_it_had_open_is_aborted() -> None:
    brokers = TransactionBrokers()
    brokers.refusals.extend([ErrorCode.CONCURRENT_TRANSACTIONS] * 3)
    found = brokers.admin(lambda admin: admin.fence_producers(["copier", "idle"]))
    assert found == {"copier": FencedProducer(8, 4), "idle": FencedProducer(7, 1)}
    assert len(brokers.sent(InitProducerIdRequest)) == 5


def test_an_id_that_stays_busy_fails_alone() -> None:
    brokers = TransactionBrokers()
    brokers.refusals.append(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(SomeFailed) as caught:
        brokers.admin(lambda admin: admin.fence_producers(["copier", "idle"]))
    failed = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert code_of(caught.value.outcomes["copier"]) is failed
    assert caught.value.outcomes["idle"] == FencedProducer(7, 1)


def test_what_hangs_is_open_and_old_and_known_to_nobody() -> None:
    def state(producer_id: int, timestamp: int, start_offset: int | None) -> ProducerState:
        return ProducerState(producer_id, 0, 5, timestamp, -1, start_offset)

    hangs, young, ended, known = (
        state(1, 99, 7),
        state(2, 100, 7),
        state(3, 99, None),
        state(4, 99, 7),
    )
    described = TransactionDescription("t", "Ongoing", 1, 4, 0, 60_000, 1, (ORDERS_0,))
    producers = {ORDERS_0: (hangs, young, ended, known), ORDERS_1: (ended,), INVOICES_1: (known,)}
    found = hanging(producers, [described], before_ms=100)
    # The coordinator knows producer 4, but not that it has written to that partition.
    assert found == {ORDERS_0: [hangs], INVOICES_1: [known]}
