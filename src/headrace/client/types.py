"""Values in the client's calls: records, their metadata, offsets and group metadata."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from headrace.types import ZERO_UUID, TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next record to read, and a note of the application.

    `leader_epoch` is that of the last record read, or -1 if unknown; with it a consumer detects
    that the log was truncated since (KIP-320). `topic_id` is that of the topic with that record: in
    another topic of its name the offset means nothing, and is not committed. Zeros are any topic.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: bytes = field(default=ZERO_UUID, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first record at or after a time. `leader_epoch` is -1 if unknown."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """The committer of a group's offsets: a member in a generation, by default anonymous.

    A coordinator refuses the offsets of a member that has lost its partitions in the meantime.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


HeaderValue: TypeAlias = bytes | str | None
Headers: TypeAlias = Sequence[tuple[str, HeaderValue]] | Mapping[str, HeaderValue]

# The offset of a record sent without acknowledgement (`acks=0`).
NO_OFFSET = -1


class RecordMetadata(NamedTuple):
    """The topic, partition and offset of a written record.

    `timestamp` is in milliseconds: the record's own, or the broker's if the topic uses
    LogAppendTime. The sizes are -1 for a key or a value of None. With `acks=0` the offset is -1.

    >>> sent = producer.send(topic, b"hello", key=b"k").result()
    >>> sent.topic == topic, sent.partition, sent.serialized_value_size
    (True, 0, 5)
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the partition as one value."""
        return TopicPartition(self.topic, self.partition)


class BatchMetadata(NamedTuple):
    """The place of a batch of `send_arrow`: `count` records from `base_offset` on.

    `timestamp` is the broker's if the topic uses LogAppendTime, and -1 otherwise.
    """

    topic: str
    partition: int
    base_offset: int
    # A tuple has a method of this name, which is never called on this type.
    count: int  # type: ignore[assignment]
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send, as one value.

    >>> record = ProducerRecord(topic, value="hello", key="k", headers=[("trace", b"1")])
    >>> producer.send(record).result().partition
    0
    """

    topic: str
    value: Any = None
    key: Any = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


# The error and the metadata of a record, one of which is None.
OnDelivery: TypeAlias = Callable[[Exception | None, RecordMetadata | None], object]

# A record on its way into a batch: topic, key, value, headers, partition, timestamp, callback, and
# an upper bound of its size.
Pending: TypeAlias = tuple[
    str,
    bytes | None,
    bytes | None,
    list[tuple[str, bytes | None]] | None,
    int | None,
    int,
    OnDelivery | None,
    int,
]
