import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.errors import (
    IllegalState,
    ProducerFenced,
    TimedOut,
    TransactionAbortable,
    TransactionAborted,
    TransactionFatal,
)
from headrace.client.producer.transaction_state import TransactionPhase
from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import ANSWER, LOSE, LOSE_ANSWER
from tests.unit.client.producer.fake_transactions import TransactionalBrokers, lose, refuse
from tests.unit.client.producer.harness import Sending, sending

Result = TypeVar("Result")

VERSIONS = pytest.mark.parametrize("version", [1, 2])
IN = TopicPartition("in", 0)
READERS = ConsumerGroupMetadata("readers", 3, "member", None)


def brokers_of(version: int, partitions: int = 2, nodes: int = 1) -> TransactionalBrokers:
    brokers = TransactionalBrokers(nodes, version=version)
    brokers.add_topic("t", partitions)
    return brokers


def transacting(
    brokers: TransactionalBrokers,
    scenario: Callable[[Sending], Coroutine[Any, Any, Result]],
    **options: Any,
) -> Result:
    options = {"transactional_id": "copier", "linger_ms": 0, **options}
    return sending(brokers, scenario, **options)


def asked(brokers: TransactionalBrokers) -> list[str]:
    """The requests that have to do with transactions, in their order."""
    names = [type(request).__name__.removesuffix("Request") for _, request in brokers.requests]
    return [name for name in names if name not in ("Metadata", "FindCoordinator")]


async def copy(engine: Sending, *values: bytes) -> None:
    await engine.transactor.begin()
    for index, value in enumerate(values):
        engine.send(value, partition=index % 2)
    await engine.transactor.commit()


@VERSIONS
def test_what_is_sent_counts_once_its_transaction_is_committed(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        future = engine.send(b"a", partition=0)
        engine.send(b"b", partition=1)
        await future
        assert brokers.committed(0) == []
        await engine.transactor.commit()

    transacting(brokers, scenario)
    assert brokers.committed(0) == [b"a"]
    assert brokers.committed(1) == [b"b"]


@VERSIONS
def test_what_is_aborted_never_counts_and_the_next_transaction_does(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.send(b"bad", partition=0)
        await engine.transactor.abort()
        await copy(engine, b"good")
        await copy(engine, b"better")
        metrics = engine.metrics.snapshot()
        assert (metrics["txn-commit-total"], metrics["txn-abort-total"]) == (2, 1)

    transacting(brokers, scenario)
    assert brokers.committed() == [b"good", b"better"]
    assert brokers.undecided == 0


def test_version_2_asks_a_coordinator_only_at_the_end() -> None:
    brokers = brokers_of(2)
    transacting(brokers, lambda engine: copy(engine, b"a", b"b"))
    assert asked(brokers) == ["InitProducerId", "Produce", "EndTxn"]
    assert brokers.sent(ProduceRequest)[0].transactional_id == "copier"


def test_version_1_adds_partitions_before_they_are_written_to() -> None:
    brokers = brokers_of(1)

    async def scenario(engine: Sending) -> None:
        await copy(engine, b"a", b"b")
        await copy(engine, b"c", b"d")

    transacting(brokers, scenario)
    one = ["AddPartitionsToTxn", "Produce", "EndTxn"]
    assert asked(brokers) == ["InitProducerId", *one, *one]
    added = brokers.sent(AddPartitionsToTxnRequest)[0]
    assert added.v3_and_below_topics[0].partitions == [0, 1]
    # Newer versions are those of version 2, for which nobody has to add partitions.
    assert brokers.sent(ProduceRequest)[0].topic_data[0].name == "t"


def test_a_newer_broker_can_be_used_as_version_1() -> None:
    brokers = brokers_of(1)
    brokers.features = {"transaction.version": 2}

    async def scenario(engine: Sending) -> None:
        engine.transactor.version_max = 1
        await engine.transactor.init()
        # The coordinator in memory is one of version 1 again.
        brokers.features = {}
        await copy(engine, b"a")

    transacting(brokers, scenario)
    assert "AddPartitionsToTxn" in asked(brokers)


@VERSIONS
def test_an_empty_transaction_asks_nobody(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await copy(engine)
        await engine.transactor.begin()
        await engine.transactor.abort()

    transacting(brokers, scenario)
    assert asked(brokers) == ["InitProducerId"]


@VERSIONS
def test_a_dropped_record_fails_as_aborted(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        future = engine.send(b"never sent")
        await engine.transactor.abort()
        with pytest.raises(TransactionAborted):
            future.result()
        await copy(engine, b"next")

    transacting(brokers, scenario, linger_ms=10_000)
    assert brokers.committed() == [b"next"]


# Offsets.


@VERSIONS
def test_offsets_count_with_the_transaction(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.transactor.send_offsets({IN: OffsetAndMetadata(5)}, READERS)
        await engine.transactor.abort()
        assert brokers.offsets == {}
        await engine.transactor.begin()
        await engine.transactor.send_offsets({IN: OffsetAndMetadata(7)}, READERS)
        await engine.transactor.send_offsets({IN: OffsetAndMetadata(9)}, READERS)
        await engine.transactor.commit()

    transacting(brokers, scenario)
    assert brokers.offsets == {("readers", IN): 9}
    request = brokers.sent(TxnOffsetCommitRequest)[0]
    assert (request.generation_id, request.member_id) == (3, "member")
    # Version 1 names the group to the coordinator of the transaction, once in each.
    assert len(brokers.sent(AddOffsetsToTxnRequest)) == (2 if version == 1 else 0)


@VERSIONS
def test_no_offsets_make_no_transaction(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.transactor.send_offsets({}, READERS)
        await engine.transactor.commit()

    transacting(brokers, scenario)
    assert asked(brokers) == ["InitProducerId"]


@VERSIONS
@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_member_that_lost_its_partitions_has_to_abort(version: int, code: ErrorCode) -> None:
    brokers = brokers_of(version)
    refuse(brokers, "TxnOffsetCommit", code)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        engine.send(b"a")
        with pytest.raises(TransactionAbortable) as caught:
            await engine.transactor.send_offsets({IN: OffsetAndMetadata(5)}, READERS)
        assert caught.value.code is code
        with pytest.raises(TransactionAbortable):
            await engine.transactor.commit()
        await engine.transactor.abort()
        await copy(engine, b"next")

    transacting(brokers, scenario)
    assert brokers.offsets == {}
    assert [*brokers.committed(0), *brokers.committed(1)] == [b"next"]


# What does not fit.


def test_calls_that_do_not_fit_say_what_to_do() -> None:
    brokers = brokers_of(2)

    async def scenario(engine: Sending) -> None:
        transactor = engine.transactor
        with pytest.raises(IllegalState, match="begin_transaction"):
            engine.send(b"outside")
        for call in (transactor.commit, transactor.abort):
            with pytest.raises(IllegalState, match="needs an open transaction"):
                await call()
        with pytest.raises(IllegalState, match="needs an open transaction"):
            await transactor.send_offsets({IN: OffsetAndMetadata(5)}, READERS)
        await transactor.begin()
        with pytest.raises(IllegalState, match="nested"):
            await transactor.begin()
        engine.send(b"inside")
        await transactor.commit()
        with pytest.raises(IllegalState, match="begin_transaction"):
            engine.send(b"outside")

    transacting(brokers, scenario)
    assert brokers.committed(0) + brokers.committed(1) == [b"inside"]


def test_closing_in_a_transaction_aborts_it() -> None:
    brokers = brokers_of(2)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.send(b"a")
        engine.accumulator.refuse(lambda: IllegalState("closed"))
        await engine.transactor.close(10)
        with pytest.raises(IllegalState, match="closed"):
            await engine.transactor.begin()

    transacting(brokers, scenario)
    assert brokers.undecided == 0
    assert brokers.committed(0) + brokers.committed(1) == []


# Errors that pass.

PASSING = st.lists(
    st.sampled_from(
        [
            ErrorCode.NONE,
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        ]
    ),
    max_size=4,
)
LOSSES = st.lists(st.sampled_from([ANSWER, ANSWER, LOSE, LOSE_ANSWER]), max_size=4)
APIS = ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]


@given(
    version=st.sampled_from([1, 2]),
    refusals=st.dictionaries(st.sampled_from(APIS), PASSING),
    losses=st.dictionaries(st.sampled_from([*APIS, "Produce"]), LOSSES),
    produce=st.lists(
        st.sampled_from([ANSWER, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS]),
        max_size=5,
    ),
)
def test_whatever_passes_each_transaction_counts_once(
    version: int,
    refusals: dict[str, list[ErrorCode]],
    losses: dict[str, list[str]],
    produce: list[str | ErrorCode],
) -> None:
    brokers = brokers_of(version)
    for api, codes in refusals.items():
        refuse(brokers, api, *codes)
    for api, lost in losses.items():
        lose(brokers, api, *lost)
    brokers.produce_faults.extend(produce)

    async def scenario(engine: Sending) -> None:
        for number in range(4):
            await engine.transactor.begin()
            engine.send(b"%d" % number, partition=0)
            engine.send(b"%d" % number, partition=1)
            offsets = {IN: OffsetAndMetadata(number)}
            await engine.transactor.send_offsets(offsets, READERS)
            if number == 1:
                await engine.transactor.abort()
            else:
                await engine.transactor.commit()

    transacting(brokers, scenario)
    assert brokers.committed(0) == brokers.committed(1) == [b"0", b"2", b"3"]
    assert brokers.offsets == {("readers", IN): 3}
    assert brokers.undecided == 0


@VERSIONS
def test_a_coordinator_that_moves_is_found(version: int) -> None:
    brokers = brokers_of(version, nodes=3)

    async def scenario(engine: Sending) -> None:
        for number in range(3):
            brokers.coordinator = number + 1
            await copy(engine, b"%d" % number)

    transacting(brokers, scenario)
    assert brokers.committed(0) == [b"0", b"1", b"2"]


# Abortable errors.


@VERSIONS
def test_a_record_that_fails_dooms_its_transaction_and_not_the_next(version: int) -> None:
    brokers = brokers_of(version)
    brokers.refused_values = {b"bad"}

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        fine = engine.send(b"fine", partition=0)
        bad = engine.send(b"bad", partition=1)
        with pytest.raises(KafkaError):
            await bad
        await fine
        with pytest.raises(TransactionAbortable) as refused:
            engine.send(b"more")
        assert refused.value.code is ErrorCode.INVALID_RECORD
        with pytest.raises(TransactionAbortable):
            await engine.transactor.commit()
        await engine.transactor.abort()
        await copy(engine, b"a", b"b")

    transacting(brokers, scenario)
    assert brokers.committed(0) == [b"a"]
    assert brokers.committed(1) == [b"b"]
    # A number was used that is not in the log.
    assert len(brokers.sent(InitProducerIdRequest)) == (2 if version == 1 else 1)


@VERSIONS
def test_the_next_transaction_aborts_what_has_failed(version: int) -> None:
    brokers = brokers_of(version)
    brokers.refused_values = {b"bad"}

    async def scenario(engine: Sending) -> None:
        with pytest.raises(TransactionAbortable):
            await copy(engine, b"bad")
        await copy(engine, b"good")

    transacting(brokers, scenario)
    assert brokers.committed() == [b"good"]
    assert [request.committed for request in brokers.sent(EndTxnRequest)] == [False, True]


@VERSIONS
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
    ],
)
def test_a_leader_that_lost_track_dooms_the_transaction(version: int, code: ErrorCode) -> None:
    brokers = brokers_of(version)
    brokers.produce_faults.append(code)

    async def scenario(engine: Sending) -> None:
        with pytest.raises(TransactionAbortable) as caught:
            await copy(engine, b"a")
        assert caught.value.code is code
        await copy(engine, b"b")

    transacting(brokers, scenario)
    assert brokers.committed() == [b"b"]


@VERSIONS
def test_a_batch_that_is_too_large_is_split_within_its_transaction(version: int) -> None:
    brokers = brokers_of(version)
    brokers.max_message_bytes = 400

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        for number in range(60):
            engine.send(b"%030d" % number, partition=0)
        await engine.transactor.commit()

    transacting(brokers, scenario, batch_size=4000)
    assert brokers.committed() == [b"%030d" % number for number in range(60)]
    assert len(brokers.sent(InitProducerIdRequest)) == 1


@VERSIONS
def test_records_that_come_too_late_doom_their_transaction(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.init()
        brokers.produce_faults.extend([ErrorCode.NOT_ENOUGH_REPLICAS] * 100)
        with pytest.raises(TransactionAbortable, match="delivery_timeout_ms"):
            await copy(engine, b"late")
        brokers.produce_faults.clear()
        await copy(engine, b"next")

    transacting(brokers, scenario, delivery_timeout_ms=5000)
    assert brokers.committed() == [b"next"]


def test_partitions_that_may_not_be_added_doom_the_transaction() -> None:
    brokers = brokers_of(1)
    refuse(brokers, "AddPartitionsToTxn", ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def scenario(engine: Sending) -> None:
        with pytest.raises(TransactionAbortable) as caught:
            await copy(engine, b"a")
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await copy(engine, b"b")

    transacting(brokers, scenario)
    assert brokers.committed() == [b"b"]


@VERSIONS
@pytest.mark.parametrize("code", [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE])
def test_a_commit_that_is_refused_can_be_aborted(version: int, code: ErrorCode) -> None:
    brokers = brokers_of(version)
    refuse(brokers, "EndTxn", code)

    async def scenario(engine: Sending) -> None:
        with pytest.raises(TransactionAbortable) as caught:
            await copy(engine, b"a")
        assert caught.value.code is code
        await engine.transactor.abort()
        await copy(engine, b"b")

    transacting(brokers, scenario)
    assert brokers.committed() == [b"b"]


@VERSIONS
def test_a_transaction_that_the_coordinator_forgot_is_aborted_by_a_new_epoch(version: int) -> None:
    brokers = brokers_of(version)
    refuse(brokers, "EndTxn", ErrorCode.INVALID_TXN_STATE)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.send(b"a", partition=0)
        await engine.transactor.abort()
        await copy(engine, b"b")

    transacting(brokers, scenario)
    assert brokers.committed() == [b"b"]
    assert brokers.undecided == 0


# Fatal errors.


@VERSIONS
def test_a_producer_that_is_replaced_is_fenced_and_says_so(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await copy(engine, b"a")
        await engine.transactor.begin()
        await engine.send(b"zombie", partition=0)
        newer = Sending(brokers, engine.options)
        await newer.transactor.init()
        with pytest.raises(ProducerFenced, match="'copier' was taken by another producer"):
            await engine.transactor.commit()
        for call in (engine.transactor.abort, engine.transactor.begin, engine.transactor.init):
            with pytest.raises(ProducerFenced):
                await call()
        with pytest.raises(ProducerFenced):
            engine.send(b"more")
        await newer.sender.load_topic("t", 10)
        await copy(newer, b"b")
        await newer.sender.stop(1)

    transacting(brokers, scenario)
    assert brokers.committed() == [b"a", b"b"]
    assert brokers.undecided == 0


@VERSIONS
def test_a_leader_that_saw_a_newer_producer_leads_to_the_fence(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        brokers.transactions["copier"].epoch += 1
        brokers.transactions["copier"].partitions.add(TopicPartition("t", 0))
        engine.send(b"zombie", partition=0)
        with pytest.raises((ProducerFenced, TransactionAbortable)):
            await engine.transactor.commit()
        with pytest.raises(ProducerFenced):
            await engine.transactor.abort()

    transacting(brokers, scenario)
    assert brokers.committed() == []


@pytest.mark.parametrize("api", ["InitProducerId", "EndTxn", "TxnOffsetCommit"])
def test_an_error_that_nothing_helps_against_is_fatal(api: str) -> None:
    brokers = brokers_of(2)
    refuse(brokers, api, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    async def scenario(engine: Sending) -> None:
        transactor = engine.transactor

        async def all_of_it() -> None:
            await transactor.begin()
            await transactor.send_offsets({IN: OffsetAndMetadata(5)}, READERS)
            await transactor.commit()

        with pytest.raises(TransactionFatal) as caught:
            await all_of_it()
        assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert transactor.state.phase is TransactionPhase.FATAL_ERROR
        with pytest.raises(TransactionFatal):
            await transactor.begin()

    transacting(brokers, scenario)


def test_a_timeout_that_is_too_long_is_no_fatal_error() -> None:
    brokers = brokers_of(2)
    refuse(brokers, "InitProducerId", ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    async def scenario(engine: Sending) -> None:
        with pytest.raises(KafkaError, match=r"transaction_timeout_ms \(60000\)") as caught:
            await engine.transactor.begin()
        assert caught.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert not isinstance(caught.value, TransactionFatal)

    transacting(brokers, scenario)


# Waiting.


@VERSIONS
def test_a_commit_without_an_answer_may_be_asked_for_again(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.send(b"a", partition=0)
        lose(brokers, "EndTxn", LOSE_ANSWER, *[LOSE] * 200)
        with pytest.raises(TimedOut):
            await engine.transactor.commit()
        for call in (engine.transactor.abort, engine.transactor.begin):
            with pytest.raises(IllegalState, match=r"commit_transaction\(\) again"):
                await call()
        brokers.losses.clear()
        await engine.transactor.commit()
        await copy(engine, b"b")

    transacting(brokers, scenario, max_block_ms=3000)
    assert brokers.committed() == [b"a", b"b"]


@VERSIONS
def test_an_abort_without_an_answer_is_finished_by_the_next_transaction(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.send(b"a", partition=0)
        lose(brokers, "EndTxn", LOSE_ANSWER, *[LOSE] * 200)
        with pytest.raises(TimedOut):
            await engine.transactor.abort()
        brokers.losses.clear()
        await copy(engine, b"b")

    transacting(brokers, scenario, max_block_ms=3000)
    assert brokers.committed() == [b"b"]


@VERSIONS
def test_a_commit_that_is_interrupted_before_it_was_asked_for_may_be_aborted(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.send(b"a", partition=0)
        brokers.is_slow = True
        engine.send(b"b", partition=0)
        committing = asyncio.create_task(engine.transactor.commit())
        await asyncio.sleep(0.1)
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        brokers.is_slow = False
        release(engine)
        await engine.transactor.abort()
        await copy(engine, b"c")

    transacting(brokers, scenario)
    assert brokers.committed() == [b"c"]


@VERSIONS
def test_an_abort_waits_for_what_is_in_flight(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await copy(engine, b"a")
        await engine.transactor.begin()
        await engine.send(b"b", partition=0)
        brokers.is_slow = True
        future = engine.send(b"c", partition=0)
        await asyncio.sleep(0.1)
        aborting = asyncio.create_task(engine.transactor.abort())
        await asyncio.sleep(0.1)
        assert not aborting.done() and not future.done()
        assert len(brokers.sent(EndTxnRequest)) == 1
        brokers.is_slow = False
        release(engine)
        await aborting

    transacting(brokers, scenario)
    assert brokers.committed() == [b"a"]
    assert brokers.undecided == 0


def release(engine: Sending, node: int | None = None) -> None:
    """Let the answers out that the brokers have held back."""
    for (address, _), connection in engine.cluster._connections.items():
        if node is None or engine.brokers.nodes[node] == address:
            connection.release(9)  # type: ignore[attr-defined]


@VERSIONS
def test_nothing_is_taken_while_a_commit_is_under_way(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        await engine.send(b"a", partition=0)
        brokers.is_slow = True
        engine.send(b"b", partition=0)
        committing = asyncio.create_task(engine.transactor.commit())
        await asyncio.sleep(0.1)
        with pytest.raises(IllegalState, match="while the producer is committing"):
            engine.send(b"too late", partition=0)
        brokers.is_slow = False
        release(engine)
        await committing

    transacting(brokers, scenario)
    assert brokers.committed() == [b"a", b"b"]


@VERSIONS
def test_offsets_that_were_given_up_in_the_middle_doom_the_transaction(version: int) -> None:
    brokers = brokers_of(version)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        brokers.is_slow = True
        offsets = {IN: OffsetAndMetadata(5)}
        sent = asyncio.create_task(engine.transactor.send_offsets(offsets, READERS))
        await asyncio.sleep(0.1)
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
        brokers.is_slow = False
        release(engine)
        with pytest.raises(TransactionAbortable, match="interrupted"):
            await engine.transactor.commit()
        await engine.transactor.abort()

    transacting(brokers, scenario)
    assert brokers.offsets == {}


def test_an_abort_is_finished_where_it_was_interrupted() -> None:
    """Its end was reached, and then the answer to the question for a new epoch was lost."""
    brokers = brokers_of(1)
    brokers.refused_values = {b"bad"}

    async def scenario(engine: Sending) -> None:
        await engine.transactor.init()
        lose(brokers, "InitProducerId", LOSE_ANSWER, *[LOSE] * 200)
        with pytest.raises(TransactionAbortable):
            await copy(engine, b"bad")
        with pytest.raises(TimedOut):
            await engine.transactor.abort()
        brokers.losses.clear()
        await copy(engine, b"good")

    transacting(brokers, scenario, max_block_ms=3000)
    assert brokers.committed() == [b"good"]
    assert [request.committed for request in brokers.sent(EndTxnRequest)] == [False, True]


@VERSIONS
def test_nothing_is_sent_again_that_cannot_be_committed(version: int) -> None:
    brokers = brokers_of(version, partitions=3, nodes=3)

    async def scenario(engine: Sending) -> None:
        await engine.transactor.begin()
        for partition in range(3):
            await engine.send(b"fine", partition=partition)
        brokers.is_slow = True
        brokers.produce_faults.extend(
            [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NOT_ENOUGH_REPLICAS, ANSWER]
        )
        futures = [engine.send(b"more", partition=partition) for partition in range(3)]
        await asyncio.sleep(0.1)
        brokers.requests.clear()
        for node in (1, 2):
            release(engine, node)
        brokers.down.add(3)
        release(engine, 3)
        brokers.is_slow = False
        await asyncio.sleep(5)
        brokers.down.clear()
        assert all(future.exception() is not None for future in futures)
        assert brokers.sent(ProduceRequest) == []
        await engine.transactor.abort()

    transacting(brokers, scenario)
    assert brokers.undecided == 0
