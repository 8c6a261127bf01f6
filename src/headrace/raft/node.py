"""One node of the quorum: a voter or an observer.

Rule: pure. The shell calls one method at a time, carries out the `Effects` it returns, in their
order, and only then makes the next call. Whatever a response promises is on disk before it is sent.
"""

from collections.abc import Sequence
from random import Random

from headrace.errors import ErrorCode
from headrace.raft.values import (
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
        raise NotImplementedError

    # What is known.

    @property
    def role(self) -> Role:
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        raise NotImplementedError

    @property
    def leader_id(self) -> int:
        """Who leads this epoch, -1 if that is not known or in doubt. Itself for a leader."""
        raise NotImplementedError

    @property
    def is_leader(self) -> bool:
        raise NotImplementedError

    @property
    def high_watermark(self) -> int:
        """The end of what is committed, as far as known here; -1 if nothing is known yet.

        It never falls. At a leader it is -1 or the value it had as a follower until a record of its
        own epoch is committed.
        """
        raise NotImplementedError

    @property
    def epoch_start_offset(self) -> int:
        """At a leader the offset of its LeaderChange record, else -1. Once the high watermark is
        above it, everything that earlier leaders committed is below the high watermark."""
        raise NotImplementedError

    @property
    def voters(self) -> Voters:
        """The voters by the newest VotersRecord in the log, committed or not, by node id."""
        raise NotImplementedError

    @property
    def is_voter(self) -> bool:
        raise NotImplementedError

    @property
    def hard_state(self) -> HardState:
        raise NotImplementedError

    @property
    def deadline_ms(self) -> int | None:
        """When `tick`, and after it `next_fetch`, is due at the latest; None if never."""
        raise NotImplementedError

    def progress(self, now_ms: int) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """At a leader: how far the voters (itself included) and the observers are, by node id."""
        raise NotImplementedError

    # Time, and requests of others.

    def tick(self, now_ms: int) -> Effects:
        """Do what is due by now: elections, resigning, presenting oneself. Never too early."""
        raise NotImplementedError

    def handle_vote(self, request: VoteRequest, now_ms: int) -> tuple[VoteResponse, Effects]:
        """Vote, or pre-vote."""
        raise NotImplementedError

    def handle_begin_epoch(
        self, request: BeginEpochRequest, now_ms: int
    ) -> tuple[BeginEpochResponse, Effects]:
        """BeginQuorumEpoch: somebody says that it leads."""
        raise NotImplementedError

    def handle_end_epoch(
        self, request: EndEpochRequest, now_ms: int
    ) -> tuple[EndEpochResponse, Effects]:
        """EndQuorumEpoch: the leader resigns."""
        raise NotImplementedError

    def handle_fetch(self, request: FetchRequest, now_ms: int) -> tuple[FetchResponse, Effects]:
        """Fetch: note how far the replica is, which may move the high watermark, and answer.

        If `records_follow` the shell reads from `request.offset` up to the log's end (not only to
        the high watermark) and sends what it finds. It may park the request instead if there is
        nothing new: no record, and a high watermark that is not above `request.high_watermark`.
        When it looks again it asks `answer_fetch`, since the replica said nothing new.
        """
        raise NotImplementedError

    def answer_fetch(self, request: FetchRequest) -> FetchResponse:
        """The answer to a fetch as of now, without noting that the replica was heard of."""
        raise NotImplementedError

    def handle_fetch_snapshot(
        self, replica_id: int, epoch: int, now_ms: int
    ) -> tuple[ErrorCode, Effects]:
        """FetchSnapshot: whether to answer (NONE). It counts as a sign of life of the replica."""
        raise NotImplementedError

    # What became of requests of this node.

    def answered(
        self,
        node_id: int,
        request: Request | FetchRequest,
        response: Response | FetchResponse,
        now_ms: int,
    ) -> Effects:
        """A response has come. For a fetch, `effects.append` says whether its records count.

        `node_id` is whom the request was for, as given by `requests` or `next_fetch`.
        """
        raise NotImplementedError

    def failed(
        self, node_id: int, request: Request | FetchRequest, now_ms: int, *, refused: bool
    ) -> Effects:
        """There will be no response. `refused`: the connection was refused or reset, so that the
        process at the other end is likely gone, rather than slow: a follower then asks the other
        voters at once whether they would elect it. A time-out is not `refused`."""
        raise NotImplementedError

    def next_fetch(self, now_ms: int) -> tuple[int, FetchRequest] | None:
        """What to fetch now and from whom (a node id or BOOTSTRAP), None if nothing.

        What it returns counts as sent. It never returns a second fetch while one is under way,
        unless that one became pointless (its leader is none any more): the shell then gives up
        the older one, and need not report its end.
        """
        raise NotImplementedError

    # What became of the log.

    def appended(self, now_ms: int) -> Effects:
        """Records were appended to the log, as a leader or as a follower."""
        raise NotImplementedError

    def flushed(self, end_offset: int, now_ms: int) -> Effects:
        """The log up to `end_offset` is on disk. If it was truncated meanwhile, give the end that
        was flushed and not touched since; the core takes no more than the log's end."""
        raise NotImplementedError

    def truncated(self, now_ms: int) -> Effects:
        """The log was truncated as `truncate_to` said."""
        raise NotImplementedError

    def voters_appended(self, offset: int, voters: Voters, now_ms: int) -> Effects:
        """A VotersRecord at `offset` was appended, as a leader or as a follower. It takes effect at
        once. Call it before `appended`."""
        raise NotImplementedError

    def snapshot_piece(self, now_ms: int) -> None:
        """A piece of the snapshot arrived: the leader lives."""
        raise NotImplementedError

    def snapshot_installed(
        self, snapshot: OffsetAndEpoch, voters: Voters | None, now_ms: int
    ) -> Effects:
        """The snapshot is on disk, flushed, and the log begins and ends at its offset.
        `voters` are those of its VotersRecord, None if it has none."""
        raise NotImplementedError

    def snapshot_failed(self, now_ms: int) -> Effects:
        """The snapshot could not be fetched; the next fetch says what to do."""
        raise NotImplementedError

    # What an operator or the shell wants.

    def resign(self, now_ms: int) -> Effects:
        """As a leader: hand over to the voter with the most records. Otherwise do nothing."""
        raise NotImplementedError

    def transfer(self, node_id: int, now_ms: int) -> tuple[ErrorCode, Effects]:
        """As a leader: hand over to this voter, if it has all records of this log."""
        raise NotImplementedError

    def add_voter(self, voter: Voter, now_ms: int) -> tuple[ErrorCode, Effects]:
        """As a leader: begin to make an observer a voter; done when the record is committed.

        REQUEST_TIMED_OUT says that now is not the time (an earlier change is not committed, or the
        observer has not caught up): try again for as long as the client waits.
        """
        raise NotImplementedError

    def remove_voter(self, node_id: int, now_ms: int) -> tuple[ErrorCode, Effects]:
        """As a leader: begin to remove a voter, perhaps itself; it then resigns after the commit.
        Errors as for `add_voter`."""
        raise NotImplementedError
