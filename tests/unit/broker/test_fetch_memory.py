"""How much is on its way to consumers is known for exactly as long as it is."""

from headrace.broker.fetch_purgatory import FetchMemory
from headrace.storage.files import Block

SIZE = 100_000


def test_records_count_until_the_last_view_of_them_is_gone() -> None:
    outgoing = FetchMemory(held_bytes_max=150_000)
    held = outgoing.hold(Block(SIZE))
    assert (outgoing.held_bytes, outgoing.available_bytes) == (SIZE, 50_000)
    # What a transport keeps of a write that was cut short.
    rest = memoryview(held)[10:][20:]
    del held
    assert outgoing.held_bytes == SIZE
    del rest
    assert (outgoing.held_bytes, outgoing.available_bytes) == (0, 150_000)


def test_there_is_no_room_once_the_bound_is_passed() -> None:
    outgoing = FetchMemory(held_bytes_max=150_000)
    held = [outgoing.hold(Block(SIZE)) for _ in range(2)]
    assert (outgoing.held_bytes, outgoing.available_bytes) == (2 * SIZE, 0)
    held.pop()
    assert outgoing.available_bytes == 50_000


def test_bytes_that_cannot_be_watched_are_copied_once() -> None:
    outgoing = FetchMemory()
    held = outgoing.hold(bytes(SIZE))
    assert held == bytes(SIZE)
    assert outgoing.held_bytes == SIZE


def test_small_answers_are_not_counted() -> None:
    outgoing = FetchMemory()
    records = b"small"
    assert outgoing.hold(records) is records
    assert outgoing.held_bytes == 0
