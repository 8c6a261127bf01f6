"""The role of a node in its epoch, and the ways from one role to another.

Rule: every change of role goes through an `enter_` method here, which also drops what belonged to
the role before. `hard` changes in memory at once; the shell writes it before anything else is done.
"""

from random import Random

from headrace.raft.messages import (
    NOBODY,
    UNKNOWN_OFFSET,
    Effects,
    HardState,
    Leadership,
    LogView,
    OffsetAndEpoch,
    RaftSettings,
    Request,
    Role,
    Voters,
)
from headrace.raft.replica_progress import Replicas
from headrace.raft.voters import VoteCount, VoterHistory


class Outbox:
    """The effects of the call under way, gathered until `take`."""

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

    def take(self) -> Effects:
        effects = Effects(
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
    """What the parts of a node share.

    Invariant: `hard.epoch` never falls, an epoch has one vote and one leader. `replicas` is there
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
        self.out = Outbox()
        self.role = Role.UNATTACHED
        # When the role is over, or has something to do; None if only others can end it.
        self.timer_ms: int | None = None
        # When the role was entered or a round of votes began.
        self.since_ms = 0
        # Whether the leader that is followed has answered a fetch.
        self.heard_leader = False
        self.replicas: Replicas | None = None
        self.round: VoteCount | None = None
        # Everything before it is on disk.
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
        return self.hard.leader_id if self.role in (Role.FOLLOWER, Role.LEADER) else NOBODY

    @property
    def source_id(self) -> int:
        """Whom to fetch from: the leader, also while it is in doubt. It may only be slow."""
        if self.role is Role.PROSPECTIVE and self.hard.leader_id != self.node_id:
            return self.hard.leader_id
        return self.leader_id if self.role is Role.FOLLOWER else NOBODY

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.history

    @property
    def takes_part(self) -> bool:
        """Whether elections may need this node.

        Also one whose removal is only in its own log: others may have to vote for it, to get it.
        """
        return self.history.may_include(self.node_id, self.high_watermark)

    @property
    def may_stand(self) -> bool:
        """A voter without data may only found a cluster, and one that recovers not even that."""
        may_found = self.log.end_offset == 0 and not self.hard.recovering
        return self.takes_part and (self.hard.may_vote or may_found)

    @property
    def other_voters(self) -> tuple[int, ...]:
        return tuple(voter for voter in self.history.ids if voter != self.node_id)

    def election_timeout(self) -> int:
        """Up to twice the setting, at random, so that not all stand at once."""
        base = self.settings.election_timeout_ms
        return base + self.rng.randrange(base)

    def election_backoff(self) -> int:
        """A pause before the next round, at random."""
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
        """Know the epoch and no leader; stand after `wait_ms`, or the election timeout."""
        self.set_hard(epoch=epoch)
        self._enter(Role.UNATTACHED, now_ms)
        if self.takes_part:
            self.timer_ms = now_ms + (self.election_timeout() if wait_ms is None else wait_ms)

    def enter_follower(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Follow; if the leader is silent for the fetch timeout, doubt it."""
        assert leader_id not in (self.node_id, NOBODY)
        self.set_hard(epoch=epoch, leader_id=leader_id)
        self._enter(Role.FOLLOWER, now_ms)
        self.timer_ms = now_ms + self.settings.fetch_timeout_ms

    def enter_prospective(self, now_ms: int) -> None:
        """Begin to ask whether one would be elected. It changes nothing that must be kept."""
        self._enter(Role.PROSPECTIVE, now_ms)
        self._begin_round(now_ms)

    def enter_candidate(self, now_ms: int) -> None:
        """Begin an election in the next epoch, with the own vote. As for who grants a vote."""
        self.set_hard(epoch=self.epoch + 1, voted_for=self.node_id, may_vote=True)
        self._enter(Role.CANDIDATE, now_ms)
        self._begin_round(now_ms)

    def _begin_round(self, now_ms: int) -> None:
        self.round = VoteCount(self.history.ids)
        self.round.count(self.node_id, granted=True)
        self.timer_ms = now_ms + self.election_timeout()

    def enter_leader(self, now_ms: int) -> None:
        """Lead from the end of the log on."""
        assert self.role is Role.CANDIDATE and self.round is not None
        granting = self.round.granted
        self.set_hard(leader_id=self.node_id)
        self._enter(Role.LEADER, now_ms)
        ids = self.history.ids
        self.replicas = Replicas(self.node_id, ids, self.log.end_offset, now_ms)
        self.out.lead = Leadership(self.epoch, ids, granting)

    def enter_resigned(self, now_ms: int) -> None:
        """Lead no more in an epoch that has no other leader; wait for the next one."""
        assert self.hard.leader_id == self.node_id
        self._enter(Role.RESIGNED, now_ms)
        self.timer_ms = now_ms + self.election_timeout()

    def _enter(self, role: Role, now_ms: int) -> None:
        if self.role is Role.LEADER:
            self.out.wake_fetches = True
        self.role = role
        self.since_ms = now_ms
        self.timer_ms = None
        self.heard_leader = False
        self.replicas = None
        self.round = None

    def forgive(self, stall_ms: int) -> None:
        """Move the timer by a stall of this process."""
        if self.timer_ms is not None:
            self.timer_ms += stall_ms

    def advance(self, high_watermark: int) -> None:
        """Raise the high watermark, not above the log's end; it never falls."""
        offset = min(high_watermark, self.log.end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.out.wake_fetches = self.out.wake_fetches or self.role is Role.LEADER
