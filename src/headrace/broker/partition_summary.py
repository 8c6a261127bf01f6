"""Counts over all partitions of a broker, made in turns of the event loop."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.broker.node import Node
from headrace.broker.replication.partition import Partition
from headrace.metadata.image import NO_LEADER, Image, TopicImage


@dataclass(slots=True)
class PartitionSummary:
    """Counts over the replicas of a broker at one time, or nearly so."""

    replicas: int = 0
    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0
    offline: int = 0
    followers_behind: int = 0
    follower_lag_max: int = 0
    follower_lag_max_s: float = 0.0
    # By data directory.
    log_bytes: dict[str, int] = field(default_factory=dict)
    topic_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, partition: Partition, steady_ms: int) -> None:
        """Count a replica; `steady_ms` is the time by which followers are measured."""
        self.replicas += 1
        if partition.log.offline is not None or partition.diverged is not None:
            self.offline += 1
        leadership = partition.leadership
        if leadership is None:
            return
        self.led += 1
        in_sync, replicas = len(leadership.isr), len(leadership.replicas)
        # A replica that is being added is not missing yet, and one that leaves not any more.
        moving = partition.image.adding_replicas
        wanted = replicas - len(moving)
        self.reassigning += bool(moving or partition.image.removing_replicas)
        self.under_replicated += in_sync < wanted
        least = min(partition.config.min_insync_replicas, replicas)
        self.under_min_isr += in_sync < least
        self.at_min_isr += in_sync == least < replicas
        start_offset = partition.log.log_start_offset
        for follower in leadership.followers.values():
            behind = leadership.log_end_offset - max(follower.log_end_offset, start_offset)
            if behind > 0:
                self.followers_behind += 1
                self.follower_lag_max = max(self.follower_lag_max, behind)
                silent_s = (steady_ms - follower.caught_up_ms) / 1000
                self.follower_lag_max_s = max(self.follower_lag_max_s, silent_s)


def summarize(node: Node) -> Iterator[PartitionSummary]:
    """Count the replicas of a node, one in each step; the last step has the whole summary."""
    summary = PartitionSummary()
    steady_ms = node.isr.now_ms()
    log_bytes, topic_bytes = summary.log_bytes, summary.topic_bytes
    directories = node.logs.directories
    only_path = directories[0].path if len(directories) == 1 else ""
    for topic, partitions in node.replicas.topics():
        topic_bytes[topic] = 0
        for partition in partitions:
            summary.add(partition, steady_ms)
            size = partition.log.size_bytes
            path = only_path or node.logs.directory_of(partition.name).path
            log_bytes[path] = log_bytes.get(path, 0) + size
            topic_bytes[topic] += size
            yield summary
    # Those that could not even be opened are in no partition.
    summary.offline += node.replicas.unopened_count
    yield summary


@dataclass(slots=True)
class ClusterSummary:
    """Counts over the partitions of the whole cluster, as its metadata have them."""

    partitions: int = 0
    offline: int = 0
    not_preferred: int = 0

    def add(self, topic: TopicImage) -> None:
        self.partitions += len(topic.partitions)
        for partition in topic.partitions:
            if partition.leader == NO_LEADER:
                self.offline += 1
            elif partition.leader != partition.replicas[0]:
                self.not_preferred += 1


def summarize_cluster(image: Image) -> Iterator[ClusterSummary]:
    """Count the partitions of an image, those of one topic in each step."""
    summary = ClusterSummary()
    for topic in image.topics.values():
        summary.add(topic)
        yield summary
    yield summary
