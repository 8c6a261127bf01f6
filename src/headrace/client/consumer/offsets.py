"""What a consumer commits and is told of offsets, and as whom. Values, no logic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next record to read, and a note of the application's choice.

    `leader_epoch` is that of the last record read, or -1 if it is not known; with it a consumer
    notices that the log was cut off behind its back (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first record at or after a time. `leader_epoch` is -1 if it is not known."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """Who commits offsets for a group: a member in a generation, or with the defaults anybody.

    A coordinator refuses the offsets of a member that has lost its partitions in the meantime.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
