"""Metrics of a node that are read when they are asked for: its state, its replicas, its disks.

Nothing is counted here on the way of a request. Rule: a sampler reads numbers that are in memory,
and those over many partitions are generators, so that a scrape can be cut into turns of the loop.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from headrace import __version__
from headrace.broker import process_usage
from headrace.broker.health import NodeState
from headrace.broker.node import Node
from headrace.broker.partition_summary import ClusterSummary, PartitionSummary
from headrace.broker.replication.partition import Partition
from headrace.metrics import catalog
from headrace.metrics.registry import Family, Registry, Rows, Samples


def observe_process(registry: Registry) -> None:
    """Register the metrics of this process: CPU time, memory, files, threads."""
    registry.samples(catalog.PROCESS_CPU, lambda: [((), process_usage.cpu_seconds())])
    registry.gauge(catalog.PROCESS_MEMORY, process_usage.resident_bytes)
    registry.gauge(catalog.PROCESS_OPEN_FILES_MAX, process_usage.open_files_max)
    registry.gauge(catalog.PROCESS_THREADS, process_usage.threads)


def observe_state(registry: Registry, state: Callable[[], NodeState]) -> None:
    """Show the state of a node, which need not have recovered yet."""

    def states() -> Samples:
        now = state()
        return [((each.value,), int(each is now)) for each in NodeState]

    registry.samples(catalog.NODE_STATE, states)


def observe_node(
    node: Node, summary: Callable[[], PartitionSummary], cluster: Callable[[], ClusterSummary]
) -> None:
    """Show a node that has recovered; the summaries are those of a moment ago."""
    registry, config = node.metrics, node.config
    info = {
        "version": __version__,
        "node_id": str(node.node_id),
        "cluster_id": node.cluster_id,
        "roles": ",".join(config.process_roles),
        "rack": config.broker_rack or "",
    }
    registry.gauge(catalog.NODE_INFO, lambda: 1, info)
    registry.gauge(catalog.FETCHES_WAITING, lambda: node.fetch_purgatory.waiting)
    registry.gauge(catalog.PRODUCES_WAITING, lambda: node.traffic.produces_waiting)
    registry.gauge(catalog.FETCH_SESSIONS, lambda: len(node.fetch_sessions))
    # Counted where it happens; shown as 0 before that.
    registry.counter(catalog.COLD_READS)
    registry.counter(catalog.COLD_READ_BYTES)
    _observe_pools(node)
    _observe_isr(node)
    _observe_summary(registry, summary)
    _observe_partitions(node, summary)
    _observe_cluster(node, cluster)
    _observe_quorum(node)
    _observe_directories(node, summary)
    _observe_scrubbing(node, summary)


def _observe_pools(node: Node) -> None:
    workers = node.workers
    pools = {
        "flush": workers.flushes,
        "read": workers.reads,
        "compact": workers.compactions,
    }
    node.metrics.samples(
        catalog.WORKERS_QUEUED, lambda: [((name,), pool.waiting) for name, pool in pools.items()]
    )


def _observe_isr(node: Node) -> None:
    registry, replicas = node.metrics, node.replicas
    registry.samples(catalog.ISR_SHRINKS, lambda: [((), replicas.isr_shrinks)])
    registry.samples(catalog.ISR_EXPANDS, lambda: [((), replicas.isr_expands)])


def _observe_summary(registry: Registry, summary: Callable[[], PartitionSummary]) -> None:
    fields: dict[Family, Callable[[PartitionSummary], float]] = {
        catalog.PARTITIONS: lambda counts: counts.replicas,
        catalog.LEADERS: lambda counts: counts.led,
        catalog.UNDER_REPLICATED: lambda counts: counts.under_replicated,
        catalog.UNDER_MIN_ISR: lambda counts: counts.under_min_isr,
        catalog.AT_MIN_ISR: lambda counts: counts.at_min_isr,
        catalog.REASSIGNING: lambda counts: counts.reassigning,
        catalog.OFFLINE_REPLICAS: lambda counts: counts.offline,
        catalog.FOLLOWERS_BEHIND: lambda counts: counts.followers_behind,
        catalog.FOLLOWER_LAG_MAX: lambda counts: counts.follower_lag_max,
        catalog.FOLLOWER_LAG_MAX_SECONDS: lambda counts: counts.follower_lag_max_s,
    }

    def reader(read: Callable[[PartitionSummary], float]) -> Callable[[], float]:
        return lambda: read(summary())

    for family, read in fields.items():
        registry.gauge(family, reader(read))


def shown_topics(node: Node) -> Iterator[tuple[str, list[Partition]]]:
    """The topics of this broker that have metrics of their own, each with its replicas here."""
    yield from islice(node.replicas.topics(), node.config.metrics_topics_max)


def _observe_partitions(node: Node, summary: Callable[[], PartitionSummary]) -> None:
    registry = node.metrics

    def shown() -> Iterator[Partition]:
        partitions = (each for _, held in shown_topics(node) for each in held)
        yield from islice(partitions, node.config.metrics_partitions_max)

    def follower_lags() -> Samples:
        for partition in shown():
            leadership = partition.leadership
            if leadership is None or not leadership.followers:
                continue
            topic, index = partition.name
            start_offset, end_offset = partition.log.log_start_offset, leadership.log_end_offset
            for broker_id, follower in leadership.followers.items():
                lag = end_offset - max(follower.log_end_offset, start_offset)
                if lag > 0:
                    yield (topic, str(index), str(broker_id)), lag

    registry.rows(
        (
            catalog.PARTITION_LOG_END,
            catalog.PARTITION_LOG_START,
            catalog.PARTITION_HIGH_WATERMARK,
            catalog.PARTITION_LOG_BYTES,
            catalog.PARTITION_LEADER,
        ),
        lambda: _partition_rows(node),
    )
    registry.samples(catalog.PARTITION_FOLLOWER_LAG, follower_lags)
    registry.samples(
        catalog.TOPIC_LOG_BYTES,
        lambda: (
            ((topic,), size)
            for topic, size in islice(
                tuple(summary().topic_bytes.items()), node.config.metrics_topics_max
            )
        ),
    )


def _partition_rows(node: Node) -> Rows:
    """The labels and numbers of the replicas here that have metrics of their own."""
    room = node.config.metrics_partitions_max
    for topic, held in shown_topics(node):
        # Names of topics need no escape, so that the rest of the labels is a number.
        labels = f'{{topic="{topic}",partition="'
        for partition in islice(held, room):
            log = partition.log
            yield (
                f'{labels}{partition.name.partition}"}}',
                (
                    log.log_end_offset,
                    log.log_start_offset,
                    partition.high_watermark,
                    log.size_bytes,
                    1 if partition.is_leader else 0,
                ),
            )
        room -= min(len(held), room)
        if not room:
            return


def _observe_cluster(node: Node, cluster: Callable[[], ClusterSummary]) -> None:
    """Register the metrics of the cluster, which only the active controller has."""
    registry, store = node.metrics, node.store
    registry.samples(catalog.LEADER_ELECTIONS, lambda: [((), store.leader_elections)])
    registry.samples(catalog.UNCLEAN_ELECTIONS, lambda: [((), store.unclean_elections)])
    if node.controller is None:
        return
    registry.gauge(catalog.ACTIVE_CONTROLLER, lambda: int(store.is_active))

    def brokers() -> Samples:
        if not store.is_active:
            return []
        states = [broker.fenced for broker in store.image.brokers.values()]
        return [(("active",), states.count(False)), (("fenced",), states.count(True))]

    registry.samples(catalog.CLUSTER_BROKERS, brokers)
    for family, read in (
        (catalog.CLUSTER_TOPICS, lambda: len(store.image.topics)),
        (catalog.CLUSTER_PARTITIONS, lambda: cluster().partitions),
        (catalog.OFFLINE_PARTITIONS, lambda: cluster().offline),
        (catalog.PREFERRED_IMBALANCE, lambda: cluster().not_preferred),
    ):
        registry.samples(family, _while_active(node, read))


def _while_active(node: Node, read: Callable[[], float]) -> Callable[[], Samples]:
    return lambda: [((), read())] if node.store.is_active else []


def _observe_quorum(node: Node) -> None:
    registry, quorum, store = node.metrics, node.quorum, node.store
    registry.gauge(catalog.RAFT_EPOCH, lambda: quorum.leader.epoch)
    registry.gauge(catalog.RAFT_LEADER, lambda: quorum.leader.leader_id)
    registry.gauge(catalog.RAFT_LOG_END, lambda: quorum.log.end_offset)
    registry.gauge(catalog.RAFT_HIGH_WATERMARK, lambda: quorum.high_watermark)
    registry.gauge(
        catalog.RAFT_COMMIT_LAG,
        lambda: max(quorum.log.end_offset - max(quorum.high_watermark, 0), 0),
    )
    registry.gauge(
        catalog.METADATA_APPLY_LAG, lambda: max(quorum.high_watermark - store.image_offset, 0)
    )
    elections = registry.counter(catalog.RAFT_ELECTIONS)
    epoch = quorum.leader.epoch

    def count_election() -> None:
        nonlocal epoch
        if quorum.leader.epoch != epoch:
            epoch = quorum.leader.epoch
            elections.add()

    quorum.watch(count_election)


def _observe_directories(node: Node, summary: Callable[[], PartitionSummary]) -> None:
    registry, logs = node.metrics, node.logs

    def sampler(read: Callable[[int], float | None]) -> Callable[[], Samples]:
        def samples() -> Samples:
            for number, directory in enumerate(logs.directories):
                value = read(number)
                if value is not None:
                    yield (directory.path,), value

        return samples

    directories = logs.directories
    registry.samples(
        catalog.DIRECTORY_FREE,
        sampler(lambda at: None if directories[at].error else directories[at].room.free_bytes),
    )
    registry.samples(
        catalog.DIRECTORY_TOTAL,
        sampler(lambda at: None if directories[at].error else directories[at].room.total_bytes),
    )
    registry.samples(
        catalog.DIRECTORY_OFFLINE, sampler(lambda at: int(directories[at].error is not None))
    )
    registry.samples(
        catalog.DIRECTORY_FULL,
        sampler(lambda at: None if directories[at].error else int(directories[at].room.is_full)),
    )
    registry.samples(
        catalog.DIRECTORY_LOG_BYTES,
        lambda: [
            ((directory.path,), summary().log_bytes.get(directory.path, 0))
            for directory in directories
        ],
    )


def _observe_scrubbing(node: Node, summary: Callable[[], PartitionSummary]) -> None:
    registry, progress = node.metrics, node.scrub_progress

    def done() -> Samples:
        for directory, scrubbed in tuple(progress.items()):
            total = summary().log_bytes.get(directory.path, 0)
            ratio = min(scrubbed.byte_count / total, 1.0) if total else 1.0
            yield (directory.path,), ratio if scrubbed.is_under_way else 1.0

    registry.samples(catalog.SCRUB_PASS_DONE, done)
    registry.samples(
        catalog.SCRUB_DAMAGED,
        lambda: [
            ((directory.path,), len(scrubbed.damage))
            for directory, scrubbed in tuple(progress.items())
        ],
    )
