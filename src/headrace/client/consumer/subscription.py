"""The partitions of a consumer, their positions, and the offsets the application has finished.

Pure, and shared by the thread that polls and the loop that fetches: callers hold `lock`. Rule: a
seek and a change of the assignment begin a new generation of a partition. Data requested in an
older generation is discarded when it arrives.
"""

import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from headrace.client.consumer.completed_fetch import (
    ColumnRun,
    CompletedFetch,
    EpochStart,
    RecordRun,
)
from headrace.client.errors import IllegalState
from headrace.client.types import OffsetAndMetadata
from headrace.errors import HeadraceError
from headrace.types import ZERO_UUID, TopicPartition

# The number of completed fetches of a partition that may wait, one of them partly read, before
# fetching stops.
COMPLETED_FETCHES_PER_PARTITION = 2


class SubscriptionMode(Enum):
    """The source of a consumer's partitions: a subscription or an assignment by hand."""

    NONE = "nothing"
    TOPICS = "topics"
    PATTERN = "a pattern"
    ASSIGNED = "partitions"


class PartitionState:
    """One partition of the assignment.

    `given` has the position; it is None until a committed offset, a reset or a seek provides the
    first one. `reset_to` is the timestamp of a requested reset, as in ListOffsets. `served` orders
    partitions by when they last had data, `max_bytes` is a fetch limit raised above the usual one
    where that was too small for a batch. `fetch_epoch` is the epoch of the last batch that was
    fetched, or that the committed offset names; `leader_epoch` that of the leader known to have it;
    -1 if unknown. `topic_id` is that of the topic the position is in, zeros until it is known.
    `epochs` are those of the fetched and unfinished batches. Invariant: `completed_fetches`
    begin where `given` ends, and `fetch_offset` is where they end.
    """

    __slots__ = (
        "completed_fetches",
        "done",
        "epochs",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "given",
        "high_watermark",
        "in_flight",
        "is_out_of_range",
        "is_paused",
        "is_queued",
        "is_revoked",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "reset_to",
        "served",
        "topic_id",
        "tp",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.generation = 0
        self.given: RecordRun | ColumnRun | None = None
        self.reset_to: int | None = None
        self.done = -1
        self.fetch_offset = -1
        self.fetch_epoch = -1
        self.leader_epoch = -1
        self.epochs: deque[EpochStart] = deque()
        self.completed_fetches: deque[CompletedFetch] = deque()
        self.in_flight = False
        self.is_out_of_range = False
        self.is_paused = False
        self.is_queued = False
        self.is_revoked = False
        self.error: HeadraceError | None = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.max_bytes = 0
        self.served = 0
        self.topic_id = ZERO_UUID

    def __repr__(self) -> str:
        return f"<PartitionState of {self.tp} at {self.position}>"

    @property
    def position(self) -> int | None:
        """The offset of the next record for the application; None if not known yet."""
        return None if self.given is None else self.given.position

    @property
    def done_offset(self) -> int:
        """The offset before which the application has finished all records; -1 if not known."""
        given = self.given
        if isinstance(given, RecordRun) and given.iterating:
            return given.begun
        return self.done

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the last record before an offset, or -1 if unknown."""
        return next((epoch.epoch for epoch in reversed(self.epochs) if epoch.offset < offset), -1)

    @property
    def has_data(self) -> bool:
        """Whether records or an error wait to be returned."""
        return bool(self.completed_fetches) or (self.given is not None and not self.given.is_done)

    @property
    def is_fetchable(self) -> bool:
        """Whether the partition should be fetched now."""
        return (
            self.given is not None
            and not self.in_flight
            and not self.is_paused
            and not self.is_revoked
            and self.error is None
            and len(self.completed_fetches) < COMPLETED_FETCHES_PER_PARTITION
            and not (
                self.completed_fetches
                and (self.completed_fetches[-1].corrupt or self.is_out_of_range)
            )
        )

    @property
    def lacks_position(self) -> bool:
        return self.given is None and self.error is None and not self.is_revoked


class SubscriptionState:
    """The subscribed topics or assigned partitions, and the state of each current partition."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mode = SubscriptionMode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.states: dict[TopicPartition, PartitionState] = {}
        self.buffered_bytes = 0
        self._ready: deque[PartitionState] = deque()
        self._given_out: list[PartitionState] = []

    # -- the subscription

    def set_topics(self, topics: frozenset[str]) -> None:
        """Subscribe to these topics instead of the present ones."""
        self._enter(SubscriptionMode.TOPICS)
        self.topics = topics

    def set_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to the topics whose whole names match, as they are created and deleted."""
        self._enter(SubscriptionMode.PATTERN)
        self.pattern = pattern
        self.topics = frozenset()

    def set_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions without a group; those already assigned keep their positions."""
        self._enter(SubscriptionMode.ASSIGNED)
        self.replace(partitions)

    def clear(self) -> None:
        """Clear the subscription and the assignment."""
        self.replace(())
        self.mode = SubscriptionMode.NONE
        self.topics = frozenset()
        self.pattern = None

    def _enter(self, mode: SubscriptionMode) -> None:
        if self.mode not in (SubscriptionMode.NONE, mode):
            raise IllegalState(
                f"the consumer reads {self.mode.value}, and cannot read {mode.value} besides;"
                " call unsubscribe() first"
            )
        self.mode = mode

    # -- the assignment

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment. Partitions that stay keep their positions."""
        wanted = dict.fromkeys(partitions)
        self.drop([tp for tp in self.states if tp not in wanted])
        for tp in wanted:
            if tp not in self.states:
                self.states[tp] = PartitionState(tp)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions from the assignment, with all their fetched data."""
        for tp in partitions:
            state = self.states.pop(tp, None)
            if state is not None:
                self._discard(state)
                state.given = None

    def state(self, tp: TopicPartition) -> PartitionState:
        """The state of an assigned partition."""
        state = self.states.get(tp)
        if state is None:
            raise IllegalState(f"{tp} is not assigned to this consumer", advice="see assignment()")
        return state

    def is_current(self, state: PartitionState, generation: int) -> bool:
        """Whether a response to a request made in `generation` is still wanted."""
        return state.generation == generation and self.states.get(state.tp) is state

    # -- positions

    def seek(self, tp: TopicPartition, offset: int, epoch: int = -1) -> None:
        """Set the position; if the epoch before it is known, the leader has to confirm the
        position.
        """
        state = self.state(tp)
        self._discard(state)
        self._set_position(state, offset, epoch)
        state.leader_epoch = -1

    def found(self, state: PartitionState, generation: int, offset: int, epoch: int = -1) -> None:
        """Set the first position, from a committed offset or a reset."""
        if self.is_current(state, generation) and state.given is None:
            self._set_position(state, offset, epoch)
            state.leader_epoch = -1

    def go_back(self, state: PartitionState, offset: int, epoch: int) -> None:
        """Set the position to an offset up to which the leader has confirmed the log."""
        self._discard(state)
        self._set_position(state, offset, epoch)

    def reset(self, state: PartitionState, timestamp: int | None) -> None:
        """Look the position up by ListOffsets; with None by the reset policy."""
        self._discard(state)
        state.given = None
        state.reset_to = timestamp

    def _set_position(self, state: PartitionState, offset: int, epoch: int) -> None:
        state.given = RecordRun([], offset, offset)
        state.done = offset
        state.fetch_offset = offset
        state.fetch_epoch = epoch
        state.epochs = deque([EpochStart(-1, epoch)])
        state.reset_to = None
        state.topic_id = ZERO_UUID

    def is_in_topic(self, state: PartitionState, topic_id: bytes) -> bool:
        """Whether a position is in the topic with this id, which is noted for a new position.

        Brokers without topic ids say zeros; then a namesake cannot be told from the topic.
        """
        if state.topic_id == ZERO_UUID:
            state.topic_id = topic_id
        return topic_id in (state.topic_id, ZERO_UUID)

    def _discard(self, state: PartitionState) -> None:
        """Begin a new generation, without fetched data."""
        state.generation += 1
        state.in_flight = False
        state.is_out_of_range = False
        state.error = None
        self.buffered_bytes -= sum(completed.size for completed in state.completed_fetches)
        state.completed_fetches.clear()
        if isinstance(state.given, RecordRun):
            # Iteration may be in the middle of these rows: it has to end here.
            state.given.stop = state.given.index

    def pause(self, tp: TopicPartition) -> None:
        """Neither return records of a partition nor fetch it, until it is resumed."""
        state = self.state(tp)
        state.is_paused = True
        for completed in state.completed_fetches:
            completed.detach()
        if isinstance(state.given, RecordRun):
            state.given.stop = state.given.index

    def resume(self, tp: TopicPartition) -> None:
        """Undo `pause`: records fetched before it are returned first."""
        state = self.state(tp)
        state.is_paused = False
        self._queue(state)

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop returning records of partitions that are about to be revoked."""
        for tp in partitions:
            state = self.states.get(tp)
            if state is not None:
                state.is_revoked = True

    # -- from the fetcher to the application

    def add(self, state: PartitionState, generation: int, completed: CompletedFetch) -> bool:
        """Add fetched data; False if it is not wanted any more."""
        if not self.is_current(state, generation):
            return False
        state.completed_fetches.append(completed)
        state.fetch_offset = completed.next_offset
        state.fetch_epoch = completed.last_epoch
        self._note_epochs(state, completed)
        self.buffered_bytes += completed.size
        self._queue(state)
        return True

    def _note_epochs(self, state: PartitionState, completed: CompletedFetch) -> None:
        epochs = state.epochs
        for start in completed.epochs:
            if not epochs or epochs[-1].epoch != start.epoch:
                epochs.append(start)
        while len(epochs) > 1 and epochs[1].offset < state.done_offset:
            epochs.popleft()

    def _queue(self, state: PartitionState) -> None:
        if not state.is_queued and state.has_data:
            state.is_queued = True
            self._ready.append(state)

    def next_ready(self) -> PartitionState | None:
        """The next partition to return records of, oldest data first; `put_back` it afterwards."""
        while self._ready:
            state = self._ready.popleft()
            state.is_queued = False
            current = self.states.get(state.tp) is state
            if current and state.has_data and not state.is_paused and not state.is_revoked:
                return state
        return None

    def put_back(self, state: PartitionState) -> None:
        """Queue a partition again: in front while a fetch of it is half read."""
        if state.is_queued or self.states.get(state.tp) is not state or not state.has_data:
            return
        state.is_queued = True
        half_read = state.given is not None and not state.given.is_done
        if half_read or (state.completed_fetches and state.completed_fetches[0].is_begun):
            self._ready.appendleft(state)
        else:
            self._ready.append(state)

    def gave_out(self, state: PartitionState) -> bool:
        """Note that records were returned; True if there is room to fetch more."""
        if not self._given_out or self._given_out[-1] is not state:
            self._given_out.append(state)
        return self.let_go(state)

    def let_go(self, state: PartitionState) -> bool:
        """Free the fetches whose records were all returned; True if there was one."""
        given = state.given
        if (
            given is not None
            and given.is_done
            and given.end_position >= 0
            and state.completed_fetches
        ):
            state.completed_fetches[0].read_to(given.end_position)
            given.end_position = -1
        freed = False
        while state.completed_fetches and state.completed_fetches[0].is_read:
            # Batches that are not delivered advance the position too.
            completed = state.completed_fetches.popleft()
            self.buffered_bytes -= completed.size
            freed = True
            if given is not None and given.is_done:
                given.next_offset = max(given.next_offset, completed.next_offset)
        return freed

    def begin_poll(self) -> None:
        """The application polls, so it has finished the records of the last poll."""
        self.finish_given(iterated_too=True)
        self._given_out.clear()

    def finish_given(self, *, iterated_too: bool) -> None:
        """Mark polled records as finished; that of a running iteration only if `iterated_too`."""
        for state in self._given_out:
            given = state.given
            if given is None:
                continue
            if isinstance(given, RecordRun) and given.iterating:
                if not iterated_too:
                    continue
                given.iterating = False
                given.stop = given.index
            state.done = given.position

    def take_back(self) -> None:
        """Undo the records returned since `begin_poll`: they did not reach the application."""
        for state in self._given_out:
            if state.given is not None and state.given.position != state.done:
                epoch = state.epoch_before(state.done)
                self._discard(state)
                self._set_position(state, state.done, epoch)
        self._given_out.clear()

    # -- answers

    def lacking_position(self) -> list[PartitionState]:
        """The partitions without a position."""
        return [state for state in self.states.values() if state.lacks_position]

    def positions(self) -> dict[TopicPartition, int]:
        """The offset behind the last returned record, for each partition with a position."""
        found = ((tp, state.position) for tp, state in self.states.items())
        return {tp: position for tp, position in found if position is not None}

    def done_offsets(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """The offset up to which records are finished, for each partition with a position."""
        states = self.states
        chosen = states if partitions is None else [tp for tp in partitions if tp in states]
        return {tp: states[tp].done_offset for tp in chosen if states[tp].given is not None}

    def committable(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets of partitions, with topic ids and leader epochs of the records before them."""
        states = self.states
        return {
            tp: OffsetAndMetadata(
                offset,
                leader_epoch=states[tp].epoch_before(offset),
                topic_id=states[tp].topic_id,
            )
            for tp, offset in offsets.items()
        }
