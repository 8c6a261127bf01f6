"""Who asks which coordinator for a transaction, how often, and what is made of its answer."""

import asyncio

import pytest

from headrace.broker.coordination.transaction_verifier import TransactionVerifier
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from headrace.types import TopicPartition
from tests.unit.broker.coordinating import FakePeers, Store, coordinators, on_loop

TOPIC = "__transaction_state"
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NONE = ErrorCode.NONE


def answering(*codes: ErrorCode, code: ErrorCode = NONE) -> FakePeers:
    """Coordinators that say `codes` one after the other, of every partition, and then NONE."""
    left = list(codes)

    def answer(_: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        said = left.pop(0) if left else NONE
        return AddPartitionsToTxnResponse(
            error_code=code,
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=said
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in transaction.topics
                    ],
                )
                for transaction in request.transactions
            ]
            if not code
            else [],
        )

    return FakePeers(answer)


def verifier(peers: FakePeers, *leaders: int) -> TransactionVerifier:
    store = Store(**{TOPIC: leaders or (2, 3)})
    return TransactionVerifier(
        coordinators(TOPIC, len(leaders) or 2), store.as_store, peers.as_peers
    )


def test_the_coordinator_of_the_id_is_asked_for_all_partitions() -> None:
    async def test() -> None:
        peers = answering()
        verdicts = await verifier(peers).verify("1-id", 7, 2, [A0, B0, A1], add=False)
        assert verdicts == {A0: NONE, B0: NONE, A1: NONE}
        [(broker_id, request)] = peers.asked
        [asked] = request.transactions
        assert broker_id == 3
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("1-id", 7, 2)
        assert asked.verify_only
        assert [(topic.name, topic.partitions) for topic in asked.topics] == [
            ("a", [0, 1]),
            ("b", [0]),
        ]

    on_loop(test)


def test_what_comes_while_one_request_is_under_way_goes_with_the_next() -> None:
    async def test() -> None:
        peers = answering()
        asks = verifier(peers)
        ids = ["0-a", "0-b", "0-c", "1-d"]
        await asyncio.gather(*(asks.verify(entry, 1, 0, [A0], add=True) for entry in ids))
        sent = [
            (to, [transaction.transactional_id for transaction in sent.transactions])
            for to, sent in peers.asked
        ]
        assert sent == [(2, ["0-a", "0-b", "0-c"]), (3, ["1-d"])]
        peers.asked.clear()
        first = asyncio.ensure_future(asks.verify("0-a", 1, 0, [A0], add=True))
        await asyncio.sleep(0.001)
        others = [asks.verify(entry, 1, 0, [A0], add=True) for entry in ids[1:3]]
        await asyncio.gather(first, *others)
        assert [len(sent.transactions) for _, sent in peers.asked] == [1, 2]

    on_loop(test)


def test_one_request_names_an_id_once() -> None:
    async def test() -> None:
        peers = answering()
        asks = verifier(peers)
        same = [asks.verify("0-a", 1, 0, [name], add=True) for name in (A0, A1)]
        newer = asks.verify("0-a", 1, 1, [B0], add=True)
        verdicts = await asyncio.gather(*same, newer)
        assert verdicts == [{A0: NONE}, {A1: NONE}, {B0: NONE}]
        epochs = [
            [transaction.producer_epoch for transaction in sent.transactions]
            for _, sent in peers.asked
        ]
        assert epochs == [[0], [1]]
        assert peers.asking_most == 1

    on_loop(test)


def test_fencing_is_told_in_the_words_of_a_leader() -> None:
    async def test() -> None:
        asks = verifier(answering(ErrorCode.PRODUCER_FENCED))
        verdicts = await asks.verify("0", 1, 0, [A0], add=False)
        assert verdicts == {A0: ErrorCode.INVALID_PRODUCER_EPOCH}

    on_loop(test)


def test_adding_waits_for_the_transaction_before_and_verifying_does_not() -> None:
    async def test() -> None:
        busy = ErrorCode.CONCURRENT_TRANSACTIONS
        adding = answering(busy, busy)
        assert await verifier(adding).verify("0", 1, 0, [A0], add=True) == {A0: NONE}
        assert len(adding.asked) == 3
        verifying = answering(busy)
        assert await verifier(verifying).verify("0", 1, 0, [A0], add=False) == {A0: busy}
        # Not for ever: the client asks again.
        stuck = answering(*[busy] * 100)
        assert await verifier(stuck).verify("0", 1, 0, [A0], add=True) == {A0: busy}
        assert len(stuck.asked) < 10

    on_loop(test)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (HeadraceError("the connection broke"), ErrorCode.NETWORK_EXCEPTION),
        (KafkaError(ErrorCode.UNSUPPORTED_VERSION), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_coordinator_that_cannot_be_asked_is_a_verdict(
    failure: HeadraceError, code: ErrorCode
) -> None:
    def fail(broker_id: int, request: object) -> AddPartitionsToTxnResponse:
        raise failure

    async def test() -> None:
        asks = verifier(FakePeers(fail))
        assert await asks.verify("0", 1, 0, [A0, B0], add=True) == {A0: code, B0: code}

    on_loop(test)


def test_an_error_of_the_whole_request_is_that_of_each_partition() -> None:
    async def test() -> None:
        asks = verifier(answering(code=ErrorCode.NOT_COORDINATOR))
        assert await asks.verify("0", 1, 0, [A0], add=False) == {A0: ErrorCode.NOT_COORDINATOR}

    on_loop(test)


def test_without_a_coordinator_nobody_is_asked() -> None:
    async def test() -> None:
        peers = answering()
        gone = {A0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await verifier(peers, -1).verify("0", 1, 0, [A0], add=True) == gone
        no_topic = TransactionVerifier(coordinators(TOPIC, 1), Store().as_store, peers.as_peers)
        assert await no_topic.verify("0", 1, 0, [A0], add=True) == gone
        assert not peers.asked

    on_loop(test)


def test_a_stop_answers_everybody() -> None:
    async def test() -> None:
        peers = answering()
        peers.delay_s = 3.0
        asks = verifier(peers)
        under_way = asyncio.ensure_future(asks.verify("0-a", 1, 0, [A0], add=True))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(asks.verify("0-b", 1, 0, [A0], add=True))
        await asyncio.sleep(0.01)
        await asks.stop()
        gone = {A0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert [await under_way, await waiting] == [gone, gone]
        assert await asks.verify("0-c", 1, 0, [A0], add=True) == gone
        assert peers.closed
        assert len(peers.asked) == 1

    on_loop(test)


def test_who_does_not_wait_any_more_is_not_asked_for() -> None:
    async def test() -> None:
        peers = answering()
        asks = verifier(peers)
        first = asyncio.ensure_future(asks.verify("0-a", 1, 0, [A0], add=True))
        await asyncio.sleep(0.001)
        second = asyncio.ensure_future(asks.verify("0-b", 1, 0, [A0], add=True))
        await asyncio.sleep(0.001)
        second.cancel()
        await first
        await asyncio.sleep(0.1)
        assert len(peers.asked) == 1

    on_loop(test)
