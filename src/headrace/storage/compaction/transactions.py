"""Transactions as compaction meets them: what was aborted, and which markers nobody needs any more.

Rule: a marker may go only when no batch of its transaction was met before it in the same pass, so
never before they are all gone.
"""

from collections import deque
from collections.abc import Iterable

from headrace.protocol.markers import decode_marker
from headrace.protocol.records import BatchHeader
from headrace.storage.aborted_index import AbortedTransaction
from headrace.types import Buffer


class PassedTransactions:
    """The transactions of a log while a pass goes through its batches in order.

    Each batch is told of exactly once, by `is_aborted` or `is_done`.
    """

    def __init__(self) -> None:
        self._coming: deque[AbortedTransaction] = deque()
        self._newest = -1
        # By producer: aborted transactions that have begun, and whether a batch of them was met.
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        # What the index of the new segment has to say.
        self.still_aborted: list[AbortedTransaction] = []

    def expect(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Tell of aborted transactions with offsets in the next segment; those known are fine."""
        new = [one for one in aborted if one.first_offset > self._newest]
        new.sort(key=lambda one: one.first_offset)
        if new:
            self._newest = new[-1].first_offset
            self._coming.extend(new)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._begin_until(header.last_offset)
        entry = self._aborted.get(header.producer_id)
        if entry is not None:
            if header.last_offset <= entry[0].last_offset:
                self._aborted[header.producer_id] = (entry[0], True)
                return True
            del self._aborted[header.producer_id]  # It ended, and its marker is gone already.
        self._committed.add(header.producer_id)
        return False

    def is_done(self, header: BatchHeader, buffer: Buffer) -> bool:
        """Whether a control batch says nothing that anybody needs any more."""
        self._begin_until(header.last_offset)
        if not header.record_count:
            return True
        marker = decode_marker(buffer, header)
        if marker is None:
            return False
        if marker.committed:
            done = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return done
        entry = self._aborted.pop(header.producer_id, None)
        if entry is None or not entry[1]:
            return True
        self.still_aborted.append(entry[0])
        return False

    def _begin_until(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            entry = self._coming.popleft()
            self._aborted[entry.producer_id] = (entry, False)
