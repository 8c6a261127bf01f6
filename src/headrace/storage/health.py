"""Whether a log can serve, and what a peer is told when it cannot.

Rule: a damaged disk takes the log offline for good; a resource that is used up refuses one
operation.
"""

import logging

from headrace.errors import ErrorCode, HeadraceError, KafkaError, StorageError
from headrace.storage.files import Shortage
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)


class Health:
    """The state of one log: serving, short of something, offline or closed.

    Unlike Kafka: a full disk does not take the log offline. The failed write is undone, records can
    still be read and old segments dropped, and appends succeed again once there is room.
    """

    __slots__ = ("_name", "closed", "down", "offline", "shortage")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._name = str(topic_partition)
        self.down = False
        self.closed = False
        self.offline: StorageError | None = None
        self.shortage: Shortage | None = None

    def close(self) -> None:
        """Refuse everything from now on."""
        self.down = self.closed = True

    def check(self) -> None:
        """Raise KafkaError unless the log serves."""
        if self.down:
            raise self.refusal()

    def refusal(self) -> KafkaError:
        """Why the log does not serve."""
        if self.offline is not None:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.offline}; the log {self._name} is offline: repair or replace the disk,"
                " then restart the broker",
            )
        # The client looks up the leader again, and learns where the log is now or that it is gone.
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log {self._name} is closed")

    def failed(self, error: HeadraceError, *, fatal: bool = False) -> KafkaError:
        """Note a failure of the disk; what to raise for it."""
        if self.closed:
            return self.refusal()  # Its files may have other names by now, or none.
        # A copy is kept: the error itself holds on to the frames, and so to buffers and files.
        if isinstance(error, Shortage) and not fatal:
            self.shortage = type(error)(str(error))
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{error}; the log {self._name} takes records again after that",
            )
        if self.offline is None:
            self.take_down(error)
            logger.error(
                "the log %s is offline: %s. Other replicas lead in its place; repair or replace the"
                " disk, then restart the broker",
                self._name,
                error,
            )
        return self.refusal()

    def take_down(self, error: HeadraceError) -> None:
        """Serve nothing any more, for a reason that is logged elsewhere."""
        if self.offline is None and not self.closed:
            self.offline = StorageError(str(error))
            self.down = True
