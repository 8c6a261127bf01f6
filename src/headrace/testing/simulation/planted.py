"""Bugs planted on purpose: a simulator that does not find them would find no others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from unittest.mock import patch

from headrace.broker.coordination.coordinators import Coordinators
from headrace.broker.coordination.group_topics import GroupTopics
from headrace.broker.replication.partition import Partition
from headrace.clock import Clock, SteadyClock
from headrace.coordinator.groups import GroupShard
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.errors import ErrorCode
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.replication.fetch_session import FetchSession
from headrace.storage.log import Log
from headrace.storage.producers import Producers
from headrace.testing.simulation.files import SimulatedFile
from headrace.testing.simulation.runs import Plan
from headrace.types import ZERO_UUID

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Planted:
    """Where a bug is, what makes the wrong thing out of the right one, and a run that finds it."""

    owner: Any  # A class or a module.
    method: str
    wrong: Callable[[Function], Function]
    plan: Plan


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with the bug of that name; without any if the name is empty."""
    if not name:
        yield
        return
    bug = PLANTED[name]
    with patch.object(bug.owner, bug.method, bug.wrong(getattr(bug.owner, bug.method))):
        yield


def _ack_before_high_watermark(right: Function) -> Function:
    """A leader answers once it has a record itself."""
    return lambda self, last_offset: None


def _ignore_epoch(right: Function) -> Function:
    """A follower does not say of which epochs its last record and its leader are."""

    def want(self: FetchSession, key: Any, topic: str, partition: Any) -> None:
        partition.last_fetched_epoch = partition.current_leader_epoch = -1
        right(self, key, topic, partition)

    return want


def _truncate_by_high_watermark(right: Function) -> Function:
    """A follower throws away what it does not know to be committed, as Kafka once did."""

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
    """Readers of committed records are given what is not decided yet."""
    return lambda self, high_watermark: high_watermark


def _take_any_marker(right: Function) -> Function:
    """A marker ends whatever transaction its producer has open, however late it comes."""
    return lambda self, marker, transaction_version=0: None


def _forget_decisions(right: Function) -> Function:
    """A coordinator that takes over orders no markers of what another one decided."""

    def loaded(self: TransactionShard, now_ms: int) -> None:
        right(self, now_ms)
        self.take_orders()

    return loaded


def _keep_aborted_offsets(right: Function) -> Function:
    """Offsets hold however their transaction ended."""
    return lambda self, producer_id, committed: right(self, producer_id, True)


def _ignore_topic_ids(right: Function) -> Function:
    """An offset belongs to whichever topic has the name now."""
    return lambda self, name: ZERO_UUID


def _write_time_of_start(right: Function) -> Function:
    """Coordinators write the time of day at their broker's start and how long ago that was."""

    def init(self: Coordinators[Any], topic: str, clock: Clock, *others: Any) -> None:
        right(self, topic, SteadyClock(clock), *others)

    return init


def _fence_hasty_ends(right: Function) -> Function:
    """An end by the next epoch fences its producer while the end before is not complete."""

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


_KILLS = Plan(kinds=("kill", "cut"), mean_gap_s=0.4, pause_s=0.02, seconds=8, healed_s=20)
_SPLITS = Plan(kinds=("split",), mean_gap_s=1.0, pause_s=0.04, seconds=6, partitions=3, healed_s=20)
_POWER_LOSSES = Plan(kinds=("power_loss",), mean_gap_s=0.4, seconds=6, durable=True, healed_s=20)
_TELLERS = Plan(
    kinds=("kill",), producers=1, tellers=2, mean_gap_s=0.3, pause_s=0.05, seconds=4, healed_s=20
)
_REPLAYS = replace(_TELLERS, kinds=("replay",), mean_gap_s=0.04)
_HASTY = replace(_TELLERS, kinds=("slow",), hasty=True)
_RIVALS = replace(_TELLERS, kinds=("kill_client",), tellers=0, copiers=2, rivals=True)

_RECREATED = Plan(kinds=("kill",), recreates=True, producers=1, seconds=2, healed_s=20)

_WRONG_CLOCKS = replace(
    _RIVALS,
    kinds=("wrong_clock", "kill"),
    seconds=6,
    settings={"offsets.retention.check.interval.ms": "200"},
)

PLANTED = {
    "ack-before-high-watermark": Planted(
        Partition, "committed", _ack_before_high_watermark, _SPLITS
    ),
    "ignore-epoch": Planted(FetchSession, "want", _ignore_epoch, _SPLITS),
    "ignore-topic-ids": Planted(GroupTopics, "id_of", _ignore_topic_ids, _RECREATED),
    "fence-hasty-ends": Planted(TransactionShard, "handle", _fence_hasty_ends, _HASTY),
    "forget-decisions": Planted(TransactionShard, "loaded", _forget_decisions, _TELLERS),
    "keep-aborted-offsets": Planted(GroupShard, "end_transaction", _keep_aborted_offsets, _RIVALS),
    "skip-fsync-of-metadata": Planted(
        SimulatedFile, "sync", _skip_fsync_of_metadata, _POWER_LOSSES
    ),
    "skip-fsync-of-votes": Planted(SimulatedFile, "sync", _skip_fsync_of_votes, _POWER_LOSSES),
    "stable-is-high-watermark": Planted(
        Log, "last_stable_offset", _stable_is_high_watermark, _TELLERS
    ),
    "take-any-marker": Planted(Producers, "check_marker", _take_any_marker, _REPLAYS),
    "write-time-of-start": Planted(Coordinators, "__init__", _write_time_of_start, _WRONG_CLOCKS),
    "truncate-by-high-watermark": Planted(Partition, "follow", _truncate_by_high_watermark, _KILLS),
}
