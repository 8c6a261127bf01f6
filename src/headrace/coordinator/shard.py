"""The values that pass between a coordinator and the shell that drives it, and their bounds."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from headrace.protocol.markers import Marker
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


NO_PRODUCER = -1


class TransactionalProducer(NamedTuple):
    """Whose transaction records belong to, until a marker ends it."""

    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1


class Times:
    """The time of the present call on two clocks.

    `now_ms` is steady: deadlines and durations go by it. `wall_ms` is the time of day, and the only
    one that is written. The shell sets `ahead_ms`, how far the time of day is ahead, before a call.
    Rule: a timestamp from the log becomes a steady time when it is loaded, and only then. So no
    later jump of the time of day makes anything expire.
    """

    __slots__ = ("ahead_ms", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        self.ahead_ms = 0

    @property
    def wall_ms(self) -> int:
        return self.now_ms + self.ahead_ms

    def steady_ms(self, timestamp_ms: int) -> int:
        """When something happened that has a time of day; what seems to be in the future, now."""
        return self.now_ms - max(self.wall_ms - timestamp_ms, 0)


class Effects(NamedTuple):
    """What has to happen after a call, in order: append `records`, then send `replies`.

    Records of a `producer` are part of its transaction. A `marker` is written in place of records.
    Appending may take several batches. Once all records are committed the shell hands the effects
    to `commit`, which replays them and says what to send: these replies, and those the records have
    set free. Without records the replies may go out at once. If the append fails the shard must be
    thrown away, since its soft state is ahead of the log.
    """

    records: tuple[Record, ...] = ()
    replies: tuple[Reply, ...] = ()
    producer: TransactionalProducer = TransactionalProducer()
    marker: Marker | None = None


class Shard(Protocol):
    """What a partition of a coordinator's topic keeps, and decides. Not thread-safe.

    To load: `replay` every record of the partition in order, and `end_transaction` for every
    marker, then `loaded`. From then on `handle` and `tick` return effects, and `commit` says what
    to send once these have taken place. `now_ms` is always steady; `times` knows the time of day.
    """

    times: Times

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has to be called next; None if nothing will ever be due."""

    def replay(self, record: Record, producer_id: int = NO_PRODUCER) -> None:
        """Take over one record of the log, which may be part of a producer's transaction."""

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Take over, or drop, what was replayed of a producer's transaction."""

    def loaded(self, now_ms: int) -> None:
        """End loading."""

    def handle(
        self, request: Message, version: int, token: Token, client: Client, now_ms: int
    ) -> Effects:
        """Decide a request. Its reply may come with a later call's effects."""
        ...

    def tick(self, now_ms: int) -> Effects:
        """Do what is due."""
        ...

    def commit(self, effects: Effects, now_ms: int) -> tuple[Reply, ...]:
        """Replay what is committed; return the replies that waited for it."""
        ...

    def cancel(self, token: Token) -> None:
        """Forget a waiting request whose connection is gone."""


class Outbox:
    """The effects of one call of a shard, as they come; a call that raises takes them along."""

    __slots__ = ("producer", "records", "replies")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.replies: list[Reply] = []
        self.producer = TransactionalProducer()

    def reply(self, token: Token, response: Message) -> None:
        self.replies.append((token, response))

    def effects(self) -> Effects:
        """Everything the call has come to."""
        return Effects(tuple(self.records), tuple(self.replies), self.producer)


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


_BYTES_MAX = 32_767


def fits_string(text: str | None) -> bool:
    """Whether a string can be written to the log, where its length takes 16 bits.

    Flexible versions of requests can carry longer ones.
    """
    return text is None or 4 * len(text) <= _BYTES_MAX or len(text.encode()) <= _BYTES_MAX
