"""Bytes from a broker into frames that the reader may keep: records are views of them.

Pure: the connection asks where to receive, and says how much came.
"""

from headrace.errors import ProtocolError

# Above what one answer of a broker with default settings can be: fetch.max.bytes is 55 MiB, and
# one batch may exceed it.
FRAME_BYTES_MAX = 160 * 1_048_576

_SCRATCH_BYTES = 64 * 1024
_LENGTH_BYTES = 4


class FrameReader:
    """Frames of a 4-byte length and that many bytes, received one after the other.

    Invariant: either a frame is on its way, `_filled` bytes of it in `_frame`, or the first
    `_filled` bytes of `_scratch` are less than a length and what it announces.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._frame: bytearray | None = None
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be received: a large frame goes straight into its place."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return self._scratch[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """The frames that are whole now that `count` more bytes are here."""
        self._filled += count
        if self._frame is not None:
            if self._filled < len(self._frame):
                return []
            frame, self._frame, self._filled = self._frame, None, 0
            return [frame]
        return self._split_scratch()

    def _split_scratch(self) -> list[bytearray]:
        frames: list[bytearray] = []
        start, end = 0, self._filled
        while end - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            size = int.from_bytes(self._scratch[start:body], "big", signed=True)
            if not _LENGTH_BYTES <= size <= self._frame_bytes_max:
                raise ProtocolError(f"announced an answer of {size} bytes")
            if end - body < size:
                self._frame = bytearray(size)
                self._filled = end - body
                self._frame[: self._filled] = self._scratch[body:end]
                return frames
            frames.append(bytearray(self._scratch[body : body + size]))
            start = body + size
        self._filled = end - start
        self._scratch[: self._filled] = bytes(self._scratch[start:end])
        return frames
