"""Bytes from a broker into frames that the reader may keep: records are views of them.

Pure: the connection asks where to receive, and says how much came.
"""

from collections import deque

from headrace.errors import ProtocolError
from headrace.types import Buffer

# Above what one answer of a broker with default settings can be: fetch.max.bytes is 55 MiB, and
# one batch may exceed it.
FRAME_BYTES_MAX = 160 * 1_048_576

_SCRATCH_BYTES = 64 * 1024
# Fetches bring frames of one size again and again. Memory that was written before is much quicker
# to write to than new memory, so a few frames of such sizes are kept.
_SPARE_BYTES_MIN = 128 * 1024
_SPARE_BYTES_MAX = 5 * 1_048_576
_SPARES_MAX = 4
_LENGTH_BYTES = 4


class FrameReader:
    """Frames of a 4-byte length and that many bytes, received one after the other.

    A frame is the reader's for as long as it holds a view of it, and its memory ours after that.
    Invariant: either a frame is on its way, `_filled` bytes of it in `_frame`, or the first
    `_filled` bytes of `_scratch` are less than a length and what it announces.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._spares: deque[bytearray] = deque(maxlen=_SPARES_MAX)
        self._frame: memoryview | None = None
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be received: a large frame goes straight into its place."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._scratch[self._filled :]

    def received(self, count: int) -> list[Buffer]:
        """The frames that are whole now that `count` more bytes are here."""
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
    """Whether no view of it is left: one that has views refuses to change its size."""
    try:
        spare.pop()
    except BufferError:
        return False
    spare.append(0)
    return True
