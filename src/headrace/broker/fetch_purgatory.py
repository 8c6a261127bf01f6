"""Fetch purgatory: the fetches that wait for records, and a bound on the memory of responses.

A fetch waits until there are as many bytes as it asks for, or until its wait is over. The bytes
that count depend on how far its reader may read: for a follower all appended bytes, for a consumer
the committed, for a READ_COMMITTED consumer those below the last stable offset. A follower also
gets the new high watermark: with the next records, or if none come, a little later.

The partitions of a fetch session stay watched between its fetches, so that an idle partition costs
nothing: an append or a commit meanwhile puts it into the session's `changed`.
"""

import asyncio
import weakref
from collections.abc import Sequence
from typing import TypeAlias

from headrace.broker.fetch_sessions import FetchIsolation, FetchSession, SessionPartition
from headrace.broker.replication.partition import Partition
from headrace.storage.files import Block
from headrace.types import Buffer

# The limit of a client's wait time.
_WAIT_SECONDS_MAX = 300.0
# Followers get a new high watermark with the next records, or if none come, this much later.
_NEWS_SECONDS = 0.02

Reads: TypeAlias = Sequence[tuple[SessionPartition, Partition]]


class DelayedFetch:
    """A fetch that waits. `ready` is done once its partitions should be read again.

    Cancelling `ready` ends the wait too.
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
        self._wakes_soon = False
        wait_s = min(timeout_s, _WAIT_SECONDS_MAX)
        # Not the handle's `when`: uvloop's has none if it is due within half a millisecond.
        self._due = loop.time() + wait_s
        self._timer: asyncio.Handle = loop.call_later(wait_s, self.wake)
        self.ready.add_done_callback(self._cancelled)

    def count_bytes(self, byte_count: int) -> None:
        """Count bytes that are readable now, and end the wait if there are enough."""
        self._bytes_needed -= byte_count
        if self._bytes_needed <= 0:
            self.wake()

    def wake_soon(self) -> None:
        """Shorten the wait: there are new offsets to send, though no records."""
        if not self._wakes_soon:
            self._wakes_soon = True
            due = self._loop.time() + _NEWS_SECONDS
            if due < self._due:
                self._timer.cancel()
                self._timer = self._loop.call_at(due, self.wake)

    def wake(self) -> None:
        """End the wait."""
        self._timer.cancel()
        self._purgatory.ended(self)
        if not self.ready.done():
            # The callback has no more effect, and each call takes a turn of the loop.
            self.ready.remove_done_callback(self._cancelled)
            self.ready.set_result(None)

    def _cancelled(self, _: asyncio.Future[None]) -> None:
        self.wake()


class FetchPurgatory:
    """Every waiting fetch of a broker. Used on the event loop's thread only.

    Invariant: a partition has this object as its `waiting_fetches` as long as a read of it is here.
    Bounded by the requests in flight and the partitions of all sessions.
    """

    def __init__(self) -> None:
        self._reads: dict[Partition, dict[SessionPartition, None]] = {}
        self._partitions: dict[SessionPartition, Partition] = {}
        self._session_fetches: dict[FetchSession, DelayedFetch] = {}
        self._sessionless_fetches: dict[SessionPartition, DelayedFetch] = {}

    @property
    def waiting(self) -> int:
        """The number of fetches that wait."""
        return len(self._session_fetches) + len(set(self._sessionless_fetches.values()))

    def park(self, reads: Reads, bytes_needed: int, timeout_s: float) -> DelayedFetch:
        """Let a fetch without a session wait for the partitions it read."""
        fetch = DelayedFetch(self, reads, None, bytes_needed, timeout_s)
        for read, partition in reads:
            self._sessionless_fetches[read] = fetch
            self._add(partition, read)
        return fetch

    def park_session(
        self, session: FetchSession, reads: Reads, bytes_needed: int, timeout_s: float
    ) -> DelayedFetch:
        """Let a session's fetch wait, for the partitions it read and those watched already."""
        fetch = DelayedFetch(self, reads, session, bytes_needed, timeout_s)
        self._session_fetches[session] = fetch
        for read, partition in reads:
            self.watch(partition, read)
        return fetch

    def watch(self, partition: Partition, read: SessionPartition) -> None:
        """Put a partition into its session's `changed` at the next append or commit."""
        if self._partitions.get(read) is not partition:
            assert read.session is not None
            self.unwatch(read)
            self._add(partition, read)

    def unwatch(self, read: SessionPartition) -> None:
        partition = self._partitions.pop(read, None)
        if partition is not None:
            reads = self._reads[partition]
            del reads[read]
            if not reads:
                del self._reads[partition]
                partition.waiting_fetches = None

    def forget(self, session: FetchSession) -> None:
        """Stop watching the partitions of a session."""
        for read in session.partitions.values():
            self.unwatch(read)

    def ended(self, fetch: DelayedFetch) -> None:
        """Remove a fetch that waits no longer. The partitions of a session stay watched."""
        if fetch.session is None:
            for read, _ in fetch.reads:
                self._sessionless_fetches.pop(read, None)
                self.unwatch(read)
        elif self._session_fetches.get(fetch.session) is fetch:
            del self._session_fetches[fetch.session]

    # Notifications from partitions.

    def appended(self, partition: Partition, byte_count: int) -> None:
        """Count appended bytes, which followers can read."""
        for read in tuple(self._reads[partition]):
            if read.limit is FetchIsolation.LOG_END:
                fetch = self._fetch_of(read)
                if fetch is not None:
                    fetch.count_bytes(byte_count)

    def committed(self, partition: Partition, byte_count: int) -> None:
        """Count bytes that were committed, for consumers; followers get the high watermark."""
        for read in tuple(self._reads[partition]):
            fetch = self._fetch_of(read)
            if fetch is None:
                continue
            if read.limit is FetchIsolation.HIGH_WATERMARK:
                fetch.count_bytes(byte_count)
            elif read.limit is FetchIsolation.LAST_STABLE:
                _count_stable(fetch, read, partition, byte_count)
            elif read.session is not None:
                fetch.wake_soon()

    def log_start_moved(self, partition: Partition) -> None:
        """Send the new log start offset soon to followers that have a session."""
        for read in tuple(self._reads[partition]):
            fetch = self._fetch_of(read)
            if (
                fetch is not None
                and read.session is not None
                and read.limit is FetchIsolation.LOG_END
            ):
                fetch.wake_soon()

    def changed(self, partition: Partition) -> None:
        """Wake all fetches of a partition: its role ended, or its disk failed."""
        for read in tuple(self._reads[partition]):
            fetch = self._fetch_of(read)
            if fetch is not None:
                fetch.wake()

    def _add(self, partition: Partition, read: SessionPartition) -> None:
        self._partitions[read] = partition
        self._reads.setdefault(partition, {})[read] = None
        partition.waiting_fetches = self

    def _fetch_of(self, read: SessionPartition) -> DelayedFetch | None:
        """The fetch that waits for a partition, if any; its session marks it as changed."""
        session = read.session
        if session is None:
            return self._sessionless_fetches.get(read)
        session.changed[read.key] = read
        fetch = self._session_fetches.get(session)
        if fetch is None:
            # Marking it once is enough until the next fetch, which may never come.
            self.unwatch(read)
        return fetch


def _count_stable(
    fetch: DelayedFetch, read: SessionPartition, partition: Partition, byte_count: int
) -> None:
    """Count committed bytes for a READ_COMMITTED reader.

    None while the last stable offset does not change: a reader that waits for the end of a
    transaction must not be woken by appends of other producers. When it changes, records that were
    held back can be read too; as their bytes were not counted, the partition is read again.
    """
    if not byte_count:
        return
    stable_offset = partition.last_stable_offset
    if stable_offset == read.stable_offset:
        read.has_unstable = True
        return
    had_unstable = read.has_unstable
    read.note_stable_offset(stable_offset, partition.high_watermark)
    if had_unstable:
        fetch.wake()
    else:
        fetch.count_bytes(byte_count)


# The memory of responses to fetches that are being sent, and a bound on it.
#
# An answer to a fetch stays in memory until its peer has read it. Peers that do not read must not
# make the broker hold ever more: near the bound, a fetch brings one batch instead of many.


_HELD_BYTES_MAX = 256 * 1024 * 1024
# Small responses are bounded by the number of requests in flight; they are not worth the counting.
_COUNTED_BYTES_MIN = 64 * 1024


class FetchMemory:
    """Counts the bytes of responses that peers have not read yet. For the loop's thread only."""

    def __init__(self, held_bytes_max: int = _HELD_BYTES_MAX) -> None:
        self.held_bytes = 0
        self._held_bytes_max = held_bytes_max

    @property
    def available_bytes(self) -> int:
        """The bytes that a fetch may read now, beyond the single batch it always gets."""
        return max(self._held_bytes_max - self.held_bytes, 0)

    def hold(self, records: Buffer) -> Buffer:
        """Count the bytes of records until the returned buffer is freed."""
        size = len(records)
        if size < _COUNTED_BYTES_MIN:
            return records
        block = records if isinstance(records, Block) else Block(records)
        self.held_bytes += size
        weakref.finalize(block, self._release, size).atexit = False
        return block

    def _release(self, size: int) -> None:
        self.held_bytes -= size
