"""From chunks to records and columns: limits, order, errors in their place."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.client.consumer.completed_fetch import RecordRun, slice_columns
from headrace.client.consumer.fetch_collector import FetchCollector, PartitionColumns
from headrace.client.consumer.subscription import SubscriptionState
from headrace.client.errors import SerializationFailed
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import consumer_options
from headrace.errors import CorruptBatch
from headrace.protocol.column_decoder import decode_columns
from headrace.protocol.records import encode_batch
from tests.unit.client.consumer.batches import (
    COMMIT,
    OTHER,
    TP,
    batch,
    fetched,
    marker,
    reading,
)


class Desk:
    """A handout and what it reports."""

    def __init__(self, subscription: SubscriptionState, **options: Any) -> None:
        self.metrics = ConsumerMetrics()
        self.rooms = 0
        self._handout = FetchCollector(
            subscription, consumer_options(**options), self.metrics, self._on_room
        )
        self._subscription = subscription

    def _on_room(self) -> None:
        self.rooms += 1

    def poll(self, limit: int = 500) -> list[int]:
        self._subscription.begin_poll()
        return [record.offset for record in self._handout.records(limit)]

    def records(self, limit: int = 500) -> list[Any]:
        self._subscription.begin_poll()
        return list(self._handout.records(limit))

    def run(self, limit: int = 500) -> RecordRun | None:
        self._subscription.begin_poll()
        return self._handout.run(limit)

    def columns(self, limit: int | None = None) -> list[list[int]]:
        self._subscription.begin_poll()
        return [column_offsets(piece) for piece in self._handout.columns(limit)]


def column_offsets(piece: PartitionColumns) -> list[int]:
    return list(memoryview(piece.columns.offsets).cast("q"))


def corrupted(data: bytes) -> bytes:
    """A batch with a value changed behind the back of its checksum."""
    return data[:-2] + bytes([data[-2] ^ 0xFF]) + data[-1:]


def test_records_come_in_order_and_no_more_than_asked_for() -> None:
    subscription = reading(TP)
    fetched(subscription, [batch(0, 7), batch(7, 3)])
    desk = Desk(subscription)
    assert desk.poll(4) == [0, 1, 2, 3]
    assert subscription.positions() == {TP: 4}
    assert desk.poll(4) == [4, 5, 6, 7]
    assert desk.poll(4) == [8, 9]
    assert desk.poll(4) == []
    assert subscription.positions() == {TP: 10}
    assert desk.metrics.snapshot()["records-consumed-total"] == 10


def test_records_say_where_they_are_from() -> None:
    subscription = reading(OTHER)
    rows = [(123, b"k", b"v", [("trace", b"1"), ("trace", None)]), (124, None, None, ())]
    fetched(subscription, [bytes(encode_batch(rows, base_offset=0, leader_epoch=3))], OTHER)
    first, second = Desk(subscription).records()
    assert (first.topic, first.partition, first.offset, first.timestamp) == ("orders", 1, 0, 123)
    assert (first.key, first.value) == (b"k", b"v")
    assert first.headers == (("trace", b"1"), ("trace", None))
    assert (second.key, second.value, second.headers) == (None, None, ())
    assert (first.leader_epoch, first.timestamp_type) == (3, 0)


def test_several_partitions_fill_one_poll() -> None:
    subscription = reading(TP, OTHER)
    fetched(subscription, [batch(0, 3)])
    fetched(subscription, [batch(0, 3)], OTHER)
    desk = Desk(subscription)
    records = desk.records(4)
    assert [(record.partition, record.offset) for record in records] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]
    assert desk.poll() == [1, 2]


def test_records_before_the_position_are_left_out() -> None:
    subscription = reading(TP, position=5)
    fetched(subscription, [batch(3, 5)])
    assert Desk(subscription).poll() == [5, 6, 7]


def test_batches_nobody_sees_move_the_position() -> None:
    subscription = reading(TP)
    fetched(subscription, [marker(0, 1, COMMIT)])
    fetched(subscription, [batch(1), marker(2, 1, COMMIT)])
    desk = Desk(subscription)
    assert desk.poll() == [1]
    assert subscription.positions() == {TP: 3}
    assert subscription.buffered_bytes == 0


def test_room_is_reported_when_a_chunk_was_read() -> None:
    subscription = reading(TP)
    fetched(subscription, [batch(0, 4)])
    desk = Desk(subscription)
    desk.poll(3)
    assert desk.rooms == 0
    desk.poll(3)
    assert desk.rooms == 1
    assert subscription.buffered_bytes == 0


def test_lag_is_what_is_left_to_poll() -> None:
    subscription = reading(TP)
    state = fetched(subscription, [batch(0, 4)])
    state.high_watermark = 10
    desk = Desk(subscription)
    desk.poll(3)
    assert desk.metrics.lags() == {TP: 7}


def test_iteration_gets_a_run_of_one_partition() -> None:
    subscription = reading(TP, OTHER)
    fetched(subscription, [batch(0, 3)])
    fetched(subscription, [batch(0, 1)], OTHER)
    desk = Desk(subscription)
    run = desk.run(2)
    assert run is not None
    assert (run.index, run.stop, run.iterating) == (0, 2, True)
    run.index = 2
    run = desk.run(2)
    assert run is not None
    assert run.records[run.index].offset == 2
    run.index = run.stop
    run = desk.run(2)
    assert run is not None
    assert run.records[0].partition == 1
    run.index = run.stop
    assert desk.run(2) is None
    assert subscription.positions() == {TP: 3, OTHER: 1}


def test_a_loop_that_was_left_goes_on_with_the_next_record() -> None:
    subscription = reading(TP)
    fetched(subscription, [batch(0, 5)])
    desk = Desk(subscription)
    run = desk.run()
    assert run is not None
    run.index = 2
    assert desk.poll() == [2, 3, 4]


def test_a_corrupt_batch_is_an_error_in_its_place() -> None:
    subscription = reading(TP)
    fetched(subscription, [batch(0, 2), corrupted(batch(2, 2)), batch(4)])
    desk = Desk(subscription)
    assert desk.poll() == [0, 1]
    for _ in range(2):
        with pytest.raises(CorruptBatch, match=r"orders-0: the batch at offset 2 is .*seek past"):
            desk.poll()
    assert subscription.positions() == {TP: 2}
    subscription.seek(TP, 4)
    fetched(subscription, [batch(4)])
    assert desk.poll() == [4]


def test_an_error_waits_for_the_records_before_it() -> None:
    subscription = reading(TP, OTHER)
    fetched(subscription, [batch(0)])
    fetched(subscription, [corrupted(batch(0))], OTHER)
    desk = Desk(subscription)
    assert desk.poll() == [0]
    with pytest.raises(CorruptBatch, match="orders-1"):
        desk.poll()


def test_a_header_that_cannot_be_true_is_an_error_in_its_place() -> None:
    bad = bytearray(batch(2))
    bad[8:12] = (1).to_bytes(4, "big")
    for poll in (Desk.poll, Desk.columns):
        subscription = reading(TP)
        fetched(subscription, [batch(0, 2), bytes(bad)])
        desk = Desk(subscription)
        assert poll(desk) in ([0, 1], [[0, 1]])
        with pytest.raises(CorruptBatch, match=r"orders-0: at offset 2: .*seek past it"):
            poll(desk)


def test_checksums_can_be_left_unchecked() -> None:
    subscription = reading(TP)
    fetched(subscription, [corrupted(batch(0))])
    assert Desk(subscription, check_crcs=False).poll() == [0]


def test_deserializers_make_values() -> None:
    subscription = reading(TP)
    rows = [(0, b"k", b'{"n": 1}', ()), (0, None, None, ())]
    fetched(subscription, [bytes(encode_batch(rows))])
    desk = Desk(subscription, key_deserializer="string", value_deserializer="json")
    records = desk.records()
    assert [(record.key, record.value) for record in records] == [("k", {"n": 1}), (None, None)]


def picky(data: bytes) -> int:
    number = int(data)
    if number == 2:
        raise ValueError("two is too many")
    return number


def test_a_record_that_cannot_be_deserialized_is_an_error_in_its_place() -> None:
    subscription = reading(TP)
    fetched(subscription, [batch(0, 5)])
    desk = Desk(subscription, value_deserializer=picky)
    assert [record.value for record in desk.records()] == [0, 1]
    for _ in range(2):
        with pytest.raises(SerializationFailed, match=r"orders-0 offset 2: .*two is too many"):
            desk.poll()
        assert subscription.positions() == {TP: 2}
    with pytest.raises(SerializationFailed):
        desk.run()
    subscription.seek(TP, 3)
    fetched(subscription, [batch(0, 5)])
    assert [record.value for record in desk.records()] == [3, 4]


def test_records_are_deserialized_once_though_they_are_paused_in_between() -> None:
    seen: list[bytes] = []

    def noting(data: bytes) -> bytes:
        seen.append(data)
        return data

    subscription = reading(TP)
    fetched(subscription, [batch(0, 4)])
    desk = Desk(subscription, value_deserializer=noting)
    run = desk.run()
    assert run is not None
    run.index = 1
    subscription.pause(TP)
    assert run.index == run.stop
    assert desk.run() is None
    subscription.resume(TP)
    assert desk.poll() == [1, 2, 3]
    assert seen == [b"0", b"1", b"2", b"3"]


def test_columns_are_whole_chunks_joined_while_they_are_small() -> None:
    subscription = reading(TP, OTHER)
    fetched(subscription, [batch(0, 3), batch(3, 2)])
    fetched(subscription, [batch(0, 2)], OTHER)
    fetched(subscription, [batch(5)])
    desk = Desk(subscription)
    assert desk.columns() == [[0, 1, 2, 3, 4], [0, 1], [5]]
    assert desk.columns() == []
    assert subscription.positions() == {TP: 6, OTHER: 2}
    assert desk.metrics.snapshot()["records-consumed-total"] == 8


def test_a_large_chunk_stays_alone() -> None:
    subscription = reading(TP, OTHER)
    large = bytes(encode_batch([(0, None, b"x" * 1_048_576, ())]))
    fetched(subscription, [large])
    fetched(subscription, [batch(0)], OTHER)
    desk = Desk(subscription)
    assert desk.columns() == [[0]]
    assert desk.columns() == [[0]]


def test_columns_can_be_limited_and_go_on_where_they_were() -> None:
    subscription = reading(TP, OTHER)
    fetched(subscription, [batch(0, 5)])
    fetched(subscription, [batch(0, 5)], OTHER)
    desk = Desk(subscription)
    assert desk.columns(2) == [[0, 1]]
    assert subscription.positions() == {TP: 2, OTHER: 0}
    assert desk.columns(4) == [[2, 3, 4], [0]]
    assert desk.columns(100) == [[1, 2, 3, 4]]
    assert subscription.positions() == {TP: 5, OTHER: 5}


def all_columns(desk: Desk, limit: int) -> list[int]:
    return [offset for piece in desk.columns(limit) for offset in piece]


@pytest.mark.parametrize("take", [Desk.poll, all_columns])
@pytest.mark.parametrize("first", [Desk.poll, all_columns])
def test_rows_and_columns_can_be_mixed(
    first: Callable[[Desk, int], list[int]], take: Callable[[Desk, int], list[int]]
) -> None:
    subscription = reading(TP)
    fetched(subscription, [batch(0, 3), batch(3, 3)])
    fetched(subscription, [batch(6, 3)])
    desk = Desk(subscription)
    seen = first(desk, 2)
    seen += take(desk, 1)
    seen += first(desk, 4)
    assert seen == [0, 1, 2, *range(3, len(seen))]
    while more := desk.poll():
        seen += more
    assert seen == list(range(9))
    assert subscription.buffered_bytes == 0


def test_a_corrupt_batch_is_an_error_in_columns_too() -> None:
    subscription = reading(TP)
    fetched(subscription, [batch(0, 2), corrupted(batch(2, 2))])
    desk = Desk(subscription)
    assert desk.columns() == [[0, 1]]
    with pytest.raises(CorruptBatch, match="orders-0: the batch at offset 2"):
        desk.columns()
    assert subscription.positions() == {TP: 2}


def test_a_slice_of_columns_knows_its_nulls() -> None:
    rows = [(n, None if n % 3 else b"k", b"v%d" % n, [("h", b"%d" % n)]) for n in range(20)]
    columns = decode_columns(bytes(encode_batch(rows)))
    part = slice_columns(columns, 4, 17)
    assert part.length == 13
    assert part.keys.null_count == sum(1 for n in range(4, 17) if n % 3)
    assert part.keys.validity_start == 4
    ends = memoryview(part.values.offsets).cast("i")
    assert bytes(part.values.data[ends[0] : ends[1]]) == b"v4"
    assert len(memoryview(part.headers.offsets).cast("i")) == 14
