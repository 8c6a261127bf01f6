"""The leader's role: answers to fetches, commits, resignation, and changes of the voters.

Rule: a leader commits only records that a majority of the voters has on disk, and only together
with a record of its own epoch. A leader from which no majority fetches resigns.
"""

from headrace.errors import ErrorCode
from headrace.raft.divergence import position_answer
from headrace.raft.messages import (
    LOST_DIRECTORY_ID,
    UNKNOWN_OFFSET,
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    RaftRole,
    ReplicaProgress,
    Voter,
    Voters,
)
from headrace.raft.quorum_state import QuorumState
from headrace.raft.replica_progress import ProgressTracker
from headrace.raft.voters import majority, with_voter, without_voter


class LeaderRole:
    """A leader's part. Requests may come in any role; a node that does not lead refuses them."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state
        # Voters with a BeginQuorumEpoch request in flight.
        self._announcing: set[int] = set()
        self._announce_at_ms = 0
        # By how much stalls of this process postpone the resignation due at `_stalled_for_ms`.
        self._stalled_ms = 0
        self._stalled_for_ms: int | None = None

    @property
    def _replicas(self) -> ProgressTracker:
        assert self._state.replicas is not None
        return self._state.replicas

    @property
    def epoch_start_offset(self) -> int:
        replicas = self._state.replicas
        return UNKNOWN_OFFSET if replicas is None else replicas.epoch_start_offset

    @property
    def _is_established(self) -> bool:
        """Whether a record of this epoch is committed: the high watermark covers all commits."""
        return self._state.high_watermark > self._replicas.epoch_start_offset

    def begin(self, now_ms: int) -> None:
        """Announce the new epoch to the voters."""
        self._announcing.clear()
        self._announce(now_ms)

    def _announce(self, now_ms: int) -> None:
        """Send BeginQuorumEpoch to the voters that do not fetch from this leader."""
        state = self._state
        timeout_ms = state.settings.fetch_timeout_ms
        self._announce_at_ms = now_ms + timeout_ms // 2
        request = BeginEpochRequest(state.epoch, state.node_id)
        for voter in self._replicas.others:
            replica = self._replicas.get(voter)
            fetches = replica is not None and replica.last_fetch_ms + timeout_ms > now_ms
            if not fetches and voter not in self._announcing:
                self._announcing.add(voter)
                state.out.requests.append((voter, request))

    def announcement_ended(self, voter: int) -> None:
        """Note that a BeginQuorumEpoch request was answered, or has failed."""
        self._announcing.discard(voter)

    def _silent_at_ms(self) -> int | None:
        """The time at which no majority fetched within the fetch timeout; None for a lone voter."""
        return self._replicas.silent_at_ms(self._state.settings.fetch_timeout_ms)

    def _resign_at_ms(self) -> int | None:
        """The time to resign: as `_silent_at_ms`, but stalls of this process do not count."""
        silent_at_ms = self._silent_at_ms()
        if silent_at_ms != self._stalled_for_ms:
            self._stalled_for_ms, self._stalled_ms = silent_at_ms, 0
        return None if silent_at_ms is None else silent_at_ms + self._stalled_ms

    def extend_deadline(self, stall_ms: int) -> None:
        """Postpone the resignation by the duration of a stall of this process."""
        self._resign_at_ms()
        self._stalled_ms += stall_ms

    def is_confirmed(self, now_ms: int) -> bool:
        """Whether a majority fetched within the fetch timeout, stalls of this process included."""
        if self._state.role is not RaftRole.LEADER:
            return False
        silent_at_ms = self._silent_at_ms()
        return silent_at_ms is None or now_ms < silent_at_ms

    def due_ms(self) -> int | None:
        resign_at_ms = self._resign_at_ms()
        if not self._replicas.others:
            return resign_at_ms
        if resign_at_ms is None:
            return self._announce_at_ms
        return min(resign_at_ms, self._announce_at_ms)

    def tick(self, now_ms: int) -> None:
        resign_at_ms = self._resign_at_ms()
        if resign_at_ms is not None and now_ms >= resign_at_ms:
            self.resign(now_ms)
        elif now_ms >= self._announce_at_ms:
            self._announce(now_ms)

    # Fetches of other nodes.

    def check_epoch(self, epoch: int) -> ErrorCode:
        """NONE if this node leads in `epoch`, otherwise the error for a request to that leader."""
        state = self._state
        if epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > state.epoch:
            # Only a vote request makes a leader step down: no other request begins an epoch.
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if state.role is not RaftRole.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def note_fetch(self, request: FetchRequest, response: FetchResponse, now_ms: int) -> None:
        """Note the progress of the replica that fetched, and commit what it completes."""
        if response.error is not ErrorCode.NONE or request.replica_id < 0:
            return
        if response.records_follow:
            self._replicas.fetched(
                request.replica_id,
                request.directory_id,
                request.offset,
                self._state.log.end_offset,
                now_ms,
            )
            self.commit(now_ms)
        else:
            self._replicas.note_contact(request.replica_id, request.directory_id, now_ms)
        if self._state.replicas is not None and self._replicas.has_lost:
            # This fetch may confirm the high watermark for a voter that has lost its data.
            self._state.out.wake_fetches = True

    def note_snapshot_fetch(self, replica_id: int, epoch: int, now_ms: int) -> ErrorCode:
        error = self.check_epoch(epoch)
        if error is ErrorCode.NONE and replica_id >= 0:
            self._replicas.note_contact(replica_id, None, now_ms)
        return error

    def answer(self, request: FetchRequest) -> FetchResponse:
        state = self._state
        error = self.check_epoch(request.epoch)
        if error is not ErrorCode.NONE:
            return FetchResponse(state.epoch, state.leader_id, error)
        diverging, snapshot = position_answer(state.log, request.offset, request.last_epoch)
        return FetchResponse(
            state.epoch,
            state.node_id,
            high_watermark=self._high_watermark_for(request),
            log_start_offset=state.log.start_offset,
            diverging=diverging,
            snapshot=snapshot,
        )

    def _high_watermark_for(self, request: FetchRequest) -> int:
        """The high watermark for a response; unknown if a node without data must not have it.

        A node that has lost its data may vote once it has reached this high watermark, so it must
        cover every committed record. While a new cluster is being founded there are none.
        """
        high_watermark = self._state.high_watermark
        if request.directory_id != LOST_DIRECTORY_ID:
            return high_watermark
        if self._replicas.is_founder(request.replica_id):
            return max(high_watermark, 0)
        if self._is_established and self._replicas.is_confirmed(request.replica_id):
            return high_watermark
        return UNKNOWN_OFFSET

    def commit(self, now_ms: int) -> None:
        """Raise the high watermark to the offset that a majority has on disk."""
        state = self._state
        offset = self._replicas.committed(state.flushed_offset)
        if offset is None:
            return
        state.advance(offset)
        if state.high_watermark > state.history.offset and not state.is_voter:
            # A removed voter leads until its removal is committed (Raft dissertation §4.2.2).
            self.resign(now_ms)

    def progress(self, now_ms: int) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        state = self._state
        if state.replicas is None:
            return [], []
        voters, observers = state.replicas.values()
        own = ReplicaProgress(
            state.node_id, state.directory_id, state.log.end_offset, now_ms, now_ms
        )
        (voters if state.is_voter else observers).append(own)
        return sorted(voters, key=_node_id), sorted(observers, key=_node_id)

    # Commands of an operator.

    def resign(self, now_ms: int, successor: int | None = None) -> None:
        """Stop leading, and send EndQuorumEpoch with the preferred successors to the voters."""
        state = self._state
        successors = self._replicas.successors()
        if successor is not None:
            successors = (successor, *(other for other in successors if other != successor))
        request = EndEpochRequest(state.epoch, state.node_id, successors)
        state.enter_resigned(now_ms)
        state.out.requests += [(voter, request) for voter in state.other_voters]

    def transfer(self, node_id: int, now_ms: int) -> ErrorCode:
        state = self._state
        if state.role is not RaftRole.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if node_id not in self._replicas.others:
            return ErrorCode.VOTER_NOT_FOUND
        if not self._is_caught_up(node_id, now_ms):
            return ErrorCode.REQUEST_TIMED_OUT
        self.resign(now_ms, node_id)
        return ErrorCode.NONE

    def _is_caught_up(self, node_id: int, now_ms: int) -> bool:
        return self._replicas.is_caught_up(node_id, now_ms, self._state.settings.fetch_timeout_ms)

    def add_voter(self, voter: Voter, now_ms: int) -> ErrorCode:
        state = self._state
        if state.role is not RaftRole.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if voter.node_id in state.history:
            return ErrorCode.DUPLICATE_VOTER
        if not self._is_caught_up(voter.node_id, now_ms):
            return ErrorCode.REQUEST_TIMED_OUT
        return self._change(with_voter(state.history.voters, voter), now_ms)

    def record_voters(self, now_ms: int) -> ErrorCode:
        state = self._state
        if state.role is not RaftRole.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self._change(state.history.voters, now_ms)

    def remove_voter(self, node_id: int, now_ms: int) -> ErrorCode:
        state = self._state
        if state.role is not RaftRole.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if node_id not in state.history:
            return ErrorCode.VOTER_NOT_FOUND
        if len(state.history.ids) == 1:
            return ErrorCode.INVALID_REQUEST
        return self._change(without_voter(state.history.voters, node_id), now_ms)

    def _change(self, voters: Voters, now_ms: int) -> ErrorCode:
        """Append a VotersRecord, or refuse with REQUEST_TIMED_OUT for now.

        Only one change at a time, and none before a record of this epoch is committed: otherwise
        the voters of two leaders could differ by two nodes, and their majorities not overlap. And
        none to voters without a caught-up majority, who could not commit the change or undo it.
        """
        state = self._state
        is_settled = state.high_watermark > state.history.offset
        able = sum(
            voter.node_id == state.node_id or self._is_caught_up(voter.node_id, now_ms)
            for voter in voters
        )
        if not self._is_established or not is_settled or able < majority(len(voters)):
            return ErrorCode.REQUEST_TIMED_OUT
        state.out.append_voters = voters
        return ErrorCode.NONE


def _node_id(progress: ReplicaProgress) -> int:
    return progress.node_id
