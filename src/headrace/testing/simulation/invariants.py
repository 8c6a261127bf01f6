"""Invariants that must hold at every moment of a run, checked after every event of a broker.

One leader for an epoch, of the metadata log and of every partition. A high watermark never goes
back while its broker runs. Below it every replica has the same bytes at the same offsets, now and
for ever; so it is for the metadata log. Compaction takes records away from some topics, and changes
none of those that stay. The last stable offset is where the first transaction begins that is not
decided by a committed marker.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, TypeVar
from unittest.mock import patch

from headrace.broker.node import Node
from headrace.broker.replication.partition import Partition
from headrace.errors import CorruptBatch
from headrace.raft.quorum_state import QuorumState
from headrace.replication.leader import HighWatermark
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.log import Log
from headrace.storage.segment import LOG_SUFFIX
from headrace.testing.simulation.batches import ComparedBatch, batches, is_compacted, units
from headrace.testing.simulation.committed_records import (
    Copies,
    Place,
    intact_units,
    is_valid,
    units_of,
)
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.hosts import Host
from headrace.testing.simulation.machines import Machine, Process
from headrace.testing.simulation.simulated_cluster import DATA, SimulatedCluster
from headrace.types import TopicPartition

T = TypeVar("T")

_METADATA: Place = (b"", TopicPartition("__cluster_metadata", 0))


class Invariants:
    """Watches all brokers of a cluster; the first violation ends the run."""

    def __init__(
        self, cluster: SimulatedCluster, copies: Copies | None = None, *, durable: bool = False
    ) -> None:
        """With `copies`, records that all disks have lost may be replaced by others.

        In a `durable` cluster all committed records are flushed.
        """
        self._cluster = cluster
        self._durable = durable
        self._copies = copies
        self._controllers: dict[int, int] = {}
        self._leaders: dict[tuple[Place, int], int] = {}
        # By place and base offset: a batch's checksum, and the first host that had it.
        self._committed: dict[Place, dict[int, tuple[int, str]]] = {}
        self._high_watermarks: dict[object, int] = {}
        # The first offsets of the undecided transactions of each producer, below the high
        # watermark.
        self._open: dict[object, dict[int, int]] = {}
        # The partitions whose role or high watermark was set by the running callback, and the same
        # of the quorum.
        self._changed: dict[Partition, None] = {}
        self._changed_quorums: dict[QuorumState, None] = {}
        self._brokers: frozenset[Machine] = frozenset(cluster.hosts)
        # The parts of brokers by process; None for processes of other programs.
        self._nodes: dict[Process, Node | None] = {}
        cluster.simulation.loop.on_step = self.after_step

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record changes in brokers: checking all their state after each event takes long."""
        changed, quorums = self._changed, self._changed_quorums
        # The partition that owns each high watermark.
        owners: dict[HighWatermark, Partition] = {}
        with (
            patch.multiple(
                Partition,
                _high_watermark=_watched("_high_watermark", changed, owners),
                is_leader=_watched("is_leader", changed),
                leader_epoch=_watched("leader_epoch", changed),
                create=True,
            ),
            patch.object(HighWatermark, "offset", _watched_offset(changed, owners)),
            patch.multiple(
                QuorumState,
                role=_watched("role", quorums),
                hard=_watched("hard", quorums),
                high_watermark=_watched("high_watermark", quorums),
                create=True,
            ),
        ):
            yield

    def after_step(self, process: Process) -> None:
        """Check the broker that has just run."""
        if process in self._nodes and not self._changed and not self._changed_quorums:
            return  # As after most events.
        node = self._nodes.get(process)
        is_new = node is None
        if node is None:
            node = self._started(process)
            if node is None:
                return
        is_quorum_new = is_new or bool(self._changed_quorums)
        changed = list(self._changed)
        self._changed_quorums.clear()
        self._changed.clear()
        if not process.alive:
            return
        host = process.machine
        assert isinstance(host, Host)
        held = node.replicas._topics
        with host.disk.inspected():
            if is_quorum_new:
                self._check_quorum(host, node)
            for partition in changed:
                name = partition.name
                if held.get(name.topic, {}).get(name.partition) is partition:
                    self._check_partition(host, node, partition)

    def _started(self, process: Process) -> Node | None:
        """The parts of the broker that a process runs, once they exist."""
        host = process.machine
        if host not in self._brokers:
            self._nodes[process] = None  # A client, or the driver.
            return None
        if not isinstance(host, Host) or host.process is not process:
            return None
        node = self._cluster.node_of(host)
        if node is not None:
            self._nodes[process] = node
        return node

    def _check_quorum(self, host: Machine, node: Node) -> None:
        quorum = node.quorum
        if quorum.is_leader:
            leader = self._controllers.setdefault(quorum.leader.epoch, node.node_id)
            if leader != node.node_id:
                raise Violation(
                    f"nodes {leader} and {node.node_id} both lead the quorum in epoch"
                    f" {quorum.leader.epoch}"
                )
        self._check_log(host, _METADATA, quorum, quorum.log.log, quorum.high_watermark)

    def _check_partition(self, host: Machine, node: Node, partition: Partition) -> None:
        if partition.log.offline is not None:
            return  # The closed log cannot be read any more.
        place = (partition.log.topic_id or b"", partition.name)
        if partition.is_leader:
            epoch = partition.leader_epoch
            leader = self._leaders.setdefault((place, epoch), node.node_id)
            if leader != node.node_id:
                raise Violation(
                    f"brokers {leader} and {node.node_id} both lead {partition.name} in epoch"
                    f" {epoch}"
                )
        if self._durable and partition.is_leader and not is_compacted(partition.name.topic):
            self._check_names(partition)
        self._check_log(host, place, partition, partition.log, partition.high_watermark)
        self._check_stable(host, partition)

    def _check_names(self, partition: Partition) -> None:
        """Check that the ISR has flushed the name of the segment of the last committed record.

        The content of the segment is checked at the end, and after every loss of power.
        """
        offset = partition.high_watermark - 1
        if offset < self._high_watermarks.get(partition, 0):
            return
        for number, host in enumerate(self._cluster.hosts, start=1):
            if number not in partition.isr:
                continue
            directory = f"{DATA}/{partition.name}"
            segments = [
                name
                for name in host.disk.names(directory)
                if name.endswith(LOG_SUFFIX) and int(name.removesuffix(LOG_SUFFIX)) <= offset
            ]
            if segments and not host.disk.has_durable_name(f"{directory}/{max(segments)}"):
                raise Violation(
                    f"{partition.name}: offset {offset} is committed, and a loss of power would"
                    f" take {max(segments)} from {host.name}"
                )

    def _check_stable(self, host: Machine, partition: Partition) -> None:
        stable, high_watermark = partition.last_stable_offset, max(partition.high_watermark, 0)
        undecided = self._open.get(partition, {})
        wanted = min((*undecided.values(), high_watermark))
        if stable != wanted:
            # After a restart a log may consider its markers committed, as Kafka's does. That is
            # harmless: the outcome in a marker was decided for good before it was written.
            log = partition.log
            ahead = batches(log, high_watermark, log.log_end_offset)
            decided = {batch.producer_id for batch in ahead if batch.is_control}
            limits = [at for producer_id, at in undecided.items() if producer_id not in decided]
            if stable < wanted and decided and _is_emptied(partition, stable):
                return
            if not wanted < stable <= min((*limits, high_watermark)):
                raise Violation(
                    f"{partition.name} on {host.name}: the last stable offset is {stable}, and"
                    f" should be {wanted}"
                )

    def _check_log(
        self, host: Machine, place: Place, owner: object, log: Log, high_watermark: int
    ) -> None:
        """Check a log; `owner` is the object of the present run of the broker for the partition."""
        before = self._high_watermarks.get(owner, 0)
        if high_watermark == before or high_watermark < 0:
            return
        if high_watermark < before:
            raise Violation(
                f"{place[1]} on {host.name}: the high watermark went back from {before} to"
                f" {high_watermark}"
            )
        self._high_watermarks[owner] = high_watermark
        if log.log_end_offset < high_watermark:
            raise Violation(
                f"{place[1]} on {host.name}: the high watermark {high_watermark} is above the log"
                f" end offset {log.log_end_offset}"
            )
        committed = self._committed.setdefault(place, {})
        undecided = self._open.setdefault(owner, {})
        start = max(before, log.log_start_offset)
        found = list(batches(log, start, high_watermark))
        for batch in found:
            if batch.is_control:
                undecided.pop(batch.producer_id, None)
            elif batch.is_transactional and batch.record_count:
                # Compaction may keep an empty batch for the state of its producer.
                undecided.setdefault(batch.producer_id, batch.base_offset)
        copies = self._copies
        if copies is not None:
            self._count_copies(copies, host, place, found)
            return
        for offset, checksum in units(place[1].topic, found):
            first, owner_name = committed.setdefault(offset, (checksum, host.name))
            if first != checksum:
                raise Violation(
                    f"{place[1]} at offset {offset}: what {host.name} has committed is not what"
                    f" {owner_name} had committed there"
                )

    def _count_copies(
        self, copies: Copies, host: Machine, place: Place, found: Sequence[ComparedBatch]
    ) -> None:
        """Note the disks with newly committed records: this host, and the followers if it leads."""
        others = []
        if place is not _METADATA:
            others = [
                (other.name, partition.log, other.disk)
                for other, node in self._cluster.nodes()
                if other is not host
                for partition in [
                    node.replicas._topics.get(place[1].topic, {}).get(place[1].partition)
                ]
                if partition is not None and (partition.log.topic_id or b"") == place[0]
            ]
        for batch in found:
            for unit in units_of(place[1].topic, [batch]):
                try:
                    copies.hold(place, unit, host.name)
                except ValueError as error:
                    # Damage that was not detected yet; by the end it must be. Some header fields,
                    # such as the base offset and the leader epoch, are not covered by a CRC.
                    if not is_valid(batch.data) or copies.was_damaged(host.name, place[1]):
                        continue
                    raise Violation(
                        f"{place[1]} at offset {unit.offset}: what {host.name} has committed is not"
                        f" what was committed there before, which is {error}"
                    ) from error
        if not found:
            return
        for name, log, disk in others:
            if log.log_end_offset > found[-1].last_offset and log.offline is None:
                start = max(found[0].base_offset, log.log_start_offset)
                with disk.inspected():
                    theirs = set(
                        units_of(place[1].topic, batches(log, start, found[-1].last_offset + 1))
                    )
                for unit in units_of(place[1].topic, found):
                    if unit in theirs:
                        copies.hold(place, unit, name)


def _is_emptied(partition: Partition, offset: int) -> bool:
    """Whether compaction removed the records at `offset`, the start of a transaction.

    A high watermark that was read from its checkpoint may be older than that compaction, and below
    the marker. Then a snapshot of producers still has the start of the transaction, and until the
    marker is known to be committed it is unstable, as in Kafka.
    """
    if not is_compacted(partition.name.topic):
        return False
    found = batches(partition.log, offset, offset + 1)
    return not any(batch.base_offset <= offset and batch.record_count for batch in found)


def _watched(
    name: str, changed: dict[T, None], owners: dict[HighWatermark, T] | None = None
) -> property:
    """A property that records in `changed` the objects it was set on, and owners of its values."""
    hidden = f"_watched_{name}"

    def write(thing: T, value: Any) -> None:
        setattr(thing, hidden, value)
        changed[thing] = None
        if owners is not None:
            owners[value] = thing

    return property(attrgetter(hidden), write)


def _watched_offset(
    changed: dict[Partition, None], owners: dict[HighWatermark, Partition]
) -> property:
    """The offset of high watermarks, which records in `changed` the partition where it was set."""
    slot = HighWatermark.__dict__["offset"]

    def write(high_watermark: HighWatermark, offset: int) -> None:
        slot.__set__(high_watermark, offset)
        if high_watermark in owners:
            changed[owners[high_watermark]] = None

    return property(slot.__get__, write)


def check_replicas_equal(cluster: SimulatedCluster) -> str | None:
    """The difference between the replicas of a partition, or None."""
    contents: dict[TopicPartition, dict[str, dict[int, int]]] = {}
    ends: dict[TopicPartition, dict[str, int]] = {}
    for host, node in cluster.nodes():
        for partition in node.replicas:
            log, name = partition.log, partition.name
            found = dict(units(name.topic, batches(log, log.log_start_offset, log.log_end_offset)))
            contents.setdefault(name, {})[host.name] = found
            ends.setdefault(name, {})[host.name] = log.log_end_offset
    for name, by_host in sorted(contents.items()):
        # A log may begin later because of retention, and lack records removed by compaction.
        first = max(min(found, default=0) for found in by_host.values())
        wanted = set.intersection(*(set(found) for found in by_host.values()))
        tails = {
            host: [
                item
                for item in sorted(found.items())
                if item[0] >= first and (item[0] in wanted or not is_compacted(name.topic))
            ]
            for host, found in by_host.items()
        }
        if len({str(tail) for tail in tails.values()}) > 1 or len(set(ends[name].values())) > 1:
            last = {host: tail[-1] if tail else None for host, tail in tails.items()}
            return f"the replicas of {name} differ; their last batches: {last}, {ends[name]}"
    return None


def check_log_starts(cluster: SimulatedCluster) -> str | None:
    """The log that does not begin at offset 0, although no record may be deleted; or None."""
    for host, node in cluster.nodes():
        for partition in node.replicas:
            log = partition.log
            if log.log_start_offset or log.segments[0].base_offset:
                return (
                    f"{partition.name} on {host.name} begins at offset {log.log_start_offset}, and"
                    " no record of it was deleted"
                )
    return None


def check_log_files(cluster: SimulatedCluster) -> str | None:
    """The contradiction between the batches of a log and the files beside them, or None.

    The files may still refer to batches that compaction removed.
    """
    aborted: dict[TopicPartition, dict[str, list[AbortedTransaction]]] = {}
    for host, node in cluster.nodes():
        for partition in node.replicas:
            log, name = partition.log, partition.name
            if is_compacted(name.topic) or log.offline is not None:
                continue
            start, end = log.log_start_offset, log.log_end_offset
            aborted.setdefault(name, {})[host.name] = [
                # The stable offset at that time depends on when a replica learned of the commit.
                entry._replace(last_stable_offset=-1)
                for entry in log.aborted_transactions(start, end)
            ]
            for batch in batches(log, start, end):
                epoch = log.epochs.epoch_of(batch.base_offset)
                if batch.base_offset >= start and batch.leader_epoch not in (-1, epoch):
                    return (
                        f"{name} on {host.name}: the batch at offset {batch.base_offset} is of"
                        f" epoch {batch.leader_epoch}, and the file of epochs says {epoch}"
                    )
    for name, by_host in sorted(aborted.items()):
        first = next(iter(by_host.values()))
        if any(entries != first for entries in by_host.values()):
            return f"the replicas of {name} know of different aborted transactions: {by_host}"
    return None


def check_lookups(cluster: SimulatedCluster) -> str | None:
    """The batch that is not found by its offset, or None; damaged batches are ignored."""
    for host, node in cluster.nodes():
        for partition in node.replicas:
            for segment in partition.log.segments:
                with suppress(CorruptBatch):
                    for header, _, position in segment.batches(0, segment.size):
                        found = segment.position_of(header.base_offset, segment.size)
                        if found != position:
                            return (
                                f"{segment.log_path} on {host.name}: the batch at offset"
                                f" {header.base_offset} is at position {position}, and is looked"
                                f" for at {found}"
                            )
    return None


def check_durable(cluster: SimulatedCluster) -> str | None:
    """The committed records that a loss of power would take now, or None."""
    for host, node in cluster.nodes():
        for partition in node.replicas:
            log, name = partition.log, partition.name
            if is_compacted(name.topic):
                continue
            durable = intact_units(name, host.disk.durable_files(f"{DATA}/{name}"))
            held = batches(log, log.log_start_offset, partition.high_watermark)
            for offset, checksum in units(name.topic, held):
                if durable.get(offset) != checksum:
                    return (
                        f"{name} on {host.name}: offset {offset} is committed, and a loss of power"
                        " would take it"
                    )
    return None


def check_images_equal(cluster: SimulatedCluster) -> str | None:
    """The difference between the metadata images of the nodes, or None."""
    found = {
        host.name: (node.store.image_offset, node.store.image) for host, node in cluster.nodes()
    }
    first = next(iter(found.values()))
    for name, (offset, image) in found.items():
        if offset != first[0]:
            return f"{name} has applied metadata up to {offset}, and others up to {first[0]}"
        if image != first[1]:
            return f"the image of {name} at {offset} is not that of others"
    return None
