"""The high watermark of a replica, and the leader's side of a partition, which computes it.

A record is committed once every replica has it that could become leader. Those are the in-sync
replicas (ISR) of the metadata log and, while the outcome of an ISR change that the leader proposed
is unknown, the replicas that the change adds: the *maximal* ISR. The high watermark also waits for
a follower that is about to join, or under load it would always be a little behind. With fewer in
sync than `min.insync.replicas` nothing more is committed (KIP-966): a record that so few replicas
have is not safe.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError

NO_OFFSET = -1
OFFSET_MAX = 2**63 - 1
NO_EPOCH = -1

_NEVER = -(2**62)
# The lag allowed to a member of the ISR that `MayJoin` would not admit now.
_GRACE_MS = 1000

MayJoin = Callable[[int, int], bool]
"""Whether a broker of an id and epoch may enter an ISR: it is alive and not about to stop."""


class HighWatermark:
    """The offset below which a replica knows records to be committed, as leader and follower.

    Invariant: log start offset <= `offset` <= log end offset; only `truncated` lowers it.
    """

    __slots__ = ("offset",)

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        """Take the offset of a checkpoint, limited to the range of the log."""
        self.offset = max(min(offset, log_end_offset), log_start_offset)

    def advance(self, offset: int, log_end_offset: int) -> bool:
        """Raise the high watermark to `offset`, at most to the log's end; whether it moved."""
        if offset > log_end_offset:
            return self.advance(log_end_offset, log_end_offset)
        if offset <= self.offset:
            return False
        self.offset = offset
        return True

    def log_start_moved(self, log_start_offset: int) -> None:
        """Follow a new log start offset; only committed records are deleted that way."""
        self.offset = max(self.offset, log_start_offset)

    def truncated(self, log_end_offset: int) -> int:
        """Follow a truncation of the log; return how many committed offsets were lost.

        Committed offsets are lost only after unclean elections.
        """
        lost = max(self.offset - log_end_offset, 0)
        self.offset -= lost
        return lost


class FollowerProgress:
    """The progress of a follower, as the leader knows it.

    `log_end_offset` is -1 until it has fetched; `caught_up_ms` is the last time at which it had all
    records of the leader.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "fetched_ms",
        "leader_end_offset",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = NO_EPOCH
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = 0
        self.leader_end_offset = NO_OFFSET

    def is_in_sync(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it has all records of the leader, or had within `lag_time_max_ms`."""
        return (
            self.log_end_offset == leader_end_offset
            or now_ms - self.caught_up_ms <= lag_time_max_ms
        )


class IsrProposal(NamedTuple):
    """An ISR that the leader asks the controller for, to replace that of `partition_epoch`."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


class LeaderState:
    """The leader's state of a partition in one leader epoch; it advances the high watermark.

    A single replica is a leader without followers. Methods that may commit records return whether
    the high watermark moved.

    Invariants: every member of the maximal ISR has all records below the high watermark, as far as
    it has fetched in this leadership; `joining` and the maximal ISR are disjoint.
    """

    __slots__ = (
        "_counted",
        "_has_enough",
        "_lost",
        "_min_insync_replicas",
        "followers",
        "high_watermark",
        "isr",
        "joining",
        "leader_epoch",
        "log_end_offset",
        "node_id",
        "partition_epoch",
        "pending",
        "persisted_offset",
        "replicas",
        "start_offset",
    )

    def __init__(
        self,
        *,
        node_id: int,
        replicas: Sequence[int],
        isr: Sequence[int],
        leader_epoch: int,
        partition_epoch: int,
        log_end_offset: int,
        persisted_offset: int,
        high_watermark: HighWatermark,
        now_ms: int,
        min_insync_replicas: int = 1,
        lost_replicas: Sequence[int] = (),
    ) -> None:
        self.node_id = node_id
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.start_offset = log_end_offset
        self.log_end_offset = log_end_offset
        self.persisted_offset = persisted_offset
        self.high_watermark = high_watermark
        self.pending: IsrProposal | None = None
        self.joining: set[int] = set()
        # A member of the ISR counts as caught up now: it has the usual time for its first fetch.
        self.followers = {
            broker_id: FollowerProgress(broker_id, now_ms if broker_id in self.isr else _NEVER)
            for broker_id in self.replicas
            if broker_id != node_id
        }
        # Replicas whose brokers are alive and cannot read their logs.
        self._lost = frozenset(lost_replicas)
        self._counted: tuple[FollowerProgress, ...] = ()
        # Whether `min.insync.replicas` replicas are in sync, or all if there are fewer.
        self._has_enough = True
        self._min_insync_replicas = min_insync_replicas
        self._recount()

    def set_min_insync_replicas(self, min_insync_replicas: int) -> bool:
        """Apply a change of `min.insync.replicas`; whether the high watermark moved."""
        self._min_insync_replicas = min_insync_replicas
        self._recount()
        return self._advance()

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The ISR and, while a proposal is in flight, the members that it adds."""
        if self.pending is None:
            return self.isr
        added = (broker_id for broker_id in self.pending.isr if broker_id not in self.isr)
        return (*self.isr, *added)

    @property
    def has_outsiders(self) -> bool:
        """Whether a replica is outside the ISR, so that its fetch may change the ISR."""
        return len(self.isr) < len(self.replicas)

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the followers that must have a record; -1 if unknown.

        The leader itself is left out; OFFSET_MAX if there are no such followers.
        """
        return min((follower.log_start_offset for follower in self._counted), default=OFFSET_MAX)

    def appended(self, end_offset: int, now_ms: int) -> None:
        """Note an append of the leader. A follower that had all records was caught up until now."""
        for follower in self.followers.values():
            if follower.log_end_offset == self.log_end_offset:
                follower.caught_up_ms = now_ms
        self.log_end_offset = end_offset

    def persisted(self, end_offset: int) -> bool:
        """Note the end of the leader's records that count; whether the high watermark moved."""
        self.persisted_offset = end_offset
        return self._advance()

    def fetched(
        self,
        broker_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        now_ms: int,
        may_join: MayJoin,
    ) -> bool:
        """Note a follower's fetch: it has all below `offset`; whether the high watermark moved.

        KafkaError for a broker that is no replica, or that was restarted since (KIP-903).
        """
        follower = self.follower(broker_id, broker_epoch)
        caught_up = True
        if offset >= self.log_end_offset:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end_offset != NO_OFFSET:
            # It has all records that the leader had at its last fetch: it was caught up then.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        else:
            caught_up = False
        follower.broker_epoch = broker_epoch
        follower.log_end_offset = offset
        follower.log_start_offset = log_start_offset
        follower.fetched_ms = now_ms
        follower.leader_end_offset = self.log_end_offset
        if caught_up and self.has_outsiders and self._is_outside(broker_id):
            if may_join(broker_id, broker_epoch):
                self.joining.add(broker_id)
                self._recount()
        return self._advance()

    def follower(self, broker_id: int, broker_epoch: int) -> FollowerProgress:
        """The state of the follower that fetches; KafkaError if it is no replica or outdated."""
        follower = self.followers.get(broker_id)
        if follower is None:
            # A reassignment may have added it in metadata that this node does not have yet.
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} is not known as a replica"
            )
        if broker_epoch != NO_EPOCH and broker_epoch < follower.broker_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} was started again since its epoch {broker_epoch}",
            )
        return follower

    def can_grow(self) -> bool:
        """Whether a follower has caught up enough to be proposed as a member of the ISR."""
        return (
            bool(self.joining)
            and self.pending is None
            and any(self._has_arrived(self.followers[broker_id]) for broker_id in self.joining)
        )

    def propose(
        self, now_ms: int, lag_time_max_ms: int, own_epoch: int, may_join: MayJoin
    ) -> IsrProposal | None:
        """The ISR to ask the controller for, if it differs from the current; in flight from now on.

        A member that lags for longer than `lag_time_max_ms` leaves, a follower that has caught up
        joins. A member that `may_join` would not admit, because its disk is full or it is about to
        stop, leaves sooner. To be called after `choose_joining`.
        """
        if self.pending is not None:
            return None
        isr = [
            broker_id
            for broker_id in self.isr
            if self._stays(broker_id, now_ms, lag_time_max_ms, may_join)
        ]
        isr += [
            broker_id
            for broker_id in sorted(self.joining)
            if self._has_arrived(self.followers[broker_id])
        ]
        if tuple(isr) == self.isr:
            return None
        epochs = tuple(
            own_epoch if broker_id == self.node_id else self.followers[broker_id].broker_epoch
            for broker_id in isr
        )
        self.pending = IsrProposal(tuple(isr), epochs, self.leader_epoch, self.partition_epoch)
        self.joining.difference_update(isr)
        self._recount()
        return self.pending

    def choose_joining(self, now_ms: int, lag_time_max_ms: int, may_join: MayJoin) -> bool:
        """Choose the followers outside the ISR that the high watermark waits for.

        Those that lag or may not join are dropped, those that have all records are added. Returns
        whether the high watermark moved, because it no longer waits for a follower.
        """
        joining = set()
        for follower in self.followers.values():
            broker_id, broker_epoch = follower.broker_id, follower.broker_epoch
            if broker_id in self.joining:
                waits = follower.is_in_sync(self.log_end_offset, now_ms, lag_time_max_ms)
            else:
                # It may have fetched all records before the controller took it for alive, and no
                # further fetch of an idle follower is noted. Its broker epoch, which `may_join`
                # compares, shows that it was not restarted since it fetched.
                waits = broker_epoch != NO_EPOCH and follower.log_end_offset == self.log_end_offset
            if (
                waits
                and broker_id not in self.maximal_isr
                and broker_id not in self._lost
                and may_join(broker_id, broker_epoch)
            ):
                joining.add(broker_id)
        if joining != self.joining:
            self.joining = joining
            self._recount()
        return self._advance()

    def proposal_accepted(self, isr: Sequence[int], partition_epoch: int) -> bool:
        """Apply the proposal that the controller accepted; whether the high watermark moved."""
        return self.update(self.replicas, isr, partition_epoch)

    def proposal_refused(self, proposal: IsrProposal) -> bool:
        """Drop a proposal that the controller has refused; whether the high watermark moved.

        Without a response the outcome is unknown: then the proposal stays in flight, to be sent
        again, until the metadata log has an ISR with a later partition epoch.
        """
        if self.pending == proposal:
            self.pending = None
            self._recount()
        return self._advance()

    def update(
        self,
        replicas: Sequence[int],
        isr: Sequence[int],
        partition_epoch: int,
        lost_replicas: Sequence[int] | None = None,
    ) -> bool:
        """Apply a partition's state from the metadata log; an older state changes nothing.

        A replica that is newly lost counts as empty until it fetches again; None leaves the lost
        replicas as they are. Returns whether the high watermark moved.
        """
        if partition_epoch < self.partition_epoch:
            return False
        if lost_replicas is not None:
            # Even if the partition epoch is known: the controller's responses lack lost replicas.
            for broker_id in set(lost_replicas) - self._lost:
                self.followers[broker_id] = FollowerProgress(broker_id, _NEVER)
                self.joining.discard(broker_id)
            self._lost = frozenset(lost_replicas)
            self._recount()
        if partition_epoch == self.partition_epoch and tuple(replicas) == self.replicas:
            return False
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        # A proposal in flight was for an older partition epoch: it is part of this state, or the
        # controller will refuse it.
        self.pending = None
        known = self.followers
        self.followers = {
            broker_id: known.get(broker_id) or FollowerProgress(broker_id, _NEVER)
            for broker_id in self.replicas
            if broker_id != self.node_id
        }
        self.joining = {
            broker_id
            for broker_id in self.joining
            if broker_id in self.followers and broker_id not in isr
        }
        self._recount()
        return self._advance()

    def _stays(self, broker_id: int, now_ms: int, lag_time_max_ms: int, may_join: MayJoin) -> bool:
        if broker_id == self.node_id:
            return True
        follower = self.followers.get(broker_id)
        if follower is None:
            return False
        if not may_join(broker_id, follower.broker_epoch):
            lag_time_max_ms = min(lag_time_max_ms, _GRACE_MS)
        return follower.is_in_sync(self.log_end_offset, now_ms, lag_time_max_ms)

    def _is_outside(self, broker_id: int) -> bool:
        return (
            broker_id not in self.joining
            and broker_id not in self._lost
            and broker_id not in self.maximal_isr
        )

    def _has_arrived(self, follower: FollowerProgress) -> bool:
        """Whether it has all committed records, and all from before this leader epoch."""
        return (
            follower.log_end_offset >= self.high_watermark.offset
            and follower.log_end_offset >= self.start_offset
        )

    def _recount(self) -> None:
        counted = {*self.maximal_isr, *self.joining}
        self._counted = tuple(
            follower for follower in self.followers.values() if follower.broker_id in counted
        )
        self._has_enough = len(self.isr) >= min(self._min_insync_replicas, len(self.replicas))

    def _advance(self) -> bool:
        if not self._has_enough:
            return False
        offset = self.persisted_offset
        for follower in self._counted:
            offset = min(offset, follower.log_end_offset)
        return self.high_watermark.advance(offset, self.log_end_offset)
