"""Frames out of bytes, however the network cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.net.framing import FrameBuffers, Framer

SCRATCH = 256


def make_framer(limit: int = 10_000_000, buffers: FrameBuffers | None = None) -> Framer:
    return Framer(limit, memoryview(bytearray(SCRATCH)), buffers or FrameBuffers())


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def feed(framer: Framer, data: bytes) -> int:
    """Receive as much of `data` as the framer has room for."""
    buffer = framer.get_buffer()
    count = min(len(buffer), len(data))
    buffer[:count] = data[:count]
    framer.received(count)
    return count


def take_all(framer: Framer) -> list[bytes]:
    frames = []
    while (frame := framer.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


@given(
    bodies=st.lists(st.binary(max_size=900), max_size=12),
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=60),
)
def test_frames_survive_any_cutting(bodies: list[bytes], cuts: list[int]) -> None:
    framer, data, got = make_framer(), framed(*bodies), list[bytes]()
    step = 0
    while data:
        count = feed(framer, data[: cuts[step % len(cuts)]])
        data = data[count:]
        got += take_all(framer)
        assert framer.keep_rest()
        step += 1
    assert got == bodies


@given(
    bodies=st.lists(st.binary(max_size=100), min_size=1, max_size=20),
    stops=st.lists(st.integers(0, 3), min_size=1),
)
def test_frames_that_must_wait_are_kept_in_order(bodies: list[bytes], stops: list[int]) -> None:
    framer, data, got = make_framer(), framed(*bodies), list[bytes]()
    step = 0
    while len(got) < len(bodies):
        if data:
            data = data[feed(framer, data) :]
        for _ in range(stops[step % len(stops)] if step < 100 else 100):
            frame = framer.next_frame()
            if frame is None:
                break
            got.append(bytes(frame))
        assert framer.keep_rest()
        step += 1
    assert got == bodies


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_an_impossible_length_is_refused_at_once(size: int) -> None:
    framer = make_framer(limit=100)
    feed(framer, size.to_bytes(4, "big", signed=True))
    with pytest.raises(ProtocolError, match=r"socket\.request\.max\.bytes"):
        framer.next_frame()


def test_a_large_announcement_alone_takes_little_memory() -> None:
    buffers = FrameBuffers()
    framer = make_framer(limit=2**31 - 1, buffers=buffers)
    feed(framer, (2**31 - 1).to_bytes(4, "big") + b"x")
    assert framer.next_frame() is None
    assert framer.keep_rest()
    assert buffers.held_bytes <= 16 * 1024


def test_a_buffer_grows_with_what_really_arrives() -> None:
    body = bytes(range(256)) * 20_000
    buffers = FrameBuffers()
    framer, data = make_framer(buffers=buffers), framed(body)
    got: list[bytes] = []
    while data:
        data = data[feed(framer, data[:300_000]) :]
        got += take_all(framer)
        framer.keep_rest()
    assert got == [body]
    assert buffers.held_bytes == 0


def test_who_sent_a_large_frame_gets_room_for_the_next_one() -> None:
    framer, data = make_framer(), framed(bytes(500_000))
    while data:
        data = data[feed(framer, data) :]
        taken = take_all(framer)
        framer.keep_rest()
    assert taken == [bytes(500_000)]
    assert feed(framer, framed(bytes(500_000))) == 500_004
    assert take_all(framer) == [bytes(500_000)]
    framer.keep_rest()
    feed(framer, framed(b"small"))
    assert take_all(framer) == [b"small"]
    framer.keep_rest()
    assert len(framer.get_buffer()) == SCRATCH


def test_a_connection_without_room_waits_until_another_is_done() -> None:
    buffers = FrameBuffers(limit_bytes=20_000)
    first, second = make_framer(buffers=buffers), make_framer(buffers=buffers)
    large = framed(bytes(1_000_000))
    feed(first, large[:200])
    assert first.next_frame() is None and first.keep_rest()
    feed(second, large[:200])
    assert second.next_frame() is None
    woken: list[bool] = []
    assert not second.keep_rest()
    buffers.wait(lambda: woken.append(True))
    first.close()
    assert woken == [True]
    assert second.keep_rest()
    rest = large[200:]
    while rest:
        rest = rest[feed(second, rest) :]
        if rest:
            assert second.next_frame() is None and second.keep_rest()
    assert take_all(second) == [bytes(1_000_000)]


def test_a_limit_below_one_frame_does_not_stop_all_traffic() -> None:
    framer = make_framer(buffers=FrameBuffers(limit_bytes=1_500_000))
    data, got = framed(bytes(5_000_000)), list[bytes]()
    while data:
        data = data[feed(framer, data) :]
        got += take_all(framer)
        assert framer.keep_rest()
    assert got == [bytes(5_000_000)]


def test_buffers_go_back_when_a_connection_closes() -> None:
    buffers = FrameBuffers()
    framer = make_framer(buffers=buffers)
    feed(framer, (500_000).to_bytes(4, "big"))
    framer.next_frame()
    framer.keep_rest()
    assert buffers.held_bytes > 0
    framer.close()
    assert buffers.held_bytes == 0
