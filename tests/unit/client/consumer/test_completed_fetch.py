"""What is to be read of a fetch: which batches, and where to go on."""

from headrace.client.consumer.completed_fetch import CompletedFetch, completed_fetch_of
from headrace.errors import CorruptBatch
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.protocol.records import decode_rows
from tests.unit.client.consumer.batches import ABORT, COMMIT, batch, marker, written


def offsets(completed: CompletedFetch) -> list[int]:
    """The offsets of all that a chunk gives to read."""
    return [
        row.offset
        for start, end in completed.spans
        for row in decode_rows(memoryview(completed.data)[start:end])
    ]


def aborted(producer_id: int, first_offset: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=producer_id, first_offset=first_offset)


def test_whole_batches_are_read_and_the_offset_behind_them_is_next() -> None:
    completed = completed_fetch_of(batch(5, 3) + batch(8, 2), 5)
    assert completed is not None
    assert offsets(completed) == [5, 6, 7, 8, 9]
    assert (completed.next_offset, completed.record_count, len(completed.spans)) == (10, 5, 1)


def test_a_batch_that_was_cut_off_is_fetched_next_time() -> None:
    completed = completed_fetch_of(batch(0, 2) + batch(2, 2)[:-1], 0)
    assert completed is not None
    assert offsets(completed) == [0, 1]
    assert completed.next_offset == 2


def test_less_than_a_batch_is_nothing() -> None:
    assert completed_fetch_of(batch(0)[:-1], 0) is None
    assert completed_fetch_of(b"", 0) is None


def test_batches_before_the_position_are_not_read() -> None:
    completed = completed_fetch_of(batch(0, 2) + batch(2, 2), 2)
    assert completed is not None
    assert offsets(completed) == [2, 3]


def test_control_batches_move_the_position_and_are_not_read() -> None:
    completed = completed_fetch_of(marker(7, 1, COMMIT), 7)
    assert completed is not None
    assert (offsets(completed), completed.next_offset, completed.is_read) == ([], 8, True)


def test_aborted_transactions_are_left_out_up_to_their_marker() -> None:
    data = b"".join(
        [
            written(0, producer_id=1),
            written(1, producer_id=2),
            batch(2),
            marker(3, 1, ABORT),
            written(4, producer_id=1),
            marker(5, 2, COMMIT),
            marker(6, 1, COMMIT),
        ]
    )
    completed = completed_fetch_of(data, 0, [aborted(1, 0)])
    assert completed is not None
    assert offsets(completed) == [1, 2, 4]
    assert completed.next_offset == 7
    assert len(completed.spans) == 2


def test_a_transaction_aborted_later_does_not_hide_an_earlier_one_of_its_producer() -> None:
    data = b"".join(
        [written(0, 1), marker(1, 1, COMMIT), written(2, 1), written(3, 1), marker(4, 1, ABORT)]
    )
    completed = completed_fetch_of(data, 0, [aborted(1, 2)])
    assert completed is not None
    assert offsets(completed) == [0]


def test_aborted_batches_are_read_by_those_who_do_not_mind() -> None:
    completed = completed_fetch_of(written(0, 1) + marker(1, 1, ABORT), 0)
    assert completed is not None
    assert offsets(completed) == [0]


def test_what_comes_before_a_header_that_cannot_be_true_is_read() -> None:
    bad = bytearray(batch(2))
    bad[8:12] = (1).to_bytes(4, "big")
    completed = completed_fetch_of(batch(0, 2) + bytes(bad) + batch(3), 0)
    assert completed is not None
    assert offsets(completed) == [0, 1]
    assert completed.next_offset == 2
    assert isinstance(completed.corrupt, CorruptBatch)
    completed.read_to(completed.spans[0][1])
    assert not completed.is_read, "the error is still to be told"


def test_reading_goes_from_span_to_span() -> None:
    data = written(0, 1) + batch(1) + written(2, 1) + batch(3)
    completed = completed_fetch_of(data, 0, [aborted(1, 0)])
    assert completed is not None
    first, second = list(completed.spans)
    assert (completed.position, completed.is_begun) == (first[0], False)
    assert completed.offset_behind(first[1], 2) == 2
    completed.read_to(first[1])
    assert (completed.position, completed.is_begun) == (second[0], True)
    completed.read_to(second[1])
    assert completed.is_read


def test_the_last_batch_to_read_leads_behind_those_nobody_reads() -> None:
    completed = completed_fetch_of(batch(0) + marker(1, 1, COMMIT), 0)
    assert completed is not None
    assert completed.offset_behind(completed.spans[0][1], 1) == 2


def test_a_detached_chunk_keeps_its_bytes_only() -> None:
    completed = completed_fetch_of(memoryview(bytes(100) + batch(0, 3))[100:], 0)
    assert completed is not None
    completed.detach()
    assert isinstance(completed.data, bytes)
    assert offsets(completed) == [0, 1, 2]
