"""Bugs planted on purpose: a simulator that does not find them would miss others too."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

from headrace.broker.coordination.group_topics import GroupTopics
from headrace.broker.coordination.runtime import CoordinatorRuntime
from headrace.broker.coordination.transaction_coordinator import TransactionCoordinator
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.replication.isr_proposals import IsrProposer
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replica_manager import ReplicaManager
from headrace.broker.scrubber import Scrubber
from headrace.clock import Clock, SteadyClock
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.transactions.transaction_shard import TransactionShard
from headrace.errors import ErrorCode
from headrace.metadata.elections import Elections
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.replication.follower import FollowerFetchSession
from headrace.storage import metadata_recovery, metadata_scan, recovery
from headrace.storage.checkpoints import CLEAN_SHUTDOWN
from headrace.storage.data_directory import METADATA_LOG, DataDirectory
from headrace.storage.leader_epochs import EpochScan
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.metadata_log import QuorumStateFile
from headrace.storage.open_files import OpenFiles
from headrace.storage.producer_state import ProducerStates
from headrace.storage.recovery import _LogLoader
from headrace.storage.segment import Segment
from headrace.tasks import TaskScope
from headrace.testing.simulation.run import RunPlan
from headrace.testing.simulation.simulated_disk import SimulatedFile, SimulatedFiles
from headrace.types import ZERO_UUID, TopicPartition

Function: TypeAlias = Callable[..., Any]


class PlantedChange(NamedTuple):
    """A function of a class or a module, and a wrapper that makes it wrong."""

    owner: Any
    name: str
    wrong: Callable[[Function], Function]


@dataclass(frozen=True)
class PlantedBug:
    """A bug, in one or more functions, and a run that finds it."""

    plan: RunPlan
    changes: Sequence[PlantedChange]
    # The first that has found it. One that does not do so any more costs time and nothing else.
    seed: int = 0


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with the bug of that name; without any if the name is empty."""
    if not name:
        yield
        return
    with ExitStack() as stack:
        for owner, function, wrong in PLANTED[name].changes:
            stack.enter_context(patch.object(owner, function, wrong(getattr(owner, function))))
        yield


def _ack_before_high_watermark(right: Function) -> Function:
    """A leader acknowledges a record once it has the record itself."""
    return lambda self, last_offset: None


def _ignore_epoch(right: Function) -> Function:
    """A follower omits the epochs of its last record and its leader from fetches."""

    def want(self: FollowerFetchSession, key: Any, topic: str, partition: Any) -> None:
        partition.last_fetched_epoch = partition.current_leader_epoch = -1
        right(self, key, topic, partition)

    return want


def _truncate_by_high_watermark(right: Function) -> Function:
    """A follower truncates records not known to be committed, as Kafka once did."""

    def follow(self: Partition, image: Any) -> None:
        begins = self.is_leader or image.leader_epoch != self.leader_epoch
        right(self, image)
        if begins and self.high_watermark < self.log.log_end_offset:
            self.truncate_to(self.high_watermark)

    return follow


def _skip_fsync_of_metadata(right: Function) -> Function:
    """Records of the metadata log are written, and never flushed."""

    def sync(self: SimulatedFile) -> None:
        if "__cluster_metadata" not in self.path or not self.path.endswith(".log"):
            right(self)

    return sync


def _skip_fsync_of_votes(right: Function) -> Function:
    """Epochs and votes are written, and never flushed."""

    def sync(self: SimulatedFile) -> None:
        if "quorum-state" not in self.path:
            right(self)

    return sync


def _stable_is_high_watermark(right: Function) -> Function:
    """read_committed consumers get records of undecided transactions."""
    return lambda self, high_watermark: high_watermark


def _take_any_marker(right: Function) -> Function:
    """A marker ends any open transaction of its producer, even if it arrives late."""
    return lambda self, marker, transaction_version=0: None


def _forget_decisions(right: Function) -> Function:
    """A new coordinator sends no markers for transactions that its predecessor decided."""

    def loaded(self: TransactionShard, now_ms: int) -> None:
        right(self, now_ms)
        self.take_marker_orders()

    return loaded


def _keep_aborted_offsets(right: Function) -> Function:
    """Offsets of aborted transactions are kept."""
    return lambda self, producer_id, committed: right(self, producer_id, True)


def _ignore_topic_ids(right: Function) -> Function:
    """An offset is valid for any topic of that name."""
    return lambda self, name: ZERO_UUID


def _write_time_of_start(right: Function) -> Function:
    """Coordinators write the wall-clock time at their broker's start plus the time since."""

    def init(self: CoordinatorRuntime[Any], topic: str, clock: Clock, *others: Any) -> None:
        right(self, topic, SteadyClock(clock), *others)

    return init


def _stock_on_request(right: Function) -> Function:
    """A coordinator requests producer ids only when an InitProducerId request arrives."""

    async def give_later(self: TransactionCoordinator, driver: Any) -> None:
        pass

    return give_later


def _fence_hasty_ends(right: Function) -> Function:
    """Ending a transaction with the next epoch fences its producer while the previous end is
    incomplete.
    """

    def handle(self: TransactionShard, request: Any, version: int, *rest: Any) -> Any:
        effects = right(self, request, version, *rest)
        if isinstance(request, EndTxnRequest) and self.is_prepared(request.transactional_id):
            described = self.describe(request.transactional_id)
            for _, response in effects.replies:
                if (
                    response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
                    and request.producer_epoch == described.producer_epoch
                ):
                    response.error_code = ErrorCode.PRODUCER_FENCED
        return effects

    return handle


def _delete_log_of_unreadable_id(right: Function) -> Function:
    """A log with another topic id than its topic is deleted, and replaced by an empty one."""

    def own_log(self: ReplicaManager, name: TopicPartition, *others: Any) -> None:
        self._logs.delete(name, self._clock.now_ms())

    return own_log


def _flushed_nothing(right: Function) -> Function:
    """Damage in a metadata log is considered never flushed."""
    return lambda *args, **options: right(*args, **{**options, "flushed_offset": 0})


def _flushed_no_metadata(right: Function) -> Function:
    """A truncated metadata log is opened as it is."""

    def load(open_files: OpenFiles, directory: str, *others: Any, **options: Any) -> Any:
        if not directory.endswith(str(METADATA_LOG)):
            return right(open_files, directory, *others, **options)
        options |= {"recovery_point": 0, "clean": False}
        with patch.object(recovery, "read_flushed_offset", lambda files, directory: 0):
            return right(open_files, directory, *others, **options)

    return load


def _all_is_torn(right: Function) -> Function:
    """Damage in a metadata log is considered a torn tail, whatever follows it."""
    return lambda *args, is_torn: right(*args, is_torn=True)


def _last_in_sync_leads(right: Function) -> Function:
    """A broker that was killed or lost power stays eligible, even if it lost records."""
    return lambda self, ids, **options: right(self, ids, **{**options, "unclean": False})


def _trust_damaged_index(right: Function) -> Function:
    """A search starts at the position in the index, even if no batch begins there."""

    def walk_from(self: Segment, entry: Any, offset: int, limit: int, read: Any) -> int:
        return self._walk_to(offset, min(entry[1], limit), limit, read)

    return walk_from


def _cut_damage(right: Function) -> Function:
    """A log is truncated at its first bad batch, flushed or not."""

    def end_at(self: _LogLoader, *where: Any) -> None:
        self._flushed, self._same_boot = 0, False
        right(self, *where)

    return end_at


def _forget_recovery_point(right: Function) -> Function:
    """A truncated log is considered complete."""

    def open_log(self: LogManager, partition: TopicPartition, home: Any, *others: Any) -> Any:
        log = right(self, partition, home, *others)
        if log.recovery.truncated_because:
            home.checkpoints.recovery_points.pop(partition, None)
        return log

    return open_log


def _read_nothing_after_start(right: Function) -> Function:
    """For a week, scrubbing skips the logs that were opened at the start."""

    async def read_none(self: Scrubber, directory: Any) -> bool:
        return False

    return read_none


def _trust_missing_txnindex(right: Function) -> Function:
    """A missing index of aborted transactions is considered empty."""

    def compare_sizes(self: _LogLoader, noted: Any, following: int, *, clean: bool) -> None:
        right(self, noted, following, clean=clean)
        self._damaged_aborted.discard(noted.base_offset)

    return compare_sizes


def _believe_epoch_file(right: Function) -> Function:
    """Epochs of batches are not compared with an epoch file that begins later."""

    def add(self: EpochScan, header: Any) -> None:
        right(self, header)
        self.stale, self.file_is_wrong = None, False

    return add


def _any_epochs_fit(right: Function) -> Function:
    """The epoch file is not compared with the batches."""
    return lambda self, end_offset: True


def _forget_unsynced_names(right: Function) -> Function:
    """Only the process that created a log flushes the names of its files."""

    def load(open_files: OpenFiles, directory: str, *others: Any, **options: Any) -> Any:
        if not open_files.files.exists(directory):
            return right(open_files, directory, *others, **options)
        sync, above = SimulatedFiles.sync_directory, os.path.dirname(directory)

        def sync_directory(files: SimulatedFiles, path: str) -> None:
            if path != above:
                sync(files, path)

        with patch.object(SimulatedFiles, "sync_directory", sync_directory):
            loaded = right(open_files, directory, *others, **options)
        loaded.flusher.names_changed = loaded.flusher._is_new = False
        return loaded

    return load


def _leave_names_unsynced(right: Function) -> Function:
    """A start after a crash does not flush the names in the data directory."""

    def load(self: DataDirectory) -> None:
        if self._files.exists(f"{self.path}/{CLEAN_SHUTDOWN}"):
            right(self)
            return
        with patch.object(SimulatedFiles, "sync_directory", lambda *_: None):
            right(self)

    return load


def _believe_votes(right: Function) -> Function:
    """A start takes the votes that it finds for durable, and flushes no names because of them."""
    return QuorumStateFile.read


def _list_no_new_logs(right: Function) -> Function:
    """Checkpoints are only written periodically, even after a log was created."""

    async def checkpoint_new_logs(self: Housekeeping) -> None:
        pass

    return checkpoint_new_logs


def _fail_without_broker(right: Function) -> Function:
    """The task that maintains the ISR fails when a broker is away."""

    async def mark_all_due(self: IsrProposer) -> None:
        await right(self)
        assert all(broker.is_active for broker in self._store.image.brokers.values())

    return mark_all_due


def _ignore_failed_task(right: Function) -> Function:
    """A task that fails is removed without a report."""

    def ended(self: TaskScope, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()

    return ended


_KILLS = RunPlan(kinds=("kill", "cut"), mean_gap_s=0.4, pause_s=0.02, seconds=8, healed_s=20)
_SPLITS = RunPlan(
    kinds=("split",), mean_gap_s=1.0, pause_s=0.04, seconds=6, partitions=3, healed_s=20
)
_POWER_LOSSES = RunPlan(kinds=("power_loss",), mean_gap_s=0.4, seconds=6, durable=True, healed_s=20)
_TELLERS = RunPlan(
    kinds=("kill",), producers=1, tellers=2, mean_gap_s=0.3, pause_s=0.05, seconds=4, healed_s=20
)
_REPLAYS = replace(_TELLERS, kinds=("replay",), mean_gap_s=0.04)
_LEAVERS = replace(_TELLERS, kinds=("slow",), tellers=1, seconds=1, epoch_max=4)
_HASTY = replace(_TELLERS, kinds=("slow",), hasty=True)
_RIVALS = replace(_TELLERS, kinds=("kill_client",), tellers=0, copiers=2, rivals=True)

_RECREATED = RunPlan(kinds=("kill",), recreates=True, producers=1, seconds=2, healed_s=20)

_WRONG_CLOCKS = replace(
    _RIVALS,
    # Copiers that restart fetch the offsets that they have committed.
    kinds=("wrong_clock", "kill", "kill_client"),
    seconds=10,
    settings={"offsets.retention.check.interval.ms": "200"},
)

_DAMAGE = RunPlan(
    kinds=("damage",),
    damage=True,
    durable=True,
    producers=1,
    mean_gap_s=0.8,
    pause_s=0.02,
    seconds=3,
    healed_s=20,
)
_DAMAGED_IDS = replace(_DAMAGE, damage_kinds=("partition.metadata",))
_DAMAGED_METADATA = replace(_DAMAGE, brokers=1, damage_kinds=("metadata segment",))
_DAMAGED_SEGMENTS = replace(
    _DAMAGE,
    brokers=1,
    damage_kinds=("segment",),
    # A start after a clean stop reads the batches behind the last entry of an index.
    settings={"log.index.interval.bytes": "1000000"},
)
_DAMAGED_CLOSED_SEGMENTS = replace(
    _DAMAGE,
    damage_kinds=("segment",),
    partitions=1,
    mean_gap_s=0.5,
    seconds=6,
    settings={"log.roll.ms": "400", "log.retention.ms": "-1"},
)
_DAMAGED_INDEXES = replace(
    _DAMAGE,
    damage_kinds=("offset index",),
    settings={"log.index.interval.bytes": "100", "log.roll.ms": "500"},
)
_DAMAGED_TXNINDEXES = replace(_DAMAGE, damage_kinds=("aborted transactions",), tellers=1)
_BLACKOUTS = replace(_DAMAGE, kinds=("blackout",), durable=False)
_DAMAGED_EPOCHS = replace(_DAMAGE, damage_kinds=("leader-epoch-checkpoint",))
_AWAY = RunPlan(kinds=("kill",), producers=1, mean_gap_s=1.0, seconds=2, healed_s=20)
_UNUSED = replace(_AWAY, durable=True, mean_gap_s=0.5, unused_s=1.5)

PLANTED = {
    "ack-before-high-watermark": PlantedBug(
        _SPLITS, [PlantedChange(Partition, "when_committed", _ack_before_high_watermark)]
    ),
    "ignore-epoch": PlantedBug(
        _SPLITS, [PlantedChange(FollowerFetchSession, "want", _ignore_epoch)]
    ),
    "ignore-topic-ids": PlantedBug(
        _RECREATED, [PlantedChange(GroupTopics, "id_of", _ignore_topic_ids)]
    ),
    "fence-hasty-ends": PlantedBug(
        _HASTY,
        [PlantedChange(TransactionShard, "handle", _fence_hasty_ends)],
        seed=5,
    ),
    "forget-decisions": PlantedBug(
        _TELLERS, [PlantedChange(TransactionShard, "loaded", _forget_decisions)]
    ),
    "keep-aborted-offsets": PlantedBug(
        _RIVALS, [PlantedChange(GroupShard, "end_transaction", _keep_aborted_offsets)]
    ),
    "skip-fsync-of-metadata": PlantedBug(
        _POWER_LOSSES, [PlantedChange(SimulatedFile, "sync", _skip_fsync_of_metadata)]
    ),
    "skip-fsync-of-votes": PlantedBug(
        _POWER_LOSSES, [PlantedChange(SimulatedFile, "sync", _skip_fsync_of_votes)]
    ),
    "stable-is-high-watermark": PlantedBug(
        _TELLERS, [PlantedChange(Log, "last_stable_offset", _stable_is_high_watermark)]
    ),
    "stock-producer-ids-on-request": PlantedBug(
        _LEAVERS, [PlantedChange(TransactionCoordinator, "_supply_later", _stock_on_request)]
    ),
    "take-any-marker": PlantedBug(
        _REPLAYS,
        [PlantedChange(ProducerStates, "check_marker", _take_any_marker)],
        seed=1,
    ),
    "write-time-of-start": PlantedBug(
        _WRONG_CLOCKS, [PlantedChange(CoordinatorRuntime, "__init__", _write_time_of_start)]
    ),
    "truncate-by-high-watermark": PlantedBug(
        _KILLS, [PlantedChange(Partition, "follow", _truncate_by_high_watermark)]
    ),
    "believe-epoch-file": PlantedBug(
        _DAMAGED_EPOCHS,
        [
            PlantedChange(EpochScan, "add", _believe_epoch_file),
            PlantedChange(_LogLoader, "_epochs_fit", _any_epochs_fit),
        ],
    ),
    "cut-damage-below-recovery-point": PlantedBug(
        _DAMAGED_SEGMENTS,
        [
            PlantedChange(_LogLoader, "_end_at", _cut_damage),
            PlantedChange(LogManager, "open_log", _forget_recovery_point),
        ],
        seed=1,
    ),
    "delete-log-of-unreadable-id": PlantedBug(
        _DAMAGED_IDS,
        [PlantedChange(ReplicaManager, "_check_ownership", _delete_log_of_unreadable_id)],
    ),
    "ignore-failed-task": PlantedBug(
        _AWAY,
        [
            PlantedChange(IsrProposer, "_mark_all_due", _fail_without_broker),
            PlantedChange(TaskScope, "_ended", _ignore_failed_task),
        ],
    ),
    "last-in-sync-leads": PlantedBug(
        _BLACKOUTS,
        [PlantedChange(Elections, "remove_from_isrs", _last_in_sync_leads)],
        seed=2,
    ),
    "scrub-nothing-after-start": PlantedBug(
        _DAMAGED_CLOSED_SEGMENTS,
        [
            PlantedChange(Scrubber, "read_tail", _read_nothing_after_start),
            PlantedChange(Scrubber, "scrub_next", _read_nothing_after_start),
        ],
        seed=5,
    ),
    "skip-fsync-of-log-names": PlantedBug(
        _UNUSED,
        [
            PlantedChange(recovery, "load", _forget_unsynced_names),
            PlantedChange(DataDirectory, "load", _leave_names_unsynced),
            PlantedChange(QuorumStateFile, "load", _believe_votes),
            PlantedChange(Housekeeping, "checkpoint_new_logs", _list_no_new_logs),
        ],
    ),
    "take-metadata-damage-for-torn-tail": PlantedBug(
        _DAMAGED_METADATA,
        [
            PlantedChange(metadata_recovery, "scan_metadata_log", _flushed_nothing),
            PlantedChange(recovery, "load", _flushed_no_metadata),
            PlantedChange(metadata_scan, "_stop_at", _all_is_torn),
        ],
    ),
    "trust-damaged-index": PlantedBug(
        _DAMAGED_INDEXES,
        [PlantedChange(Segment, "_walk_from", _trust_damaged_index)],
        seed=2,
    ),
    "trust-missing-txnindex": PlantedBug(
        _DAMAGED_TXNINDEXES,
        [PlantedChange(_LogLoader, "_compare_sizes", _trust_missing_txnindex)],
        seed=2,
    ),
}
