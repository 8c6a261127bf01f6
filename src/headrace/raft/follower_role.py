"""The follower's role: fetches of the log, and the handling of their responses.

Rule: one fetch at a time, from the end of a log that is all on disk. To the leader, the offset
means that the replica has all records before it (Raft §5.3), so they are flushed before the fetch.
"""

from headrace.errors import ErrorCode
from headrace.raft.divergence import truncation_point
from headrace.raft.messages import (
    BOOTSTRAP,
    LOST_DIRECTORY_ID,
    NOBODY,
    UNKNOWN_OFFSET,
    FetchRequest,
    FetchResponse,
    OffsetAndEpoch,
    RaftRole,
)
from headrace.raft.quorum_state import QuorumState


class FollowerRole:
    """The fetches of a follower, and of a node that looks for a leader."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state
        self._in_flight: tuple[int, FetchRequest] | None = None
        # Epoch and source of the fetch in flight: once they have changed, it is given up.
        self._attached_to = (-1, NOBODY)
        self._not_before_ms = 0
        self._leader_high_watermark = UNKNOWN_OFFSET
        # The offset that a node which may not vote has to reach before it may.
        self._catch_up_to = UNKNOWN_OFFSET
        self._wanted_snapshot: OffsetAndEpoch | None = None

    def _drop_outdated_fetch(self) -> None:
        """Give up the fetch and the snapshot from an earlier leader or epoch."""
        attached_to = (self._state.epoch, self._state.source_id)
        if attached_to != self._attached_to:
            if attached_to[0] > self._attached_to[0]:
                self._not_before_ms = 0
            self._attached_to = attached_to
            self._in_flight = None
            self._leader_high_watermark = UNKNOWN_OFFSET
            self._catch_up_to = UNKNOWN_OFFSET
            self._wanted_snapshot = None

    @property
    def wanted_snapshot(self) -> OffsetAndEpoch | None:
        self._drop_outdated_fetch()
        return self._wanted_snapshot

    def due_ms(self) -> int | None:
        """The time from which on a fetch may be sent; None while there is none to send."""
        self._drop_outdated_fetch()
        state = self._state
        if (
            (state.source_id == NOBODY and state.role is not RaftRole.UNATTACHED)
            or self._in_flight is not None
            or self._wanted_snapshot is not None
            or state.flushed_offset < state.log.end_offset
        ):
            return None
        return self._not_before_ms

    def next_fetch(self, now_ms: int) -> tuple[int, FetchRequest] | None:
        due_ms = self.due_ms()
        if due_ms is None or now_ms < due_ms:
            return None
        state = self._state
        request = FetchRequest(
            replica_id=state.node_id,
            directory_id=state.directory_id if state.hard.may_vote else LOST_DIRECTORY_ID,
            epoch=state.epoch,
            offset=state.log.end_offset,
            last_epoch=state.log.last_epoch,
            high_watermark=state.high_watermark,
        )
        source_id = state.source_id
        self._in_flight = (self._random_source() if source_id == NOBODY else source_id, request)
        return self._in_flight

    def _random_source(self) -> int:
        """A random voter, or BOOTSTRAP: the known voters may all be gone from the cluster."""
        others: tuple[int, ...] = self._state.other_voters
        if not others or self._state.settings.has_bootstrap_servers:
            others = (*others, BOOTSTRAP)
        return self._state.rng.choice(others)

    def ended(self, node_id: int, request: FetchRequest) -> bool:
        """Note that a fetch has ended; False if it had been given up."""
        self._drop_outdated_fetch()
        if self._in_flight != (node_id, request):
            return False
        self._in_flight = None
        return True

    def pause(self, now_ms: int) -> None:
        """Delay the next fetch by the retry backoff, unless a new epoch begins."""
        self._drop_outdated_fetch()
        self._not_before_ms = now_ms + self._state.settings.retry_backoff_ms

    def answered(self, response: FetchResponse, now_ms: int) -> None:
        """Handle a response without error from the leader of this epoch."""
        self._drop_outdated_fetch()
        state = self._state
        assert response.error is ErrorCode.NONE
        self.leader_responded(now_ms)
        if response.snapshot is not None:
            self._wanted_snapshot = state.out.fetch_snapshot = response.snapshot
        elif response.diverging is not None:
            state.out.truncate_to = truncation_point(
                state.log, response.diverging, state.high_watermark
            )
            if state.out.truncate_to is None:
                self.pause(now_ms)
        else:
            state.out.append = True
            self._learn(response.high_watermark)

    def leader_responded(self, now_ms: int) -> None:
        """Follow the leader, which was perhaps in doubt, and restart the fetch timeout."""
        state = self._state
        if state.role is not RaftRole.FOLLOWER:
            state.enter_follower(state.epoch, state.source_id, now_ms)
        state.heard_leader = True
        state.timer_ms = now_ms + state.settings.fetch_timeout_ms

    def _learn(self, high_watermark: int) -> None:
        self._leader_high_watermark = max(self._leader_high_watermark, high_watermark)
        if self._catch_up_to == UNKNOWN_OFFSET:
            self._catch_up_to = high_watermark
        self.appended()
        self.flushed()

    def flushed(self) -> None:
        """Let a node that lost its data vote once all committed records are on its disk."""
        self._drop_outdated_fetch()
        state = self._state
        if UNKNOWN_OFFSET < self._catch_up_to <= state.flushed_offset and not state.hard.may_vote:
            state.set_hard(may_vote=True)

    def appended(self) -> None:
        """Raise the high watermark to the leader's, as far as the log reaches."""
        self._drop_outdated_fetch()
        self._state.advance(self._leader_high_watermark)

    def end_snapshot(self) -> None:
        """Note that the snapshot is installed, or that its fetch failed."""
        self._wanted_snapshot = None
