"""One node of the quorum: a voter or an observer.

Rule: pure. The shell calls one method at a time, carries out the `Effects` it returns, in their
order, and only then makes the next call. Whatever a response promises is on disk before it is sent.
"""

from collections.abc import Sequence
from random import Random

from headrace.errors import ErrorCode
from headrace.raft.candidate_role import Election
from headrace.raft.follower_role import Following
from headrace.raft.leader_role import Leading
from headrace.raft.messages import (
    NOBODY,
    BeginEpochRequest,
    BeginEpochResponse,
    Effects,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    HardState,
    LogView,
    OffsetAndEpoch,
    RaftSettings,
    ReplicaProgress,
    Request,
    Response,
    Role,
    Voter,
    VoteRequest,
    VoteResponse,
    Voters,
)
from headrace.raft.quorum_state import QuorumState
from headrace.raft.voters import VoterHistory


class RaftNode:
    """A node's part in the consensus. Not thread-safe; the shell owns it.

    How to start one: open the log, recover it and flush it (what it holds then counts as flushed),
    read `quorum-state` (None if there is no file), and call `tick` at once. A single voter is the
    leader after that call.

    How to drive it: after every call carry out the effects; then ask `next_fetch` whether to fetch;
    then arrange for `tick` at `deadline_ms`.
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
        """`voters` are the configured ones. `voter_history` has the VotersRecords of the snapshot
        (with the snapshot's offset - 1) and of the log, each with its offset, oldest first."""
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
        self._election = Election(state)
        self._following = Following(state)
        self._leading = Leading(state)
        self._start(now_ms)

    def _start(self, now_ms: int) -> None:
        state = self._state
        leader_id = state.hard.leader_id
        if state.history.ids == (state.node_id,):
            state.enter_unattached(state.epoch, now_ms, wait_ms=0)
        elif leader_id == state.node_id:
            # Its followers may have records of this epoch that it has lost: it must not write
            # others in their place, so it needs a new epoch to lead again.
            state.enter_resigned(now_ms)
        elif leader_id != NOBODY:
            state.enter_follower(state.epoch, leader_id, now_ms)
        else:
            wait_ms = state.rng.randrange(state.settings.election_timeout_ms)
            state.enter_unattached(state.epoch, now_ms, wait_ms)

    def _finish(self, now_ms: int) -> Effects:
        """The end of every call."""
        if self._state.out.lead is not None:
            self._leading.begin(now_ms)
        return self._state.out.take()

    # What is known.

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def leader_id(self) -> int:
        """Who leads this epoch, -1 if that is not known or in doubt. Itself for a leader."""
        return self._state.leader_id

    @property
    def is_leader(self) -> bool:
        return self._state.role is Role.LEADER

    @property
    def high_watermark(self) -> int:
        """The end of what is committed, as far as known here; -1 if nothing is known yet.

        It never falls. At a leader it is -1 or the value it had as a follower until a record of its
        own epoch is committed.
        """
        return self._state.high_watermark

    @property
    def epoch_start_offset(self) -> int:
        """At a leader the offset of its LeaderChange record, else -1. Once the high watermark is
        above it, everything that earlier leaders committed is below the high watermark."""
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
        """When `tick`, and after it `next_fetch`, is due at the latest; None if never."""
        state = self._state
        timer_ms = self._leading.due_ms() if state.role is Role.LEADER else state.timer_ms
        fetch_ms = self._following.due_ms()
        if timer_ms is None or fetch_ms is None:
            return fetch_ms if timer_ms is None else timer_ms
        return min(timer_ms, fetch_ms)

    @property
    def wanted_snapshot(self) -> OffsetAndEpoch | None:
        """The snapshot that is to be fetched. The shell gives up fetching any other."""
        return self._following.wanted_snapshot

    def progress(self, now_ms: int) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """At a leader: how far the voters (itself included) and the observers are, by node id."""
        return self._leading.progress(now_ms)

    def is_confirmed(self, now_ms: int) -> bool:
        """Whether this node leads, and a majority fetched within the fetch timeout: nobody else
        leads then. Time in which this process did not run counts here."""
        return self._leading.is_confirmed(now_ms)

    # Time, and requests of others.

    def stalled(self, stall_ms: int) -> None:
        """This process did not run for `stall_ms`: that is not the silence of others.

        To be told before the call that comes late: deadlines move by it. See `StallMeter`.
        """
        if self._state.role is Role.LEADER:
            self._leading.forgive(stall_ms)
        else:
            self._state.forgive(stall_ms)

    def tick(self, now_ms: int) -> Effects:
        """Do what is due by now: elections, resigning, presenting oneself. Never too early."""
        state = self._state
        if state.role is Role.LEADER:
            self._leading.tick(now_ms)
        elif state.timer_ms is not None and now_ms >= state.timer_ms:
            self._election.stand(now_ms)
        return self._finish(now_ms)

    def handle_vote(self, request: VoteRequest, now_ms: int) -> tuple[VoteResponse, Effects]:
        """Vote, or pre-vote."""
        response = self._election.handle_vote(request, now_ms)
        return response, self._finish(now_ms)

    def handle_begin_epoch(
        self, request: BeginEpochRequest, now_ms: int
    ) -> tuple[BeginEpochResponse, Effects]:
        """BeginQuorumEpoch: somebody says that it leads."""
        response = self._election.handle_begin(request, now_ms)
        return response, self._finish(now_ms)

    def handle_end_epoch(
        self, request: EndEpochRequest, now_ms: int
    ) -> tuple[EndEpochResponse, Effects]:
        """EndQuorumEpoch: the leader resigns."""
        response = self._election.handle_end(request, now_ms)
        return response, self._finish(now_ms)

    def handle_fetch(self, request: FetchRequest, now_ms: int) -> tuple[FetchResponse, Effects]:
        """Fetch: note how far the replica is, which may move the high watermark, and answer.

        If `records_follow` the shell reads from `request.offset` up to the log's end (not only to
        the high watermark) and sends what it finds. It may park the request instead if there is
        nothing new: no record, and a high watermark that is not above `request.high_watermark`.
        When it looks again it asks `answer_fetch`, since the replica said nothing new.
        """
        self._leading.note_fetch(request, self._leading.answer(request), now_ms)
        return self._leading.answer(request), self._finish(now_ms)

    def answer_fetch(self, request: FetchRequest) -> FetchResponse:
        """The answer to a fetch as of now, without noting that the replica was heard of."""
        return self._leading.answer(request)

    def handle_fetch_snapshot(
        self, replica_id: int, epoch: int, now_ms: int
    ) -> tuple[ErrorCode, Effects]:
        """FetchSnapshot: whether to answer (NONE). It counts as a sign of life of the replica."""
        error = self._leading.note_snapshot_fetch(replica_id, epoch, now_ms)
        return error, self._finish(now_ms)

    # What became of requests of this node.

    def answered(
        self,
        node_id: int,
        request: Request | FetchRequest,
        response: Response | FetchResponse,
        now_ms: int,
    ) -> Effects:
        """A response has come. For a fetch, `effects.append` says whether its records count.

        `node_id` is whom the request was for, as given by `requests` or `next_fetch`. Raises
        CommittedRecordsLost if the leader's log lacks what is committed here: the node has to stop.
        """
        match request, response:
            case FetchRequest(), FetchResponse():
                self._fetch_answered(node_id, request, response, now_ms)
            case VoteRequest(), VoteResponse():
                self._observe(response.epoch, response.leader_id, now_ms)
                self._election.counted(node_id, request, granted=response.granted, now_ms=now_ms)
            case BeginEpochRequest(), BeginEpochResponse():
                self._leading.presented(node_id)
                self._observe(response.epoch, response.leader_id, now_ms)
            case EndEpochRequest(), EndEpochResponse():
                self._observe(response.epoch, response.leader_id, now_ms)
        return self._finish(now_ms)

    def _observe(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Take note of the epoch and the leader that somebody else knows."""
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
            # A leader that is in doubt here is not taken on another's word, who may notice later.
            if known == NOBODY or (known == leader_id and state.role is Role.UNATTACHED):
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
            # It has resigned, or was started again.
            self._election.stand(now_ms)

    def failed(
        self, node_id: int, request: Request | FetchRequest, now_ms: int, *, refused: bool
    ) -> Effects:
        """There will be no response. `refused`: the connection was refused or reset, so that the
        process at the other end is likely gone, rather than slow: a follower then asks the other
        voters at once whether they would elect it. A time-out is not `refused`."""
        state = self._state
        match request:
            case FetchRequest():
                if self._following.ended(node_id, request):
                    self._following.pause(now_ms)
                    if refused and node_id == state.leader_id:
                        self._election.stand(now_ms)
            case VoteRequest():
                self._election.counted(node_id, request, granted=False, now_ms=now_ms)
            case BeginEpochRequest():
                self._leading.presented(node_id)
            case EndEpochRequest():
                pass  # The voter will notice by itself.
        return self._finish(now_ms)

    def next_fetch(self, now_ms: int) -> tuple[int, FetchRequest] | None:
        """What to fetch now and from whom (a node id or BOOTSTRAP), None if nothing.

        What it returns counts as sent. It never returns a second fetch while one is under way,
        unless that one became pointless (its leader is none any more): the shell then gives up
        the older one, and need not report its end. A leader in doubt is asked on: an answer of it
        ends the doubt.
        """
        return self._following.next_fetch(now_ms)

    # What became of the log.

    def appended(self, now_ms: int) -> Effects:
        """Records were appended to the log, as a leader or as a follower."""
        if self._state.role is not Role.LEADER:
            self._following.appended()
        return self._finish(now_ms)

    def flushed(self, end_offset: int, now_ms: int) -> Effects:
        """The log up to `end_offset` is on disk. If it was truncated meanwhile, give the end that
        was flushed and not touched since; the core takes no more than the log's end."""
        state = self._state
        state.flushed_offset = max(state.flushed_offset, min(end_offset, state.log.end_offset))
        if state.role is Role.LEADER:
            self._leading.commit(now_ms)
        else:
            self._following.flushed()
        return self._finish(now_ms)

    def truncated(self, now_ms: int) -> Effects:
        """The log was truncated as `truncate_to` said."""
        state = self._state
        assert state.role is not Role.LEADER, "a leader never takes back a record"
        state.history.truncate(state.log.end_offset)
        state.flushed_offset = min(state.flushed_offset, state.log.end_offset)
        return self._finish(now_ms)

    def voters_appended(self, offset: int, voters: Voters, now_ms: int) -> Effects:
        """A VotersRecord at `offset` was appended, as a leader or as a follower. It takes effect at
        once. Call it before `appended`."""
        state = self._state
        state.history.append(offset, voters)
        if state.replicas is not None:
            state.replicas.set_voters(state.history.ids)
        return self._finish(now_ms)

    def snapshot_piece(self, now_ms: int) -> None:
        """A piece of `wanted_snapshot` arrived: the leader lives."""
        assert self.wanted_snapshot is not None
        self._following.leader_lives(now_ms)

    def snapshot_installed(
        self, snapshot: OffsetAndEpoch, voters: Voters | None, now_ms: int
    ) -> Effects:
        """The snapshot is on disk, flushed, and the log begins and ends at its offset.
        `voters` are those of its VotersRecord, None if it has none."""
        state = self._state
        assert snapshot.offset == state.log.start_offset == state.log.end_offset
        self._following.end_snapshot()
        state.history.restart(snapshot.offset, voters)
        state.flushed_offset = snapshot.offset
        state.advance(snapshot.offset)
        return self._finish(now_ms)

    def snapshot_failed(self, now_ms: int) -> Effects:
        """The snapshot could not be fetched; the next fetch says what to do."""
        self._following.end_snapshot()
        self._following.pause(now_ms)
        return self._finish(now_ms)

    # What an operator or the shell wants.

    def resign(self, now_ms: int) -> Effects:
        """As a leader: hand over to the voter with the most records. Otherwise do nothing."""
        if self._state.role is Role.LEADER:
            self._leading.resign(now_ms)
        return self._finish(now_ms)

    def transfer(self, node_id: int, now_ms: int) -> tuple[ErrorCode, Effects]:
        """As a leader: hand over to this voter, if it has all records of this log."""
        error = self._leading.transfer(node_id, now_ms)
        return error, self._finish(now_ms)

    def add_voter(self, voter: Voter, now_ms: int) -> tuple[ErrorCode, Effects]:
        """As a leader: begin to make an observer a voter; done when the record is committed.

        REQUEST_TIMED_OUT says that now is not the time (an earlier change is not committed, the
        observer or a majority of the voters to be has not caught up): try again for as long as
        the client waits.
        """
        error = self._leading.add_voter(voter, now_ms)
        return error, self._finish(now_ms)

    def record_voters(self, now_ms: int) -> tuple[ErrorCode, Effects]:
        """As a leader: begin to have the log say who votes, where the configuration does so far.
        Errors as for `add_voter`."""
        error = self._leading.record_voters(now_ms)
        return error, self._finish(now_ms)

    def remove_voter(self, node_id: int, now_ms: int) -> tuple[ErrorCode, Effects]:
        """As a leader: begin to remove a voter, perhaps itself; it then resigns after the commit.
        Errors as for `add_voter`."""
        error = self._leading.remove_voter(node_id, now_ms)
        return error, self._finish(now_ms)


def _starting_hard_state(stored: HardState | None, log: LogView, *, is_alone: bool) -> HardState:
    """What was stored, or what follows from the log of a node that has nothing stored.

    An epoch is stored before its first record is in the log. So a log of a newer epoch, or one
    without anything stored, says that what was stored is lost, and with it perhaps a vote. Only a
    voter that needs no other one may go on as if nothing was.
    """
    if stored is None and log.end_offset == 0:
        return HardState(may_vote=False)
    if stored is None or stored.epoch < log.last_epoch:
        return HardState(log.last_epoch, may_vote=is_alone, recovering=not is_alone)
    return stored
