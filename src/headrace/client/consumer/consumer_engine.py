"""The engine behind `poll()`: ties subscription, group, fetching and commits together."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from headrace.client.blocking import Signal
from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import TopicInfo
from headrace.client.consumer.commit_queue import CommitCallback, CommitQueue
from headrace.client.consumer.fetch_collector import FetchCollector
from headrace.client.consumer.fetcher import ConsumerFetcher
from headrace.client.consumer.group import GroupMember
from headrace.client.consumer.positions import PositionFinder, no_offset, recreated, truncated
from headrace.client.consumer.rebalance_listener import (
    PendingRebalances,
    RebalanceCallbacks,
    RebalanceEvent,
)
from headrace.client.consumer.subscription import (
    PartitionState,
    SubscriptionMode,
    SubscriptionState,
)
from headrace.client.errors import TimedOut, Unreachable, failure
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import ConsumerOptions
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ConfigError, ErrorCode, HeadraceError, KafkaError, Subject, UnknownTopic
from headrace.net.client_connection import ConnectionFailed, SecurityRefused
from headrace.protocol.codec_build import warn_if_uncompiled
from headrace.types import ZERO_UUID, TopicPartition

# The pause before a missing topic is looked up again.
MISSING_S = 1.0

_log = logging.getLogger("headrace.consumer")

_NOT_YET = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE))


class TopicWatch:
    """Watches the topics of a subscription: on changes, and every `metadata_max_age_ms`.

    `on_topics` gets the topics after each lookup, `on_error` an error for the application.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: ConsumerOptions,
        *,
        on_topics: Callable[[Mapping[str, TopicInfo]], Awaitable[None]],
        on_error: Callable[[HeadraceError], None],
        on_away: Callable[[HeadraceError], None],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._on_topics = on_topics
        self._on_error = on_error
        self._on_away = on_away
        self._wakeup = asyncio.Event()
        self._warned: set[str] = set()

    def look_up_now(self) -> None:
        """Look the topics up now, because the subscription changed."""
        self._wakeup.set()

    async def run(self) -> None:
        """Look the topics up periodically, until cancelled."""
        attempts = 0
        while True:
            self._wakeup.clear()
            mode = self._subscription.mode
            wait_s = None
            if mode in (SubscriptionMode.TOPICS, SubscriptionMode.PATTERN):
                try:
                    wait_s = await self._look_up_once(mode)
                    attempts = 0
                except (ConnectionFailed, TimedOut, Unreachable, KafkaError) as error:
                    wait_s = self._cluster.backoff.delay_s(attempts, self._cluster.rng)
                    attempts += 1
                    if isinstance(error, KafkaError) and not self._cluster.passes(error):
                        self._on_error(error)
                    else:
                        self._on_away(error)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    async def _look_up_once(self, mode: SubscriptionMode) -> float:
        """Look the topics up and report them; returns how long the result is valid."""
        max_age_s = max(self._options.metadata_max_age_ms / 1000, 0.01)
        deadline = self._cluster.deadline()
        if mode is SubscriptionMode.PATTERN:
            view = await self._cluster.refresh(None, deadline)
            await self._on_topics({name: view.topics[name] for name in self._matching(view.topics)})
            return max_age_s
        names = self._subscription.topics
        view = await self._cluster.refresh(
            names, deadline, create=self._options.allow_auto_create_topics
        )
        missing = names - view.topics.keys()
        for name in missing:
            code = view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if code not in _NOT_YET and (error := failure(code, subject=Subject("topic", name))):
                raise error
        self._warn(missing)
        await self._on_topics({name: view.topics[name] for name in names - missing})
        return min(MISSING_S, max_age_s) if missing else max_age_s

    def _matching(self, topics: Mapping[str, TopicInfo]) -> list[str]:
        pattern = self._subscription.pattern
        assert pattern is not None, "a pattern subscription has a pattern"
        return [
            name
            for name, topic in topics.items()
            if pattern.fullmatch(name)
            and not (topic.is_internal and self._options.exclude_internal_topics)
        ]

    def _warn(self, missing: frozenset[str]) -> None:
        for name in sorted(missing - self._warned):
            _log.warning(
                "%s: topic %s does not exist (yet); it will be read as soon as it does",
                self._options.client_id,
                name,
            )
        self._warned = set(missing)


# The engine behind `poll()`: ties subscription, group, fetching and commits together.
#
# It runs on one event loop, its own thread's or the application's, and is used from the application
# at the same time. Methods below "in the application" are called by the thread that polls, the
# others on the loop; what both touch is the subscription, under its lock. `news` ends the wait of a
# poll.


class ConsumerEngine:
    """The engine of one consumer. It is the `GroupHost` of its group."""

    def __init__(self, options: ConsumerOptions, *, post: Callable[..., None]) -> None:
        warn_if_uncompiled(_log)
        self.options = options
        self.news = Signal()
        wake = self.news.set
        self.subscription = SubscriptionState()
        self.rebalances = PendingRebalances(self.subscription, post, wake)
        self.cluster = ClusterClient(options.bootstrap_servers, **options.cluster_arguments())
        self.metrics = ConsumerMetrics(self.cluster.clock, client_id=options.client_id)
        self.handout = FetchCollector(
            self.subscription, options, self.metrics, on_room=lambda: post(self._fetcher.pump)
        )
        self._post = post
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = self._new_group()
        self._fetcher = ConsumerFetcher(
            self.cluster,
            self.subscription,
            options,
            self.metrics,
            spawn=self._spawn,
            on_data=wake,
            on_error=self._partition_failed,
            on_out_of_range=self._out_of_range,
            on_recreated=self._recreated,
            on_truncated=self._truncated,
        )
        self._finder = PositionFinder(
            self.cluster,
            self.subscription,
            options,
            self._group.committed if self._group else None,
            spawn=self._spawn,
            on_found=self._position_found,
            on_error=self._partition_failed,
            on_away=self._brokers_away,
        )
        self.committing = CommitQueue(self.cluster, self.subscription, options, self._group, wake)
        self._watch = TopicWatch(
            self.cluster,
            self.subscription,
            options,
            on_topics=self._topics_seen,
            on_error=self._topics_failed,
            on_away=self._brokers_away,
        )
        self._is_started = False
        self._is_member = False
        self._started_at = self.cluster.clock.monotonic()
        self._away: HeadraceError | None = None
        self._broken: BaseException | None = None
        self._topics_error: HeadraceError | None = None
        self._failed: deque[PartitionState] = deque()
        self._is_polling = False
        self._joiners: list[asyncio.Future[None]] = []
        self._found = asyncio.Event()

    # -- in the application: subscribing

    def subscribe(
        self,
        topics: frozenset[str] | None,
        pattern: re.Pattern[str] | None,
        listener: RebalanceCallbacks | None,
    ) -> None:
        with self.subscription.lock:
            if pattern is not None:
                self.subscription.set_pattern(pattern)
            else:
                self.subscription.set_topics(topics or frozenset())
        self.rebalances.listener = listener
        self._post(self._subscription_changed)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        with self.subscription.lock:
            before = set(self.subscription.states)
            self.subscription.set_partitions(partitions)
            gone = before - self.subscription.states.keys()
        for tp in gone:
            self.metrics.forget(tp)
        self._post(self._subscription_changed)

    def seek(self, tp: TopicPartition, offset: int, epoch: int = -1) -> None:
        with self.subscription.lock:
            self.subscription.seek(tp, offset, epoch)
        self._post(self._pump)

    def seek_to(self, partitions: Iterable[TopicPartition], timestamp: int | None) -> None:
        """Seek to an end, as ListOffsets names it; with None to the committed offsets."""
        with self.subscription.lock:
            for state in [self.subscription.state(tp) for tp in partitions]:
                self.subscription.reset(state, timestamp)
        self._post(self._pump)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self.subscription.lock:
            for tp in partitions:
                self.subscription.pause(tp)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self.subscription.lock:
            for tp in partitions:
                self.subscription.resume(tp)
        self._post(self._pump)

    # -- in the application: polling

    def begin_poll(self) -> None:
        """Note that the application polls: it is alive, and has finished the previous records."""
        subscription = self.subscription
        with subscription.lock:
            subscription.begin_poll()
            self._is_polling = True
            if self._joiners:
                self._post(self._release_joiners)
        if self._group is not None:
            self._group.polled()

    def end_poll(self, *, is_interrupted: bool) -> None:
        """Note that the poll returns, or was interrupted before its records were returned."""
        self._is_polling = False
        if is_interrupted:
            with self.subscription.lock:
                self.subscription.take_back()
            self._post(self._pump)
        if self._group is not None:
            # The processing time of the records begins now, however long the poll waited for them.
            self._group.polled()

    def check(self) -> None:
        """Raise a pending error that the application must get before more records."""
        if self._broken is not None:
            raise self._broken
        if self._group is not None and self._group.failure is not None:
            raise self._group.failure.with_traceback(None)
        error, self._topics_error = self._topics_error, None
        while error is None and self._failed:
            state = self._failed.popleft()
            with self.subscription.lock:
                if self.subscription.states.get(state.tp) is state:
                    error, state.error = state.error, None
            # The cause may have passed by now, or the application seeks to another offset.
            self._post(self._pump)
        if error is not None:
            raise error.with_traceback(None)

    def check_reached(self) -> None:
        """Raise Unreachable if no broker has answered within `request_timeout_ms` of the start."""
        if self.cluster.was_reached or self.until_unreachable_s() > 0:
            return
        # If the application polls on, the error is raised again after the same time.
        self._started_at = self.cluster.clock.monotonic()
        addresses = ", ".join(map(str, self.options.bootstrap_servers))
        why = f"; the last error: {self._away}" if self._away else ""
        raise Unreachable(
            f"no broker at {addresses} has answered for"
            f" request_timeout_ms={self.options.request_timeout_ms}{why}"
        )

    def until_unreachable_s(self) -> float:
        """The seconds until `check_reached` raises, infinite once a broker has answered."""
        if self.cluster.was_reached or not self._is_started:
            return float("inf")
        due = self._started_at + self.options.request_timeout_ms / 1000
        return due - self.cluster.clock.monotonic()

    def commit_async(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> None:
        """Schedule a commit; the callback is called in a later poll, commit or close."""
        self.committing.expect()
        self._post(self._start_commit, offsets, callback)

    # -- the loop: calls of the group to its host

    def subscribed(self) -> frozenset[str]:
        return self.subscription.topics

    def owned(self) -> Sequence[TopicPartition]:
        with self.subscription.lock:
            return list(self.subscription.states)

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        with self.subscription.lock:
            self.subscription.revoke(partitions)
        await self.rebalances.tell(RebalanceEvent.REVOKED, partitions)
        await self.committing.commit_done(partitions)
        self._drop(partitions)

    async def assigned(
        self, partitions: Sequence[TopicPartition], added: Sequence[TopicPartition]
    ) -> None:
        self.committing.forget(added)
        await self.rebalances.tell(RebalanceEvent.ASSIGNED, added, partitions)
        self._pump()

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        with self.subscription.lock:
            self.subscription.revoke(partitions)
        await self.rebalances.tell(RebalanceEvent.LOST, partitions)
        self._drop(partitions)

    async def may_join(self) -> None:
        loop = asyncio.get_running_loop()
        with self.subscription.lock:
            if self._is_polling:
                return
            joiner = loop.create_future()
            self._joiners.append(joiner)
        try:
            await joiner
        finally:
            if joiner in self._joiners:
                self._joiners.remove(joiner)

    def _release_joiners(self) -> None:
        joiners, self._joiners = self._joiners, []
        for joiner in joiners:
            if not joiner.done():
                joiner.set_result(None)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        with self.subscription.lock:
            self.subscription.drop(partitions)
        for tp in partitions:
            self.metrics.forget(tp)
        self.committing.forget(partitions)

    # -- the loop: starting and ending

    def _new_group(self) -> GroupMember | None:
        if self.options.group_id is None:
            return None
        return GroupMember(
            self.cluster, self.options, self, self.metrics, client_id=self.options.client_id
        )

    def _subscription_changed(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._started_at = self.cluster.clock.monotonic()
            self._spawn(self._watch.run())
            if self.committing.is_automatic:
                self._spawn(self.committing.run())
        elif self._is_member and self.subscription.mode is SubscriptionMode.TOPICS:
            assert self._group is not None, "only a group has members"
            self._group.subscription_changed()
        self._watch.look_up_now()
        self._pump()

    async def _topics_seen(self, topics: Mapping[str, TopicInfo]) -> None:
        """Apply the current topics of the subscription."""
        names = frozenset(topics)
        changed = False
        with self.subscription.lock:
            if self.subscription.mode is SubscriptionMode.PATTERN:
                changed = self.subscription.topics != names
                self.subscription.topics = names
        if self._group is None:
            await self._take_all(topics)
        elif not self._is_member:
            self._is_member = True
            self._group.start()
        elif changed:
            self._group.subscription_changed()

    async def _take_all(self, topics: Mapping[str, TopicInfo]) -> None:
        """Without a group: assign all partitions of the subscribed topics."""
        wanted = [
            TopicPartition(name, partition.index)
            for name, topic in topics.items()
            for partition in topic.partitions
        ]
        owned = self.owned()
        gone = [tp for tp in owned if tp not in set(wanted)]
        added = [tp for tp in wanted if tp not in set(owned)]
        if gone:
            await self.revoked(gone)
        if added:
            await self.assigned(wanted, added)

    def _start_commit(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> None:
        self._spawn(self.committing.commit_and_report(offsets, callback))

    async def leave(self, timeout_s: float) -> None:
        """Stop reading and leave the group, after the commits that are due."""
        if self._is_member:
            assert self._group is not None, "only a group has members"
            self._is_member = False
            try:
                async with asyncio.timeout(max(timeout_s, 0.001)):
                    await self._group.stop()
            except TimeoutError:
                _log.warning("%s: the group was not told in time", self.options.client_id)
        with self.subscription.lock:
            gone = list(self.subscription.states)
            self.subscription.clear()
        self._drop(gone)
        self._failed.clear()

    async def close(self) -> None:
        """End all background tasks."""
        self._fetcher.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.close()

    # -- the loop: notifications of the parts

    def _pump(self) -> None:
        self._finder.pump()
        self._fetcher.pump()

    def _position_found(self, tp: TopicPartition, offset: int, is_committed: bool) -> None:
        if is_committed:
            self.committing.note_committed(tp, offset)
        self._found.set()
        self._found.clear()
        self._fetcher.pump()

    def _out_of_range(self, state: PartitionState) -> None:
        reset = self.options.auto_offset_reset
        position = state.fetch_offset
        if reset.timestamp(0) is None:
            self._partition_failed(state, no_offset(state.tp, self.options.group_id, position))
            return
        _log.warning(
            "%s: offset %d of %s does not exist; auto_offset_reset says %s",
            self.options.client_id,
            position,
            state.tp,
            reset.policy.value,
        )
        with self.subscription.lock:
            self.subscription.reset(state, reset.timestamp(self.cluster.clock.now_ms()))
        self._finder.pump()

    def _recreated(self, state: PartitionState) -> None:
        """Find a position in the new topic: one in the old topic would skip records of the new."""
        reset = self.options.auto_offset_reset
        position = state.position or 0
        if reset.timestamp(0) is None:
            # The application knows it from now on, and its seek is a position in the new topic.
            state.topic_id = ZERO_UUID
            self._partition_failed(state, recreated(state.tp, position))
            return
        _log.warning(
            "%s: the topic of %s, read up to offset %d, was deleted and created again; reading goes"
            " on at auto_offset_reset=%s",
            self.options.client_id,
            state.tp,
            position,
            reset.policy.value,
        )
        with self.subscription.lock:
            self.subscription.reset(state, reset.timestamp(self.cluster.clock.now_ms()))
        self._finder.pump()

    def _truncated(self, state: PartitionState, offset: int | None, epoch: int) -> None:
        """A leader's log diverges from an offset on from the records that were read.

        With None the leader does not know the epoch that was read last, and `epoch` is -1.
        """
        reset = self.options.auto_offset_reset
        if reset.timestamp(0) is None:
            self._partition_failed(state, truncated(state.tp, state.fetch_offset, offset))
            return
        with self.subscription.lock:
            position = state.position
            if self.subscription.states.get(state.tp) is not state or position is None:
                return
            if offset is None:
                self.subscription.reset(state, reset.timestamp(self.cluster.clock.now_ms()))
            elif position <= offset:
                # Only prefetched records are lost.
                self.subscription.go_back(state, position, state.epoch_before(position))
            else:
                self.subscription.go_back(state, offset, epoch)
        _log.warning(
            "%s: records of %s that come before offset %d were lost with its leader; reading goes"
            " on at %s",
            self.options.client_id,
            state.tp,
            position,
            f"auto_offset_reset={reset.policy.value}" if offset is None else min(position, offset),
        )
        self._finder.pump()

    def _partition_failed(self, state: PartitionState, error: HeadraceError) -> None:
        state.error = error
        self._failed.append(state)
        self._found.set()
        self._found.clear()
        self._wake()

    def _topics_failed(self, error: HeadraceError) -> None:
        self._topics_error = error
        self._wake()

    def _brokers_away(self, error: HeadraceError) -> None:
        self._away = error
        if isinstance(error, SecurityRefused):
            # It does not pass by itself: the next poll raises it, and whoever polls on tries again.
            self._topics_failed(error)
        elif not self.cluster.was_reached and self.until_unreachable_s() <= 0:
            self._wake()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        """A task that fails is a bug: fail the consumer, or the application would wait for ever."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self._wake()

    def _loop_time(self, deadline: float) -> float:
        left_s = deadline - self.cluster.clock.monotonic()
        return asyncio.get_running_loop().time() + left_s

    # -- the loop: questions

    async def position(self, tp: TopicPartition, timeout_s: float | None = None) -> int:
        """The position of a partition; waits until it is known."""
        deadline = self.cluster.deadline(timeout_s)
        while True:
            with self.subscription.lock:
                state = self.subscription.state(tp)
                position, error = state.position, state.error
            if position is not None:
                return position
            if error is not None:
                raise error
            self._pump()
            try:
                async with asyncio.timeout_at(self._loop_time(deadline)):
                    await self._found.wait()
            except TimeoutError:
                raise TimedOut(f"the position of {tp} could not be found in time") from None

    async def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self._group is None:
            raise ConfigError("offsets are committed for a group; give the consumer a group_id")
        return await self._group.committed(partitions, self.cluster.deadline(timeout_s))

    async def partitions_for(self, topic: str) -> list[int] | None:
        """The numbers of a topic's partitions; None if the topic does not exist."""
        try:
            found = await self.cluster.topics([topic])
        except UnknownTopic:
            return None
        return [partition.index for partition in found[topic].partitions]

    async def topics(self) -> frozenset[str]:
        """The names of all topics except internal ones."""
        found = await self.cluster.all_topics()
        return frozenset(name for name, topic in found.items() if not topic.is_internal)
