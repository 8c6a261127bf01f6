"""One core with the shell's part played by the test, as shortly as that can be said."""

from collections.abc import Sequence
from random import Random

from headrace.errors import ErrorCode
from headrace.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    FetchRequest,
    FetchResponse,
    HardState,
    RaftEffects,
    RaftRole,
    RaftSettings,
    Voter,
    VoteRequest,
    VoteResponse,
    Voters,
)
from headrace.raft.raft_node import RaftNode
from tests.unit.raft.memory import Entry, MemoryLog

SETTINGS = RaftSettings(
    election_timeout_ms=500,
    election_backoff_max_ms=500,
    fetch_timeout_ms=1000,
    retry_backoff_ms=50,
)
# Of a voter that has its data, although that is nothing yet.
AT_FIRST = HardState()


def voters_of(*ids: int) -> Voters:
    return tuple(Voter(node_id) for node_id in ids)


def directory_of(node_id: int) -> bytes:
    return bytes([node_id]) * 16


class Driven:
    """A node, its log and its `quorum-state`. Effects that need no answer are carried out."""

    def __init__(
        self,
        node_id: int = 1,
        voters: Sequence[int] = (1, 2, 3),
        log: MemoryLog | None = None,
        hard_state: HardState | None = AT_FIRST,
        settings: RaftSettings = SETTINGS,
    ) -> None:
        self.now = 0
        self.node_id = node_id
        self.log = MemoryLog() if log is None else log
        self.stored = hard_state
        self.node = RaftNode(
            settings,
            node_id,
            directory_of(node_id),
            voters_of(*voters),
            hard_state,
            self.log,
            Random(node_id),
            0,
        )

    def plays(self, role: RaftRole) -> bool:
        return self.node.role is role

    def carry_out(self, effects: RaftEffects, entries: Sequence[Entry] = ()) -> RaftEffects:
        """Do what the shell does but for sending; give back what was to be done."""
        if effects.hard_state is not None:
            self.stored = effects.hard_state
        if effects.truncate_to is not None:
            self.log.truncate_to(effects.truncate_to)
            self.carry_out(self.node.truncated(self.now))
        if effects.append and entries:
            self.append(*entries)
        if effects.lead is not None:
            self.append(Entry(effects.lead.epoch, "leader"))
        if effects.append_voters is not None:
            self.append(Entry(self.node.epoch, effects.append_voters))
        return effects

    def append(self, *entries: Entry) -> None:
        """Append without flushing."""
        for entry in entries:
            self.log.append(entry)
            if isinstance(entry.value, tuple):
                self.node.voters_appended(self.log.end_offset - 1, entry.value, self.now)
        self.carry_out(self.node.appended(self.now))

    def write(self, value: object = None) -> None:
        """Append one record as the leader."""
        self.append(Entry(self.node.epoch, value))

    def flush(self) -> RaftEffects:
        return self.carry_out(self.node.flushed(self.log.end_offset, self.now))

    def tick(self, now: int | None = None) -> RaftEffects:
        """Tick when something is due, or at a time."""
        due = self.node.deadline_ms if now is None else now
        assert due is not None
        self.now = max(self.now, due)
        return self.carry_out(self.node.tick(self.now))

    def wait(self, milliseconds: int) -> RaftEffects:
        return self.tick(self.now + milliseconds)

    # Elections.

    def vote(
        self, candidate: int, epoch: int, at: tuple[int, int] = (0, 0), *, pre_vote: bool = False
    ) -> VoteResponse:
        """Be asked for a vote by a candidate whose log ends at (last epoch, offset)."""
        request = VoteRequest(epoch, candidate, directory_of(candidate), *at, pre_vote)
        response, effects = self.node.handle_vote(request, self.now)
        self.carry_out(effects)
        return response

    def granted(self, voter: int, request: VoteRequest) -> RaftEffects:
        response = VoteResponse(request.epoch, -1, granted=True)
        return self.carry_out(self.node.answered(voter, request, response, self.now))

    def refused(self, voter: int, request: VoteRequest, *, leader: int = -1) -> RaftEffects:
        response = VoteResponse(request.epoch, leader, granted=False)
        return self.carry_out(self.node.answered(voter, request, response, self.now))

    def stand(self) -> RaftEffects:
        """Wait until the node asks for pre-votes."""
        while True:
            effects = self.tick()
            if effects.requests:
                return effects
            self.node.next_fetch(self.now)

    def become_candidate(self) -> RaftEffects:
        pre_vote = only_vote(self.stand())
        for voter in self.others:
            effects = self.granted(voter, pre_vote)
            if self.node.role is RaftRole.CANDIDATE:
                return effects
        raise AssertionError("not a candidate")

    def become_leader(self) -> RaftEffects:
        """Win an election, write the LeaderChange and flush it."""
        vote = only_vote(self.become_candidate())
        for voter in self.others:
            effects = self.granted(voter, vote)
            if self.node.is_leader:
                self.flush()
                return effects
        raise AssertionError("not elected")

    @property
    def others(self) -> list[int]:
        return [voter.node_id for voter in self.node.voters if voter.node_id != self.node_id]

    def follow(self, leader: int, epoch: int) -> BeginEpochResponse:
        response, effects = self.node.handle_begin_epoch(BeginEpochRequest(epoch, leader), self.now)
        self.carry_out(effects)
        return response

    # Fetching.

    def fetched_by(
        self,
        replica: int,
        offset: int | None = None,
        last_epoch: int | None = None,
        directory_id: bytes | None = None,
        epoch: int | None = None,
    ) -> FetchResponse:
        """Be fetched from; by default from the end of a log that is like this one."""
        offset = self.log.end_offset if offset is None else offset
        request = FetchRequest(
            replica,
            directory_of(max(replica, 0)) if directory_id is None else directory_id,
            self.node.epoch if epoch is None else epoch,
            offset,
            self.log.epoch_before(offset) if last_epoch is None else last_epoch,
            -1,
        )
        response, effects = self.node.handle_fetch(request, self.now)
        self.carry_out(effects)
        return response

    def fetch(self) -> tuple[int, FetchRequest]:
        wanted = self.node.next_fetch(self.now)
        assert wanted is not None
        return wanted

    def answer(self, response: FetchResponse, *entries: Entry, flush: bool = True) -> RaftEffects:
        """Fetch, and be answered."""
        leader, request = self.fetch()
        effects = self.node.answered(leader, request, response, self.now)
        self.carry_out(effects, entries)
        if flush:
            self.flush()
        return effects


def only_vote(effects: RaftEffects) -> VoteRequest:
    """The one vote request that goes to all the other voters."""
    requests = {request for _, request in effects.requests}
    assert len(requests) == 1, requests
    request = requests.pop()
    assert isinstance(request, VoteRequest)
    return request


def ok(epoch: int, leader: int, high_watermark: int = -1) -> FetchResponse:
    return FetchResponse(epoch, leader, ErrorCode.NONE, high_watermark)
