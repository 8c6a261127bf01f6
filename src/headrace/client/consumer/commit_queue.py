"""The queue of commits, explicit and automatic, performed in the order of the calls.

Rule: an automatic commit covers the records that the application has finished, and no record it may
still be processing. Records returned by a `poll` are finished when the next one is called; in an
iteration, a record is finished when the next record is requested.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from headrace.client.cluster import ClusterClient
from headrace.client.consumer.group import GroupMember
from headrace.client.consumer.subscription import SubscriptionState
from headrace.client.errors import TimedOut
from headrace.client.options import ConsumerOptions
from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.errors import ConfigError, HeadraceError
from headrace.types import TopicPartition

CommitCallback = Callable[[dict[TopicPartition, OffsetAndMetadata], HeadraceError | None], object]

_log = logging.getLogger("headrace.consumer")


class CommitQueue:
    """The commits of one consumer, on its loop. Without a group there is nothing to commit."""

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: ConsumerOptions,
        group: GroupMember | None,
        wake: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._group = group
        self._wake = wake
        self._order = asyncio.Lock()
        self._callbacks: deque[Callable[[], object]] = deque()
        self._expected = 0
        self._all_done = asyncio.Event()
        # The group's committed offsets as last known: automatic commits skip unchanged ones.
        self._known: dict[TopicPartition, int] = {}

    @property
    def is_automatic(self) -> bool:
        return self._group is not None and self._options.enable_auto_commit

    def wanted(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """In the application: the offsets to commit, by default all positions."""
        if self._group is None:
            raise ConfigError("offsets are committed for a group; give the consumer a group_id")
        if offsets is not None:
            return dict(offsets)
        with self._subscription.lock:
            return self._subscription.committable(self._subscription.positions())

    def group_metadata(self) -> ConsumerGroupMetadata:
        """In the application: the member id and generation that commits carry."""
        if self._group is None:
            raise ConfigError("only a member of a group has metadata; give the consumer a group_id")
        return self._group.metadata()

    @property
    def has_callbacks(self) -> bool:
        """In the application: whether a commit with a callback has finished."""
        return bool(self._callbacks)

    def next_callback(self) -> Callable[[], object] | None:
        """In the application: the next callback whose commit has finished."""
        return self._callbacks.popleft() if self._callbacks else None

    def expect(self) -> None:
        """In the application: count a commit, before `commit_and_report` is scheduled."""
        with self._subscription.lock:
            self._expected += 1

    async def drain(self, timeout_s: float) -> None:
        """Wait until every asynchronous commit has finished, or the timeout has passed."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._expected:
                    await self._all_done.wait()
        except TimeoutError:
            _log.warning("%s: commits were not done in time", self._options.client_id)

    def note_committed(self, tp: TopicPartition, offset: int) -> None:
        """Note an offset that is known to be committed."""
        self._known[tp] = offset

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop the known offsets of partitions that other members may commit from now on."""
        for tp in partitions:
            self._known.pop(tp, None)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float | None = None,
    ) -> None:
        """Commit offsets, after all earlier commits have finished."""
        assert self._group is not None, "wanted() has seen to it"
        deadline = self._cluster.deadline(timeout_s)
        try:
            async with asyncio.timeout(max(deadline - self._cluster.clock.monotonic(), 0)):
                await self._order.acquire()
        except TimeoutError:
            raise TimedOut("earlier commits are not done yet") from None
        try:
            await self._group.commit(offsets, deadline)
        finally:
            self._order.release()
        self._known |= {tp: committed.offset for tp, committed in offsets.items()}

    async def commit_and_report(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> None:
        """Commit offsets, and queue the callback for the application's next poll."""
        error: HeadraceError | None = None
        try:
            await self.commit(offsets)
        except HeadraceError as failed:
            error = failed
        with self._subscription.lock:
            self._expected -= 1
        self._all_done.set()
        self._all_done.clear()
        if callback is not None:
            self._callbacks.append(lambda: callback(offsets, error))
            self._wake()
        elif error is not None:
            _log.warning("%s: a commit failed: %s", self._options.client_id, error)

    async def commit_done(
        self,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        with_given: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """If commits are automatic, commit finished records; `with_given` also those `poll`
        returned.
        """
        if not self.is_automatic:
            return
        with self._subscription.lock:
            if with_given:
                self._subscription.finish_given(iterated_too=False)
            done = self._subscription.committable(self._subscription.done_offsets(partitions))
        changed = {
            tp: offset for tp, offset in done.items() if self._known.get(tp) != offset.offset
        }
        if not changed:
            return
        try:
            await self.commit(changed, timeout_s)
        except HeadraceError as error:
            _log.warning("%s: an automatic commit failed: %s", self._options.client_id, error)

    async def run(self) -> None:
        """Commit finished records every `auto_commit_interval_ms`, until cancelled."""
        while True:
            await asyncio.sleep(self._options.auto_commit_interval_ms / 1000)
            await self.commit_done()
