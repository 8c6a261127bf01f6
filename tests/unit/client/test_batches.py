from headrace.client.batches import Batch, PartitionQueue, Producer, Row, halves, row_bytes
from headrace.errors import HeadraceError
from headrace.protocol.records import encode_batch
from headrace.types import TopicPartition

TP = TopicPartition("t", 0)
ERROR = HeadraceError("it failed")


def queue(in_flight_max: int = 5, batch_bytes: int = 200) -> PartitionQueue:
    return PartitionQueue(
        TP, in_flight_max=in_flight_max, batch_bytes=batch_bytes, delivery_s_max=30
    )


def add(target: PartitionQueue, value: bytes, now: float = 0.0) -> bool:
    """Add a record; whether it found room in the batch that was open."""
    row: Row = (0, None, value, ())
    fitted = target.fits(row_bytes(row))
    target.add(row, value, row_bytes(row), now)
    return fitted


def known(target: PartitionQueue) -> PartitionQueue:
    """A queue whose producer has written something, so that it may pipeline."""
    target.use_producer(Producer(1, 0))
    add(target, b"first")
    target.seal(0)
    first = target.ready(0)
    assert first is not None
    first.producer = target.producer
    target.sent(first)
    target.written(first)
    return target


def sent(target: PartitionQueue, count: int) -> list[Batch]:
    """Add so many batches of one record each; those that could be sent."""
    for number in range(count):
        add(target, b"%d" % number)
        target.seal(0)
    batches = []
    while (batch := target.ready(0)) is not None:
        target.sent(batch)
        batches.append(batch)
    return batches


def drained(target: PartitionQueue) -> list[object]:
    """The tags of what can be sent now, in order."""
    tags: list[object] = []
    while (batch := target.ready(1e9)) is not None:
        target.sent(batch)
        target.written(batch)
        tags += batch.tags
    return tags


def test_a_full_batch_is_sealed_and_the_record_goes_into_the_next() -> None:
    target = queue(batch_bytes=200)
    assert [add(target, bytes(50)) for _ in range(3)] == [True, False, False]
    batch = target.ready(0)
    assert batch is not None
    assert len(batch.rows) == 1
    assert batch.deadline == 30


def test_a_record_above_the_batch_size_goes_alone() -> None:
    target = queue(batch_bytes=100)
    assert add(target, bytes(1000))
    assert not add(target, b"next")


def test_sizes_are_never_below_what_a_record_takes() -> None:
    headers = [("näme", b"value"), ("x", None)]
    rows: list[Row] = [(0, b"key", bytes(300), headers), (2**40, None, None, ())]
    encoded = encode_batch(rows)
    assert 61 + sum(map(row_bytes, rows)) >= len(encoded)


def test_a_queue_without_a_written_batch_sends_one_at_a_time() -> None:
    target = queue()
    target.use_producer(Producer(1, 0))
    assert len(sent(target, 3)) == 1


def test_no_more_than_the_limit_is_in_flight() -> None:
    assert len(sent(known(queue(in_flight_max=5)), 7)) == 5


def test_a_returned_batch_stops_sending_until_nothing_is_in_flight_and_keeps_the_order() -> None:
    target = known(queue())
    first, second, third = sent(target, 3)
    add(target, b"3")
    target.seal(0)
    target.returned(first)
    assert target.ready(0) is None
    target.returned(second)
    assert target.ready(0) is None
    target.returned(third)
    assert drained(target) == [b"0", b"1", b"2", b"3"]
    assert target.is_settled


def test_a_postponed_queue_waits_for_its_time() -> None:
    target = queue()
    add(target, b"x")
    target.seal(0)
    target.postpone(5.0, ERROR)
    assert target.ready(4.9) is None
    assert target.ready(5.0) is not None
    assert target.last_error is ERROR


def test_only_the_oldest_unsettled_batch_is_first() -> None:
    target = known(queue())
    first, second = sent(target, 2)
    assert target.is_first_unsettled(first)
    assert not target.is_first_unsettled(second)
    target.returned(first)
    assert not target.is_first_unsettled(second)


def test_a_split_batch_is_sent_in_two_before_the_rest_and_later_batches_are_smaller() -> None:
    target = queue(batch_bytes=10_000)
    target.use_producer(Producer(1, 0))
    for number in range(4):
        add(target, b"%d" % number)
    target.seal(0)
    whole = target.ready(0)
    assert whole is not None
    target.sent(whole)
    add(target, b"4")
    target.seal(0)
    target.split(whole)
    assert target.producer is None
    parts = halves(whole)
    assert [part.tags for part in parts] == [[b"0", b"1"], [b"2", b"3"]]
    assert [add(target, value) for value in (b"5", b"6", b"7")] == [True, True, False]
    assert drained(target) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]


def test_waiting_batches_are_dropped_when_their_time_is_over() -> None:
    target = queue()
    add(target, b"old")
    target.seal(0)
    add(target, b"new")
    target.seal(10)
    assert [batch.tags for batch in target.drop_waiting(30)] == [[b"old"]]
    assert [batch.tags for batch in target.drop_waiting()] == [[b"new"]]
    assert target.is_settled


def test_sequence_numbers_wrap_where_kafkas_do() -> None:
    target = queue()
    target.use_producer(Producer(1, 0))
    assert target.take_sequence(2**31 - 1) == 0
    assert target.take_sequence(3) == 2**31 - 1
    assert target.take_sequence(1) == 2
