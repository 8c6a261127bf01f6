"""A node of the quorum, voter or observer: the interface of the consensus core.

Rule: sans-IO. The shell calls one method at a time, carries out the `RaftEffects` it returns, in
their order, and only then makes the next call. The state that a response acknowledges is on disk
before the response is sent.
"""

from collections.abc import Sequence
from random import Random

from headrace.errors import ErrorCode
from headrace.raft.candidate_role import CandidateRole
from headrace.raft.follower_role import FollowerRole
from headrace.raft.leader_role import LeaderRole
from headrace.raft.messages import (
    NOBODY,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    HardState,
    LogView,
    OffsetAndEpoch,
    RaftEffects,
    RaftRole,
    RaftSettings,
    ReplicaProgress,
    Request,
    Response,
    Voter,
    VoteRequest,
    VoteResponse,
    Voters,
)
from headrace.raft.quorum_state import QuorumState
from headrace.raft.voters import VoterHistory


class RaftNode:
    """The Raft state machine of a node. Not thread-safe; the shell owns it.

    To start: open the log, recover it and flush it (its records then count as flushed), read
    `quorum-state` (None if there is no file), and call `tick` at once. A single voter is the
    leader after that call.

    To drive: after every call carry out the effects; then send the request of `next_fetch`, unless
    it is None; then call `tick` at `deadline_ms`.
    """

    def __init__(
        self,
        settings: RaftSettings,
        node_id: int,
        directory_id: bytes,
        voters: Voters,
        hard_state: HardState | None,
        log: LogView,
        rng: Random,
        now_ms: int,
        voter_history: Sequence[tuple[int, Voters]] = (),
    ) -> None:
        """Start a node. `voters` are those of the configuration.

        `voter_history` has the VotersRecords of the snapshot (with the snapshot's offset - 1) and
        of the log, each with its offset, oldest first.
        """
        history = VoterHistory(voters, voter_history)
        state = QuorumState(
            settings,
            node_id,
            directory_id,
            history,
            _starting_hard_state(hard_state, log, is_alone=history.ids == (node_id,)),
            log,
            rng,
        )
        self._state = state
        self._election = CandidateRole(state)
        self._following = FollowerRole(state)
        self._leading = LeaderRole(state)
        self._start(now_ms)

    def _start(self, now_ms: int) -> None:
        state = self._state
        leader_id = state.hard.leader_id
        if state.history.ids == (state.node_id,):
            state.enter_unattached(state.epoch, now_ms, wait_ms=0)
        elif leader_id == state.node_id:
            # Its followers may have records of this epoch that it has lost: it must not write other
            # records at their offsets, so it needs a new epoch to lead again.
            state.enter_resigned(now_ms)
        elif leader_id != NOBODY:
            state.enter_follower(state.epoch, leader_id, now_ms)
        else:
            wait_ms = state.rng.randrange(state.settings.election_timeout_ms)
            state.enter_unattached(state.epoch, now_ms, wait_ms)

    def _finish(self, now_ms: int) -> RaftEffects:
        """The effects of a call, announcing the epoch first if the call won an election."""
        if self._state.out.lead is not None:
            self._leading.begin(now_ms)
        return self._state.out.take()

    # State.

    @property
    def role(self) -> RaftRole:
        return self._state.role

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, perhaps this node; -1 if it is not known or in doubt."""
        return self._state.leader_id

    @property
    def is_leader(self) -> bool:
        return self._state.role is RaftRole.LEADER

    @property
    def high_watermark(self) -> int:
        """The offset below which records are committed, as this node knows; -1 if unknown.

        It never falls. At a new leader it is -1 or the value it had as a follower until a record of
        its own epoch is committed.
        """
        return self._state.high_watermark

    @property
    def epoch_start_offset(self) -> int:
        """The offset of the LeaderChange record at a leader, -1 at other nodes.

        Once the high watermark is above it, all records that earlier leaders committed are below
        the high watermark.
        """
        return self._leading.epoch_start_offset

    @property
    def voters(self) -> Voters:
        """The voters by the newest VotersRecord in the log, committed or not, by node id."""
        return self._state.history.voters

    @property
    def is_voter(self) -> bool:
        return self._state.is_voter

    @property
    def hard_state(self) -> HardState:
        return self._state.hard

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `tick`, and after it `next_fetch`, must be called; None if never."""
        state = self._state
        timer_ms = self._leading.due_ms() if state.role is RaftRole.LEADER else state.timer_ms
        fetch_ms = self._following.due_ms()
        if timer_ms is None or fetch_ms is None:
            return fetch_ms if timer_ms is None else timer_ms
        return min(timer_ms, fetch_ms)

    @property
    def wanted_snapshot(self) -> OffsetAndEpoch | None:
        """The snapshot that the shell has to fetch; it gives up fetching any other."""
        return self._following.wanted_snapshot

    def progress(self, now_ms: int) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """At a leader: the progress of voters (itself included) and of observers, by node id."""
        return self._leading.progress(now_ms)

    def is_confirmed(self, now_ms: int) -> bool:
        """Whether this node leads, and a majority fetched within the fetch timeout.

        Then no other node leads. Stalls of this process are not deducted from the time.
        """
        return self._leading.is_confirmed(now_ms)

    # Time, and requests of other nodes.

    def stalled(self, stall_ms: int) -> None:
        """Postpone the deadlines by `stall_ms`, in which this process did not run.

        In that time it could not receive messages, so other nodes do not count as silent. To be
        called before the call that comes late. See `StallMeter`.
        """
        if self._state.role is RaftRole.LEADER:
            self._leading.extend_deadline(stall_ms)
        else:
            self._state.extend_deadline(stall_ms)

    def tick(self, now_ms: int) -> RaftEffects:
        """Take the steps that are due: stand for election, resign, or announce the epoch.

        A call before `deadline_ms` does nothing.
        """
        state = self._state
        if state.role is RaftRole.LEADER:
            self._leading.tick(now_ms)
        elif state.timer_ms is not None and now_ms >= state.timer_ms:
            self._election.stand(now_ms)
        return self._finish(now_ms)

    def handle_vote(self, request: VoteRequest, now_ms: int) -> tuple[VoteResponse, RaftEffects]:
        """Handle Vote, with or without `pre_vote`."""
        response = self._election.handle_vote(request, now_ms)
        return response, self._finish(now_ms)

    def handle_begin_epoch(
        self, request: BeginEpochRequest, now_ms: int
    ) -> tuple[BeginEpochResponse, RaftEffects]:
        """Handle BeginQuorumEpoch: another node announces that it leads."""
        response = self._election.handle_begin(request, now_ms)
        return response, self._finish(now_ms)

    def handle_end_epoch(
        self, request: EndEpochRequest, now_ms: int
    ) -> tuple[EndEpochResponse, RaftEffects]:
        """Handle EndQuorumEpoch: the leader resigns."""
        response = self._election.handle_end(request, now_ms)
        return response, self._finish(now_ms)

    def handle_fetch(self, request: FetchRequest, now_ms: int) -> tuple[FetchResponse, RaftEffects]:
        """Handle Fetch: note the replica's progress, which may move the high watermark.

        If `records_follow` the shell reads from `request.offset` up to the log's end (not only to
        the high watermark) and sends those records. It may park the request instead if there is
        no record and the high watermark is not above `request.high_watermark`. For a parked
        request it calls `answer_fetch` later, so that the fetch is noted only once.
        """
        self._leading.note_fetch(request, self._leading.answer(request), now_ms)
        return self._leading.answer(request), self._finish(now_ms)

    def answer_fetch(self, request: FetchRequest) -> FetchResponse:
        """The response to a parked fetch as of now; the replica's progress is not noted again."""
        return self._leading.answer(request)

    def handle_fetch_snapshot(
        self, replica_id: int, epoch: int, now_ms: int
    ) -> tuple[ErrorCode, RaftEffects]:
        """Handle FetchSnapshot, which shows that the replica is alive; NONE if to be answered."""
        error = self._leading.note_snapshot_fetch(replica_id, epoch, now_ms)
        return error, self._finish(now_ms)

    # Outcomes of requests of this node.

    def answered(
        self,
        node_id: int,
        request: Request | FetchRequest,
        response: Response | FetchResponse,
        now_ms: int,
    ) -> RaftEffects:
        """Handle a response. For a fetch, `effects.append` says whether to append its records.

        `node_id` is the target of the request, as given by `requests` or `next_fetch`. Raises
        CommittedRecordsLost if the leader's log lacks records that this node knows to be committed:
        the node has to stop.
        """
        match request, response:
            case FetchRequest(), FetchResponse():
                self._fetch_answered(node_id, request, response, now_ms)
            case VoteRequest(), VoteResponse():
                self._observe(response.epoch, response.leader_id, now_ms)
                self._election.vote_answered(
                    node_id, request, granted=response.granted, now_ms=now_ms
                )
            case BeginEpochRequest(), BeginEpochResponse():
                self._leading.announcement_ended(node_id)
                self._observe(response.epoch, response.leader_id, now_ms)
            case EndEpochRequest(), EndEpochResponse():
                self._observe(response.epoch, response.leader_id, now_ms)
        return self._finish(now_ms)

    def _observe(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Take over the epoch and the leader in another node's response, if they are newer."""
        state = self._state
        if leader_id == state.node_id:
            leader_id = NOBODY
        if epoch > state.epoch:
            if leader_id == NOBODY:
                state.enter_unattached(epoch, now_ms)
            else:
                state.enter_follower(epoch, leader_id, now_ms)
        elif epoch == state.epoch and leader_id != NOBODY:
            known = state.hard.leader_id
            # A leader that is in doubt here stays so: the other node may only notice later.
            if known == NOBODY or (known == leader_id and state.role is RaftRole.UNATTACHED):
                state.enter_follower(epoch, leader_id, now_ms)

    def _fetch_answered(
        self, node_id: int, request: FetchRequest, response: FetchResponse, now_ms: int
    ) -> None:
        state = self._state
        expected = self._following.ended(node_id, request)
        before = (state.epoch, state.leader_id)
        self._observe(response.epoch, response.leader_id, now_ms)
        if not expected:
            return
        leads = NOBODY != response.leader_id == state.source_id
        is_current = leads and response.epoch == state.epoch == request.epoch
        if response.error is ErrorCode.NONE and is_current:
            self._following.answered(response, now_ms)
            return
        if before != (state.epoch, state.leader_id):
            return
        self._following.pause(now_ms)
        if (
            response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            and response.epoch == state.epoch
            and node_id == state.leader_id
        ):
            # The leader has resigned, or was restarted.
            self._election.stand(now_ms)

    def failed(
        self, node_id: int, request: Request | FetchRequest, now_ms: int, *, refused: bool
    ) -> RaftEffects:
        """Handle a request that gets no response.

        `refused`: the connection was refused or reset, so that the process at the other end is
        likely gone, rather than slow: a follower of that node then begins a round of pre-votes at
        once. A time-out is not `refused`.
        """
        state = self._state
        match request:
            case FetchRequest():
                if self._following.ended(node_id, request):
                    self._following.pause(now_ms)
                    if refused and node_id == state.leader_id:
                        self._election.stand(now_ms)
            case VoteRequest():
                self._election.vote_answered(node_id, request, granted=False, now_ms=now_ms)
            case BeginEpochRequest():
                self._leading.announcement_ended(node_id)
            case EndEpochRequest():
                pass  # The voter's own fetch timeout ends the epoch.
        return self._finish(now_ms)

    def next_fetch(self, now_ms: int) -> tuple[int, FetchRequest] | None:
        """The fetch to send now and its target (a node id or BOOTSTRAP); None if none is due.

        A returned fetch counts as sent. There is no second fetch while another is in flight, unless
        the target of that is the leader no more: the shell then gives up the older fetch, and need
        not report its end. A leader in doubt is still fetched from: its response ends the doubt.
        """
        return self._following.next_fetch(now_ms)

    # Changes of the log.

    def appended(self, now_ms: int) -> RaftEffects:
        """Note that records were appended to the log, as a leader or as a follower."""
        if self._state.role is not RaftRole.LEADER:
            self._following.appended()
        return self._finish(now_ms)

    def flushed(self, end_offset: int, now_ms: int) -> RaftEffects:
        """Note that the log up to `end_offset` is on disk.

        If it was truncated during the flush, `end_offset` must be the end of the part that was
        flushed and not changed since; the core takes no more than the log's end.
        """
        state = self._state
        state.flushed_offset = max(state.flushed_offset, min(end_offset, state.log.end_offset))
        if state.role is RaftRole.LEADER:
            self._leading.commit(now_ms)
        else:
            self._following.flushed()
        return self._finish(now_ms)

    def truncated(self, now_ms: int) -> RaftEffects:
        """Note that the log was truncated to `truncate_to`."""
        state = self._state
        assert state.role is not RaftRole.LEADER, "a leader never takes back a record"
        state.history.truncate(state.log.end_offset)
        state.flushed_offset = min(state.flushed_offset, state.log.end_offset)
        return self._finish(now_ms)

    def voters_appended(self, offset: int, voters: Voters, now_ms: int) -> RaftEffects:
        """Note that a VotersRecord was appended at `offset`, as a leader or as a follower.

        It takes effect at once. To be called before `appended`.
        """
        state = self._state
        state.history.append(offset, voters)
        if state.replicas is not None:
            state.replicas.set_voters(state.history.ids)
        return self._finish(now_ms)

    def snapshot_piece(self, now_ms: int) -> None:
        """Note that a piece of `wanted_snapshot` arrived, which shows that the leader is alive."""
        assert self.wanted_snapshot is not None
        self._following.leader_responded(now_ms)

    def snapshot_installed(
        self, snapshot: OffsetAndEpoch, voters: Voters | None, now_ms: int
    ) -> RaftEffects:
        """Note that the snapshot is on disk, flushed, and the log begins and ends at its offset.

        `voters` are those of its VotersRecord, None if it has none.
        """
        state = self._state
        assert snapshot.offset == state.log.start_offset == state.log.end_offset
        self._following.end_snapshot()
        state.history.restart(snapshot.offset, voters)
        state.flushed_offset = snapshot.offset
        state.advance(snapshot.offset)
        return self._finish(now_ms)

    def snapshot_failed(self, now_ms: int) -> RaftEffects:
        """Note that the snapshot could not be fetched; the response to the next fetch decides."""
        self._following.end_snapshot()
        self._following.pause(now_ms)
        return self._finish(now_ms)

    # Commands of an operator or the shell.

    def resign(self, now_ms: int) -> RaftEffects:
        """Resign in favour of the voter with the most records; do nothing unless leader."""
        if self._state.role is RaftRole.LEADER:
            self._leading.resign(now_ms)
        return self._finish(now_ms)

    def transfer(self, node_id: int, now_ms: int) -> tuple[ErrorCode, RaftEffects]:
        """Resign, as a leader, in favour of a given voter, if it has all records of this log."""
        error = self._leading.transfer(node_id, now_ms)
        return error, self._finish(now_ms)

    def add_voter(self, voter: Voter, now_ms: int) -> tuple[ErrorCode, RaftEffects]:
        """Begin, as a leader, to make an observer a voter; done when the record is committed.

        REQUEST_TIMED_OUT says to try again, for as long as the client waits: an earlier change is
        not committed, or the observer or a majority of the new voters has not caught up.
        """
        error = self._leading.add_voter(voter, now_ms)
        return error, self._finish(now_ms)

    def record_voters(self, now_ms: int) -> tuple[ErrorCode, RaftEffects]:
        """Begin, as a leader, to record the voters of the configuration in the log.

        Errors as for `add_voter`.
        """
        error = self._leading.record_voters(now_ms)
        return error, self._finish(now_ms)

    def remove_voter(self, node_id: int, now_ms: int) -> tuple[ErrorCode, RaftEffects]:
        """Begin, as a leader, to remove a voter, perhaps itself: then it resigns at the commit.

        Errors as for `add_voter`.
        """
        error = self._leading.remove_voter(node_id, now_ms)
        return error, self._finish(now_ms)


def _starting_hard_state(stored: HardState | None, log: LogView, *, is_alone: bool) -> HardState:
    """The stored hard state, or that of a node whose `quorum-state` is missing or outdated.

    An epoch is stored before its first record is in the log. So if the log has a newer epoch, or
    has records while nothing is stored, then the stored state was lost, and with it perhaps a vote.
    Only a single voter may vote nevertheless.
    """
    if stored is None and log.end_offset == 0:
        return HardState(may_vote=False)
    if stored is None or stored.epoch < log.last_epoch:
        return HardState(log.last_epoch, may_vote=is_alone, recovering=not is_alone)
    return stored
