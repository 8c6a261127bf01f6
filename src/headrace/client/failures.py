"""What can go wrong in a client, as exceptions that say what to do."""

from headrace.client.addresses import Address
from headrace.errors import ErrorCode, HeadraceError, KafkaError


class ConnectionFailed(HeadraceError):
    """A broker could not be reached, or the connection to it broke; the text says what to do."""

    def __init__(self, address: Address, what: str, advice: str) -> None:
        super().__init__(f"{address}: {what}; {advice}")
        self.address = address


class Unreachable(HeadraceError):
    """No broker of the cluster can be reached."""


class UnknownTopic(KafkaError):
    """The cluster says there is no such topic or partition, so asking again will not help."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)


class TimedOut(HeadraceError, TimeoutError):
    """The deadline passed before an operation that was retried could succeed."""


class Closed(HeadraceError):
    """The client was closed; make a new one."""


class BufferExhausted(TimedOut):
    """`buffer_memory` stayed full for `max_block_ms`: brokers are slower than the application."""


class RecordTooLarge(KafkaError):
    """A record that is larger than a request or the topic may have."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, detail)


class SerializationFailed(HeadraceError):
    """A serializer or deserializer raised; the text names the topic and the record."""


class NoOffset(HeadraceError):
    """A partition has no position to start at, and `auto_offset_reset` is "none"."""


class CommitFailed(KafkaError):
    """Offsets were not committed: the partitions belong to another member of the group by now."""
