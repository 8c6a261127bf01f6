"""The state of a cluster at one moment, as values for pages, tables and charts.

Rule: None means unknown. A part that could not be sampled keeps its last value, and its error is in
`ClusterStatus.errors`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.client.admin.cluster import QuorumDescription
from headrace.client.cluster_metadata import TopicInfo
from headrace.monitoring.problems import Problem
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker: its load, and the bytes of its data directories."""

    node_id: int
    address: str
    rack: str | None
    is_fenced: bool
    leaders: int
    replicas: int
    # Replicas on it that are not in sync with their leaders.
    lagging: int
    messages_per_s: float | None
    size_bytes: int | None
    total_bytes: int | None
    usable_bytes: int | None
    directories: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic: its size, its rate, and the partitions that lack something.

    `size_bytes` are those of one copy: of the largest replica of each partition. `messages` are
    offsets, so that compaction and transactions make it an upper bound.
    """

    name: str
    is_internal: bool
    partitions: int
    replication_factor: int
    messages: int | None
    messages_per_s: float | None
    size_bytes: int | None
    under_replicated: int
    offline: int


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The progress of a group in a partition.

    `lag_s` is the age of the next record to read, 0 with nothing to read; with `is_at_least` the
    record is older than what was sampled.
    """

    tp: TopicPartition
    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    lag_s: float | None
    is_at_least: bool
    member_id: str | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group: its members, and its lag summed over its partitions, in time that of the worst."""

    name: str
    state: str
    kind: str
    coordinator: int
    members: int | None
    topics: tuple[str, ...]
    lag: int | None
    lag_s: float | None
    is_at_least: bool


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment.

    `version` grows with every state of one history. `errors` has the parts that could not be
    sampled: "metadata", "offsets", "directories", "groups", "quorum".
    """

    version: int
    time_ms: int
    cluster_id: str | None
    controller_id: int | None
    brokers: Mapping[int, BrokerStatus]
    topics: Mapping[str, TopicStatus]
    groups: Mapping[str, GroupStatus]
    quorum: QuorumDescription | None
    problems: tuple[Problem, ...]
    messages_per_s: float | None
    size_bytes: int | None
    errors: Mapping[str, str] = field(default_factory=dict)
    # The topics as the cluster describes them, for pages about partitions.
    described: Mapping[str, TopicInfo] = field(default_factory=dict)
