"""The high watermark of a replica, and the leader's side of a partition, which computes it.

A record is committed once every replica has it that could become leader. Those are the in-sync
replicas (ISR) of the metadata log, and, as long as the outcome of a change that the leader proposed
is unknown, those of the change too: the *maximal* ISR. A follower that is about to join is waited
for as well, or under load it would always be a little behind. With fewer in sync than
`min.insync.replicas` nothing more is committed (KIP-966): a record that so few have must not be
taken for safe.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError

NO_OFFSET = -1
OFFSET_MAX = 2**63 - 1
NO_EPOCH = -1

_NEVER = -(2**62)
# A member of the ISR that could not join it now has so long to have everything again.
_GRACE_MS = 1000

MayJoin = Callable[[int, int], bool]
"""Whether a broker of an id and epoch may enter an ISR: it is alive and not about to stop."""


class HighWatermark:
    """How far a replica knows records to be committed, through all its roles.

    Invariant: log start offset <= `offset` <= log end offset; only `truncated` lowers it.
    """

    __slots__ = ("offset",)

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        """What a checkpoint says, as far as the log that was found bears it out."""
        self.offset = max(min(offset, log_end_offset), log_start_offset)

    def advance(self, offset: int, log_end_offset: int) -> bool:
        """Take records below `offset` for committed, as far as they are here; whether any were."""
        offset = min(offset, log_end_offset)
        if offset <= self.offset:
            return False
        self.offset = offset
        return True

    def log_start_moved(self, log_start_offset: int) -> None:
        """Follow the log, which hides what is below; only committed records are given up so."""
        self.offset = max(self.offset, log_start_offset)

    def truncated(self, log_end_offset: int) -> int:
        """Follow a log that was cut; how many committed offsets went with that.

        Unclean elections alone make that more than none.
        """
        lost = max(self.offset - log_end_offset, 0)
        self.offset -= lost
        return lost


class Follower:
    """What the leader knows of one follower.

    `log_end_offset` is -1 until it has fetched; `caught_up_ms` is when it last had all there was.
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
        """Whether it has everything, or had not long ago."""
        return (
            self.log_end_offset == leader_end_offset
            or now_ms - self.caught_up_ms <= lag_time_max_ms
        )


class Proposal(NamedTuple):
    """An ISR to ask the controller for, in the place of the one of `partition_epoch`."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


class LeaderState:
    """One leadership of one partition, which advances the high watermark of the leader's replica.

    A single replica is a leader without followers. What may commit records says whether it did.

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
        self.pending: Proposal | None = None
        self.joining: set[int] = set()
        # A member is given the benefit of the doubt: it has the usual time to be heard of.
        self.followers = {
            one: Follower(one, now_ms if one in self.isr else _NEVER)
            for one in self.replicas
            if one != node_id
        }
        # Replicas whose brokers live and cannot read their logs.
        self._lost = frozenset(lost_replicas)
        self._counted: tuple[Follower, ...] = ()
        # Whether `min.insync.replicas` are in sync, or all if there are fewer replicas.
        self._has_enough = True
        self._min_insync_replicas = min_insync_replicas
        self._recount()

    def require(self, min_insync_replicas: int) -> bool:
        """Follow a change of `min.insync.replicas`; whether the high watermark moved."""
        self._min_insync_replicas = min_insync_replicas
        self._recount()
        return self._advance()

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The ISR and, while a proposal is in flight, the members that it adds."""
        if self.pending is None:
            return self.isr
        return (*self.isr, *(one for one in self.pending.isr if one not in self.isr))

    @property
    def has_outsiders(self) -> bool:
        """Whether a replica is not in sync, so that a fetch of it may change the ISR."""
        return len(self.isr) < len(self.replicas)

    @property
    def low_watermark(self) -> int:
        """The offset from which on at least one replica that counts keeps records; -1 if unknown.

        The leader itself is left out, and a lone one has no such offset.
        """
        return min((one.log_start_offset for one in self._counted), default=OFFSET_MAX)

    def appended(self, end_offset: int, now_ms: int) -> None:
        """Note that the leader wrote. A follower that had everything was caught up until now."""
        for follower in self.followers.values():
            if follower.log_end_offset == self.log_end_offset:
                follower.caught_up_ms = now_ms
        self.log_end_offset = end_offset

    def persisted(self, end_offset: int) -> bool:
        """Note up to where the leader's own copy counts; whether the high watermark moved."""
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

        KafkaError for one that is no replica, or of an incarnation that has a successor (KIP-903).
        """
        follower = self.follower(broker_id, broker_epoch)
        caught_up = True
        if offset >= self.log_end_offset:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end_offset != NO_OFFSET:
            # It has what there was when it asked the last time: it was caught up then.
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

    def follower(self, broker_id: int, broker_epoch: int) -> Follower:
        """The follower that fetches; KafkaError if it should not."""
        follower = self.followers.get(broker_id)
        if follower is None:
            # A reassignment may have added it, and this node has not heard of that yet.
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
        """Whether a follower has come so far that it can be proposed as a member."""
        return (
            bool(self.joining)
            and self.pending is None
            and any(self._has_arrived(self.followers[one]) for one in self.joining)
        )

    def propose(
        self, now_ms: int, lag_time_max_ms: int, own_epoch: int, may_join: MayJoin
    ) -> Proposal | None:
        """The ISR to ask for now, if another one is due. It is in flight from then on.

        Who lags for longer than `lag_time_max_ms` goes; who has arrived comes. A member that may
        not join goes sooner: its disk is full, or it stops. Comes after `choose_joining`.
        """
        if self.pending is not None:
            return None
        isr = [one for one in self.isr if self._stays(one, now_ms, lag_time_max_ms, may_join)]
        isr += [one for one in sorted(self.joining) if self._has_arrived(self.followers[one])]
        if tuple(isr) == self.isr:
            return None
        epochs = tuple(
            own_epoch if one == self.node_id else self.followers[one].broker_epoch for one in isr
        )
        self.pending = Proposal(tuple(isr), epochs, self.leader_epoch, self.partition_epoch)
        self.joining.difference_update(isr)
        self._recount()
        return self.pending

    def choose_joining(self, now_ms: int, lag_time_max_ms: int, may_join: MayJoin) -> bool:
        """Wait for nobody who lags or may not join, but for all who have everything.

        Whether the high watermark moved, because somebody is waited for no more.
        """
        joining = set()
        for follower in self.followers.values():
            broker_id, broker_epoch = follower.broker_id, follower.broker_epoch
            if broker_id in self.joining:
                waits = follower.is_in_sync(self.log_end_offset, now_ms, lag_time_max_ms)
            else:
                # It may have fetched all there is before the cluster took it for alive, and an idle
                # follower is not heard of again. Its epoch tells that it still is who fetched.
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

    def answered(self, isr: Sequence[int], partition_epoch: int) -> bool:
        """The controller took the proposal in flight; whether the high watermark moved."""
        return self.update(self.replicas, isr, partition_epoch)

    def refused(self, proposal: Proposal) -> bool:
        """The controller will never take a proposal; whether the high watermark moved.

        An answer that did not come tells nothing: then it stays in flight, to be sent again, until
        the metadata log tells of an ISR with a later partition epoch.
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
        """Follow the metadata log; an older state than the known one changes nothing.

        Whether the high watermark moved.

        A replica that is lost now has nothing until it fetches again; None leaves them as they are.
        """
        if partition_epoch < self.partition_epoch:
            return False
        if lost_replicas is not None:
            # Even of a state that is known: the controller's answers do not tell of them.
            for broker_id in set(lost_replicas) - self._lost:
                self.followers[broker_id] = Follower(broker_id, _NEVER)
                self.joining.discard(broker_id)
            self._lost = frozenset(lost_replicas)
            self._recount()
        if partition_epoch == self.partition_epoch and tuple(replicas) == self.replicas:
            return False
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        # Whatever is in flight was for an older partition epoch: it is in, or it never will be.
        self.pending = None
        known = self.followers
        self.followers = {
            one: known.get(one) or Follower(one, _NEVER)
            for one in self.replicas
            if one != self.node_id
        }
        self.joining = {one for one in self.joining if one in self.followers and one not in isr}
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

    def _has_arrived(self, follower: Follower) -> bool:
        """It has all that is committed, and all that was there when this leadership began."""
        return (
            follower.log_end_offset >= self.high_watermark.offset
            and follower.log_end_offset >= self.start_offset
        )

    def _recount(self) -> None:
        counted = {*self.maximal_isr, *self.joining}
        self._counted = tuple(one for one in self.followers.values() if one.broker_id in counted)
        self._has_enough = len(self.isr) >= min(self._min_insync_replicas, len(self.replicas))

    def _advance(self) -> bool:
        if not self._has_enough:
            return False
        offset = self.persisted_offset
        for follower in self._counted:
            offset = min(offset, follower.log_end_offset)
        return self.high_watermark.advance(offset, self.log_end_offset)
