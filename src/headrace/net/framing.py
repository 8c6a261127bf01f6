"""Splitting of a byte stream into frames with a 4-byte length, for servers and for clients.

A server's connection receives into a scratch buffer shared by all connections of its event loop,
since the bytes of a read are handled before the next read begins. Only the rest, an incomplete
frame or frames that must wait for earlier requests, moves into a buffer of the connection's own,
from `FrameBuffers`.

Rule: a frame returned by `Framer` is a view, valid until the caller calls `keep_rest`.
"""

from collections import deque
from collections.abc import Callable

from headrace.errors import ProtocolError
from headrace.types import Buffer

# The client's side: bytes from a broker into frames that the consumer may keep, since its records
# are views of them.
#
# Sans-IO: the connection asks for a buffer to receive into, and reports how many bytes came.


# Above the size of any response of a broker with default settings: fetch.max.bytes is 55 MiB, and
# a single batch may exceed it.
FRAME_BYTES_MAX = 160 * 1_048_576

# The first bytes of TLS: an alert, with which a broker refuses plain text, and a client's hello.
# Where a length belongs they would be one of more than 350 MB.
_TLS_ALERT = b"\x15\x03"
_TLS_HELLO = b"\x16\x03"

_SCRATCH_BYTES = 64 * 1024
# Successive fetch responses have about the same size. Memory that was written before is much
# quicker to write to than new memory, so a few buffers of such sizes are kept.
_SPARE_BYTES_MIN = 128 * 1024
_SPARE_BYTES_MAX = 5 * 1_048_576
_SPARES_MAX = 4
_LENGTH_BYTES = 4


class TlsExpected(ProtocolError):
    """A peer that speaks TLS on a connection without it."""


class FrameReader:
    """The receiving side of a client's connection: bytes in, whole frames out.

    A frame belongs to the caller for as long as it holds a view of it; then its memory is reused.
    Invariant: either a frame is incomplete, with `_filled` bytes of it in `_frame`, or the first
    `_filled` bytes of `_scratch` are an incomplete length.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._spares: deque[bytearray] = deque(maxlen=_SPARES_MAX)
        self._frame: memoryview | None = None
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """The buffer for the next read: a large frame is received into its own memory."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._scratch[self._filled :]

    def received(self, count: int) -> list[Buffer]:
        """Take note of `count` received bytes; return the frames that they complete."""
        self._filled += count
        if self._frame is not None:
            if self._filled < len(self._frame):
                return []
            frame, self._frame, self._filled = self._frame, None, 0
            return [frame]
        return self._split_scratch()

    def _split_scratch(self) -> list[Buffer]:
        frames: list[Buffer] = []
        start, end = 0, self._filled
        while end - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            size = int.from_bytes(self._scratch[start:body], "big", signed=True)
            if not _LENGTH_BYTES <= size <= self._frame_bytes_max:
                if self._scratch[start : start + 2] == _TLS_ALERT:
                    raise TlsExpected("the listener speaks TLS")
                raise ProtocolError(f"announced an answer of {size} bytes")
            if end - body < size:
                self._frame = self._new_frame(size)
                self._filled = end - body
                self._frame[: self._filled] = self._scratch[body:end]
                return frames
            frames.append(bytearray(self._scratch[body : body + size]))
            start = body + size
        self._filled = end - start
        self._scratch[: self._filled] = bytes(self._scratch[start:end])
        return frames

    def _new_frame(self, size: int) -> memoryview:
        if not _SPARE_BYTES_MIN <= size <= _SPARE_BYTES_MAX:
            return memoryview(bytearray(size))
        for spare in self._spares:
            if len(spare) >= size and _is_unused(spare):
                return memoryview(spare)[:size]
        fresh = bytearray(size + size // 8)
        self._spares.append(fresh)
        return memoryview(fresh)[:size]


def _is_unused(spare: bytearray) -> bool:
    """Whether no view of a buffer is left: a bytearray with views refuses to change its size."""
    try:
        spare.pop()
    except BufferError:
        return False
    spare.append(0)
    return True


# The setting that a server's limit on frames comes from.
FRAME_LIMIT_NAME = "socket.request.max.bytes"

SCRATCH_BYTES = 256 * 1024
_FIRST_BYTES = 16 * 1024
_POOLED_BYTES = 1024 * 1024
_POOL_SIZE = 8
_LARGE_BYTES = SCRATCH_BYTES // 2


class FrameBuffers:
    """A pool of buffers for incomplete frames, with a limit on the bytes of all of them.

    The length that a peer announces is not trusted: beyond the first 16 KiB a buffer is at most
    four times as large as the bytes received, so that many silent peers cannot use up the limit.
    """

    def __init__(self, limit_bytes: int = -1) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._free: list[bytearray] = []
        self._waiting: list[Callable[[], None]] = []

    def acquire(self, size: int) -> bytearray | None:
        """A buffer of at least `size` bytes, or None if it would exceed the limit."""
        capacity = _POOLED_BYTES if SCRATCH_BYTES < size <= _POOLED_BYTES else size
        # One buffer is always granted: a limit below a frame's size must not stop all traffic.
        if 0 <= self._limit_bytes < self.held_bytes + capacity and self.held_bytes > 0:
            return None
        self.held_bytes += capacity
        if capacity == _POOLED_BYTES and self._free:
            return self._free.pop()
        return bytearray(capacity)

    def release(self, buffer: bytearray) -> None:
        self.held_bytes -= len(buffer)
        if len(buffer) == _POOLED_BYTES and len(self._free) < _POOL_SIZE:
            self._free.append(buffer)
        waiting, self._waiting = self._waiting, []
        for retry in waiting:
            retry()

    def wait(self, retry: Callable[[], None]) -> None:
        """Call `retry` once, after the next `release`."""
        self._waiting.append(retry)


class Framer:
    """The receiving side of a server's connection.

    Invariant: [_start, _end) of `_view` is received and not yet returned by `next_frame`.
    """

    def __init__(self, frame_bytes_max: int, scratch: memoryview, buffers: FrameBuffers) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._limit_name = FRAME_LIMIT_NAME
        self._scratch = scratch
        self._buffers = buffers
        self._owned: bytearray | None = None
        self._sends_large = False
        # Counts the frames that came in more than one read, so that a frame that does not get on
        # can be told from the next: whole frames, which are nearly all, do not count.
        self.frames_begun = 0
        self._view = scratch
        self._start = 0
        self._end = 0

    def limit(self, frame_bytes_max: int, limit_name: str) -> None:
        """Set the largest frame from now on, and the setting it comes from."""
        self._frame_bytes_max = frame_bytes_max
        self._limit_name = limit_name

    def get_buffer(self) -> memoryview:
        """The buffer for the next read."""
        if self._owned is None:
            # A peer that just sent a large frame sends another: received into a buffer of the
            # connection's own, it need not be copied out of the scratch buffer.
            buffer = self._buffers.acquire(_POOLED_BYTES) if self._sends_large else None
            if buffer is None:
                return self._scratch
            self._owned, self._view = buffer, memoryview(buffer)
            self.frames_begun += 1
        return self._view[self._end :]

    def received(self, count: int) -> None:
        self._end += count

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None."""
        start = self._start
        if self._end - start < 4:
            return None
        body = start + 4
        end = body + self._announced(start)
        if end > self._end:
            return None
        self._start = end
        self._sends_large = end - body > _LARGE_BYTES
        return self._view[body:end]

    def keep_rest(self) -> bool:
        """Move the incomplete rest where it can grow; False while there is no buffer for it."""
        left = self._end - self._start
        if left == 0:
            self.close()
            return True
        if self._owned is not None and self._start == 0 and self._end < len(self._owned):
            return True
        if self._owned is None or self._start > 0:
            self.frames_begun += 1
        capacity = self._capacity_for(left)
        buffer = self._buffers.acquire(capacity)
        if buffer is None:
            # Out of the scratch, where another connection is about to receive, and out of our own
            # buffer, whose release may free enough of the limit for a larger buffer.
            self._view = memoryview(bytes(self._view[self._start : self._end]))
            self._start, self._end = 0, left
            self._drop_owned()
            buffer = self._buffers.acquire(capacity)
            if buffer is None:
                return False
        view = memoryview(buffer)
        # From view to view: a bytearray would first make a copy of what it is assigned.
        view[:left] = self._view[self._start : self._end]
        self._drop_owned()
        self._owned, self._view = buffer, view
        self._start, self._end = 0, left
        return True

    @property
    def incomplete_bytes(self) -> int:
        """The bytes received of a frame that is not whole yet, or of frames that wait."""
        return self._end - self._start

    def close(self) -> None:
        """Drop all received bytes and give the buffer back."""
        self._start = self._end = 0
        self._view = self._scratch
        self._drop_owned()

    def _announced(self, position: int) -> int:
        size = int.from_bytes(self._view[position : position + 4], "big", signed=True)
        if not 0 <= size <= self._frame_bytes_max:
            if self._view[position : position + 2] == _TLS_HELLO:
                raise TlsExpected(
                    "the client speaks TLS, and the listener is plain text; its security.protocol"
                    " must be PLAINTEXT or SASL_PLAINTEXT for this listener"
                )
            raise ProtocolError(
                f"a frame of {size} bytes; {self._limit_name} is {self._frame_bytes_max}"
            )
        return size

    def _capacity_for(self, left: int) -> int:
        wanted = _FIRST_BYTES if left < 4 else 4 + self._announced(self._start)
        earned = 2 * left if left > _POOLED_BYTES else min(4 * left, _POOLED_BYTES)
        return max(left + 1, min(wanted, max(_FIRST_BYTES, earned)))

    def _drop_owned(self) -> None:
        if self._owned is not None:
            owned, self._owned = self._owned, None
            self._buffers.release(owned)
