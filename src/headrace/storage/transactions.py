"""Which transactions of a log keep its last stable offset back.

Rule: a transaction is unstable while it is open, and after that until its marker is committed:
below the last stable offset nothing is undecided, and no decision can be lost.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class _Ended(NamedTuple):
    first_offset: int
    marker_offset: int


class Transactions:
    """The unstable transactions of one log. Owned by the thread that owns the log.

    Invariant: `_open` has them by first offset. In `_ended` first offsets and marker offsets both
    rise: one that ends later and began earlier keeps back all that the others would.
    """

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        # First offset -> producer id, in the order of the log.
        self._open: dict[int, int] = {}
        self._ended: deque[_Ended] = deque()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def first_open(self) -> int | None:
        """Where the oldest open transaction begins."""
        return next(iter(self._open), None)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a transaction whose first record was appended."""
        self._open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Note a marker that was appended; the last stable offset once that is committed."""
        del self._open[first_offset]
        ended = self._ended
        while ended and ended[-1].first_offset > first_offset:
            ended.pop()
        ended.append(_Ended(first_offset, marker_offset))
        oldest = self.first_open
        return marker_offset + 1 if oldest is None else oldest

    def first_unstable(self, high_watermark: int) -> int | None:
        """Where the oldest unstable transaction begins.

        Markers below `high_watermark` are forgotten, so it must be the one of the partition.
        """
        ended = self._ended
        while ended and ended[0].marker_offset < high_watermark:
            ended.popleft()
        oldest = self.first_open
        if ended and (oldest is None or ended[0].first_offset < oldest):
            return ended[0].first_offset
        return oldest

    def restore(self, open_transactions: Iterable[tuple[int, int]], offset: int) -> None:
        """Go back to how it was at `offset`: (first offset, producer id) of those open then."""
        self._open = dict(sorted(open_transactions))
        while self._ended and self._ended[-1].marker_offset >= offset:
            self._ended.pop()

    def clear(self) -> None:
        """Forget all of them."""
        self._open.clear()
        self._ended.clear()
