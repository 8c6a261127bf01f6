"""What is to be read of a fetch: which batches, and where to go on."""

from headrace.client.consumer.completed_fetch import CompletedFetch, chunk_of
from headrace.errors import CorruptBatch
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.protocol.records import decode_rows
from tests.unit.client.consumer.batches import ABORT, COMMIT, batch, marker, written


def offsets(chunk: CompletedFetch) -> list[int]:
    """The offsets of all that a chunk gives to read."""
    return [
        row.offset
        for start, end in chunk.spans
        for row in decode_rows(memoryview(chunk.data)[start:end])
    ]


def aborted(producer_id: int, first_offset: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=producer_id, first_offset=first_offset)


def test_whole_batches_are_read_and_the_offset_behind_them_is_next() -> None:
    chunk = chunk_of(batch(5, 3) + batch(8, 2), 5)
    assert chunk is not None
    assert offsets(chunk) == [5, 6, 7, 8, 9]
    assert (chunk.next_offset, chunk.record_count, len(chunk.spans)) == (10, 5, 1)


def test_a_batch_that_was_cut_off_is_fetched_next_time() -> None:
    chunk = chunk_of(batch(0, 2) + batch(2, 2)[:-1], 0)
    assert chunk is not None
    assert offsets(chunk) == [0, 1]
    assert chunk.next_offset == 2


def test_less_than_a_batch_is_nothing() -> None:
    assert chunk_of(batch(0)[:-1], 0) is None
    assert chunk_of(b"", 0) is None


def test_batches_before_the_position_are_not_read() -> None:
    chunk = chunk_of(batch(0, 2) + batch(2, 2), 2)
    assert chunk is not None
    assert offsets(chunk) == [2, 3]


def test_control_batches_move_the_position_and_are_not_read() -> None:
    chunk = chunk_of(marker(7, 1, COMMIT), 7)
    assert chunk is not None
    assert (offsets(chunk), chunk.next_offset, chunk.is_read) == ([], 8, True)


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
    chunk = chunk_of(data, 0, [aborted(1, 0)])
    assert chunk is not None
    assert offsets(chunk) == [1, 2, 4]
    assert chunk.next_offset == 7
    assert len(chunk.spans) == 2


def test_a_transaction_aborted_later_does_not_hide_an_earlier_one_of_its_producer() -> None:
    data = b"".join(
        [written(0, 1), marker(1, 1, COMMIT), written(2, 1), written(3, 1), marker(4, 1, ABORT)]
    )
    chunk = chunk_of(data, 0, [aborted(1, 2)])
    assert chunk is not None
    assert offsets(chunk) == [0]


def test_aborted_batches_are_read_by_those_who_do_not_mind() -> None:
    chunk = chunk_of(written(0, 1) + marker(1, 1, ABORT), 0)
    assert chunk is not None
    assert offsets(chunk) == [0]


def test_what_comes_before_a_header_that_cannot_be_true_is_read() -> None:
    bad = bytearray(batch(2))
    bad[8:12] = (1).to_bytes(4, "big")
    chunk = chunk_of(batch(0, 2) + bytes(bad) + batch(3), 0)
    assert chunk is not None
    assert offsets(chunk) == [0, 1]
    assert chunk.next_offset == 2
    assert isinstance(chunk.corrupt, CorruptBatch)
    chunk.read_to(chunk.spans[0][1])
    assert not chunk.is_read, "the error is still to be told"


def test_reading_goes_from_span_to_span() -> None:
    data = written(0, 1) + batch(1) + written(2, 1) + batch(3)
    chunk = chunk_of(data, 0, [aborted(1, 0)])
    assert chunk is not None
    first, second = list(chunk.spans)
    assert (chunk.position, chunk.is_begun) == (first[0], False)
    assert chunk.offset_behind(first[1], 2) == 2
    chunk.read_to(first[1])
    assert (chunk.position, chunk.is_begun) == (second[0], True)
    chunk.read_to(second[1])
    assert chunk.is_read


def test_the_last_batch_to_read_leads_behind_those_nobody_reads() -> None:
    chunk = chunk_of(batch(0) + marker(1, 1, COMMIT), 0)
    assert chunk is not None
    assert chunk.offset_behind(chunk.spans[0][1], 1) == 2


def test_a_detached_chunk_keeps_its_bytes_only() -> None:
    chunk = chunk_of(memoryview(bytes(100) + batch(0, 3))[100:], 0)
    assert chunk is not None
    chunk.detach()
    assert isinstance(chunk.data, bytes)
    assert offsets(chunk) == [0, 1, 2]
