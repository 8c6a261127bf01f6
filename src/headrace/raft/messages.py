"""Messages, settings and effects: the arguments and results of the consensus core.

Rule: plain values without behaviour. Times are milliseconds of a monotonic clock, epochs and
offsets are Kafka's, and -1 is "nobody" or "not known", as on the wire.
"""

from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from headrace.errors import ErrorCode
from headrace.types import ZERO_UUID

NOBODY = -1
UNKNOWN_OFFSET = -1
# The target of `next_fetch` if no voter is known: any of `controller.quorum.bootstrap.servers`.
BOOTSTRAP = -2

# The directory id in fetches of a node that has lost its data, or is new. Kafka reserves it for
# lost directories, so no real directory has it.
LOST_DIRECTORY_ID = bytes(15) + b"\x01"


class RaftRole(Enum):
    """The role of a node in its epoch. Observers are only ever unattached or followers."""

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


class VoterEndpoint(NamedTuple):
    """A listener of a voter: its name and address."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A node whose vote and whose copy of the log count. Identified by its node id."""

    node_id: int
    directory_id: bytes = ZERO_UUID
    endpoints: tuple[VoterEndpoint, ...] = ()


Voters: TypeAlias = tuple[Voter, ...]


class HardState(NamedTuple):
    """The durable state of a node besides its log: the file `quorum-state`.

    `may_vote` is false for a node that started without data until it has caught up with a leader:
    it may have been a voter whose data is lost, with votes given and records acknowledged.
    `recovering` says that it surely was: its log or this file was damaged or lost. A new node may
    found a cluster together with other new nodes. A recovering node may not: else, after damage at
    a majority of the voters, an empty cluster would replace the existing cluster.
    Invariant: a recovering node may not vote.
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
    """The log as the consensus core reads it: attributes in memory, current at every call.

    As long as nothing was appended, a log that begins after a snapshot ends where the snapshot
    does: `end_offset == start_offset == snapshot.offset` and `last_epoch == snapshot.epoch`.
    """

    @property
    def start_offset(self) -> int:
        """The first offset in the log; earlier records are in the snapshot only."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record, flushed or not."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; without records that of the snapshot, without both 0."""

    @property
    def snapshot(self) -> OffsetAndEpoch | None:
        """The newest complete snapshot, not older than `start_offset` if that is not 0."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log that is not above `epoch`, and the offset where it ends.

        The last epoch ends at `end_offset`. If every known epoch is above `epoch`: (0, start).
        """


class VoteRequest(NamedTuple):
    """Vote. A `pre_vote` asks whether the node would be elected, and changes nothing (KIP-996).

    `offset` and `last_epoch` are the end of the candidate's log. `epoch` is the epoch of the
    election, for a pre-vote the current epoch of the candidate.
    """

    epoch: int
    candidate_id: int
    candidate_directory_id: bytes
    last_epoch: int
    offset: int
    pre_vote: bool


class VoteResponse(NamedTuple):
    """The response to a Vote. In all responses `epoch` and `leader_id` are the responder's."""

    epoch: int
    leader_id: int
    granted: bool
    error: ErrorCode = ErrorCode.NONE


class BeginEpochRequest(NamedTuple):
    """BeginQuorumEpoch: a new leader announces itself to a voter that does not fetch yet."""

    epoch: int
    leader_id: int


class BeginEpochResponse(NamedTuple):
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE


class EndEpochRequest(NamedTuple):
    """EndQuorumEpoch: a leader resigns, and names its preferred successors, best first."""

    epoch: int
    leader_id: int
    preferred_successors: tuple[int, ...]


class EndEpochResponse(NamedTuple):
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE


class FetchRequest(NamedTuple):
    """Fetch of the metadata log from `offset`, where the record before it is of `last_epoch`.

    The offset is also an acknowledgement: all records before it are on the replica's disk.
    `high_watermark` is the replica's: a leader whose high watermark is higher answers at once.
    """

    replica_id: int
    directory_id: bytes
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int


class FetchResponse(NamedTuple):
    """The response to a Fetch, without its records, which the shell adds if `records_follow`.

    `diverging` is the end of the newest epoch that may be common to both logs: truncate to it and
    fetch again. `snapshot` is set if the leader has deleted the records: fetch the snapshot.
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
    """The leader of an epoch, as a node knows it: NOBODY if it is not known or in doubt."""

    leader_id: int
    epoch: int


class Leadership(NamedTuple):
    """The content of the LeaderChange record of a new leader."""

    epoch: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class RaftEffects(NamedTuple):
    """The work of the shell after a call, in the order of the fields and before the next call.

    1. `hard_state`: write it to `quorum-state` and flush it, synchronously. If that fails the node
       stops: it must do nothing of the following, and not send the response.
    2. `truncate_to`: truncate the log to this end offset, then call `truncated`. It results from
       a fetch response, whose records are not to be appended.
    3. `append`: append the records of the fetch response just passed to `answered`, call
       `appended`, flush in a worker, and when that is done call `flushed`. If there are no
       records, do nothing. When false, drop them: they are outdated.
    4. `lead`: this node is leader now. Append a LeaderChange control batch of this epoch, at once
       and before anything else, then call `appended`; flush; call `flushed`.
    5. `append_voters`: append a VotersRecord control batch with exactly these voters, then call
       `voters_appended` with its offset and `appended`; flush; call `flushed`.
    6. `fetch_snapshot`: fetch this snapshot from the node `leader_id`, piece by piece; call
       `snapshot_piece` for each, and at last `snapshot_installed` or `snapshot_failed`.
    7. `requests`: send them to the nodes. For each, call `answered` or `failed` once.
    8. `wake_fetches`: call `answer_fetch` again for all parked fetches: the high watermark has
       moved or this node leads no more. (After `appended` as a leader they are due as well.)
    After all that the response to the request that was handled may be sent, and `next_fetch` and
    `deadline_ms` are to be read again.
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
    """The progress of a voter or an observer, for DescribeQuorum. Times are -1 if never."""

    node_id: int
    directory_id: bytes
    end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
