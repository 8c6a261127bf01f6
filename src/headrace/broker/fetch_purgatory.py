"""The fetches that wait for records, what wakes them, and a bound on the memory of answers.

A fetch waits until there are as many bytes as it asks for, or for long enough. What counts depends
on how far its reader may read: for a follower what is appended, for a consumer what is committed,
for one of committed transactions what the last stable offset has passed. A follower is also told
what is committed: with the next records, or if none come, a little later.

The partitions of a fetch session stay watched between its fetches, so that a partition without news
costs nothing: what happens to it meanwhile puts it among the session's changed ones.
"""

import asyncio
import weakref
from collections.abc import Sequence
from typing import TypeAlias

from headrace.broker.fetch_sessions import FetchSession, ReadLimit, WantedPartition
from headrace.broker.replication.partition import Partition
from headrace.storage.files import Block
from headrace.types import Buffer

# However long a client asks to wait, its fetch must not be kept for ever.
_WAIT_SECONDS_MAX = 300.0
# What is committed is told to followers with the next records, or if none come, this much later.
_NEWS_SECONDS = 0.02

Reads: TypeAlias = Sequence[tuple[WantedPartition, Partition]]


class DelayedFetch:
    """A fetch that waits. `ready` is done once its partitions are to be read again.

    Whoever cancels `ready` ends the wait too.
    """

    def __init__(
        self,
        purgatory: "FetchPurgatory",
        reads: Reads,
        session: FetchSession | None,
        bytes_needed: int,
        timeout_s: float,
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self.reads = reads
        self.session = session
        self.ready: asyncio.Future[None] = loop.create_future()
        self._purgatory = purgatory
        self._bytes_needed = bytes_needed
        self._hurries = False
        wait_s = min(timeout_s, _WAIT_SECONDS_MAX)
        # Not the handle's `when`: uvloop's has none if it is due within half a millisecond.
        self._due = loop.time() + wait_s
        self._timer: asyncio.Handle = loop.call_later(wait_s, self.wake)
        self.ready.add_done_callback(lambda _: self.wake())

    def count(self, byte_count: int) -> None:
        """Note that so many more bytes can be read."""
        self._bytes_needed -= byte_count
        if self._bytes_needed <= 0:
            self.wake()

    def hurry(self) -> None:
        """Wait not much longer: there is something to tell, though nothing to read."""
        if not self._hurries:
            self._hurries = True
            due = self._loop.time() + _NEWS_SECONDS
            if due < self._due:
                self._timer.cancel()
                self._timer = self._loop.call_at(due, self.wake)

    def wake(self) -> None:
        """End the wait."""
        self._timer.cancel()
        self._purgatory.ended(self)
        if not self.ready.done():
            self.ready.set_result(None)


class FetchPurgatory:
    """Every waiting fetch of a broker. Used on the event loop's thread only.

    Invariant: a partition has this object as its `waiting_fetches` as long as a read of it is here.
    Bounded by the requests in flight and the partitions of all sessions.
    """

    def __init__(self) -> None:
        self._reads: dict[Partition, dict[WantedPartition, None]] = {}
        self._partitions: dict[WantedPartition, Partition] = {}
        self._of_sessions: dict[FetchSession, DelayedFetch] = {}
        self._without_session: dict[WantedPartition, DelayedFetch] = {}

    def park(self, reads: Reads, bytes_needed: int, timeout_s: float) -> DelayedFetch:
        """Let a fetch without a session wait for the partitions it read."""
        fetch = DelayedFetch(self, reads, None, bytes_needed, timeout_s)
        for read, partition in reads:
            self._without_session[read] = fetch
            self._add(partition, read)
        return fetch

    def park_session(
        self, session: FetchSession, reads: Reads, bytes_needed: int, timeout_s: float
    ) -> DelayedFetch:
        """Let the fetch of a session wait, for what it read and for all that is watched already."""
        fetch = DelayedFetch(self, reads, session, bytes_needed, timeout_s)
        self._of_sessions[session] = fetch
        for read, partition in reads:
            self.watch(partition, read)
        return fetch

    def watch(self, partition: Partition, read: WantedPartition) -> None:
        """Have the session of a read told of what its reader can get from now on."""
        if self._partitions.get(read) is not partition:
            assert read.session is not None
            self.unwatch(read)
            self._add(partition, read)

    def unwatch(self, read: WantedPartition) -> None:
        partition = self._partitions.pop(read, None)
        if partition is not None:
            reads = self._reads[partition]
            del reads[read]
            if not reads:
                del self._reads[partition]
                partition.waiting_fetches = None

    def forget(self, session: FetchSession) -> None:
        """Watch nothing more for a session."""
        for read in session.partitions.values():
            self.unwatch(read)

    def ended(self, fetch: DelayedFetch) -> None:
        """Wake a fetch no more: its wait is over. A session's partitions stay watched."""
        if fetch.session is None:
            for read, _ in fetch.reads:
                self._without_session.pop(read, None)
                self.unwatch(read)
        elif self._of_sessions.get(fetch.session) is fetch:
            del self._of_sessions[fetch.session]

    # What partitions tell.

    def appended(self, partition: Partition, byte_count: int) -> None:
        """So many bytes were written, which followers can read."""
        for read in tuple(self._reads[partition]):
            if read.limit is ReadLimit.LOG_END:
                fetch = self._fetch_of(read)
                if fetch is not None:
                    fetch.count(byte_count)

    def committed(self, partition: Partition, byte_count: int) -> None:
        """So many bytes became committed, which consumers can read, and followers should know."""
        for read in tuple(self._reads[partition]):
            fetch = self._fetch_of(read)
            if fetch is None:
                continue
            if read.limit is ReadLimit.HIGH_WATERMARK:
                fetch.count(byte_count)
            elif read.limit is ReadLimit.LAST_STABLE:
                _count_stable(fetch, read, partition, byte_count)
            elif read.session is not None:
                fetch.hurry()

    def log_start_moved(self, partition: Partition) -> None:
        """The log begins elsewhere, which sessions tell; a follower should not wait long for it."""
        for read in tuple(self._reads[partition]):
            fetch = self._fetch_of(read)
            if fetch is not None and read.session is not None and read.limit is ReadLimit.LOG_END:
                fetch.hurry()

    def changed(self, partition: Partition) -> None:
        """Its role ended or its disk failed: readers are to look again now."""
        for read in tuple(self._reads[partition]):
            fetch = self._fetch_of(read)
            if fetch is not None:
                fetch.wake()

    def _add(self, partition: Partition, read: WantedPartition) -> None:
        self._partitions[read] = partition
        self._reads.setdefault(partition, {})[read] = None
        partition.waiting_fetches = self

    def _fetch_of(self, read: WantedPartition) -> DelayedFetch | None:
        """The fetch that waits for a read, if any does; a session notes that there is news."""
        session = read.session
        if session is None:
            return self._without_session.get(read)
        session.changed[read.key] = read
        fetch = self._of_sessions.get(session)
        if fetch is None:
            # Once is enough until the next fetch, which may never come.
            self.unwatch(read)
        return fetch


def _count_stable(
    fetch: DelayedFetch, read: WantedPartition, partition: Partition, byte_count: int
) -> None:
    """Count what a reader of committed transactions can get of the bytes that became committed.

    Nothing while the last stable offset stays where it is: a reader that waits for the end of a
    transaction must not be woken by what others append meanwhile. When it moves, what was held back
    can be read too, and since nobody counted that, the partition is looked at.
    """
    if not byte_count:
        return
    stable_offset = partition.last_stable_offset
    if stable_offset == read.stable_offset:
        read.has_unstable = True
        return
    had_unstable = read.has_unstable
    read.saw_stable(stable_offset, partition.high_watermark)
    if had_unstable:
        fetch.wake()
    else:
        fetch.count(byte_count)


# The records that are on their way to consumers, and a bound on how much memory they take.
#
# An answer to a fetch stays in memory until its peer has read it. Peers that do not read must not
# make the broker hold ever more: with much on its way, a fetch brings one batch instead of many.


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
