"""The membership of a consumer in its group: joining, heartbeats, leaving, and the leader's watch.

Two tasks share one `GroupMembership`: one joins, and moves the host from assignment to assignment;
the other sends heartbeats and watches the application and the topics. Rule: while a JoinGroup or
SyncGroup response is awaited only the first task changes the membership, so that the response
always meets the state it belongs to.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from headrace.client.cluster import COMMON_LANE, ClusterClient
from headrace.client.consumer.assignors import ASSIGNORS
from headrace.client.consumer.committed_offsets import CommittedOffsets
from headrace.client.consumer.group_membership import (
    GroupMembership,
    JoinOutcome,
    JoinPhase,
    MembershipIdentity,
    MembershipSettings,
)
from headrace.client.coordinator_lookup import CoordinatorLookup
from headrace.client.errors import CommitFailed, TimedOut, Unreachable
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import ConsumerOptions
from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.errors import ErrorCode, HeadraceError, KafkaError, ProtocolError
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.schema import Message
from headrace.types import TopicPartition


class GroupHost(Protocol):
    """The consumer that is the member. Every call is made on the loop of the cluster."""

    def subscribed(self) -> frozenset[str]:
        """The current topics of the subscription; a pattern is already expanded."""
        ...

    def owned(self) -> Sequence[TopicPartition]:
        """The partitions the consumer has now, by `assigned`, `revoked` and `lost`."""
        ...

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Revoke partitions; returns after the application was notified and has committed.

        Commits made until this returns are accepted for these partitions.
        """
        ...

    async def assigned(
        self, partitions: Sequence[TopicPartition], added: Sequence[TopicPartition]
    ) -> None:
        """Take over an assignment as a whole; `added` are the partitions not owned before."""
        ...

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop partitions that other members may own by now; no commit is possible for them."""
        ...

    async def may_join(self) -> None:
        """Wait until the application is inside `poll()`."""
        ...


class SharedTopics:
    """The partition counts of a group's topics when its leader last looked them up."""

    def __init__(self, cluster: ClusterClient, max_age_s: float, *, create: bool) -> None:
        self._cluster = cluster
        self._max_age_s = max_age_s
        self._create = create
        self._refreshed_at = cluster.clock.monotonic()
        self.counts: dict[str, int] = {}

    async def count(self, topics: Collection[str]) -> None:
        """Look the counts up again, for a new assignment."""
        counted = await self._partition_counts(topics)
        self.counts = {name: count for name, count in counted.items() if count}

    async def changed(self, topics: Collection[str]) -> str | None:
        """A topic whose partition count changed, or None. Stale metadata is refreshed first."""
        age_s = self._cluster.clock.monotonic() - self._refreshed_at
        # A topic that does not exist is looked up on every call.
        if age_s < self._max_age_s and all(name in self.counts for name in topics):
            counts = self._known(topics)
        else:
            try:
                counts = await self._partition_counts(topics)
            except (KafkaError, TimedOut, Unreachable):
                return None
        return next(
            (name for name in sorted(counts) if counts[name] != self.counts.get(name, 0)), None
        )

    def _known(self, topics: Collection[str]) -> dict[str, int]:
        """The cached partition counts, which another request may have refreshed."""
        found = {name: self._cluster.known_topic(name) for name in topics}
        return {name: len(topic.partitions) for name, topic in found.items() if topic is not None}

    async def _partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        deadline = self._cluster.deadline()
        view = await self._cluster.retrying(
            lambda: self._cluster.refresh(topics, deadline, create=self._create), deadline
        )
        self._refreshed_at = self._cluster.clock.monotonic()
        counts = {name: len(topic.partitions) for name, topic in view.topics.items()}
        for name in self.counts.keys() & set(topics) - counts.keys():
            # Only a topic that does not exist has no partitions: others cannot be described at the
            # moment.
            gone = view.errors.get(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            counts[name] = 0 if gone else self.counts[name]
        return counts


# Join requests wait for the whole group, and must not delay commits or lookups.
LANE = "group"
# The time the coordinator has to answer beyond the rebalance timeout.
JOIN_GRACE_S = 5.0
# The precision of the application's poll deadline: waking a moment early would be useless.
TICK_S = 0.01
# The time limit of leaving, which is optional: the session ends without it too.
LEAVE_S_MAX = 5.0

_log = logging.getLogger("headrace.consumer")

_NO_COMMIT = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    )
)


class GroupMember:
    """One member of one group. Loop-bound, not thread-safe.

    Without `start` it only commits and fetches offsets, for `assign()` with a group id. After
    `stop` it may be started again.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        options: ConsumerOptions,
        host: GroupHost,
        metrics: ConsumerMetrics,
        *,
        client_id: str,
    ) -> None:
        assert options.group_id, "a consumer without a group has no place in one"
        self._cluster = cluster
        self._options = options
        self._host = host
        self._metrics = metrics
        self._group_id = options.group_id
        self._name = f"{client_id} in group {options.group_id}"
        self._coordinators = CoordinatorLookup(cluster)
        self._offsets = CommittedOffsets(
            cluster, self._coordinators, options.group_id, options.group_instance_id
        )
        self._membership = GroupMembership(
            MembershipSettings(
                options.group_id,
                tuple(ASSIGNORS[name] for name in options.partition_assignment_strategy),
                options.session_timeout_ms,
                options.max_poll_interval_ms,
                options.group_instance_id,
                options.client_rack or None,
            )
        )
        # The fatal error of the membership, set after the host has lost its partitions.
        self.failure: HeadraceError | None = None
        self._fatal: HeadraceError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Set and cleared at once whenever the membership changes: it wakes all waiting tasks.
        self._moved = asyncio.Event()
        # Whether a join or sync is in flight, which needs no poll by the application.
        self._is_joining = False
        self._attempts = 0
        self._polled_at = cluster.clock.monotonic()
        # Partitions that are no longer ours: other members may have committed in them.
        self._gone: set[TopicPartition] = set()
        self._shared = SharedTopics(
            cluster, options.metadata_max_age_ms / 1000, create=options.allow_auto_create_topics
        )

    def __repr__(self) -> str:
        return f"<Group: {self._name}, {self._membership.phase.value}>"

    @property
    def is_stable(self) -> bool:
        """Whether the membership has an assignment and no reason to rejoin."""
        return self._membership.is_stable

    @property
    def generation(self) -> int:
        """The generation of the assignment; -1 outside of a group."""
        return self._membership.identity.generation

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave this member; "" before the first join."""
        return self._membership.identity.member_id

    def metadata(self) -> ConsumerGroupMetadata:
        """The member id and generation that offset commits carry. Thread-safe."""
        identity = self._membership.identity
        instance_id = self._options.group_instance_id if identity.member_id else None
        return ConsumerGroupMetadata(
            self._group_id, identity.generation, identity.member_id, instance_id
        )

    def start(self) -> None:
        """Join the group, as soon as the host allows, and stay a member until `stop`."""
        assert not self._tasks, "the group was started already"
        self.failure = self._fatal = None
        self._attempts = 0
        self._gone.clear()
        self.polled()
        self._tasks = [
            asyncio.create_task(self._stay(), name=f"{self._name}: membership"),
            asyncio.create_task(self._beat(), name=f"{self._name}: heartbeats"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def stop(self, *, leave: bool = True) -> None:
        """End the membership. A static member stays in the group until its session times out.

        The host is not called any more: it has to revoke and commit its partitions before.
        """
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if leave:
            await self._leave("the consumer stops")
        else:
            self._membership.lose("the consumer stopped")
            self._announce()

    def subscription_changed(self) -> None:
        """Rejoin with the current topics of the subscription."""
        self._membership.must_join_again("the subscription changed")
        self._announce()

    def polled(self) -> None:
        """Note that the application called `poll`, and is alive for `max_poll_interval_ms` more."""
        self._polled_at = self._cluster.clock.monotonic()

    # -- offsets

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> None:
        """Commit offsets; CommitFailed if a partition is no longer ours, TimedOut.

        During a rebalance this waits for the new generation.
        """
        if not offsets:
            return
        begun = self._cluster.clock.monotonic()

        async def committer() -> MembershipIdentity:
            return await self._committer(offsets, deadline)

        await self._offsets.commit(offsets, deadline, committer, self._commit_refused)
        self._metrics.commit_done(self._cluster.clock.monotonic() - begun)

    async def committed(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The last committed offsets; None for a partition without one."""
        return await self._offsets.fetch(partitions, deadline)

    async def _committer(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> MembershipIdentity:
        """The identity for a commit now; anonymous without a membership."""
        membership = self._membership
        if not self._tasks:
            return MembershipIdentity()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline - self._cluster.clock.monotonic()):
                while membership.phase is not JoinPhase.STABLE and self._is_joining:
                    await self._moved.wait()
        if membership.phase in (JoinPhase.JOINING, JoinPhase.SYNCING):
            raise _commit_failed(ErrorCode.REBALANCE_IN_PROGRESS)
        if membership.phase is JoinPhase.OUTSIDE:
            raise _commit_failed(ErrorCode.UNKNOWN_MEMBER_ID)
        gone = sorted(self._gone.intersection(partitions))
        if gone:
            raise CommitFailed(
                ErrorCode.ILLEGAL_GENERATION,
                f"{', '.join(map(str, gone))} went to another member of the group",
            )
        return membership.identity

    def _commit_refused(self, committer: MembershipIdentity, code: ErrorCode) -> None:
        """Handle a refused commit that concerns the membership; other errors are the caller's."""
        if code not in _NO_COMMIT:
            return
        if self._tasks:
            try:
                self._membership.heard(committer, code)
            except KafkaError as error:
                self._fatal = error
            self._announce()
        raise _commit_failed(code)

    # -- joining, and going from one assignment to the next

    async def _stay(self) -> None:
        try:
            while True:
                if self._fatal is not None:
                    raise self._fatal
                if self._membership.is_stable:
                    await self._moved.wait()
                else:
                    await self._enter()
        except HeadraceError as error:
            _log.error("%s cannot go on: %s", self._name, error)
            self._membership.lose("it failed")
            self._announce()
            await self._drop_lost()
            self.failure = error

    async def _enter(self) -> None:
        """Try once to get an assignment, when the application allows it."""
        membership, host = self._membership, self._host
        if membership.phase is JoinPhase.OUTSIDE:
            await self._drop_lost()
        await host.may_join()
        if membership.phase is JoinPhase.OUTSIDE and host.owned():
            return  # The partitions were lost while waiting for the application.
        topics = host.subscribed()
        before = membership.identity
        revoked = membership.to_revoke(host.owned(), topics)
        if revoked:
            await self._give_up(revoked)
        if self._fatal is not None or membership.identity != before:
            return
        if not topics:
            # Other clients cannot lead a group with a member that subscribes to no topic.
            await self._leave("it subscribes to nothing")
            if not host.subscribed():
                await self._moved.wait()
            return
        begun = self._cluster.clock.monotonic()
        verdict = JoinOutcome.ELSEWHERE
        self._is_joining = True
        _log.info("%s joins: %s", self._name, membership.rejoin_reason or "the last join failed")
        try:
            verdict = await self._join(topics)
        except (ConnectionFailed, TimedOut, Unreachable) as error:
            _log.debug("%s: a join was not answered: %s", self._name, error)
        except KafkaError as error:
            if not self._cluster.passes(error):
                raise
        finally:
            self._is_joining = False
            self._announce()
        if verdict is JoinOutcome.DONE:
            self._attempts = 0
            await self._take_over()
            self._metrics.rebalance_done(self._cluster.clock.monotonic() - begun)
        else:
            await self._pause(verdict)

    async def _join(self, topics: frozenset[str]) -> JoinOutcome:
        membership = self._membership
        timeout_s = self._options.max_poll_interval_ms / 1000 + JOIN_GRACE_S
        verdict = JoinOutcome.AGAIN
        while verdict is JoinOutcome.AGAIN:
            request = membership.join(topics, self._host.owned())
            verdict = membership.joined(await self._call_coordinator(request, timeout_s))
        if verdict is not JoinOutcome.DONE:
            return verdict
        if membership.is_leader:
            await self._shared.count(membership.group_topics)
        response = await self._call_coordinator(membership.sync(self._shared.counts), timeout_s)
        try:
            return membership.synced(response)
        except ProtocolError as error:
            # The next leader may choose a protocol that is known here.
            _log.warning("%s: %s", self._name, error)
            return JoinOutcome.LATER

    async def _take_over(self) -> None:
        """Move the host from its old assignment to the new one."""
        membership = self._membership
        identity = membership.identity
        revoked, added = membership.changes(self._host.owned())
        if revoked:
            await self._give_up(revoked)
            if membership.identity != identity:
                return
            # The new owners wait for this member to rejoin without the partitions.
            membership.must_join_again("partitions were given up")
        count, generation = len(membership.assignment), identity.generation
        _log.info("%s has %d partitions in generation %d", self._name, count, generation)
        self._gone.difference_update(membership.assignment)
        await self._host.assigned(list(membership.assignment), added)

    async def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        await self._host.revoked(partitions)
        self._gone.update(partitions)

    async def _drop_lost(self) -> None:
        owned = list(self._host.owned())
        if owned:
            why = self._membership.rejoin_reason
            _log.warning("%s has lost its %d partitions: %s", self._name, len(owned), why)
            self._gone.update(owned)
            await self._host.lost(owned)

    async def _pause(self, verdict: JoinOutcome) -> None:
        """Wait as long as the join outcome demands, before the next attempt."""
        if verdict is JoinOutcome.ELSEWHERE:
            self._coordinators.forget(self._group_id)
        if verdict in (JoinOutcome.ELSEWHERE, JoinOutcome.LATER):
            await asyncio.sleep(self._cluster.backoff.delay_s(self._attempts, self._cluster.rng))
            self._attempts += 1

    # -- staying

    async def _beat(self) -> None:
        try:
            while self._fatal is None:
                await asyncio.sleep(self._until_due_s())
                await self._watch_application()
                if self._membership.beats:
                    await self._beat_once()
                    await self._watch_topics()
        except HeadraceError as error:
            self._fatal = error
            self._announce()

    def _until_due_s(self) -> float:
        interval_s = self._options.heartbeat_interval_ms / 1000
        left_s = self._poll_deadline - self._cluster.clock.monotonic()
        return min(interval_s, left_s + TICK_S) if left_s > 0 else interval_s

    @property
    def _poll_deadline(self) -> float:
        return self._polled_at + self._options.max_poll_interval_ms / 1000

    async def _beat_once(self) -> None:
        membership = self._membership
        identity = membership.identity
        begun = self._cluster.clock.monotonic()
        timeout_s = min(self._cluster.request_timeout_s, self._options.session_timeout_ms / 1000)
        try:
            response = await self._call_coordinator(membership.heartbeat(), timeout_s)
        except (ConnectionFailed, TimedOut, Unreachable):
            # As in Java the partitions are kept: only a coordinator can reassign them.
            self._coordinators.forget(self._group_id)
            return
        except KafkaError as error:
            if not self._cluster.passes(error):
                raise
            return
        self._metrics.heartbeat_done(self._cluster.clock.monotonic() - begun)
        if membership.heard(identity, response.error_code) is JoinOutcome.ELSEWHERE:
            self._coordinators.forget(self._group_id)
        self._announce()

    async def _watch_application(self) -> None:
        """Leave the group if the application has not polled for `max_poll_interval_ms`.

        Other members then take over its partitions, which it has lost when it polls the next time.
        """
        is_late = self._cluster.clock.monotonic() >= self._poll_deadline
        if not is_late or self._membership.phase is not JoinPhase.STABLE:
            return
        if await self._is_polling():
            self.polled()
            return
        _log.warning(
            "%s leaves: the application has not polled for max_poll_interval_ms=%d; process"
            " records faster, set max_poll_records lower, or max_poll_interval_ms higher",
            self._name,
            self._options.max_poll_interval_ms,
        )
        await self._leave("the application has not polled for max.poll.interval.ms")

    async def _is_polling(self) -> bool:
        """Whether the application is inside a poll that is longer than the interval."""
        try:
            async with asyncio.timeout(0):
                await self._host.may_join()
        except TimeoutError:
            return False
        return True

    async def _watch_topics(self) -> None:
        """As the leader, trigger a rebalance when a topic's partition count has changed."""
        membership = self._membership
        if not membership.is_leader or not membership.is_stable:
            return
        identity = membership.identity
        changed = await self._shared.changed(membership.group_topics)
        if changed is not None and membership.identity == identity:
            membership.must_join_again(f"partitions of {changed} were added or removed")
            self._announce()

    async def _leave(self, reason: str) -> None:
        """End the membership now, and notify the coordinator if it is reachable."""
        request = self._membership.leave(reason)
        self._membership.lose(reason)
        self._announce()
        if request is None:
            return
        timeout_s = min(LEAVE_S_MAX, self._cluster.request_timeout_s)
        with suppress(HeadraceError):
            # In another lane than a waiting join of ours.
            await self._call_coordinator(request, timeout_s, COMMON_LANE)

    async def _call_coordinator(self, request: Message, timeout_s: float, lane: str = LANE) -> Any:
        """Send a request to the coordinator once."""
        deadline = self._cluster.deadline(min(timeout_s, self._cluster.request_timeout_s))
        node_id = await self._coordinators.node_of(self._group_id, deadline)
        connection = await self._cluster.connection(node_id, deadline, lane=lane)
        try:
            return await connection.ask(request, timeout_s)
        except asyncio.CancelledError:
            # The next request must not wait behind a response that is not awaited any more.
            connection.close()
            raise

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Make a bug in a task the failure that `poll` raises, which would otherwise hang."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failure = HeadraceError(f"{task.get_name()} failed: {error!r}")
            self.failure.__cause__ = error

    def _announce(self) -> None:
        self._moved.set()
        self._moved.clear()


def _commit_failed(code: ErrorCode) -> CommitFailed:
    why = {
        ErrorCode.FENCED_INSTANCE_ID: "another consumer has the same group_instance_id",
        ErrorCode.REBALANCE_IN_PROGRESS: "the group rebalances; poll, and commit again",
    }.get(code, "the group went on without this consumer, and others have its partitions")
    return CommitFailed(code, why)
