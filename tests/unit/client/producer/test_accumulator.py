import threading
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from headrace.client.blocking import Call, LoopThread
from headrace.client.errors import (
    BufferExhausted,
    Closed,
    RecordTooLarge,
    SerializationFailed,
)
from headrace.client.options import producer_options
from headrace.client.producer.accumulator import Accumulator, RecordSender
from headrace.client.producer.batches import ProducerBatch
from headrace.client.producer.delivery import Future
from headrace.client.producer.producer_engine import RoomWaiter, release_memory, reserve_memory
from headrace.client.types import ProducerRecord
from headrace.protocol.murmur2 import partition_for_key
from headrace.protocol.records import Record, decode_rows
from headrace.testing.time_limits import scaled

NOW_S = 1_700_000_000.5


class Gathering:
    """An accumulator with a clock that stands still, and a count of how often it woke anybody."""

    def __init__(self, partitions: int = 1, **options: Any) -> None:
        self.now = 100.0
        self.wakes = 0
        self.options = producer_options(**options)
        self.accumulator = Accumulator(
            self.options,
            self._wake,
            choice=Random(1).choice,
            monotonic=lambda: self.now,
            wall=lambda: NOW_S,
        )
        self.accumulator.set_topic("t", [True] * partitions)

    def _wake(self) -> None:
        self.wakes += 1

    def send(self, value: Any = None, **record: Any) -> Any:
        names = ("key", "headers", "partition", "timestamp_ms", "on_delivery")
        topic = record.pop("topic", "t")
        return self.accumulator.send(topic, value, *(record.get(name) for name in names))

    def again(self, pending: Any, *, granted: bool) -> Any:
        append: Any = self.accumulator.append
        return append(*pending, granted)

    def ready(self) -> list[ProducerBatch]:
        """What may leave now."""
        buffers, _ = self.accumulator.drain(self.now)
        batches = []
        for buffer in buffers:
            while (batch := self.accumulator.take(buffer)) is not None:
                batches.append(batch)
        return batches


def rows(batch: ProducerBatch) -> list[Record]:
    assert batch.encode is not None
    return decode_rows(batch.encode())


def test_a_record_is_written_as_it_was_given() -> None:
    gathering = Gathering()
    gathering.send("välue", key="k", headers={"a": "1", "b": None})
    gathering.send(None, key=b"k", headers=[("a", b"\0")], timestamp_ms=7)
    gathering.send(bytearray(b"x"), key=memoryview(b"y"))
    [batch] = gathering.accumulator.drop()
    assert rows(batch) == [
        Record(0, int(NOW_S * 1000), b"k", "välue".encode(), (("a", b"1"), ("b", None))),
        Record(1, 7, b"k", None, (("a", b"\0"),)),
        Record(2, int(NOW_S * 1000), b"y", b"x"),
    ]


def test_a_batch_may_leave_when_it_has_lingered() -> None:
    gathering = Gathering(linger_ms=10)
    gathering.send(b"a")
    assert gathering.wakes == 1
    assert gathering.accumulator.drain(gathering.now) == ([], 100.01)
    gathering.now = 100.01
    gathering.send(b"b")
    assert gathering.wakes == 1
    [batch] = gathering.ready()
    assert (batch.count, batch.deadline) == (2, 220.0)
    assert gathering.accumulator.drain(gathering.now) == ([], float("inf"))
    gathering.send(b"c")
    assert gathering.wakes == 2


def test_a_full_batch_may_leave_at_once_and_an_expired_linger_is_forgotten() -> None:
    gathering = Gathering(linger_ms=10, batch_size=200)
    for _ in range(4):
        gathering.send(bytes(90))
    assert [batch.count for batch in gathering.ready()] == [1, 1, 1]
    assert gathering.wakes == 1
    assert gathering.accumulator.drain(gathering.now)[1] == 100.01
    gathering.now = 101
    assert [batch.count for batch in gathering.ready()] == [1]


def test_without_batches_every_record_has_its_own() -> None:
    gathering = Gathering(batch_size=0, linger_ms=0)
    for _ in range(3):
        gathering.send(b"a")
    assert [batch.count for batch in gathering.ready()] == [1, 1, 1]


def test_records_of_a_key_go_where_every_kafka_client_puts_them() -> None:
    gathering = Gathering(partitions=7)
    for number in range(100):
        gathering.send(b"%d" % number, key=b"key-%d" % number)
    for batch in gathering.accumulator.drop():
        for row in rows(batch):
            assert partition_for_key(row.key or b"", 7) == batch.tp.partition


def test_records_without_a_key_stay_together_and_change_partition_with_the_batch() -> None:
    gathering = Gathering(partitions=5, batch_size=1000, linger_ms=10)
    for _ in range(200):
        gathering.send(bytes(100))
    batches = gathering.accumulator.drop()
    assert sum(batch.count for batch in batches) == 200
    assert all(batch.count == 8 for batch in batches if batch.count > 1)
    counts = Counter(batch.tp.partition for batch in batches)
    assert len(counts) == 5


def test_two_batches_in_a_row_go_to_different_partitions() -> None:
    gathering = Gathering(partitions=3, batch_size=0, linger_ms=0)
    places = []
    for _ in range(50):
        gathering.send(b"a")
        [batch] = gathering.ready()
        places.append(batch.tp.partition)
    assert all(entry != other for entry, other in pairwise(places))
    assert set(places) == {0, 1, 2}


def test_partitions_without_a_leader_are_left_out() -> None:
    gathering = Gathering(partitions=3, batch_size=0)
    gathering.accumulator.set_topic("t", [False, True, False])
    for _ in range(10):
        gathering.send(b"a")
    assert {batch.tp.partition for batch in gathering.accumulator.drop()} == {1}
    gathering.accumulator.set_topic("t", [False, False, False])
    assert isinstance(gathering.send(b"a"), Future)


def test_records_take_turns() -> None:
    gathering = Gathering(partitions=4, partitioner="round_robin")
    gathering.accumulator.set_topic("t", [True, True, False, True])
    for _ in range(6):
        gathering.send(b"a", key=b"k")
    batches = gathering.accumulator.drop()
    assert {batch.tp.partition: batch.count for batch in batches} == {0: 2, 1: 2, 3: 2}


def test_sticky_ignores_keys() -> None:
    gathering = Gathering(partitions=4, partitioner="sticky")
    for number in range(20):
        gathering.send(b"a", key=b"%d" % number)
    assert len(gathering.accumulator.drop()) == 1


def test_a_function_of_the_application_chooses_partitions() -> None:
    def by_length(topic: str, key: bytes | None, partition_count: int) -> int:
        assert topic == "t"
        return len(key or b"") % partition_count

    gathering = Gathering(partitions=3, partitioner=by_length)
    gathering.send(b"a", key="abcd")
    gathering.send(b"a")
    assert {batch.tp.partition for batch in gathering.accumulator.drop()} == {0, 1}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (7, ValueError, "partitioner .*broken returned 7 for topic t, .* partitions 0 to 2"),
        (-1, ValueError, "returned -1"),
        ("1", TypeError, "partitioner .*broken returned '1'"),
        (True, TypeError, "must return the number of a partition"),
    ],
)
def test_a_partitioner_that_is_wrong_is_named(
    answer: Any, error: type[Exception], words: str
) -> None:
    def broken(topic: str, key: bytes | None, partition_count: int) -> int:
        return answer

    gathering = Gathering(partitions=3, partitioner=broken)
    with pytest.raises(error, match=words):
        gathering.send(b"a")
    assert gathering.accumulator.used_bytes == 0


@pytest.mark.parametrize(
    ("record", "error", "words"),
    [
        ({"value": 7}, TypeError, "topic t: a value must be bytes, str or None, not int"),
        ({"key": 1.5}, TypeError, "topic t: a key must be bytes, str or None, not float"),
        ({"partition": "1"}, TypeError, "partition must be int or None, not str"),
        ({"partition": -1}, ValueError, "partition must be 0 or more, not -1"),
        ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms must be int"),
        ({"timestamp_ms": -1}, ValueError, "timestamp_ms must be 0 or more, not -1"),
        ({"timestamp_ms": 2**63}, ValueError, "int64"),
        ({"headers": [("a",)]}, TypeError, "headers must be .name, value. pairs"),
        ({"headers": {1: b"x"}}, TypeError, "a header's name must be str, not int"),
        ({"headers": {"a": 1}}, TypeError, "header 'a' must be bytes, str or None, not int"),
        ({"headers": 5}, TypeError, "headers must be"),
        ({"on_delivery": 5}, TypeError, "on_delivery must be callable, not int"),
    ],
)
def test_what_is_wrong_with_a_record_is_said_and_leaves_no_trace(
    record: dict[str, Any], error: type[Exception], words: str
) -> None:
    gathering = Gathering()
    with pytest.raises(error, match=words):
        gathering.send(**record)
    assert (gathering.accumulator.records, gathering.accumulator.used_bytes) == (0, 0)
    assert gathering.accumulator.drop() == []
    gathering.send(b"fine")
    assert gathering.accumulator.records == 1


def test_serializers_make_bytes_and_their_failures_name_the_topic() -> None:
    gathering = Gathering(value_serializer="json", key_serializer="string")
    gathering.send({"a": 1}, key="k")
    gathering.send(None, key=None)
    with pytest.raises(SerializationFailed, match="topic t: value_serializer failed"):
        gathering.send({1, 2})
    [batch] = gathering.accumulator.drop()
    assert [(row.key, row.value) for row in rows(batch)] == [(b"k", b'{"a":1}'), (None, None)]


def test_a_record_that_is_too_large_is_refused_with_both_sizes() -> None:
    gathering = Gathering(max_request_size=1000)
    with pytest.raises(RecordTooLarge, match=r"takes 1097 bytes.* max_request_size is 1000; raise"):
        gathering.send(bytes(1000))
    small = Gathering(buffer_memory=2000, max_request_size=10_000)
    with pytest.raises(RecordTooLarge, match=r"takes 3036 bytes, and buffer_memory is 2000; raise"):
        small.send(bytes(3000))


def test_a_record_larger_than_a_batch_has_its_own() -> None:
    gathering = Gathering(batch_size=100, max_request_size=10_000)
    gathering.send(bytes(5000))
    gathering.send(bytes(5000))
    assert [batch.count for batch in gathering.accumulator.drop()] == [1, 1]


def test_a_topic_or_a_partition_that_is_not_known_has_to_be_asked_for() -> None:
    gathering = Gathering()
    for pending in (gathering.send(b"v", topic="other"), gathering.send(b"v", partition=1)):
        assert isinstance(pending, tuple)
        assert gathering.again(pending, granted=False) is None
    gathering.accumulator.set_topic("t", [True, True])
    assert isinstance(gathering.again(pending, granted=False), Future)
    [batch] = gathering.accumulator.drop()
    assert batch.tp.partition == 1


def test_memory_is_bounded_and_room_is_given_in_turn() -> None:
    gathering = Gathering(buffer_memory=1000, batch_size=300, linger_ms=10_000)
    accumulator = gathering.accumulator
    while isinstance(pending := gathering.send(bytes(164)), Future):
        pass
    assert accumulator.used_bytes == 1000
    waiters = [RoomWaiter(size) for size in (500, 100, 400)]
    assert not any(accumulator.enter(waiter) for waiter in waiters)
    # Nobody jumps the queue, however little is wanted.
    assert isinstance(gathering.send(b""), tuple)
    # Waiting makes the batch that was being filled leave, however long it might linger.
    batches = gathering.ready()
    assert sum(batch.count for batch in batches) == 5
    for batch in batches[:2]:
        accumulator.free(batch)
    assert [waiter.is_granted for waiter in waiters] == [False, False, False]
    accumulator.free(batches[2])
    assert [waiter.is_granted for waiter in waiters] == [True, True, False]
    assert gathering.again(pending, granted=True) is not None
    accumulator.leave(waiters[2])
    for batch in batches[3:]:
        accumulator.free(batch)
    accumulator.leave(waiters[1])
    [batch] = accumulator.drop()
    accumulator.free(batch)
    release_memory(accumulator, 300)
    assert (accumulator.used_bytes, accumulator.records) == (0, 0)


def blocking(call: Call[None]) -> None:
    """Run a call whose waits need no loop."""
    LoopThread("never started").run(call)


def test_no_room_in_time_is_an_error_with_numbers_and_advice() -> None:
    gathering = Gathering(buffer_memory=1000, max_block_ms=1)
    while isinstance(gathering.send(bytes(164)), Future):
        pass
    with pytest.raises(BufferExhausted, match=r"no room for 200 bytes .*1000.*1 ms.*5 records"):
        blocking(reserve_memory(gathering.accumulator, 200, 0.001, gathering.options))
    assert gathering.accumulator.used_bytes == 1000
    # Having given up it stands in nobody's way.
    gathering.accumulator.free(gathering.ready()[0])
    assert isinstance(gathering.send(bytes(164)), Future)


def test_whoever_waits_is_told_when_the_producer_closes() -> None:
    gathering = Gathering(buffer_memory=1000)
    while isinstance(pending := gathering.send(bytes(164)), Future):
        pass
    caught: list[Exception] = []
    entered = threading.Event()
    gathering.accumulator.close_open_batches()
    gathering.ready()

    def wait() -> None:
        try:
            entered.set()
            blocking(reserve_memory(gathering.accumulator, 200, 30, gathering.options))
        except Closed as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait(scaled(30))
    gathering.accumulator.refuse(lambda: Closed("it is over"))
    thread.join(scaled(30))
    assert [str(error) for error in caught] == ["it is over"]
    with pytest.raises(Closed):
        gathering.send(b"a")
    with pytest.raises(Closed):
        gathering.again(pending, granted=True)


def test_nobody_stands_in_line_for_a_producer_that_closed_meanwhile() -> None:
    gathering = Gathering(buffer_memory=1000)
    while isinstance(gathering.send(bytes(164)), Future):
        pass
    gathering.accumulator.refuse(lambda: Closed("it is over"))
    with pytest.raises(Closed, match="it is over"):
        gathering.accumulator.enter(RoomWaiter(200))


def test_flushing_lets_everything_leave_and_knows_what_is_not_done() -> None:
    gathering = Gathering(partitions=3, linger_ms=10_000)
    for partition in range(3):
        gathering.send(b"a", partition=partition)
    unsettled = gathering.accumulator.close_open_batches()
    assert len(unsettled) == 3
    batches = gathering.ready()
    assert len(batches) == 3
    for batch in batches:
        batch.delivery.succeed(0)
        gathering.accumulator.forget(batch.delivery)
    assert gathering.accumulator.close_open_batches() == []


def test_batches_whose_time_is_over_are_dropped() -> None:
    gathering = Gathering(delivery_timeout_ms=1000, linger_ms=10, batch_size=200)
    gathering.send(bytes(90))
    gathering.now = 100.5
    gathering.send(bytes(90))
    assert gathering.accumulator.next_expiry() == 101.0
    assert gathering.accumulator.drop(100.9) == []
    [batch] = gathering.accumulator.drop(101.0)
    batch.delivery.succeed(0)
    gathering.accumulator.forget(batch.delivery)
    assert gathering.accumulator.next_expiry() == 101.5


def test_columns_follow_the_records_before_them() -> None:
    gathering = Gathering(linger_ms=10_000)
    gathering.send(b"a")
    gathering.accumulator.enter(RoomWaiter(500))
    delivery = gathering.accumulator.add_columns("t", 0, lambda **numbers: bytearray(), 10, 500)
    first, second = gathering.ready()
    assert (first.count, second.count) == (1, 10)
    assert second.delivery is delivery
    assert gathering.accumulator.records == 11


def test_threads_may_send_at_once() -> None:
    gathering = Gathering(partitions=2, batch_size=2000, linger_ms=0)

    def send(name: int) -> None:
        for number in range(500):
            assert isinstance(gathering.send(b"%d %d" % (name, number)), Future)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [
        tuple(map(int, (row.value or b"").split()))
        for batch in gathering.accumulator.drop()
        for row in rows(batch)
    ]
    assert sorted(seen) == [(name, number) for name in range(4) for number in range(500)]


def test_a_producer_record_has_everything_a_call_has() -> None:
    gathering = Gathering(partitions=2)
    sender = RecordSender(gathering.accumulator)
    sender.send(ProducerRecord("t", "v", "k", [("h", b"1")], partition=1, timestamp_ms=5))
    [batch] = gathering.accumulator.drop()
    assert batch.tp.partition == 1
    assert rows(batch) == [Record(0, 5, b"k", b"v", (("h", b"1"),))]
    with pytest.raises(TypeError, match="takes no value; the record has its own"):
        sender.send(ProducerRecord("t"), b"v")
    # The asyncio producer sends by this one.
    with pytest.raises(TypeError, match="takes no value; the record has its own"):
        gathering.send(b"v", topic=ProducerRecord("t"))


def test_on_delivery_gets_the_error_and_the_metadata() -> None:
    gathering = Gathering(linger_ms=0)
    calls: list[Any] = []
    gathering.send(b"a", on_delivery=lambda error, written: calls.append((error, written)))
    [batch] = gathering.ready()
    batch.delivery.succeed(12)
    [(error, written)] = calls
    assert (error, written.offset) == (None, 12)
    gathering.send(b"a", on_delivery=lambda error, written: calls.append((error, written)))
    [batch] = gathering.ready()
    failure = Closed("x")
    batch.delivery.fail(failure)
    assert calls[1] == (failure, None)


def test_a_wake_that_ctrl_c_prevents_is_made_up_for() -> None:
    gathering = Gathering(linger_ms=0)
    interrupted = [True]

    def wake() -> None:
        if interrupted.pop():
            raise KeyboardInterrupt
        gathering.wakes += 1

    accumulator = Accumulator(
        gathering.options,
        wake,
        choice=lambda led: led[0],
        monotonic=lambda: 100.0,
        wall=lambda: NOW_S,
    )
    accumulator.set_topic("t", [True])
    with pytest.raises(KeyboardInterrupt):
        accumulator.send("t", b"a", None, None, None, None, None)
    interrupted.append(False)
    assert len(accumulator.close_open_batches()) == 1
    assert gathering.wakes == 1
