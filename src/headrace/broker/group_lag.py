"""The lag of the groups that a broker coordinates, in offsets and by the timestamps in the log.

The end of a partition and the time of the next record of a group are at the partition's leader:
what is led here is read here, and the other leaders are asked. Rule: a round looks at no more
groups and partitions than the settings show, and reads at most `_READS_MAX` records of each leader;
a partition whose group has not moved is not read again. So lags are some seconds old.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from headrace.broker.cluster.channels import BrokerChannels
from headrace.broker.node import Node
from headrace.coordinator.groups.group_shard import Group, GroupShard
from headrace.errors import CorruptBatch, HeadraceError, KafkaError
from headrace.metadata.image import NO_LEADER
from headrace.metrics import catalog
from headrace.metrics.registry import Samples
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages import fetch, list_offsets
from headrace.protocol.records import decode_rows
from headrace.storage.log import Log
from headrace.tasks import PeriodicTask
from headrace.types import Buffer, TopicPartition

logger = logging.getLogger(__name__)

_PERIOD_SECONDS = 5.0
_REQUEST_S_MAX = 2.0
_LATEST = -1
_READ_COMMITTED = 1
# The first batch is read whatever its size, so this is the size of what comes after it.
_READ_BYTES = 1
_READS_MAX = 100
# Groups that are looked at before other tasks of the loop run.
_GROUPS_PER_TURN = 64


class GroupPartition(NamedTuple):
    """A partition that a group has committed an offset of."""

    group: str
    partition: TopicPartition


@dataclass(slots=True)
class _Lag:
    """The lag of a group in a partition, as of the last round."""

    committed_offset: int
    end_offset: int = -1
    # The timestamp of the first record that is not processed: None if it is not known.
    next_timestamp_ms: int | None = None

    @property
    def records(self) -> int:
        return max(self.end_offset - self.committed_offset, 0)


@dataclass(slots=True)
class _LagLookup:
    """The lags that are being looked up, and the groups by state."""

    states: dict[str, int] = field(default_factory=dict)
    lags: dict[GroupPartition, _Lag] = field(default_factory=dict)


class GroupLags:
    """Looks up the lags of the groups that are coordinated here, and shows them as metrics."""

    def __init__(self, node: Node, leaders: BrokerChannels) -> None:
        self._node = node
        self._leaders = leaders
        self._last = _LagLookup()
        self._looked_up_s: float | None = None
        self._task = PeriodicTask("lags of groups", _PERIOD_SECONDS, self.look_up)
        self._observe()

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        self._task.stop()
        self._leaders.close()

    async def look_up(self) -> None:
        """Look up the lags of all groups that are shown."""
        self._leaders.brokers_changed()
        now = _LagLookup()
        partitions_max = self._node.config.metrics_partitions_max
        for number, (shard, group) in enumerate(self._groups()):
            now.states[group.state.value] = now.states.get(group.state.value, 0) + 1
            if number < self._node.config.metrics_groups_max:
                room = partitions_max - len(now.lags)
                for name, offset in islice(shard.committed_offsets(group.group_id), room):
                    now.lags[GroupPartition(group.group_id, name)] = _Lag(offset)
            if number % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
                await asyncio.sleep(0)
        by_leader: dict[int, dict[GroupPartition, _Lag]] = {}
        for key, lag in now.lags.items():
            by_leader.setdefault(self._leader_of(key.partition), {})[key] = lag
        for leader, lags in by_leader.items():
            if leader == self._node.node_id:
                await self._look_up_here(lags)
            elif leader != NO_LEADER:
                try:
                    await self._ask(leader, lags)
                except HeadraceError as error:
                    logger.debug("broker %d does not say how far its logs go: %s", leader, error)
        self._last = now
        self._looked_up_s = self._node.clock.monotonic()

    def _groups(self) -> Iterator[tuple[GroupShard, Group]]:
        for driver in self._node.groups:
            if not driver.loading and not driver.closed:
                for group in driver.shard.groups():
                    yield driver.shard, group

    def _leader_of(self, name: TopicPartition) -> int:
        topic = self._node.store.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return NO_LEADER
        return topic.partitions[name.partition].leader

    def _known_timestamp(self, key: GroupPartition, offset: int) -> int | None:
        """The timestamp of the last round, if the group has not moved since."""
        before = self._last.lags.get(key)
        if before is None or before.committed_offset != offset:
            return None
        return before.next_timestamp_ms

    async def _look_up_here(self, lags: dict[GroupPartition, _Lag]) -> None:
        for number, (key, lag) in enumerate(lags.items()):
            try:
                partition = self._node.replicas.leader_of(*key.partition)
                lag.end_offset = partition.last_stable_offset
                if lag.records:
                    lag.next_timestamp_ms = self._known_timestamp(key, lag.committed_offset)
                if lag.records and lag.next_timestamp_ms is None:
                    # On a worker thread: a group may be behind by more than is in the page cache.
                    lag.next_timestamp_ms = await self._node.workers.read(
                        _read_timestamp, partition.log, lag.committed_offset, lag.end_offset
                    )
            except KafkaError:
                continue  # Led elsewhere since, or records that are deleted.
            if number % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
                await asyncio.sleep(0)

    async def _ask(self, leader: int, lags: dict[GroupPartition, _Lag]) -> None:
        ends = await self._request_ends(leader, {key.partition for key in lags})
        reads = 0
        for key, lag in lags.items():
            lag.end_offset = ends.get(key.partition, -1)
            if not lag.records:
                continue
            lag.next_timestamp_ms = self._known_timestamp(key, lag.committed_offset)
            if lag.next_timestamp_ms is None and reads < _READS_MAX:
                reads += 1
                lag.next_timestamp_ms = await self._request_timestamp(
                    leader, key.partition, lag.committed_offset
                )

    async def _request_ends(
        self, leader: int, names: set[TopicPartition]
    ) -> dict[TopicPartition, int]:
        topics: dict[str, list_offsets.ListOffsetsTopic] = {}
        for name in sorted(names):
            topic = topics.setdefault(name.topic, list_offsets.ListOffsetsTopic(name=name.topic))
            topic.partitions.append(
                list_offsets.ListOffsetsPartition(partition_index=name.partition, timestamp=_LATEST)
            )
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, isolation_level=_READ_COMMITTED, topics=list(topics.values())
        )
        response: list_offsets.ListOffsetsResponse = await self._leaders.ask(
            leader, request, _REQUEST_S_MAX
        )
        return {
            TopicPartition(topic.name, partition.partition_index): partition.offset
            for topic in response.topics
            for partition in topic.partitions
            if not partition.error_code
        }

    async def _request_timestamp(
        self, leader: int, name: TopicPartition, offset: int
    ) -> int | None:
        topic = self._node.store.image.topics.get(name.topic)
        if topic is None:
            return None
        wanted = fetch.FetchPartition(
            partition=name.partition, fetch_offset=offset, partition_max_bytes=_READ_BYTES
        )
        request = fetch.FetchRequest(
            max_bytes=_READ_BYTES,
            topics=[
                fetch.FetchTopic(topic=name.topic, topic_id=topic.topic_id, partitions=[wanted])
            ],
        )
        response: fetch.FetchResponse = await self._leaders.ask(leader, request, _REQUEST_S_MAX)
        for answered in response.responses:
            for data in answered.partitions:
                if not data.error_code and data.records:
                    return _timestamp_at(data.records, offset)
        return None

    # -- metrics

    def _observe(self) -> None:
        registry = self._node.metrics
        registry.samples(
            catalog.GROUPS, lambda: [((name,), n) for name, n in self._last.states.items()]
        )
        registry.samples(catalog.GROUP_MEMBERS, self._of_groups(lambda each: len(each.members)))
        registry.samples(
            catalog.GROUP_REBALANCES, self._of_groups(lambda each: each.rebalance_count)
        )
        registry.samples(catalog.GROUP_COMMITS, self._of_groups(lambda each: each.commit_count))
        registry.samples(catalog.GROUP_COMMITTED, self._of_lags(lambda lag: lag.committed_offset))
        registry.samples(
            catalog.GROUP_LAG,
            self._of_lags(lambda lag: lag.records if lag.end_offset >= 0 else None),
        )
        registry.samples(catalog.GROUP_LAG_SECONDS, self._of_lags(self._seconds))
        registry.samples(catalog.GROUP_LAG_AGE, self._age)
        registry.samples(catalog.TRANSACTIONS, self._transactions)

    def _of_groups(self, read: Callable[[Group], float]) -> Callable[[], Samples]:
        return lambda: (
            ((group.group_id,), read(group))
            for _, group in islice(self._groups(), self._node.config.metrics_groups_max)
        )

    def _of_lags(self, read: Callable[[_Lag], float | None]) -> Callable[[], Samples]:
        def samples() -> Samples:
            for (group, (topic, index)), lag in self._last.lags.items():
                value = read(lag)
                if value is not None:
                    yield (group, topic, str(index)), value

        return samples

    def _seconds(self, lag: _Lag) -> float | None:
        if lag.end_offset < 0:
            return None
        if not lag.records:
            return 0
        if lag.next_timestamp_ms is None:
            return None
        return max(self._node.clock.now_ms() - lag.next_timestamp_ms, 0) / 1000

    def _age(self) -> Samples:
        if self._looked_up_s is not None:
            yield (), self._node.clock.monotonic() - self._looked_up_s

    def _transactions(self) -> Samples:
        counts: dict[str, int] = {}
        for driver in self._node.transactions.shards:
            if not driver.loading and not driver.closed:
                for status in driver.shard.statuses():
                    counts[status] = counts.get(status, 0) + 1
        return [((status,), count) for status, count in counts.items()]


def _read_timestamp(log: Log, offset: int, end_offset: int) -> int | None:
    found = log.read(offset, _READ_BYTES, end_offset, at_least_one=True)
    return _timestamp_at(found.records, offset)


def _timestamp_at(records: Buffer, offset: int) -> int | None:
    """The timestamp of the first record at an offset or after it; None if there is none."""
    for header in scan_headers(records):
        if header.next_offset <= offset:
            continue
        if header.is_log_append_time or header.is_encrypted:
            # No record of the batch is later, and those of an encrypted one are not to be read.
            return header.max_timestamp
        if header.base_offset >= offset and not header.has_delete_horizon:
            return header.base_timestamp
        try:
            rows = decode_rows(records, header, offset)
        except CorruptBatch:
            return None
        if rows:
            return rows[0].timestamp
    return None
