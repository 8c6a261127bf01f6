import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.net.framing import FrameReader


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    frames: list[bytes] = []
    while data:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        frames += [bytes(frame) for frame in reader.received(count)]
    return frames


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(
    bodies=st.lists(st.binary(min_size=4, max_size=200), max_size=10),
    cuts=st.lists(st.integers(1, 60), min_size=1),
)
def test_frames_come_out_whole_however_they_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(framed, bodies))
    reader = FrameReader()
    frames: list[bytes] = []
    turn = 0
    while data:
        size = cuts[turn % len(cuts)]
        frames += feed(reader, data[:size])
        data = data[size:]
        turn += 1
    assert frames == bodies


def test_a_frame_larger_than_the_scratch_and_its_successor_arrive() -> None:
    large, small = bytes(range(256)) * 2000, b"next"
    assert feed(FrameReader(), framed(large) + framed(small)) == [large, small]


def test_a_frame_may_be_kept_while_others_arrive() -> None:
    reader = FrameReader()
    first = framed(b"first")
    reader.get_buffer()[: len(first)] = first
    (kept,) = reader.received(len(first))
    feed(reader, framed(b"second") * 50)
    assert kept == b"first"


@pytest.mark.parametrize("size", [-1, 0, 3, 1001, 0x4854_5450])
def test_lengths_that_no_answer_has_are_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"an answer of {size} bytes"):
        feed(FrameReader(frame_bytes_max=1000), size.to_bytes(4, "big", signed=True))


def test_large_frames_that_are_held_stay_as_they_are_and_others_give_their_memory_back() -> None:
    reader = FrameReader()
    bodies = [bytes([number]) * 300_000 for number in range(12)]
    held: list[memoryview] = []
    places: set[int] = set()
    for number, body in enumerate(bodies):
        data = memoryview(framed(body))
        while data:
            buffer = reader.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            del buffer
            data = data[count:]
            for frame in reader.received(count):
                view = memoryview(frame)
                places.add(id(view.obj))
                if number % 6 == 0:
                    held.append(view[10:])
                del view
            frame = b""
    assert [bytes(view) for view in held] == [bodies[0][10:], bodies[6][10:]]
    assert len(places) <= 4


def test_frames_that_are_all_held_have_memory_of_their_own() -> None:
    bodies = [bytes([number]) * 200_000 for number in range(20)]
    reader = FrameReader()
    held: list[memoryview] = []
    for body in bodies:
        data = framed(body)
        while data:
            buffer = reader.get_buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            held += [memoryview(frame) for frame in reader.received(count)]
    assert [bytes(frame) for frame in held] == bodies
