"""The interface between a coordinator shard and the shell that does its I/O."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol, TypeAlias

from headrace.coordinator.deadlines import Deadlines
from headrace.protocol.markers import Marker
from headrace.protocol.schema import Message

# Identifies a waiting request. The shell chooses it; a coordinator only returns it with the reply.
Token: TypeAlias = Hashable
Reply: TypeAlias = tuple[Token, Message]


class CoordinatorRecord(NamedTuple):
    """A record of the coordinator's log; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class RequestClient(NamedTuple):
    """The client id and host of a request's sender, as DescribeGroups shows them.

    `may_see` says whether it may learn of a topic that a pattern matches.
    """

    client_id: str
    host: str
    may_see: Callable[[str], bool] = lambda _: True


NO_PRODUCER = -1


class TransactionalProducer(NamedTuple):
    """The producer whose transaction records are part of, until a marker ends it."""

    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1


class CallTimes:
    """The time of the present call on two clocks.

    `now_ms` is the monotonic clock, for deadlines and durations. `wall_ms` is the time of day, for
    timestamps in records. The shell sets `ahead_ms`, the time of day minus the monotonic clock,
    before a call. Rule: a timestamp from the log is converted to the monotonic clock when it is
    loaded, and only then. So no later jump of the time of day makes anything expire.
    """

    __slots__ = ("ahead_ms", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        self.ahead_ms = 0

    @property
    def wall_ms(self) -> int:
        return self.now_ms + self.ahead_ms

    def steady_ms(self, timestamp_ms: int) -> int:
        """A time of day on the monotonic clock; `now_ms` if it seems to be in the future."""
        return self.now_ms - max(self.wall_ms - timestamp_ms, 0)


class ShardEffects(NamedTuple):
    """The work that a call leaves to the shell, in order: append `records`, then send `replies`.

    Records with a `producer` are part of its transaction. A `marker` is written in place of
    records. Appending may take several batches. Once all records are committed the shell passes the
    effects to `commit`, which replays them and returns the replies to send: those of the effects,
    and others that waited for the records. Without records the replies may be sent at once. If the
    append fails the shard must be discarded, since its soft state is ahead of the log.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    producer: TransactionalProducer = TransactionalProducer()
    marker: Marker | None = None


class Shard(Protocol):
    """The state machine of one partition of a coordinator's topic. Not thread-safe.

    To load: `replay` every record of the partition in order, and `end_transaction` for every
    marker, then `loaded`. From then on `handle` and `tick` return effects, and `commit` returns the
    replies to send once the effects are committed. `now_ms` is always of the monotonic clock;
    `times` has the time of day.
    """

    times: CallTimes
    # The requests that are answered by records, unless they are refused.
    recording_requests: frozenset[type[Message]]

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next call of `tick`; None if no timer runs."""

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER) -> None:
        """Apply a record of the log, which may be part of a producer's transaction."""

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply, or drop, the replayed records of a producer's transaction."""

    def loaded(self, now_ms: int) -> None:
        """End loading."""

    def handle(
        self, request: Message, version: int, token: Token, client: RequestClient, now_ms: int
    ) -> ShardEffects:
        """Handle a request. Its reply may come with the effects of a later call."""
        ...

    def tick(self, now_ms: int) -> ShardEffects:
        """Fire the timers that are due."""
        ...

    def commit(self, effects: ShardEffects, now_ms: int) -> tuple[Reply, ...]:
        """Replay committed effects; return the replies that waited for them."""
        ...

    def cancel(self, token: Token) -> None:
        """Drop a waiting request whose connection is closed."""


class ReplyBuffer:
    """The effects of one call of a shard while it runs; discarded if the call raises."""

    __slots__ = ("producer", "records", "replies")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.replies: list[Reply] = []
        self.producer = TransactionalProducer()

    def reply(self, token: Token, response: Message) -> None:
        self.replies.append((token, response))

    def effects(self) -> ShardEffects:
        """The effects collected so far."""
        return ShardEffects(tuple(self.records), tuple(self.replies), self.producer)


class GroupCall:
    """One call of a group shard: its time, the timers it may move, and the effects it collects.

    The shard gives it to the protocol of a group's type, which has no other way to the shard.
    """

    __slots__ = ("deadlines", "now_ms", "out", "random", "wall_ms")

    def __init__(self, times: CallTimes, deadlines: Deadlines, random: Random) -> None:
        self.now_ms = times.now_ms
        self.wall_ms = times.wall_ms
        self.deadlines = deadlines
        self.random = random
        self.out = ReplyBuffer()

    def reply(self, token: Token, response: Message) -> None:
        self.out.reply(token, response)

    def write_and_reply(
        self, token: Token, records: Iterable[CoordinatorRecord], response: Message
    ) -> ShardEffects:
        """The effects with these records, and a response for when they are committed."""
        self.out.records += records
        self.reply(token, response)
        return self.effects()

    def effects(self) -> ShardEffects:
        """The effects collected so far."""
        return self.out.effects()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The broker's settings for groups, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2_147_483_647
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_interval_ms: int = 600_000
    # The largest record of a group; records of offsets are always short.
    record_bytes_max: int = 1_048_588


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupOptions:
    """The settings of a consumer group, with Kafka's defaults: its own, or else the broker's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    # A target assignment is computed at most this often, for all changes since the last.
    assignment_interval_ms: int = 1_000
    max_size: int = 2_147_483_647
    # The assignors that members may ask for; the first is used if they ask for none.
    assignors: tuple[str, ...] = ("uniform", "range")
    # Whether a group with members may move between the protocols: "upgrade", "downgrade",
    # "bidirectional" or "disabled".
    migration_policy: str = "bidirectional"
    pattern_refresh_interval_ms: int = 600_000


_BYTES_MAX = 32_767


def fits_string(text: str | None) -> bool:
    """Whether the log can store a string: its length must fit in 16 bits.

    Flexible versions of requests can carry longer strings.
    """
    return text is None or 4 * len(text) <= _BYTES_MAX or len(text.encode()) <= _BYTES_MAX
