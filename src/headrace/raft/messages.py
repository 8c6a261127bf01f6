"""Messages, events and effects: what goes into the consensus core and comes out of it.

Rule: plain values without behaviour. Times are milliseconds of a clock that never goes back, epochs
and offsets are Kafka's, and -1 is "nobody" or "not known", as on the wire.
"""

from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from headrace.errors import ErrorCode
from headrace.types import ZERO_UUID

NOBODY = -1
UNKNOWN_OFFSET = -1
# Whom `next_fetch` names when no voter is known: one of `controller.quorum.bootstrap.servers`.
BOOTSTRAP = -2

# The directory id with which a node fetches that has lost, or never had, the data of a voter. Kafka
# reserves it for lost directories, so no real directory has it.
LOST_DIRECTORY_ID = bytes(15) + b"\x01"


class Role(Enum):
    """What a node is in its epoch. Only voters are prospective, candidates, leaders or resigned."""

    UNATTACHED = "Unattached"
    FOLLOWER = "Follower"
    PROSPECTIVE = "Prospective"
    CANDIDATE = "Candidate"
    LEADER = "Leader"
    RESIGNED = "Resigned"


class RaftSettings(NamedTuple):
    """Timeouts, in milliseconds.

    A leader must answer a parked fetch well within `fetch_timeout_ms`: after half of it at most.
    """

    election_timeout_ms: int = 500
    election_backoff_max_ms: int = 500
    fetch_timeout_ms: int = 1000
    retry_backoff_ms: int = 50
    has_bootstrap_servers: bool = False


class Endpoint(NamedTuple):
    """Where a voter listens: a listener's name and address."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A node whose vote and whose copy of the log count. Known by its node id."""

    node_id: int
    directory_id: bytes = ZERO_UUID
    endpoints: tuple[Endpoint, ...] = ()


Voters: TypeAlias = tuple[Voter, ...]


class HardState(NamedTuple):
    """What a node must never forget: the file `quorum-state`.

    `may_vote` is false for a node that started without data until it has caught up with a leader:
    it may have been a voter whose data is lost, with votes given and records promised.
    `recovering` says that it surely was: its log or this file was damaged or lost. A node that is
    only new may found a cluster together with others that are; one that recovers never does, or
    the damage of a majority would begin an empty cluster in the place of theirs.
    Invariant: one that is recovering may not vote.
    """

    epoch: int = 0
    voted_for: int = NOBODY
    leader_id: int = NOBODY
    may_vote: bool = True
    recovering: bool = False


class OffsetAndEpoch(NamedTuple):
    """A position in the log: the offset after a record of `epoch`. Also the name of a snapshot."""

    offset: int
    epoch: int


class LogView(Protocol):
    """What the core reads of the log: facts in memory, always as new as the last call.

    A log that begins after a snapshot ends, as long as nothing was appended, where the snapshot
    does: `end_offset == start_offset == snapshot.offset` and `last_epoch == snapshot.epoch`.
    """

    @property
    def start_offset(self) -> int:
        """The first offset that can be read; what is before is in the snapshot only."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record, flushed or not."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, of the snapshot if there is none, 0 without either."""

    @property
    def snapshot(self) -> OffsetAndEpoch | None:
        """The newest complete snapshot, not older than `start_offset` if that is not 0."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log that is not above `epoch`, and the offset where it ends.

        The last epoch ends at `end_offset`. If every known epoch is above `epoch`: (0, start).
        """


class VoteRequest(NamedTuple):
    """Vote: `pre_vote` asks whether one would be elected, and changes nothing (KIP-996).

    `offset` and `last_epoch` say where the candidate's log ends. `epoch` is the epoch to be
    elected in, for a pre-vote the one that the candidate is in.
    """

    epoch: int
    candidate_id: int
    candidate_directory_id: bytes
    last_epoch: int
    offset: int
    pre_vote: bool


class VoteResponse(NamedTuple):
    """`epoch` and `leader_id` are what the voter knows, here and in the other responses."""

    epoch: int
    leader_id: int
    granted: bool
    error: ErrorCode = ErrorCode.NONE


class BeginEpochRequest(NamedTuple):
    """BeginQuorumEpoch: a new leader presents itself to a voter that does not fetch yet."""

    epoch: int
    leader_id: int


class BeginEpochResponse(NamedTuple):
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE


class EndEpochRequest(NamedTuple):
    """EndQuorumEpoch: a leader resigns, and says who should stand, best first."""

    epoch: int
    leader_id: int
    preferred_successors: tuple[int, ...]


class EndEpochResponse(NamedTuple):
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE


class FetchRequest(NamedTuple):
    """Fetch of the metadata log from `offset`, where the record before it is of `last_epoch`.

    The offset is at the same time a promise: everything before it is on the replica's disk.
    `high_watermark` is the replica's, so that a leader which knows a higher one answers at once.
    """

    replica_id: int
    directory_id: bytes
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int


class FetchResponse(NamedTuple):
    """The records travel beside it: only if `records_follow` there may be any.

    `diverging` is the end of the newest epoch that may be common to both logs: truncate to it and
    fetch again. `snapshot` says that the records are gone: fetch this instead.
    """

    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = UNKNOWN_OFFSET
    log_start_offset: int = 0
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None

    @property
    def records_follow(self) -> bool:
        return self.error is ErrorCode.NONE and self.diverging is None and self.snapshot is None


Request: TypeAlias = VoteRequest | BeginEpochRequest | EndEpochRequest
Response: TypeAlias = VoteResponse | BeginEpochResponse | EndEpochResponse


class LeaderAndEpoch(NamedTuple):
    """Who leads in an epoch, as far as a node knows: NOBODY if that is not known or in doubt."""

    leader_id: int
    epoch: int


class Leadership(NamedTuple):
    """An election that was won: what the LeaderChange record says."""

    epoch: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class Effects(NamedTuple):
    """What the shell does after a call, in the order of the fields and before the next call.

    1. `hard_state`: write it to `quorum-state` and flush it, synchronously. If that fails the node
       stops: nothing below may happen, and the answer must not be sent.
    2. `truncate_to`: truncate the log to this end offset, then call `truncated`. It comes as the
       answer to a fetch, whose records are not to be appended.
    3. `append`: append the records that came with the fetch response just given to `answered`,
       call `appended`, flush in a worker, and when that is done call `flushed`. If there are
       none, nothing is to do. When false, drop them: they come from the past.
    4. `lead`: this node is leader now. Append a LeaderChange control batch of this epoch, at once
       and before anything else, then call `appended`; flush; call `flushed`.
    5. `append_voters`: append a VotersRecord control batch with exactly these, then call
       `voters_appended` with its offset and `appended`; flush; call `flushed`.
    6. `fetch_snapshot`: fetch this snapshot from the node `leader_id`, piece by piece; call
       `snapshot_piece` for each, and at last `snapshot_installed` or `snapshot_failed`.
    7. `requests`: send them. Each ends in one call of `answered` or `failed`.
    8. `wake_fetches`: look at all parked fetches again with `answer_fetch`: the high watermark has
       moved or this node leads no more. (After `appended` as a leader they are due as well.)
    After all that the answer to the request that was handled may be sent, and `next_fetch` and
    `deadline_ms` are to be looked at again.
    """

    hard_state: HardState | None = None
    truncate_to: int | None = None
    append: bool = False
    lead: Leadership | None = None
    append_voters: Voters | None = None
    fetch_snapshot: OffsetAndEpoch | None = None
    requests: tuple[tuple[int, Request], ...] = ()
    wake_fetches: bool = False


class ReplicaProgress(NamedTuple):
    """How far a voter or an observer is, for DescribeQuorum. Times are -1 if never."""

    node_id: int
    directory_id: bytes
    end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
