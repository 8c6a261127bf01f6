"""The state of a node: its role in its epoch, and the transitions between roles.

Rule: every change of role goes through an `enter_` method here, which also drops the state of the
role before. `hard` changes in memory at once; the shell writes it before it does anything else.
"""

from random import Random

from headrace.raft.messages import (
    NOBODY,
    UNKNOWN_OFFSET,
    HardState,
    Leadership,
    LogView,
    OffsetAndEpoch,
    RaftEffects,
    RaftRole,
    RaftSettings,
    Request,
    Voters,
)
from headrace.raft.replica_progress import ProgressTracker
from headrace.raft.voters import VoteCount, VoterHistory


class EffectsBuilder:
    """The effects of the current call, collected until `take`."""

    __slots__ = (
        "append",
        "append_voters",
        "fetch_snapshot",
        "hard_state",
        "lead",
        "requests",
        "truncate_to",
        "wake_fetches",
    )

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.hard_state: HardState | None = None
        self.truncate_to: int | None = None
        self.append = False
        self.lead: Leadership | None = None
        self.append_voters: Voters | None = None
        self.fetch_snapshot: OffsetAndEpoch | None = None
        self.requests: list[tuple[int, Request]] = []
        self.wake_fetches = False

    def take(self) -> RaftEffects:
        effects = RaftEffects(
            self.hard_state,
            self.truncate_to,
            self.append,
            self.lead,
            self.append_voters,
            self.fetch_snapshot,
            tuple(self.requests),
            self.wake_fetches,
        )
        self._clear()
        return effects


class QuorumState:
    """The state that the roles of a node share.

    Invariant: `hard.epoch` never falls, an epoch has one vote and one leader. `replicas` is set
    exactly at a leader, `round` exactly at a prospective node and a candidate.
    """

    def __init__(
        self,
        settings: RaftSettings,
        node_id: int,
        directory_id: bytes,
        history: VoterHistory,
        hard: HardState,
        log: LogView,
        rng: Random,
    ) -> None:
        self.settings = settings
        self.node_id = node_id
        self.directory_id = directory_id
        self.history = history
        self.hard = hard
        self.log = log
        self.rng = rng
        self.out = EffectsBuilder()
        self.role = RaftRole.UNATTACHED
        # The deadline of the role's time-out; None if only requests or responses end the role.
        self.timer_ms: int | None = None
        # The time at which the role was entered.
        self.since_ms = 0
        # Whether the leader that is followed has answered a fetch.
        self.heard_leader = False
        self.replicas: ProgressTracker | None = None
        self.round: VoteCount | None = None
        # All records before this offset are on disk.
        self.flushed_offset = log.end_offset
        # A snapshot is made of committed records only.
        snapshot = log.snapshot
        self.high_watermark = UNKNOWN_OFFSET if snapshot is None else snapshot.offset

    @property
    def epoch(self) -> int:
        return self.hard.epoch

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, if it is known and not in doubt."""
        return self.hard.leader_id if self.role in (RaftRole.FOLLOWER, RaftRole.LEADER) else NOBODY

    @property
    def source_id(self) -> int:
        """The node to fetch from: the leader, also while it is in doubt, as it may only be slow."""
        if self.role is RaftRole.PROSPECTIVE and self.hard.leader_id != self.node_id:
            return self.hard.leader_id
        return self.leader_id if self.role is RaftRole.FOLLOWER else NOBODY

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.history

    @property
    def takes_part(self) -> bool:
        """Whether elections may need this node: it is a voter, or its removal is not committed.

        The removal may be in its own log only; the other voters then may have to elect it.
        """
        return self.history.may_include(self.node_id, self.high_watermark)

    @property
    def may_stand(self) -> bool:
        """Whether this node may become a candidate.

        A voter without data may only found a new cluster, a recovering voter not even that.
        """
        may_found = self.log.end_offset == 0 and not self.hard.recovering
        return self.takes_part and (self.hard.may_vote or may_found)

    @property
    def other_voters(self) -> tuple[int, ...]:
        return tuple(voter for voter in self.history.ids if voter != self.node_id)

    def election_timeout(self) -> int:
        """A random duration of up to twice the setting, so that not all nodes stand at once."""
        base = self.settings.election_timeout_ms
        return base + self.rng.randrange(base)

    def election_backoff(self) -> int:
        """A random pause before the next round of votes."""
        return self.settings.retry_backoff_ms + self.rng.randrange(
            self.settings.election_backoff_max_ms
        )

    def set_hard(
        self,
        *,
        epoch: int | None = None,
        voted_for: int | None = None,
        leader_id: int | None = None,
        may_vote: bool | None = None,
    ) -> None:
        """Change some of the hard state; a new epoch begins without vote and leader."""
        hard = self.hard
        if epoch is not None and epoch != hard.epoch:
            assert epoch > hard.epoch, (epoch, hard)
            hard = HardState(epoch, NOBODY, NOBODY, hard.may_vote, hard.recovering)
        if voted_for is not None:
            assert hard.voted_for in (NOBODY, voted_for), (voted_for, hard)
            hard = hard._replace(voted_for=voted_for)
        if leader_id is not None:
            assert hard.leader_id in (NOBODY, leader_id), (leader_id, hard)
            hard = hard._replace(leader_id=leader_id)
        if may_vote is not None:
            hard = hard._replace(may_vote=may_vote, recovering=hard.recovering and not may_vote)
        if hard != self.hard:
            self.hard = self.out.hard_state = hard

    def enter_unattached(self, epoch: int, now_ms: int, wait_ms: int | None = None) -> None:
        """Enter an epoch without a known leader; stand after `wait_ms`, or the election timeout."""
        self.set_hard(epoch=epoch)
        self._enter(RaftRole.UNATTACHED, now_ms)
        if self.takes_part:
            self.timer_ms = now_ms + (self.election_timeout() if wait_ms is None else wait_ms)

    def enter_follower(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Follow a leader until it is silent for the fetch timeout."""
        assert leader_id not in (self.node_id, NOBODY)
        self.set_hard(epoch=epoch, leader_id=leader_id)
        self._enter(RaftRole.FOLLOWER, now_ms)
        self.timer_ms = now_ms + self.settings.fetch_timeout_ms

    def enter_prospective(self, now_ms: int) -> None:
        """Begin a round of pre-votes, which changes no durable state."""
        self._enter(RaftRole.PROSPECTIVE, now_ms)
        self._begin_round(now_ms)

    def enter_candidate(self, now_ms: int) -> None:
        """Begin an election in the next epoch, with a vote for itself.

        It may vote from now on even if it started without data, as a voter that grants a vote may.
        """
        self.set_hard(epoch=self.epoch + 1, voted_for=self.node_id, may_vote=True)
        self._enter(RaftRole.CANDIDATE, now_ms)
        self._begin_round(now_ms)

    def _begin_round(self, now_ms: int) -> None:
        self.round = VoteCount(self.history.ids)
        self.round.count(self.node_id, granted=True)
        self.timer_ms = now_ms + self.election_timeout()

    def enter_leader(self, now_ms: int) -> None:
        """Begin to lead, after a won election."""
        assert self.role is RaftRole.CANDIDATE and self.round is not None
        granting = self.round.granted
        self.set_hard(leader_id=self.node_id)
        self._enter(RaftRole.LEADER, now_ms)
        ids = self.history.ids
        self.replicas = ProgressTracker(self.node_id, ids, self.log.end_offset, now_ms)
        self.out.lead = Leadership(self.epoch, ids, granting)

    def enter_resigned(self, now_ms: int) -> None:
        """Stop leading, and wait for the next epoch: this epoch gets no other leader."""
        assert self.hard.leader_id == self.node_id
        self._enter(RaftRole.RESIGNED, now_ms)
        self.timer_ms = now_ms + self.election_timeout()

    def _enter(self, role: RaftRole, now_ms: int) -> None:
        if self.role is RaftRole.LEADER:
            self.out.wake_fetches = True
        self.role = role
        self.since_ms = now_ms
        self.timer_ms = None
        self.heard_leader = False
        self.replicas = None
        self.round = None

    def extend_deadline(self, stall_ms: int) -> None:
        """Postpone the role's deadline by the duration of a stall of this process."""
        if self.timer_ms is not None:
            self.timer_ms += stall_ms

    def advance(self, high_watermark: int) -> None:
        """Raise the high watermark, at most to the log's end; it never falls."""
        offset = min(high_watermark, self.log.end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.out.wake_fetches = self.out.wake_fetches or self.role is RaftRole.LEADER
