"""The history of a cluster: samples become states with rates, lag, series for charts, and problems.

Rule: no I/O; a sample says when it was taken. Everything kept is bounded: `POINTS_MAX` points of
each series, `TRACKED_MAX` series of a kind.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headrace.client.admin.cluster import BrokerHealth, ClusterDescription, QuorumDescription
from headrace.client.admin.groups import GroupDescription, GroupListing
from headrace.client.admin.reassignments import Reassignment
from headrace.client.cluster_metadata import BrokerInfo, TopicInfo
from headrace.errors import KafkaError
from headrace.monitoring.cluster_status import (
    BrokerStatus,
    ClusterStatus,
    GroupStatus,
    PartitionLag,
    TopicStatus,
)
from headrace.monitoring.problems import ClusterFacts, Problem, problems
from headrace.types import TopicPartition

# Time series of bounded length, for charts and for the age of offsets.
#
# Rule: a series keeps its newest points, in arrays, so that ten thousand of them cost megabytes.


# Ten minutes of a sample every two seconds, or half an hour of one every six.
POINTS_MAX = 300


class Series:
    """Points (time in ms, value) in ascending time. A value that is unknown has no point."""

    __slots__ = ("_times", "_values", "points_max")

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self.points_max = points_max
        self._times = array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(zip(self._times, self._values, strict=True))

    @property
    def last(self) -> float | None:
        """The newest value; None without any."""
        return self._values[-1] if self._values else None

    def add(self, time_ms: int, value: float) -> None:
        """Append a point. A time that does not grow (the clock was set back) begins anew."""
        if self._times and time_ms <= self._times[-1]:
            del self._times[:], self._values[:]
        self._times.append(time_ms)
        self._values.append(value)
        # Cut a tenth at once: removing one point at a time would move the arrays every time.
        if len(self._times) > self.points_max:
            cut = max(self.points_max // 10, 1)
            del self._times[:cut], self._values[:cut]


class OffsetTimes:
    """The log end offsets of a partition over time, which date the writing of an offset.

    Invariant: times and offsets ascend; only points at which the offset grew are kept.
    """

    __slots__ = ("_offsets", "_points_max", "_times")

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._times = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, time_ms: int, end_offset: int) -> None:
        """Note the log end offset at a time."""
        if self._offsets and (end_offset < self._offsets[-1] or time_ms <= self._times[-1]):
            # The topic was created anew, or its log truncated, or the clock set back.
            del self._times[:], self._offsets[:]
        if len(self._offsets) > 1 and self._offsets[-2] == end_offset:
            # Nothing was written in between: the latest time at which that was so is enough.
            self._times[-1] = time_ms
            return
        self._times.append(time_ms)
        self._offsets.append(end_offset)
        if len(self._times) > self._points_max:
            cut = max(self._points_max // 10, 1)
            del self._times[:cut], self._offsets[:cut]

    def written_at(self, offset: int) -> tuple[float, bool] | None:
        """When the record at `offset` was written, and whether that is exact enough to believe.

        (time, False) if it was written before the first point: the time is the latest it can be.
        None if the log had not reached it at the last point.
        """
        at = bisect_right(self._offsets, offset)
        if at == len(self._offsets):
            return None
        if at == 0:
            return self._times[0], False
        before, after = self._offsets[at - 1], self._offsets[at]
        share = (offset - before) / (after - before)
        start = self._times[at - 1]
        return start + share * (self._times[at] - start), True


Number = TypeVar("Number", int, float)

# The topics, groups and partitions that have series; those beyond it have the present values only.
TRACKED_MAX = 20_000
# The points of the series of which there may be thousands.
MANY_POINTS_MAX = 120
# The time after which a group with members, something to read and no commit counts as stalled.
STALLED_MS = 60_000
# The share of a disk below which its broker's operator should act.
DISK_FREE_MIN = 0.1


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """What was asked of a cluster at one time. A part is None if it was not asked, or failed.

    `errors` has the failed parts: their last values are kept. A part that is asked again has none.
    """

    time_ms: int
    description: ClusterDescription | None = None
    topics: Mapping[str, TopicInfo] | None = None
    # The time of the end offsets, which rates are computed by.
    offsets_ms: int = 0
    end_offsets: Mapping[TopicPartition, int] | None = None
    start_offsets: Mapping[TopicPartition, int] | None = None
    health: Mapping[int, BrokerHealth | KafkaError] | None = None
    groups: Mapping[str, GroupListing] | None = None
    members: Mapping[str, GroupDescription] | None = None
    committed: Mapping[str, Mapping[TopicPartition, int]] | None = None
    quorum: QuorumDescription | None = None
    has_controller: bool | None = None
    moving: Mapping[TopicPartition, Reassignment] | None = None
    min_in_sync: Mapping[str, int] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Commits:
    """The sum of a group's committed offsets, and since when it is that."""

    total: int
    since_ms: int


class ClusterHistory:
    """The samples of a cluster, and the state they show. `state` is replaced, never changed."""

    def __init__(self) -> None:
        self.state: ClusterStatus | None = None
        self.message_rates = Series()
        self.replica_sizes: Mapping[int, Mapping[TopicPartition, int]] = {}
        self.end_offsets: dict[TopicPartition, int] = {}
        self.start_offsets: Mapping[TopicPartition, int] = {}
        self._last = ClusterSample(0)
        self._offsets_ms = 0
        self._partition_rates: dict[TopicPartition, float] = {}
        self._topic_rates: dict[str, Series] = {}
        self._broker_rates: dict[int, Series] = {}
        self._group_lags: dict[str, tuple[Series, Series]] = {}
        self._offset_times: dict[TopicPartition, OffsetTimes] = {}
        self._commits: dict[str, _Commits] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self._groups: dict[str, GroupStatus] = {}
        self._stalled: list[Problem] = []

    # -- answers

    def topic_rates(self, name: str) -> Series:
        """Messages per second into a topic; empty while nothing was written to it."""
        return self._topic_rates.get(name) or Series()

    def partition_rate(self, tp: TopicPartition) -> float | None:
        """Messages per second into a partition, between the last two samples."""
        return self._partition_rates.get(tp)

    def partition_size(self, tp: TopicPartition) -> int | None:
        """The bytes of the largest replica of a partition."""
        return self._sizes.get(tp)

    def broker_rates(self, node_id: int) -> Series:
        """Messages per second into the partitions that a broker leads."""
        return self._broker_rates.get(node_id) or Series()

    def group_lag(self, name: str) -> tuple[Series, Series]:
        """The lag of a group over time, in offsets and in seconds."""
        return self._group_lags.get(name) or (Series(), Series())

    def members(self, name: str) -> GroupDescription | None:
        """A group and its members as of the last sample."""
        return (self._last.members or {}).get(name)

    def reassignments(self) -> Mapping[TopicPartition, Reassignment]:
        """The reassignments under way as of the last sample."""
        return self._last.moving or {}

    def partition_lags(self, name: str) -> tuple[PartitionLag, ...]:
        """The progress of a group in the partitions it has committed or is assigned."""
        committed = (self._last.committed or {}).get(name, {})
        described = self.members(name)
        owners = {
            tp: member.member_id
            for member in (described.members if described else ())
            for tp in member.assignment or ()
        }
        return tuple(
            self._partition_lag(tp, committed.get(tp), owners.get(tp))
            for tp in sorted({*committed, *owners})
        )

    # -- samples

    def add(self, sample: ClusterSample) -> ClusterStatus:
        """Take a sample into the history; returns the state after it."""
        self._merge(sample)
        if sample.health is not None:
            self._measure_replicas(sample.health)
        if sample.end_offsets is not None:
            self._measure_rates(sample.offsets_ms, sample.end_offsets)
        if sample.start_offsets is not None:
            self.start_offsets = sample.start_offsets
        if sample.committed is not None or sample.groups is not None:
            self._measure_groups(sample.time_ms)
        self.state = self._state(sample.time_ms)
        return self.state

    def _merge(self, sample: ClusterSample) -> None:
        kept = self._last
        errors = {part: text for part, text in kept.errors.items() if part not in sample.asked}
        parts = {
            name: new
            for name in (
                "description",
                "topics",
                "health",
                "groups",
                "members",
                "committed",
                "quorum",
                "has_controller",
                "moving",
                "min_in_sync",
            )
            if (new := getattr(sample, name)) is not None
        }
        self._last = replace(
            kept, **parts, time_ms=sample.time_ms, errors={**errors, **sample.errors}
        )
        if sample.topics is not None:
            self._forget_topics(sample.topics)

    def _forget_topics(self, topics: Mapping[str, TopicInfo]) -> None:
        """Drop the series of topics that are gone, lest names that come and go fill the memory."""
        for name in [name for name in self._topic_rates if name not in topics]:
            del self._topic_rates[name]
        gone = {tp for tp in self._offset_times if tp.topic not in topics}
        for tp in gone:
            del self._offset_times[tp]

    def _measure_replicas(self, health: Mapping[int, BrokerHealth | KafkaError]) -> None:
        sizes: dict[TopicPartition, int] = {}
        by_broker: dict[int, dict[TopicPartition, int]] = {}
        for node_id, answer in health.items():
            if isinstance(answer, KafkaError):
                continue
            held = by_broker.setdefault(node_id, {})
            for directory in answer.directories:
                held.update(directory.replicas)
            for tp, size in held.items():
                if size > sizes.get(tp, -1):
                    sizes[tp] = size
        self._sizes, self.replica_sizes = sizes, by_broker

    def _measure_rates(self, now_ms: int, ends: Mapping[TopicPartition, int]) -> None:
        passed_s = (now_ms - self._offsets_ms) / 1000
        if self._offsets_ms and passed_s > 0:
            known = self.end_offsets
            # A log that became shorter was truncated or created anew: nothing is known of a rate.
            self._partition_rates = {
                tp: (end - before) / passed_s
                for tp, end in ends.items()
                if (before := known.get(tp)) is not None and end >= before
            }
            self._add_rates(now_ms)
        self._offsets_ms = now_ms
        self.end_offsets = dict(ends)
        for tp, times in self._offset_times.items():
            if tp in ends:
                times.add(now_ms, ends[tp])

    def _add_rates(self, now_ms: int) -> None:
        by_topic: dict[str, float] = {}
        for tp, rate in self._partition_rates.items():
            by_topic[tp.topic] = by_topic.get(tp.topic, 0.0) + rate
        for name, rate in by_topic.items():
            series = self._topic_rates.get(name)
            if series is None:
                # A topic that nobody writes to needs no series: it would be a line at zero.
                if rate == 0 or len(self._topic_rates) >= TRACKED_MAX:
                    continue
                series = self._topic_rates[name] = Series(MANY_POINTS_MAX)
            series.add(now_ms, rate)
        by_broker: dict[int, float] = {
            broker.node_id: 0.0
            for broker in (self._last.description.brokers if self._last.description else ())
        }
        for name, topic in (self._last.topics or {}).items():
            for partition in topic.partitions:
                rate = self._partition_rates.get(TopicPartition(name, partition.index), 0.0)
                if partition.leader in by_broker:
                    by_broker[partition.leader] += rate
        for node_id, rate in by_broker.items():
            self._broker_rates.setdefault(node_id, Series()).add(now_ms, rate)
        self.message_rates.add(now_ms, sum(by_topic.values()))

    # -- groups

    def _measure_groups(self, now_ms: int) -> None:
        listed = self._last.groups or {}
        self._track(self._last.committed or {}, now_ms)
        self._groups = {name: self._group(group) for name, group in listed.items()}
        for gone in [name for name in self._group_lags if name not in listed]:
            del self._group_lags[gone]
        self._stalled = []
        commits: dict[str, _Commits] = {}
        for name, group in self._groups.items():
            if group.lag is None:
                continue
            if name in self._group_lags or len(self._group_lags) < TRACKED_MAX:
                lags = self._group_lags.setdefault(
                    name, (Series(MANY_POINTS_MAX), Series(MANY_POINTS_MAX))
                )
                lags[0].add(now_ms, group.lag)
                if group.lag_s is not None:
                    lags[1].add(now_ms, group.lag_s)
            total = sum((self._last.committed or {}).get(name, {}).values())
            before = self._commits.get(name)
            commit = before if before and before.total == total else _Commits(total, now_ms)
            commits[name] = commit
            if group.members and group.lag and now_ms - commit.since_ms >= STALLED_MS:
                self._stalled.append(_stalled(group, (now_ms - commit.since_ms) // 1000))
        self._commits = commits

    def _track(self, committed: Mapping[str, Mapping[TopicPartition, int]], now_ms: int) -> None:
        """Keep the end offsets over time of the partitions that groups read."""
        for offsets in committed.values():
            for tp in offsets:
                if tp in self._offset_times or tp not in self.end_offsets:
                    continue
                if len(self._offset_times) >= TRACKED_MAX:
                    return
                times = self._offset_times[tp] = OffsetTimes(MANY_POINTS_MAX)
                times.add(self._offsets_ms or now_ms, self.end_offsets[tp])

    def _group(self, listed: GroupListing) -> GroupStatus:
        described = self.members(listed.name)
        lags = self.partition_lags(listed.name)
        known = [lag.lag for lag in lags if lag.lag is not None]
        worst = max(
            (lag for lag in lags if lag.lag_s is not None),
            key=lambda lag: lag.lag_s or 0.0,
            default=None,
        )
        return GroupStatus(
            listed.name,
            described.state if described else listed.state,
            listed.kind,
            listed.coordinator,
            None if described is None else len(described.members),
            tuple(sorted({lag.tp.topic for lag in lags})),
            sum(known) if known else None,
            None if worst is None else worst.lag_s,
            worst is not None and worst.is_at_least,
        )

    def _partition_lag(
        self, tp: TopicPartition, committed: int | None, member_id: str | None
    ) -> PartitionLag:
        end = self.end_offsets.get(tp)
        if committed is None or end is None:
            return PartitionLag(tp, committed, end, None, None, False, member_id)
        lag = max(end - committed, 0)
        if lag == 0:
            return PartitionLag(tp, committed, end, 0, 0.0, False, member_id)
        times = self._offset_times.get(tp)
        written = None if times is None else times.written_at(committed)
        if written is None:
            return PartitionLag(tp, committed, end, lag, None, False, member_id)
        at_ms, is_exact = written
        lag_s = max((self._last.time_ms - at_ms) / 1000, 0.0)
        return PartitionLag(tp, committed, end, lag, lag_s, not is_exact, member_id)

    # -- states

    def _state(self, now_ms: int) -> ClusterStatus:
        last = self._last
        described = last.topics or {}
        brokers = {
            broker.node_id: broker
            for broker in (last.description.brokers if last.description else ())
        }
        topics = {name: self._topic(topic) for name, topic in described.items()}
        return ClusterStatus(
            version=self.state.version + 1 if self.state else 1,
            time_ms=now_ms,
            cluster_id=last.description.cluster_id if last.description else None,
            controller_id=_controller(last),
            brokers=self._brokers(brokers, described),
            topics=topics,
            groups=self._groups,
            quorum=last.quorum,
            problems=(*self._problems(brokers, described), *self._stalled),
            messages_per_s=self.message_rates.last,
            size_bytes=_sum(sum(held.values()) for held in self.replica_sizes.values()),
            errors=last.errors,
            described=described,
        )

    def _topic(self, topic: TopicInfo) -> TopicStatus:
        name = topic.name
        tps = [TopicPartition(name, partition.index) for partition in topic.partitions]
        ends, starts, rates = self.end_offsets, self.start_offsets, self._partition_rates
        return TopicStatus(
            name,
            topic.is_internal,
            len(tps),
            max((len(partition.replicas) for partition in topic.partitions), default=0),
            _sum(max(ends[tp] - starts.get(tp, 0), 0) for tp in tps if tp in ends),
            _sum(rates[tp] for tp in tps if tp in rates),
            _sum(self._sizes[tp] for tp in tps if tp in self._sizes),
            sum(len(partition.isr) < len(partition.replicas) for partition in topic.partitions),
            sum(partition.leader < 0 for partition in topic.partitions),
        )

    def _brokers(
        self, brokers: Mapping[int, BrokerInfo], topics: Mapping[str, TopicInfo]
    ) -> dict[int, BrokerStatus]:
        leaders = dict.fromkeys(brokers, 0)
        replicas, lagging = dict(leaders), dict(leaders)
        for topic in topics.values():
            for partition in topic.partitions:
                if partition.leader in leaders:
                    leaders[partition.leader] += 1
                for replica in partition.replicas:
                    if replica in replicas:
                        replicas[replica] += 1
                        lagging[replica] += replica not in partition.isr
        return {
            node_id: self._broker(broker, leaders[node_id], replicas[node_id], lagging[node_id])
            for node_id, broker in brokers.items()
        }

    def _broker(
        self, broker: BrokerInfo, leaders: int, replicas: int, lagging: int
    ) -> BrokerStatus:
        answer = (self._last.health or {}).get(broker.node_id)
        health = answer if isinstance(answer, BrokerHealth) else None
        directories = health.directories if health else ()
        return BrokerStatus(
            broker.node_id,
            str(broker.address),
            broker.rack,
            broker.is_fenced,
            leaders,
            replicas,
            lagging,
            self.broker_rates(broker.node_id).last,
            _sum(size for directory in directories for size in directory.replicas.values()),
            # Directories on one disk would count it several times: the largest stands for all.
            max(
                (directory.total_bytes for directory in directories if directory.total_bytes),
                default=None,
            ),
            min(
                (
                    directory.usable_bytes
                    for directory in directories
                    if directory.usable_bytes is not None
                ),
                default=None,
            ),
            len(directories) if health else None,
            str(answer) if isinstance(answer, KafkaError) else None,
        )

    def _problems(
        self, brokers: Mapping[int, BrokerInfo], topics: Mapping[str, TopicInfo]
    ) -> list[Problem]:
        last = self._last
        found = problems(
            ClusterFacts(
                brokers,
                topics,
                has_controller=last.has_controller is not False,
                moving=last.moving or {},
                health=last.health or {},
                min_in_sync=last.min_in_sync or {},
            )
        )
        for node_id, answer in (last.health or {}).items():
            if isinstance(answer, BrokerHealth) and node_id in brokers:
                found += _full_disks(node_id, answer)
        return found


def _controller(sample: ClusterSample) -> int | None:
    if sample.quorum is not None:
        return sample.quorum.leader_id
    if sample.description is not None and sample.description.controller_id >= 0:
        return sample.description.controller_id
    return None


def _full_disks(node_id: int, answer: BrokerHealth) -> list[Problem]:
    return [
        Problem(
            "disk-space",
            f"broker {node_id}, {directory.path}",
            f"{directory.usable_bytes / directory.total_bytes:.0%} of the disk is free: delete"
            " topics, shorten their retention or add space, before it takes no more records",
            "broker",
            str(node_id),
        )
        for directory in answer.directories
        if directory.total_bytes
        and directory.usable_bytes is not None
        and not directory.is_cordoned
        and directory.usable_bytes < DISK_FREE_MIN * directory.total_bytes
    ]


def _stalled(group: GroupStatus, for_s: int) -> Problem:
    return Problem(
        "stalled-group",
        f"group {group.name}",
        f"its {group.members} members have {group.lag} records to read and committed nothing for"
        f" {for_s} s: see the logs of its members; one record that fails again and again looks"
        " like this",
        "group",
        group.name,
    )


def _sum(numbers: Iterable[Number]) -> Number | None:
    """The sum of numbers; None without any, which is not zero."""
    found = list(numbers)
    return sum(found) if found else None
