"""The candidate's role: pre-votes, votes, BeginQuorumEpoch and EndQuorumEpoch.

Rule: a voter votes once per epoch, for a candidate whose log is not behind its own, and the vote is
on disk before the response is sent (Raft §5.2, §5.4.1). A pre-vote changes no state (KIP-996).
"""

from headrace.errors import ErrorCode
from headrace.raft.messages import (
    NOBODY,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    RaftRole,
    VoteRequest,
    VoteResponse,
)
from headrace.raft.quorum_state import QuorumState


class CandidateRole:
    """A node's part in elections, as a candidate and as a voter."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state

    def stand(self, now_ms: int) -> None:
        """Ask the other voters for pre-votes, since the leader is silent or unknown."""
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

    def vote_answered(
        self, voter: int, request: VoteRequest, *, granted: bool, now_ms: int
    ) -> None:
        """Count a voter's response; a voter that cannot be reached counts as a refusal."""
        state = self._state
        asking = RaftRole.PROSPECTIVE if request.pre_vote else RaftRole.CANDIDATE
        if state.role is not asking or request.epoch != state.epoch:
            return  # A response of a past round.
        assert state.round is not None
        state.round.count(voter, granted=granted)
        self._conclude(now_ms)

    def _conclude(self, now_ms: int) -> None:
        state = self._state
        assert state.round is not None
        if state.round.won:
            if state.role is RaftRole.PROSPECTIVE:
                self._campaign(now_ms)
            else:
                state.enter_leader(now_ms)
        elif state.round.lost:
            state.timer_ms = now_ms + state.election_backoff()

    # Requests of other nodes.

    def handle_vote(self, request: VoteRequest, now_ms: int) -> VoteResponse:
        state = self._state
        if request.epoch < state.epoch:
            return self._vote(granted=False, error=ErrorCode.FENCED_LEADER_EPOCH)
        if request.epoch > state.epoch:
            # The candidate is in that epoch, so it can follow no leader of an older epoch.
            state.enter_unattached(request.epoch, now_ms)
        if request.pre_vote:
            return self._vote(granted=self._pre_vote(request, now_ms))
        granted = self._may_grant(request)
        if granted:
            # A candidate without records won the pre-vote of a majority, which has none either:
            # this is how a new cluster is founded, and no voter has lost data.
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
        """Whether the candidate has every record that this node may have helped to commit."""
        log, hard = self._state.log, self._state.hard
        if hard.recovering or (not hard.may_vote and request.offset > 0):
            # This node has lost the records that it may have helped to commit: it cannot compare.
            return False
        return (request.last_epoch, request.offset) >= (log.last_epoch, log.end_offset)

    def _pre_vote(self, request: VoteRequest, now_ms: int) -> bool:
        state = self._state
        if not self._is_up_to_date(request):
            return False
        match state.role:
            case RaftRole.LEADER:
                return False
            case RaftRole.FOLLOWER:
                assert state.timer_ms is not None
                return not state.heard_leader or now_ms >= state.timer_ms
            case RaftRole.PROSPECTIVE:
                return self._yields(request, now_ms)
        return True

    def _yields(self, request: VoteRequest, now_ms: int) -> bool:
        """Whether a prospective node grants a pre-vote to another prospective node.

        If both granted it, both would become candidates, and neither would win. So the node with
        the better log, or the smaller id, refuses, but for a moment only, in case its own requests
        do not arrive. It grants at once if the other node has refused it, and so cannot help it to
        win this round any more.
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
            if state.role is not RaftRole.PROSPECTIVE:
                self._leader_resigned(request.preferred_successors, now_ms)
        return EndEpochResponse(state.epoch, state.leader_id, error)

    def _check_leader(self, epoch: int, leader_id: int) -> ErrorCode:
        state = self._state
        if epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        known = state.hard.leader_id if epoch == state.epoch else NOBODY
        if leader_id == state.node_id or known not in (NOBODY, leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _leader_resigned(self, successors: tuple[int, ...], now_ms: int) -> None:
        """Campaign at once as the leader's preferred successor; otherwise wait for an election."""
        state = self._state
        place = successors.index(state.node_id) if state.node_id in successors else len(successors)
        if place == 0 and state.takes_part and state.hard.may_vote:
            # No pre-vote: voters that have not received EndQuorumEpoch yet would refuse it.
            self._campaign(now_ms)
        else:
            wait_ms = place * state.settings.election_timeout_ms // 2
            state.enter_unattached(state.epoch, now_ms, wait_ms + state.election_backoff())
