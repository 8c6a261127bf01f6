"""The values that pass between a coordinator and the shell that drives it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.protocol.schema import Message

# Names a waiting request. It is the shell's; a coordinator only keeps it and gives it back.
Token: TypeAlias = Hashable
Reply: TypeAlias = tuple[Token, Message]


class Record(NamedTuple):
    """One record of the coordinator's log; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Client(NamedTuple):
    """Who sent a request, as groups are described with it."""

    client_id: str
    host: str


class Effects(NamedTuple):
    """What has to happen after a call, in order: append `records`, then send `replies`.

    Appending may take several batches. Once all records are committed the shell hands the effects
    to `commit`, which replays them and says what to send: these replies, and those the records have
    set free. Without records the replies may go out at once. If the append fails the shard must be
    thrown away, since its soft state is ahead of the log.
    """

    records: tuple[Record, ...] = ()
    replies: tuple[Reply, ...] = ()


class Outbox:
    """Where a call collects its effects."""

    __slots__ = ("records", "replies")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.replies: list[Reply] = []

    def reply(self, token: Token, response: Message) -> None:
        self.replies.append((token, response))

    def take(self) -> Effects:
        """Everything collected since the last call."""
        effects = Effects(tuple(self.records), tuple(self.replies))
        self.records.clear()
        self.replies.clear()
        return effects


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The broker's settings that groups follow, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2_147_483_647
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_interval_ms: int = 600_000
    # The largest record of a group; those of offsets are short anyway.
    record_bytes_max: int = 1_048_588
