"""The follower's role: whom to fetch the log from, and what the answers mean.

Rule: one fetch at a time, from the end of a log that is all on disk. The offset is a promise that
the leader counts (Raft §5.3), so it is not made before the flush.
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
    Role,
)
from headrace.raft.quorum_state import QuorumState


class Following:
    """The fetches of a follower, and of a node that looks for a leader."""

    def __init__(self, state: QuorumState) -> None:
        self._state = state
        self._in_flight: tuple[int, FetchRequest] | None = None
        # Epoch and source of the fetch under way: once they have changed, it is pointless.
        self._attached_to = (-1, NOBODY)
        self._not_before_ms = 0
        self._leader_high_watermark = UNKNOWN_OFFSET
        # What a node that may not vote has to reach before it may.
        self._catch_up_to = UNKNOWN_OFFSET
        self._wanted_snapshot: OffsetAndEpoch | None = None

    def _forget_the_past(self) -> None:
        """What was under way with an earlier leader is pointless."""
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
        self._forget_the_past()
        return self._wanted_snapshot

    def due_ms(self) -> int | None:
        """From when on a fetch may be sent; None while there is none to send."""
        self._forget_the_past()
        state = self._state
        if (
            (state.source_id == NOBODY and state.role is not Role.UNATTACHED)
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
        self._in_flight = (self._somebody() if source_id == NOBODY else source_id, request)
        return self._in_flight

    def _somebody(self) -> int:
        """Who may know the leader. Voters that are known may all be gone from the cluster."""
        others: tuple[int, ...] = self._state.other_voters
        if not others or self._state.settings.has_bootstrap_servers:
            others = (*others, BOOTSTRAP)
        return self._state.rng.choice(others)

    def ended(self, node_id: int, request: FetchRequest) -> bool:
        """Note that a fetch has ended; False if it is one that was given up."""
        self._forget_the_past()
        if self._in_flight != (node_id, request):
            return False
        self._in_flight = None
        return True

    def pause(self, now_ms: int) -> None:
        """Do not fetch again at once, unless a new epoch begins."""
        self._forget_the_past()
        self._not_before_ms = now_ms + self._state.settings.retry_backoff_ms

    def answered(self, response: FetchResponse, now_ms: int) -> None:
        """An answer without error, from the leader of this epoch."""
        self._forget_the_past()
        state = self._state
        assert response.error is ErrorCode.NONE
        self.leader_lives(now_ms)
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

    def leader_lives(self, now_ms: int) -> None:
        """The leader that is followed, or that was in doubt, has answered."""
        state = self._state
        if state.role is not Role.FOLLOWER:
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
        """A node without data may vote as soon as all that was committed is on its disk again."""
        self._forget_the_past()
        state = self._state
        if UNKNOWN_OFFSET < self._catch_up_to <= state.flushed_offset and not state.hard.may_vote:
            state.set_hard(may_vote=True)

    def appended(self) -> None:
        """The log is as long as it is; what the leader committed of it is committed."""
        self._forget_the_past()
        self._state.advance(self._leader_high_watermark)

    def end_snapshot(self) -> None:
        """The snapshot is here, or will not come."""
        self._wanted_snapshot = None
