"""The state of a log that its owner changes and its readers share: segments, offsets, health.

Rule: a reader takes the segments first, then the size of the active segment, then the end offset;
the owner changes them in the opposite order. So the bytes that a reader takes are always of
offsets below the end offset that it took.
"""

import logging
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from headrace.errors import CorruptBatch, ErrorCode, HeadraceError, KafkaError, StorageError
from headrace.storage.files import ResourceShortage, UnflushedWrites
from headrace.storage.log_segments import PositionHints, Segments
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")


class LogHealth:
    """The health of a log: serving, short of a resource, offline or closed.

    Rule: a failed disk takes the log offline for good; a resource that is used up fails only the
    operation that needs it, or takes the log offline until it is opened again, if the operation
    was broken off halfway.

    Unlike Kafka: a full disk does not take the log offline. The failed write is undone, records can
    still be read and old segments deleted, and appends succeed again once there is room.
    """

    __slots__ = ("_name", "closed", "down", "offline", "shortage")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._name = str(topic_partition)
        self.down = False
        self.closed = False
        self.offline: StorageError | None = None
        self.shortage: ResourceShortage | None = None

    def close(self) -> None:
        """Refuse every operation from now on."""
        self.down = self.closed = True

    def check(self) -> None:
        """Raise KafkaError if the log is offline or closed."""
        if self.down:
            raise self.refusal()

    def refusal(self) -> KafkaError:
        """The error for operations on a log that is offline or closed."""
        if self.offline is not None:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.offline}; the log {self._name} is offline: {self._advice}",
            )
        # The client then looks up the leader again, and finds the log there or the topic deleted.
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log {self._name} is closed")

    def failed(self, error: HeadraceError, *, fatal: bool = False) -> KafkaError:
        """Note a failure of the disk; return the error to raise for it."""
        if self.closed:
            return self.refusal()  # Its files may have been renamed or removed since.
        # A copy is kept: the error's traceback would keep buffers and files alive.
        if isinstance(error, ResourceShortage) and not fatal:
            self.shortage = type(error)(str(error))
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{error}; the log {self._name} takes records again after that",
            )
        if self.offline is None:
            self.take_down(error)
            logger.error(
                "the log %s is offline: %s. Other replicas lead in its place; %s",
                self._name,
                error,
                self._advice,
            )
        return self.refusal()

    def take_down(self, error: HeadraceError) -> None:
        """Take the log offline, for a reason that the caller logs."""
        if self.offline is None and not self.closed:
            kind = type(error) if isinstance(error, ResourceShortage) else StorageError
            self.offline = kind(str(error))
            self.down = True

    @property
    def may_reopen(self) -> bool:
        """Whether the log is offline, and opening it again makes it serve once there is room.

        Not after a flush: the system may hold bytes in memory for written that it could not write.
        """
        return isinstance(self.offline, ResourceShortage) and not isinstance(
            self.offline, UnflushedWrites
        )

    @property
    def _advice(self) -> str:
        if self.may_reopen:
            return "it is opened again when there is room"
        if isinstance(self.offline, ResourceShortage):
            return "when there is room, restart the broker"
        return "repair or replace the disk, then restart the broker"


class LogState:
    """The segments and offsets of a log. Changed by the owner's thread, read by any thread."""

    __slots__ = (
        "damaged",
        "health",
        "hints",
        "log_end_offset",
        "log_start_offset",
        "segments",
        "suspected_offset",
        "swapping",
        "swaps",
        "topic_partition",
        "truncations",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        segments: Segments,
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.health = LogHealth(topic_partition)
        self.hints = PositionHints()
        # Odd while bytes are being removed: a read during an odd number or a change is invalid.
        self.truncations = 0
        # Odd while compacted segments replace others: a read during an odd number or a change is
        # repeated. The lock is held during the replacement.
        self.swaps = 0
        self.swapping = Lock()
        # Half-open ranges of offsets that are known to be damaged, and are refused to readers.
        self.damaged: tuple[tuple[int, int], ...] = ()
        # The offset of damage that a reader met and that was not checked yet.
        self.suspected_offset: int | None = None

    def begin_swap(self) -> None:
        """Note that segments are about to be replaced; called before files are renamed."""
        self.swaps += 1
        self.hints.clear()

    def end_swap(self) -> None:
        """Note that segments were replaced; called when the new segments can be read."""
        self.swaps += 1

    def intact_until(self, offset: int) -> int | None:
        """The first damaged offset from `offset` on; None if none is known.

        KafkaError if the record at `offset` is damaged.
        """
        ahead = [first for first, end in self.damaged if end > offset]
        first_damaged = min(ahead, default=None)
        if first_damaged is not None and first_damaged <= offset:
            end = max(end for first, end in self.damaged if first <= offset < end)
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{self.topic_partition}: offsets {first_damaged} to {end - 1} are damaged;"
                f" {end} may be read again",
            )
        return first_damaged

    def out_of_range(self, offset: int) -> KafkaError:
        """The error for an offset that the log does not have."""
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{self.topic_partition} has offsets from {self.log_start_offset} to"
            f" {self.log_end_offset}, {offset} was asked for",
        )

    def find_consistently(self, offset: int, find: Callable[[], _Found]) -> _Found:
        """Call `find`, which reads from `offset` on, until no segments were replaced meanwhile.

        KafkaError if the log was truncated meanwhile, or if `find` failed.
        """
        self.health.check()
        truncations = self.truncations
        failure: StorageError | CorruptBatch | None = None
        while True:
            swaps = self.swaps
            try:
                found = find()
            except (StorageError, CorruptBatch) as error:
                failure = error
            if swaps == self.swaps and swaps % 2 == 0:
                break
            failure = None
            with self.swapping:
                pass  # Taken only to wait for the end of the swap.
        if truncations != self.truncations or truncations % 2:
            # Only a follower truncates: this error sends the client to the leader.
            detail = f"{self.topic_partition} was truncated during the read"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
        if failure is not None:
            raise self.failed_read(failure, offset) from failure
        return found

    def failed_read(self, error: StorageError | CorruptBatch, offset: int) -> KafkaError:
        """Note a failure of a read at `offset`; return the error to raise for it."""
        if offset < self.log_start_offset:
            return self.out_of_range(offset)  # Retention deleted it during the read.
        if isinstance(error, CorruptBatch):
            self.suspected_offset = offset
            return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error))
        return self.health.failed(error)
