"""Progress of replicas, as the leader tracks it: end offsets, and times of the last fetches.

Rule: only a replica's fetches of this epoch count, and only after their position was checked: an
offset in a log that diverges from the leader's means nothing.
"""

from collections.abc import Iterable

from headrace.raft.messages import LOST_DIRECTORY_ID, UNKNOWN_OFFSET, ReplicaProgress
from headrace.raft.voters import held_by_majority, majority

_NEVER = -1
# Observers come and go: those that were silent for so long are forgotten, and there is a limit.
_OBSERVER_SESSION_MS = 300_000
_OBSERVERS_MAX = 10_000

# The first fetch that arrives after an event may have been sent before it; the second was not.
_CONFIRMING_FETCHES = 2


class TrackedReplica:
    """A voter or an observer, as seen by the leader.

    `lost` is set while the replica reports that it has lost its data, or never had any. Then it
    does not count: the records that it acknowledged are gone, and it may have acknowledged them to
    a newer leader. The value is the number of fetches of every replica when the loss was noticed.
    """

    __slots__ = (
        "directory_id",
        "end_offset",
        "fetches",
        "founder",
        "last_caught_up_ms",
        "last_fetch_leader_end",
        "last_fetch_ms",
        "lost",
        "node_id",
    )

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.directory_id = bytes(16)
        self.end_offset = UNKNOWN_OFFSET
        self.fetches = 0
        self.last_fetch_ms = _NEVER
        self.last_caught_up_ms = _NEVER
        self.last_fetch_leader_end = UNKNOWN_OFFSET
        self.lost: dict[int, int] | None = None
        self.founder = False

    def value(self) -> ReplicaProgress:
        return ReplicaProgress(
            self.node_id,
            self.directory_id,
            self.end_offset,
            self.last_fetch_ms,
            self.last_caught_up_ms,
        )


class ProgressTracker:
    """The replicas of a leader in one epoch.

    Invariant: a replica's `end_offset` was acknowledged in this epoch, and its log up to there is a
    prefix of the leader's.
    """

    def __init__(
        self, leader_id: int, voters: Iterable[int], epoch_start_offset: int, now_ms: int
    ) -> None:
        self.leader_id = leader_id
        self.epoch_start_offset = epoch_start_offset
        self._began_ms = now_ms
        self._voters = tuple(voters)
        self._by_id: dict[int, TrackedReplica] = {}

    @property
    def others(self) -> tuple[int, ...]:
        """The ids of the voters without the leader."""
        return tuple(voter for voter in self._voters if voter != self.leader_id)

    def set_voters(self, voters: Iterable[int]) -> None:
        self._voters = tuple(voters)

    def get(self, node_id: int) -> TrackedReplica | None:
        return self._by_id.get(node_id)

    def note_contact(
        self, node_id: int, directory_id: bytes | None, now_ms: int
    ) -> TrackedReplica | None:
        """Note that a replica is alive; None if there are too many observers to add another."""
        replica = self._by_id.get(node_id)
        if replica is None:
            if node_id not in self._voters and not self._make_room(now_ms):
                return None
            replica = self._by_id[node_id] = TrackedReplica(node_id)
        if directory_id is not None:
            replica.directory_id = directory_id
        replica.last_fetch_ms = now_ms
        replica.fetches += 1
        return replica

    def fetched(
        self, node_id: int, directory_id: bytes, offset: int, leader_end: int, now_ms: int
    ) -> None:
        """Note a fetch whose position was checked."""
        previous = self._by_id.get(node_id)
        previous_ms = previous.last_fetch_ms if previous is not None else _NEVER
        replica = self.note_contact(node_id, directory_id, now_ms)
        if replica is None:
            return
        self._note_loss(replica, offset)
        if offset >= leader_end:
            replica.last_caught_up_ms = now_ms
        elif offset >= replica.last_fetch_leader_end > UNKNOWN_OFFSET:
            # It has all records that the leader had at its last fetch: it was caught up then.
            replica.last_caught_up_ms = max(replica.last_caught_up_ms, previous_ms)
        replica.last_fetch_leader_end = leader_end
        replica.end_offset = offset

    def _note_loss(self, replica: TrackedReplica, offset: int) -> None:
        if replica.directory_id != LOST_DIRECTORY_ID:
            replica.lost = None
            replica.founder = False
            return
        if self.epoch_start_offset == 0 and replica.end_offset <= 0 and replica.lost is None:
            # The first epoch of a cluster: all voters begin without data, and they must count.
            replica.founder = True
        elif offset < replica.end_offset:
            replica.founder = False
            replica.lost = None
        if not replica.founder and replica.lost is None:
            replica.lost = {node: known.fetches for node, known in self._by_id.items()}

    def is_founder(self, node_id: int) -> bool:
        """Whether a voter without data is new, in a new cluster."""
        replica = self._by_id.get(node_id)
        return replica is not None and replica.founder

    @property
    def has_lost(self) -> bool:
        """Whether a voter that has fetched is without its data."""
        return any(voter in self._by_id and not self._counts(voter) for voter in self.others)

    def is_confirmed(self, node_id: int) -> bool:
        """Whether the high watermark may be sent to a replica without data.

        A voter that has lost its data may vote again once it has reached the high watermark. So it
        must not get that of a leader that was replaced without noticing: a majority of the other
        voters has to fetch from this leader once more first.
        """
        if node_id not in self._voters:
            return True
        replica = self._by_id.get(node_id)
        if replica is None or replica.lost is None:
            return False  # Its loss of data is noted with its next fetch.
        confirming = sum(
            self._counts(voter)
            and self._by_id[voter].fetches >= replica.lost.get(voter, 0) + _CONFIRMING_FETCHES
            for voter in self.others
        )
        return confirming + self._leader_votes >= majority(len(self._voters))

    @property
    def _leader_votes(self) -> int:
        return int(self.leader_id in self._voters)

    def _counts(self, node_id: int) -> bool:
        replica = self._by_id.get(node_id)
        return replica is not None and (
            replica.founder or replica.directory_id != LOST_DIRECTORY_ID
        )

    def committed(self, leader_flushed: int) -> int | None:
        """The end offset that a majority has on disk, if a record of this epoch is before it.

        Records of earlier epochs are committed only together with a record of this epoch: a
        candidate without them, whose last epoch is newer, could still win (Raft §5.4.2).
        """
        offset = held_by_majority(
            leader_flushed
            if voter == self.leader_id
            else self._by_id[voter].end_offset
            if self._counts(voter)
            else UNKNOWN_OFFSET
            for voter in self._voters
        )
        return offset if offset > self.epoch_start_offset else None

    def silent_at_ms(self, timeout_ms: int) -> int | None:
        """The time at which no majority fetched within `timeout_ms`; None for a lone voter."""
        needed = majority(len(self._voters)) - self._leader_votes
        if needed <= 0:
            return None
        fetch_times = sorted(
            (
                max(self._by_id[voter].last_fetch_ms, self._began_ms)
                if self._counts(voter)
                else self._began_ms
                for voter in self.others
            ),
            reverse=True,
        )
        return fetch_times[needed - 1] + timeout_ms

    def is_caught_up(self, node_id: int, now_ms: int, within_ms: int) -> bool:
        """Whether a replica had all records within the last `within_ms` and has its data."""
        replica = self._by_id.get(node_id)
        return (
            replica is not None
            and replica.directory_id != LOST_DIRECTORY_ID
            and replica.last_caught_up_ms != _NEVER
            and replica.last_caught_up_ms + within_ms >= now_ms
        )

    def successors(self) -> tuple[int, ...]:
        """The other voters, in the order of their end offsets, the largest first."""

        def rank(node_id: int) -> tuple[int, int]:
            return (-self._by_id[node_id].end_offset if self._counts(node_id) else 1, node_id)

        return tuple(sorted(self.others, key=rank))

    def values(self) -> tuple[list[ReplicaProgress], list[ReplicaProgress]]:
        """The progress of the other voters and of the observers, by node id."""
        voters = [
            (self._by_id.get(voter) or TrackedReplica(voter)).value() for voter in self.others
        ]
        observers = [
            replica.value()
            for node_id, replica in sorted(self._by_id.items())
            if node_id not in self._voters
        ]
        return voters, observers

    def _make_room(self, now_ms: int) -> bool:
        silent = [
            node_id
            for node_id, replica in self._by_id.items()
            if node_id not in self._voters and replica.last_fetch_ms + _OBSERVER_SESSION_MS < now_ms
        ]
        for node_id in silent:
            del self._by_id[node_id]
        return len(self._by_id) < _OBSERVERS_MAX
