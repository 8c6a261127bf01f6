"""Initial positions of partitions: a committed offset, an end of the log, or a timestamp.

Rule: each partition is handled by itself. A partition without a leader, or that does not exist,
must not keep the others from starting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.client.cluster import ClusterClient
from headrace.client.consumer.subscription import (
    PartitionState,
    SubscriptionMode,
    SubscriptionState,
)
from headrace.client.errors import LogTruncated, NoOffset, TimedOut, Unreachable
from headrace.client.list_offsets import reset_offsets
from headrace.client.options import ConsumerOptions
from headrace.client.types import OffsetAndMetadata
from headrace.errors import HeadraceError, KafkaError, UnknownTopic
from headrace.net.client_connection import ConnectionFailed
from headrace.types import TopicPartition

Committed = Callable[
    [Sequence[TopicPartition], float],
    Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]],
]


class _MissingPosition(NamedTuple):
    """A partition that needs a position, with its state when the search began."""

    state: PartitionState
    generation: int
    reset_to: int | None


class PositionFinder:
    """Finds the positions that a subscription lacks. For one event loop.

    `committed` fetches the group's offsets; it is None without a group. `on_found` is called when a
    partition can be fetched, and `on_error` when the application has to decide.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: ConsumerOptions,
        committed: Committed | None,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_found: Callable[[TopicPartition, int, bool], None],
        on_error: Callable[[PartitionState, HeadraceError], None],
        on_away: Callable[[HeadraceError], None],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._committed = committed
        self._spawn = spawn
        self._on_found = on_found
        self._on_error = on_error
        self._on_away = on_away
        self._sought: set[PartitionState] = set()

    def pump(self) -> None:
        """Start the search for every missing position that is not being searched for."""
        with self._subscription.lock:
            states = self._subscription.lacking_position()
        new = [state for state in states if state not in self._sought]
        if new:
            self._sought.update(new)
            self._spawn(self._seek(new))

    async def _seek(self, states: Sequence[PartitionState]) -> None:
        """Retry until each partition has a position, has an error, or is no longer assigned."""
        attempts = 0
        while True:
            with self._subscription.lock:
                lacking = [
                    _MissingPosition(state, state.generation, state.reset_to)
                    for state in states
                    if state.lacks_position
                    and self._subscription.is_current(state, state.generation)
                ]
            if not lacking:
                break
            await asyncio.gather(*(self._find(part) for part in self._parts(lacking)))
            if any(partition.state.lacks_position for partition in lacking):
                await asyncio.sleep(self._cluster.backoff.delay_s(attempts, self._cluster.rng))
                attempts += 1
        self._sought.difference_update(states)
        # A partition may have lost its position again at the moment of its removal from the list.
        self.pump()

    def _parts(self, lacking: Sequence[_MissingPosition]) -> list[list[_MissingPosition]]:
        """The partitions grouped by leader; those without a known leader grouped by topic."""
        parts: dict[object, list[_MissingPosition]] = {}
        for partition in lacking:
            known = self._cluster.leader_of(partition.state.tp)
            parts.setdefault(known.leader if known else partition.state.tp.topic, []).append(
                partition
            )
        return list(parts.values())

    async def _find(self, part: Sequence[_MissingPosition]) -> None:
        """Try once; partitions with a retriable error stay pending."""
        try:
            existing = await self._existing(part)
            await self._find_existing(existing)
        except KafkaError as error:
            if not self._cluster.passes(error):
                self._refuse(part, error)
            else:
                await self._refresh({partition.state.tp.topic for partition in part})
        except (ConnectionFailed, TimedOut, Unreachable) as error:
            self._on_away(error)

    async def _unknown(self, tp: TopicPartition) -> UnknownTopic | None:
        try:
            await self._cluster.partition(tp, self._cluster.deadline())
        except UnknownTopic as error:
            return error
        return None

    async def _refresh(self, topics: set[str]) -> None:
        """Refresh the metadata of topics; the old metadata is used until there is a response."""
        try:
            await self._cluster.refresh(topics, self._cluster.deadline())
        except (ConnectionFailed, TimedOut, Unreachable, KafkaError) as error:
            self._on_away(error)

    async def _existing(self, part: Sequence[_MissingPosition]) -> list[_MissingPosition]:
        """The partitions that exist. The others are an error if they were assigned by number."""
        existing = []
        for partition in part:
            error = await self._unknown(partition.state.tp)
            if error is not None:
                # It may be new, and the metadata old.
                await self._refresh({partition.state.tp.topic})
                error = await self._unknown(partition.state.tp)
            if error is None:
                existing.append(partition)
            elif self._subscription.mode is SubscriptionMode.ASSIGNED:
                self._refuse([partition], error)
        return existing

    async def _find_existing(self, part: Sequence[_MissingPosition]) -> None:
        deadline = self._cluster.deadline()
        left = list(part)
        asked = [partition for partition in part if partition.reset_to is None]
        if asked and self._committed is not None:
            offsets = await self._committed([partition.state.tp for partition in asked], deadline)
            for partition in asked:
                known = offsets.get(partition.state.tp)
                if known is not None:
                    left.remove(partition)
                    self._found(partition, known.offset, known.leader_epoch, is_committed=True)
        await self._reset(left, deadline)

    async def _reset(self, part: Sequence[_MissingPosition], deadline: float) -> None:
        policy = self._options.auto_offset_reset.timestamp(self._cluster.clock.now_ms())
        wanted: dict[TopicPartition, int] = {}
        for partition in part:
            timestamp = policy if partition.reset_to is None else partition.reset_to
            if timestamp is None:
                self._refuse([partition], no_offset(partition.state.tp, self._options.group_id))
            else:
                wanted[partition.state.tp] = timestamp
        if not wanted:
            return
        level = self._options.isolation_level
        offsets = await reset_offsets(self._cluster, wanted, deadline, level)
        for partition in part:
            if partition.state.tp in offsets:
                self._found(partition, offsets[partition.state.tp], is_committed=False)

    def _found(
        self, missing: _MissingPosition, offset: int, epoch: int = -1, *, is_committed: bool
    ) -> None:
        with self._subscription.lock:
            self._subscription.found(missing.state, missing.generation, offset, epoch)
        self._on_found(missing.state.tp, offset, is_committed)

    def _refuse(self, part: Sequence[_MissingPosition], error: HeadraceError) -> None:
        for state, generation, _ in part:
            with self._subscription.lock:
                current = self._subscription.is_current(state, generation)
            if current:
                self._on_error(state, error)


def no_offset(tp: TopicPartition, group_id: str | None, position: int | None = None) -> NoOffset:
    """The error of a partition without a position when `auto_offset_reset` is "none"."""
    if position is not None:
        why = f"offset {position} of {tp} does not exist"
    elif group_id is None:
        why = f"{tp} has no position"
    else:
        why = f"group {group_id} has no committed offset for {tp}"
    return NoOffset(
        f'{why}, and auto_offset_reset is "none"; seek to an offset, or give auto_offset_reset='
        '"earliest" or "latest"'
    )


def recreated(tp: TopicPartition, position: int) -> LogTruncated:
    """The error of a partition whose topic was deleted and created again."""
    text = (
        f"the topic of {tp}, read up to offset {position}, was deleted and created again, and"
        ' auto_offset_reset is "none"; seek to an offset of the new topic'
    )
    return LogTruncated(text, tp, position, None)


def truncated(tp: TopicPartition, position: int, offset: int | None) -> LogTruncated:
    """The error of a partition whose leader lacks records that were read."""
    if offset is None:
        text = (
            f"{tp} has no records of the leader epoch that was read last before offset {position}:"
            ' they were lost, or the topic was created again, and auto_offset_reset is "none";'
            " seek to an offset to go on"
        )
    else:
        text = (
            f"records of {tp} from offset {offset} on were lost with its leader, and"
            f' auto_offset_reset is "none"; seek to {offset} to read what is there now'
        )
    return LogTruncated(text, tp, position, offset)
