import asyncio
import threading

import pytest

from headrace.client.errors import TimedOut
from headrace.client.options import producer_options
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.delivery import BatchDelivery, ColumnsFuture, Future
from headrace.client.types import BatchMetadata, RecordMetadata
from headrace.errors import ErrorCode, KafkaError
from headrace.testing.time_limits import scaled
from headrace.types import TopicPartition

TP = TopicPartition("orders", 3)


def batch_of(count: int) -> tuple[BatchDelivery, list[Future]]:
    """The delivery of a batch and the futures of its records, as a producer makes them."""
    accumulator = Accumulator(
        producer_options(),
        lambda: None,
        choice=lambda led: led[0],
        monotonic=lambda: 100.0,
        wall=lambda: 1_700_000_000.0,
    )
    accumulator.set_topic(TP.topic, [True] * 4)
    futures = []
    for number in range(count):
        future = accumulator.send(TP.topic, b"value", b"key", None, 3, 1000 + number, None)
        assert isinstance(future, Future)
        futures.append(future)
    [batch] = accumulator.drop()
    return batch.delivery, futures


def test_each_record_has_its_own_place_in_the_batch() -> None:
    delivery, futures = batch_of(3)
    assert not any(future.done() for future in futures)
    assert repr(futures[0]) == "<Future of orders-3, pending>"
    delivery.succeed(40)
    assert futures[2].result() == RecordMetadata("orders", 3, 42, 1002, 3, 5)
    assert futures[2].get() == futures[2].result()
    assert futures[0].result().topic_partition == TP
    assert futures[0].exception() is None
    assert futures[0].succeeded()
    assert "offset=40" in repr(futures[0])


def test_the_time_of_appending_replaces_the_records_own() -> None:
    delivery, futures = batch_of(1)
    delivery.succeed(0, 77)
    assert futures[0].result().timestamp == 77


def test_a_failed_batch_fails_all_and_blames_some() -> None:
    delivery, futures = batch_of(3)
    shared = KafkaError(ErrorCode.INVALID_RECORD, "refused")
    own = KafkaError(ErrorCode.INVALID_RECORD, "no key")
    delivery.fail(shared, {1: own})
    assert [future.exception() for future in futures] == [shared, own, shared]
    assert not futures[0].succeeded()
    for _ in range(3):
        with pytest.raises(KafkaError, match="refused"):
            futures[0].result()
    # The one error of many records does not grow with each that asks.
    depth, trace = 0, shared.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 5


def test_the_first_outcome_stands() -> None:
    delivery, futures = batch_of(1)
    delivery.fail(TimedOut("late"))
    delivery.succeed(5)
    assert isinstance(futures[0].exception(), TimedOut)


def test_waiting_ends_with_the_outcome_or_the_timeout() -> None:
    delivery, futures = batch_of(1)
    with pytest.raises(TimedOut, match=r"orders-3 is not acknowledged within 0\.001 s"):
        futures[0].result(timeout=0.001)
    with pytest.raises(TimeoutError):
        futures[0].exception(timeout=0)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(futures[0].result(scaled(30)).offset))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    delivery.succeed(9)
    for thread in threads:
        thread.join()
    assert found == [9, 9, 9]


def test_callbacks_are_called_once_with_what_they_ask_for() -> None:
    delivery, futures = batch_of(2)
    calls: list[object] = []
    future = futures[1].add_callback(lambda written: calls.append(written.offset))
    assert future.add_errback(calls.append) is futures[1]
    futures[1].add_done_callback(lambda done: calls.append(done))
    assert calls == []
    delivery.succeed(6)
    assert calls == [7, futures[1]]
    futures[0].add_callback(lambda written: calls.append(written.offset))
    assert calls[2:] == [6]


def test_errbacks_are_called_with_the_error() -> None:
    delivery, futures = batch_of(1)
    calls: list[object] = []
    futures[0].add_callback(calls.append).add_errback(calls.append)
    error = TimedOut("late")
    delivery.fail(error)
    assert calls == [error]


def test_a_callback_that_raises_is_logged_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivery, futures = batch_of(1)
    calls: list[object] = []
    futures[0].add_callback(lambda written: 1 / 0)
    futures[0].add_callback(calls.append)
    delivery.succeed(0)
    assert len(calls) == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_must_be_callable() -> None:
    _, futures = batch_of(1)
    with pytest.raises(TypeError, match="a callback must be callable, not str"):
        futures[0].add_callback("print")  # type: ignore[arg-type]


def test_a_future_can_be_awaited_on_any_loop() -> None:
    delivery, futures = batch_of(2)
    waiting = threading.Barrier(3)

    async def offset_of(future: Future) -> int:
        task = asyncio.ensure_future(_await(future))
        await asyncio.sleep(0)
        waiting.wait(scaled(30))
        return await task

    offsets: dict[int, int] = {}

    def run(index: int) -> None:
        offsets[index] = asyncio.run(offset_of(futures[index]))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait(scaled(30))
    delivery.succeed(5)
    for thread in threads:
        thread.join()
    assert offsets == {0: 5, 1: 6}
    assert asyncio.run(_await(futures[0])) == 5


async def _await(future: Future) -> int:
    return (await future).offset


def test_a_loop_that_was_closed_meanwhile_is_no_trouble() -> None:
    delivery, futures = batch_of(1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(futures[0]), 0.001)

    asyncio.run(give_up())
    delivery.succeed(1)
    assert futures[0].result().offset == 1


def test_blocking_the_thread_that_delivers_is_refused() -> None:
    delivery, futures = batch_of(1)
    delivery.home = threading.get_ident()
    with pytest.raises(RuntimeError, match="await the future instead"):
        futures[0].result()
    offsets: list[int] = []
    futures[0].add_done_callback(lambda future: offsets.append(future.result().offset))
    delivery.succeed(4)
    assert offsets == [4]


def test_who_waits_finds_that_the_callbacks_have_run() -> None:
    delivery, futures = batch_of(1)
    seen: list[bool] = []
    futures[0].add_callback(lambda _: seen.append(futures[0].done()))
    futures[0].add_callback(lambda _: seen.append(delivery.is_done))
    delivery.succeed(0)
    assert seen == [True, False]
    assert delivery.is_done


def test_a_divided_batch_is_done_when_its_parts_are() -> None:
    delivery, futures = batch_of(5)
    first, second = BatchDelivery(TP, 2), BatchDelivery(TP, 3)
    delivery.divide([(0, first), (2, second)])
    third, fourth = BatchDelivery(TP, 1), BatchDelivery(TP, 2)
    second.divide([(0, third), (1, fourth)])
    calls: list[object] = []
    futures[4].add_done_callback(calls.append)
    first.succeed(10)
    third.fail(TimedOut("late"))
    assert not futures[0].done()
    assert calls == []
    fourth.succeed(20)
    assert calls == [futures[4]]
    assert [
        entry.result().offset for entry in (futures[0], futures[1], futures[3], futures[4])
    ] == [
        10,
        11,
        20,
        21,
    ]
    assert isinstance(futures[2].exception(), TimedOut)


def test_columns_have_the_outcomes_of_all_their_batches() -> None:
    parts = [BatchDelivery(TopicPartition("orders", index), index + 1) for index in range(2)]
    whole = BatchDelivery(TopicPartition("orders", -1), 3)
    parts[0].succeed(7)
    whole.divide([(0, part) for part in parts])
    future = ColumnsFuture(whole)
    assert not future.done()
    parts[1].succeed(8, 99)
    assert future.result() == [
        BatchMetadata("orders", 0, 7, 1, -1),
        BatchMetadata("orders", 1, 8, 2, 99),
    ]


def test_columns_fail_with_the_first_batch_that_failed() -> None:
    parts = [BatchDelivery(TP, 1), BatchDelivery(TP, 1)]
    whole = BatchDelivery(TP, 2)
    whole.divide([(0, part) for part in parts])
    parts[0].succeed(0)
    parts[1].fail(TimedOut("late"))
    assert isinstance(ColumnsFuture(whole).exception(), TimedOut)
    blamed = BatchDelivery(TP, 2)
    own = KafkaError(ErrorCode.INVALID_RECORD, "no key")
    blamed.fail(TimedOut("with another record"), {1: own})
    assert ColumnsFuture(blamed).exception() is own
    empty = BatchDelivery(TP, 0)
    empty.divide([])
    assert ColumnsFuture(empty).result() == []
