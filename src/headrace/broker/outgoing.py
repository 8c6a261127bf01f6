"""The records that are on their way to consumers, and a bound on how much memory they take.

An answer to a fetch stays in memory until its peer has read it. Peers that do not read must not
make the broker hold ever more: with much on its way, a fetch brings one batch instead of many.
"""

import weakref

from headrace.storage.files import Block
from headrace.types import Buffer

_HELD_BYTES_MAX = 256 * 1024 * 1024
# Small answers are bounded by the number of requests in flight; they are not worth the counting.
_COUNTED_BYTES_MIN = 64 * 1024


class Outgoing:
    """Counts what fetches have read and nobody has taken yet. Used on the event loop's thread."""

    def __init__(self, held_bytes_max: int = _HELD_BYTES_MAX) -> None:
        self.held_bytes = 0
        self._held_bytes_max = held_bytes_max

    @property
    def room_bytes(self) -> int:
        """How much a fetch may read now, beyond the one batch it always gets."""
        return max(self._held_bytes_max - self.held_bytes, 0)

    def hold(self, records: Buffer) -> Buffer:
        """Count records until nobody holds what is returned."""
        size = len(records)
        if size < _COUNTED_BYTES_MIN:
            return records
        block = records if isinstance(records, Block) else Block(records)
        self.held_bytes += size
        weakref.finalize(block, self._release, size).atexit = False
        return block

    def _release(self, size: int) -> None:
        self.held_bytes -= size
