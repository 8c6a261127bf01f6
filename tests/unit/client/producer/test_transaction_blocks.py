"""`async with producer.transaction()`, on brokers in memory: however it is left, it is ended."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.aio import Producer
from headrace.client.errors import ProducerFenced, TimedOut, TransactionAbortable
from headrace.errors import ErrorCode
from headrace.protocol.messages.end_txn import EndTxnRequest
from tests.unit.client.fake_brokers import LOSE
from tests.unit.client.producer.fake_transactions import TransactionalBrokers, lose, refuse

Scenario = Callable[[Producer], Coroutine[Any, Any, None]]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> TransactionalBrokers:
    brokers = TransactionalBrokers()
    brokers.add_topic("t")
    monkeypatch.setattr(
        "headrace.client.producer.producer_engine.ClusterClient",
        lambda *_, **options: brokers.new_cluster(),
    )
    return brokers


def run(brokers: TransactionalBrokers, scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        options.setdefault("transactional_id", "copier")
        async with Producer(linger_ms=0, **options) as producer:
            await scenario(producer)

    brokers.run(main())


def ends(brokers: TransactionalBrokers) -> list[bool]:
    return [request.committed for request in brokers.sent(EndTxnRequest)]


async def block(producer: Producer, *values: bytes, error: BaseException | None = None) -> None:
    async with producer.transaction():
        for value in values:
            await (await producer.send("t", value))
        if error is not None:
            raise error


def test_a_block_that_ends_is_committed(brokers: TransactionalBrokers) -> None:
    run(brokers, lambda producer: block(producer, b"a", b"b"))
    assert brokers.committed() == [b"a", b"b"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), TimedOut("x")])
def test_a_block_that_fails_is_aborted_and_the_error_goes_on(
    brokers: TransactionalBrokers, error: BaseException
) -> None:
    async def scenario(producer: Producer) -> None:
        with pytest.raises(type(error)):
            await block(producer, b"bad", error=error)
        await block(producer, b"good")

    run(brokers, scenario)
    assert brokers.committed() == [b"good"]
    assert ends(brokers) == [False, True]


def test_what_cannot_be_committed_is_aborted(brokers: TransactionalBrokers) -> None:
    refuse(brokers, "EndTxn", ErrorCode.TRANSACTION_ABORTABLE)

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TransactionAbortable):
            await block(producer, b"bad")
        await block(producer, b"good")

    run(brokers, scenario)
    assert brokers.committed() == [b"good"]
    assert ends(brokers) == [True, False, True]


def test_a_block_that_is_cancelled_before_its_commit_is_aborted(
    brokers: TransactionalBrokers,
) -> None:
    async def scenario(producer: Producer) -> None:
        await block(producer, b"first")
        brokers.is_slow = True

        async def unanswered() -> None:
            async with producer.transaction():
                await producer.send("t", b"bad")

        task = asyncio.create_task(unanswered())
        await asyncio.sleep(0.1)
        task.cancel()
        brokers.is_slow = False
        await asyncio.sleep(0.1)
        for connection in producer._engine.cluster._connections.values():
            connection.release(9)  # type: ignore[attr-defined]
        with pytest.raises(asyncio.CancelledError):
            await task
        await block(producer, b"good")

    run(brokers, scenario)
    assert brokers.committed() == [b"first", b"good"]
    assert ends(brokers) == [True, False, True]


def test_a_commit_of_unknown_outcome_is_not_aborted(brokers: TransactionalBrokers) -> None:
    lose(brokers, "EndTxn", *[LOSE] * 100)

    async def scenario(producer: Producer) -> None:
        with pytest.raises(TimedOut):
            await block(producer, b"a")
        brokers.losses.clear()
        await producer.commit_transaction()

    run(brokers, scenario, max_block_ms=3000)
    assert brokers.committed() == [b"a"]
    assert set(ends(brokers)) == {True}


def test_a_fence_is_told_in_place_of_its_effects_and_of_nothing_else(
    brokers: TransactionalBrokers,
) -> None:
    async def fenced(producer: Producer, error: BaseException) -> None:
        async with producer.transaction():
            await (await producer.send("t", b"zombie"))
            brokers.transactions[f"{error}"].epoch += 1
            raise error

    async def scenario(producer: Producer) -> None:
        with pytest.raises(ValueError, match="a"):
            await fenced(producer, ValueError("a"))
        with pytest.raises(ProducerFenced):
            await producer.begin_transaction()

    async def other(producer: Producer) -> None:
        with pytest.raises(ProducerFenced):
            await fenced(producer, TimedOut("b"))

    run(brokers, scenario, transactional_id="a")
    run(brokers, other, transactional_id="b")
