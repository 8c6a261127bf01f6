"""The candidate's role: pre-votes, votes, and what leaders say when they begin and end.

Rule: a vote is given once per epoch, to a log that is not behind the voter's, and it is on disk
before it is told (Raft §5.2, §5.4.1). A pre-vote promises nothing and changes nothing (KIP-996).
"""

from headrace.errors import ErrorCode
from headrace.raft.messages import (
    NOBODY,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    Role,
    VoteRequest,
    VoteResponse,
)
from headrace.raft.quorum_state import QuorumState


class Election:
    """A node's part in elections."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state

    def stand(self, now_ms: int) -> None:
        """Doubt the leader, or notice that there is none: ask the others if they see one."""
        state = self._state
        if not state.may_stand:
            state.enter_unattached(state.epoch, now_ms)
            return
        state.enter_prospective(now_ms)
        self._send_votes(pre_vote=True)
        self._conclude(now_ms)

    def _campaign(self, now_ms: int) -> None:
        self._state.enter_candidate(now_ms)
        self._send_votes(pre_vote=False)
        self._conclude(now_ms)

    def _send_votes(self, *, pre_vote: bool) -> None:
        state = self._state
        request = VoteRequest(
            epoch=state.epoch,
            candidate_id=state.node_id,
            candidate_directory_id=state.directory_id,
            last_epoch=state.log.last_epoch,
            offset=state.log.end_offset,
            pre_vote=pre_vote,
        )
        state.out.requests += [(voter, request) for voter in state.other_voters]

    def counted(self, voter: int, request: VoteRequest, *, granted: bool, now_ms: int) -> None:
        """A voter answered, or cannot be asked."""
        state = self._state
        asking = Role.PROSPECTIVE if request.pre_vote else Role.CANDIDATE
        if state.role is not asking or request.epoch != state.epoch:
            return  # An answer to a round that is over.
        assert state.round is not None
        state.round.count(voter, granted=granted)
        self._conclude(now_ms)

    def _conclude(self, now_ms: int) -> None:
        state = self._state
        assert state.round is not None
        if state.round.won:
            if state.role is Role.PROSPECTIVE:
                self._campaign(now_ms)
            else:
                state.enter_leader(now_ms)
        elif state.round.lost:
            state.timer_ms = now_ms + state.election_backoff()

    # Requests of others.

    def handle_vote(self, request: VoteRequest, now_ms: int) -> VoteResponse:
        state = self._state
        if request.epoch < state.epoch:
            return self._vote(granted=False, error=ErrorCode.FENCED_LEADER_EPOCH)
        if request.epoch > state.epoch:
            # The candidate is in that epoch, so it can follow nobody of an older one.
            state.enter_unattached(request.epoch, now_ms)
        if request.pre_vote:
            return self._vote(granted=self._pre_vote(request, now_ms))
        granted = self._may_grant(request)
        if granted:
            # A candidate without records has asked a majority before, which has none either: this
            # is how a cluster is founded, and nobody has lost anything.
            state.set_hard(voted_for=request.candidate_id, may_vote=True)
            state.enter_unattached(state.epoch, now_ms)
        return self._vote(granted=granted)

    def _vote(self, *, granted: bool, error: ErrorCode = ErrorCode.NONE) -> VoteResponse:
        return VoteResponse(self._state.epoch, self._state.leader_id, granted, error)

    def _may_grant(self, request: VoteRequest) -> bool:
        hard = self._state.hard
        return (
            hard.leader_id == NOBODY
            and hard.voted_for in (NOBODY, request.candidate_id)
            and self._is_up_to_date(request)
        )

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        """Whether the candidate has everything that this node may have helped to commit."""
        log, hard = self._state.log, self._state.hard
        if hard.recovering or (not hard.may_vote and request.offset > 0):
            # What this node may have helped to commit is lost, so it cannot tell.
            return False
        return (request.last_epoch, request.offset) >= (log.last_epoch, log.end_offset)

    def _pre_vote(self, request: VoteRequest, now_ms: int) -> bool:
        state = self._state
        if not self._is_up_to_date(request):
            return False
        match state.role:
            case Role.LEADER:
                return False
            case Role.FOLLOWER:
                assert state.timer_ms is not None
                return not state.heard_leader or now_ms >= state.timer_ms
            case Role.PROSPECTIVE:
                return self._yields(request, now_ms)
        return True

    def _yields(self, request: VoteRequest, now_ms: int) -> bool:
        """Two ask each other at once. If both agreed both would stand, and neither would win.

        So the one with the better log, or the smaller id, insists, for a moment only, in case it
        hears the other but is not heard. It does not if the other has refused it: that one doubts
        the leader only now, and cannot help any more in this round.
        """
        state = self._state
        assert state.round is not None
        ours = (state.log.last_epoch, state.log.end_offset, -state.node_id)
        theirs = (request.last_epoch, request.offset, -request.candidate_id)
        fresh = now_ms < state.since_ms + state.settings.retry_backoff_ms
        hopeless = state.round.lost or state.round.refused_by(request.candidate_id)
        if ours > theirs and fresh and not hopeless:
            return False
        if ours < theirs or hopeless:
            state.enter_unattached(state.epoch, now_ms, state.election_backoff())
        return True

    def handle_begin(self, request: BeginEpochRequest, now_ms: int) -> BeginEpochResponse:
        state = self._state
        error = self._check_leader(request.epoch, request.leader_id)
        known = (state.epoch, state.leader_id)
        if error is ErrorCode.NONE and known != (request.epoch, request.leader_id):
            state.enter_follower(request.epoch, request.leader_id, now_ms)
        return BeginEpochResponse(state.epoch, state.leader_id, error)

    def handle_end(self, request: EndEpochRequest, now_ms: int) -> EndEpochResponse:
        state = self._state
        error = self._check_leader(request.epoch, request.leader_id)
        if error is ErrorCode.NONE:
            known = (state.epoch, state.hard.leader_id)
            if known != (request.epoch, request.leader_id):
                state.enter_follower(request.epoch, request.leader_id, now_ms)
            if state.role is not Role.PROSPECTIVE:
                self._succeed(request.preferred_successors, now_ms)
        return EndEpochResponse(state.epoch, state.leader_id, error)

    def _check_leader(self, epoch: int, leader_id: int) -> ErrorCode:
        state = self._state
        if epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        known = state.hard.leader_id if epoch == state.epoch else NOBODY
        if leader_id == state.node_id or known not in (NOBODY, leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _succeed(self, successors: tuple[int, ...], now_ms: int) -> None:
        """The leader is gone by its own word: the first of its successors stands at once."""
        state = self._state
        place = successors.index(state.node_id) if state.node_id in successors else len(successors)
        if place == 0 and state.takes_part and state.hard.may_vote:
            # No pre-vote: the others may not have heard yet, and would say no.
            self._campaign(now_ms)
        else:
            wait_ms = place * state.settings.election_timeout_ms // 2
            state.enter_unattached(state.epoch, now_ms, wait_ms + state.election_backoff())
