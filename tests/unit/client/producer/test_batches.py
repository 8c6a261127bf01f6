import pytest

from headrace.client.producer.batches import (
    PartitionQueue,
    ProducerBatch,
    ProducerIdentity,
    halves,
    renumbered,
)
from headrace.client.producer.delivery import BatchDelivery
from headrace.errors import HeadraceError
from headrace.protocol.batch import check_batch, read_header
from headrace.protocol.builder import BatchBuilder
from headrace.protocol.records import decode_rows
from headrace.types import TopicPartition

TP = TopicPartition("t", 0)
ME = ProducerIdentity(7, 1)


def batch_of(count: int, deadline: float = 100.0) -> ProducerBatch:
    builder = BatchBuilder(10_000)
    for number in range(count):
        builder.append(1000 + number, b"k%d" % number, b"v%d" % number, [("h", None)])
    return ProducerBatch(
        TP, builder.finish, BatchDelivery(TP, count), count, builder.size_bytes, 999, deadline
    )


def queue_of(in_flight_max: int = 5, identity: ProducerIdentity | None = ME) -> PartitionQueue:
    queue = PartitionQueue(TP, in_flight_max=in_flight_max)
    queue.use_identity(identity)
    return queue


def send_next(queue: PartitionQueue) -> ProducerBatch:
    assert queue.may_send(0.0)
    batch = queue.next
    assert batch is not None
    queue.number(batch, compression=0)
    queue.sent(batch)
    return batch


def known_queue(count: int) -> PartitionQueue:
    """A queue whose producer the broker knows, with `count` batches of one record waiting."""
    queue = queue_of()
    queue.push(batch_of(1))
    queue.written(send_next(queue))
    for _ in range(count):
        queue.push(batch_of(1))
    return queue


def test_batches_are_numbered_in_sequence() -> None:
    queue = queue_of()
    for count in (3, 4):
        queue.push(batch_of(count))
        batch = send_next(queue)
        queue.written(batch)
        assert batch.encoded is not None
        header = read_header(batch.encoded)
        assert (header.producer_id, header.producer_epoch) == ME
    assert (header.base_sequence, header.last_sequence) == (3, 6)


def test_numbers_wrap_where_kafka_wraps_them() -> None:
    queue = queue_of()
    queue._next_sequence = 2**31 - 2
    queue.push(batch_of(3))
    queue.written(send_next(queue))
    queue.push(batch_of(1))
    assert send_next(queue).base_sequence == 1


def test_without_an_identity_there_are_no_numbers() -> None:
    queue = queue_of(1, None)
    queue.push(batch_of(2))
    batch = send_next(queue)
    assert (batch.base_sequence, batch.identity) == (-1, None)
    assert not queue.may_send(0.0)


def test_nothing_overtakes_the_first_batch_of_a_producer() -> None:
    queue = queue_of()
    queue.push(batch_of(1))
    queue.push(batch_of(1))
    first = send_next(queue)
    assert not queue.may_send(0.0)
    queue.written(first)
    send_next(queue)
    assert queue.may_send(0.0)


def test_returned_batches_go_first_and_look_the_same() -> None:
    queue = known_queue(4)
    sent = [send_next(queue) for _ in range(3)]
    before = [bytes(batch.encoded or b"") for batch in sent]
    queue.returned(sent[0])
    assert not queue.may_send(0.0)
    queue.returned(sent[1])
    queue.returned(sent[2])
    again = [send_next(queue) for _ in range(4)]
    assert again[:3] == sent
    assert [bytes(batch.encoded or b"") for batch in sent] == before
    assert [batch.base_sequence for batch in again] == [1, 2, 3, 4]


def test_only_the_first_that_is_not_settled_may_be_decided_upon() -> None:
    queue = known_queue(3)
    first, second, third = (send_next(queue) for _ in range(3))
    assert queue.is_first_unsettled(first)
    assert not queue.is_first_unsettled(second)
    queue.returned(first)
    assert not queue.is_first_unsettled(second)
    queue.refused(second)
    queue.refused(third)
    assert queue.next is first


def test_a_pause_holds_everything_back() -> None:
    queue = known_queue(2)
    queue.postpone(5.0, HeadraceError("no"))
    assert not queue.may_send(4.9)
    assert queue.may_send(5.0)
    assert queue.attempts == 1


def test_another_producer_gives_new_numbers_to_the_same_records() -> None:
    queue = known_queue(2)
    first, second = send_next(queue), send_next(queue)
    rows = decode_rows(first.encoded or b"")
    queue.returned(first)
    queue.returned(second)
    queue.use_identity(ProducerIdentity(8, 0))
    send_next(queue)
    assert first.encoded is not None
    header = read_header(first.encoded)
    check_batch(first.encoded, header)
    assert (header.producer_id, header.base_sequence) == (8, 0)
    assert decode_rows(first.encoded) == rows


def test_renumbering_leaves_the_old_bytes_alone() -> None:
    batch = batch_of(3)
    batch.number(ME, 5, compression=0)
    assert batch.encoded is not None
    before = bytes(batch.encoded)
    changed = renumbered(batch.encoded, 9, 2, 0)
    assert batch.encoded == before
    check_batch(changed, read_header(changed))


@pytest.mark.parametrize("compression", [0, 4])
def test_halves_have_the_records_and_the_outcome_of_the_whole(compression: int) -> None:
    batch = batch_of(5)
    batch.number(ME, 0, compression=compression)
    whole = decode_rows(batch.encoded or b"")
    parts = halves(batch)
    assert [part.count for part in parts] == [2, 3]
    assert sum(part.reserved_bytes for part in parts) == 999
    rows = []
    for part in parts:
        part.number(ME, 0, compression=compression)
        rows += decode_rows(part.encoded or b"")
    assert [(row.timestamp, row.key, row.value, row.headers) for row in rows] == [
        (row.timestamp, row.key, row.value, row.headers) for row in whole
    ]
    parts[0].delivery.succeed(10)
    parts[1].delivery.succeed(50)
    assert [batch.delivery.outcome(index)[0] for index in range(5)] == [10, 11, 50, 51, 52]


def test_a_split_batch_is_sent_in_its_place() -> None:
    queue = known_queue(2)
    batch = batch_of(4)
    queue._waiting.appendleft(batch)
    sent, behind = send_next(queue), send_next(queue)
    parts = queue.split(sent)
    queue.returned(behind)
    queue.use_identity(ProducerIdentity(8, 0))
    first = send_next(queue)
    assert first is parts[0]
    queue.written(first)
    assert [send_next(queue) for _ in range(2)] == [parts[1], behind]
    assert behind.base_sequence == 4


def test_batches_expire_in_their_order() -> None:
    queue = queue_of()
    batches = [batch_of(1, deadline) for deadline in (10.0, 20.0, 30.0)]
    for batch in batches:
        queue.push(batch)
    sent = send_next(queue)
    assert queue.late_in_flight(10.0) == [sent]
    assert queue.drop_waiting(20.0) == [batches[1]]
    assert queue.drop_waiting() == [batches[2]]
    assert not queue.is_settled
    assert queue.drop_all() == [sent]
    assert queue.is_settled


def test_a_later_batch_that_another_leader_returned_sooner_stays_behind() -> None:
    queue = known_queue(3)
    first, second, third = (send_next(queue) for _ in range(3))
    for batch in (second, third):
        assert not queue.is_first_unsettled(batch)
        queue.returned(batch)
    assert queue.is_first_unsettled(first)
    queue.returned(first)
    assert [send_next(queue) for _ in range(3)] == [first, second, third]


def test_parts_of_a_batch_keep_its_place() -> None:
    queue = known_queue(0)
    for count in (4, 1):
        queue.push(batch_of(count))
    large, behind = send_next(queue), send_next(queue)
    queue.returned(behind)
    parts = queue.split(large)
    queue.use_identity(ME)
    sent = [send_next(queue)]
    queue.written(sent[0])
    sent += [send_next(queue), send_next(queue)]
    assert sent == [*parts, behind]
    queue.returned(behind)
    assert queue.is_first_unsettled(parts[1])
