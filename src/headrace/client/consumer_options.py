"""Options of a consumer: group, start offsets, fetches, commits, deserializers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import Any, Literal, TypeAlias

from headrace.client.common_options import (
    CommonConfig,
    CommonOptions,
    client_table,
    settle_common,
)
from headrace.client.serializers import DESERIALIZERS, Deserializer
from headrace.errors import ConfigError
from headrace.options import Bool, Custom, Int, ListOf, OneOf, Text, option

# The policies of `auto_offset_reset`: where to start in a partition without a committed offset.
#
# Besides Kafka's earliest, latest, none and by_duration there is a point in time.


ALLOWED = (
    '"earliest", "latest", "none", "by_duration:PT1H" (any ISO 8601 duration), a datetime, '
    'ISO 8601 text such as "2026-01-31T12:00:00Z", or milliseconds since the epoch'
)

# The timestamps by which ListOffsets names the two ends of a log.
EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1

_BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?\Z",
    re.IGNORECASE,
)


class ResetPolicy(Enum):
    """The ways to choose an offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A reset policy, with the duration or the time in milliseconds that two of them have."""

    policy: ResetPolicy
    ms: int = 0

    def timestamp(self, now_ms: int) -> int | None:
        """The timestamp for ListOffsets; None if the application gets an error instead."""
        match self.policy:
            case ResetPolicy.EARLIEST:
                return EARLIEST_TIMESTAMP
            case ResetPolicy.LATEST:
                return LATEST_TIMESTAMP
            case ResetPolicy.NONE:
                return None
            case ResetPolicy.BY_DURATION:
                return max(0, now_ms - self.ms)
            case ResetPolicy.TIMESTAMP:
                return self.ms


def parse_reset(value: Any) -> OffsetReset:
    """The policy for an option's value; ValueError for an invalid value."""
    match value:
        case OffsetReset():
            return value
        case bool():
            raise ValueError
        case int() if value >= 0:
            return OffsetReset(ResetPolicy.TIMESTAMP, value)
        case datetime():
            return OffsetReset(ResetPolicy.TIMESTAMP, _epoch_ms(value))
        case "earliest" | "latest" | "none":
            return OffsetReset(ResetPolicy(value))
        case str() if value.startswith(_BY_DURATION):
            return OffsetReset(ResetPolicy.BY_DURATION, _duration_ms(value[len(_BY_DURATION) :]))
        case str() if value.isascii() and value.isdigit():
            return OffsetReset(ResetPolicy.TIMESTAMP, int(value))
        case str():
            return OffsetReset(ResetPolicy.TIMESTAMP, _epoch_ms(_parse_time(value)))
    raise ValueError


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError from None


def _epoch_ms(when: datetime) -> int:
    # A time without a zone would mean another instant on another machine.
    if when.tzinfo is None:
        raise ValueError("the time needs a zone: end it in Z, or give the datetime a tzinfo")
    since = when.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    milliseconds = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if milliseconds < 0:
        raise ValueError("the time lies before 1970")
    return milliseconds


def _duration_ms(text: str) -> int:
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no ISO 8601 duration; write P7D, PT1H30M or PT0.5S")
    whole, _, fraction = (match["seconds"] or "0").partition(".")
    minutes = (int(match["days"] or 0) * 24 + int(match["hours"] or 0)) * 60
    seconds = (minutes + int(match["minutes"] or 0)) * 60 + int(whole)
    return seconds * 1000 + int(fraction[:3].ljust(3, "0"))


DeserializerName: TypeAlias = Literal["string", "json"]
AssignorName: TypeAlias = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]

ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")

_ASSIGNOR_SYNONYMS = {
    "round_robin": "roundrobin",
    "cooperative_sticky": "cooperative-sticky",
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}

_DESERIALIZERS = OneOf(
    DESERIALIZERS,
    otherwise="a function that takes bytes and returns the value",
    takes_callable=True,
)


class IsolationLevel(IntEnum):
    """Whether records of open and aborted transactions are read; the numbers are Fetch's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(CommonOptions):
    """The checked options of a consumer, as `consumer_options` makes them."""

    group_id: str | None = option(
        Text(optional=True),
        None,
        kafka="group.id",
        doc="The group whose members share the partitions and the committed offsets. Without one"
        " the consumer reads alone, is given its partitions with `assign`, or all of the topics it"
        " subscribes to, and commits nothing.",
    )
    group_instance_id: str | None = option(
        Text(optional=True),
        None,
        kafka="group.instance.id",
        doc="A name that outlives the process (static membership): a member that is back within"
        " `session_timeout_ms` keeps its partitions, and nobody else notices.",
    )
    auto_offset_reset: OffsetReset = option(
        Custom(ALLOWED, parse_reset),
        "latest",
        kafka="auto.offset.reset",
        doc="Where to start in a partition without a committed offset, or whose committed offset"
        ' is gone. "none" raises `NoOffset`. With a duration or a time it is the first record at or'
        " after that point, or the end of the partition.",
    )
    enable_auto_commit: bool = option(
        Bool(),
        True,
        kafka="enable.auto.commit",
        doc="Commit the offsets of records the application is done with, every"
        " `auto_commit_interval_ms`, at a rebalance and on `close`. Off without a group.",
    )
    auto_commit_interval_ms: int = option(
        Int(1),
        5000,
        kafka="auto.commit.interval.ms",
        doc="How often offsets are committed by themselves.",
    )
    max_poll_records: int = option(
        Int(1),
        500,
        kafka="max.poll.records",
        doc="The most records one `poll` returns. What was fetched beyond that is kept for the"
        " next one.",
    )
    fetch_min_bytes: int = option(
        Int(0),
        1,
        kafka="fetch.min.bytes",
        doc="A broker waits until it has so many bytes, or `fetch_max_wait_ms` have passed, before"
        " it answers a fetch.",
    )
    fetch_max_wait_ms: int = option(
        Int(0),
        500,
        kafka="fetch.max.wait.ms",
        doc="How long a broker waits for `fetch_min_bytes`. It must be less than"
        " `request_timeout_ms`.",
    )
    fetch_max_bytes: int = option(
        Int(1),
        52_428_800,
        kafka="fetch.max.bytes",
        doc="The most bytes that are fetched and not polled yet, in all. A larger batch still comes"
        " through, alone.",
    )
    max_partition_fetch_bytes: int = option(
        Int(1),
        1_048_576,
        kafka="max.partition.fetch.bytes",
        doc="The most bytes one fetch brings from one partition, of which two such chunks may wait."
        " A larger batch still comes through, alone.",
    )
    isolation_level: IsolationLevel = option(
        OneOf({level.name.lower(): level for level in IsolationLevel}),
        "read_uncommitted",
        kafka="isolation.level",
        doc='"read_committed" leaves out records of aborted transactions, and waits for the end of'
        " open ones.",
    )
    session_timeout_ms: int = option(
        Int(1),
        45_000,
        kafka="session.timeout.ms",
        doc="A member that sends no heartbeat for so long is dead to its group. The broker's"
        " `group.min.session.timeout.ms` and `group.max.session.timeout.ms` bound it.",
    )
    heartbeat_interval_ms: int = option(
        Int(1),
        3000,
        kafka="heartbeat.interval.ms",
        doc="How often a heartbeat is sent, whatever the application does. It must be less than"
        " `session_timeout_ms`; a third of it is usual.",
    )
    max_poll_interval_ms: int = option(
        Int(1),
        300_000,
        kafka="max.poll.interval.ms",
        doc="An application that does not call `poll` for so long is stuck: the consumer leaves the"
        " group, and others take its partitions.",
    )
    partition_assignment_strategy: tuple[str, ...] = option(
        ListOf(ASSIGNORS, _ASSIGNOR_SYNONYMS),
        ("range", "cooperative-sticky"),
        kafka="partition.assignment.strategy",
        doc="How the group's partitions are shared out, best first. All members must have one in"
        " common.",
    )
    check_crcs: bool = option(
        Bool(),
        True,
        kafka="check.crcs",
        doc="Whether the checksum of every batch is checked. It costs little.",
    )
    consumer_timeout_ms: int | None = option(
        Int(0, optional=True),
        None,
        kafka="",
        default_text="none: iteration waits for ever",
        doc="`for record in consumer` ends when no record has come for so long.",
    )
    exclude_internal_topics: bool = option(
        Bool(),
        True,
        kafka="exclude.internal.topics",
        doc="Whether a pattern leaves out the cluster's own topics, such as `__consumer_offsets`.",
    )
    allow_auto_create_topics: bool = option(
        Bool(),
        True,
        kafka="allow.auto.create.topics",
        doc="Whether a topic that is subscribed to may be created if it does not exist and the"
        " broker creates topics by itself.",
    )
    key_deserializer: Deserializer | None = option(
        _DESERIALIZERS,
        None,
        kafka="key.deserializer",
        doc="Makes values of keys; without one they are bytes. A key of None is never passed to"
        " it.",
    )
    value_deserializer: Deserializer | None = option(
        _DESERIALIZERS,
        None,
        kafka="value.deserializer",
        doc="Makes values of values; without one they are bytes. A value of None (a tombstone) is"
        " never passed to it.",
    )
    client_rack: str = option(
        Text(),
        "",
        kafka="client.rack",
        doc="The rack or zone of this client. Brokers with a `replica.selector.class` let it read"
        " from a replica in the same rack, if there is one.",
    )


class ConsumerConfig(CommonConfig, total=False):
    """The keyword arguments of a consumer."""

    group_id: str | None
    group_instance_id: str | None
    auto_offset_reset: str | int | datetime
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    isolation_level: Literal["read_uncommitted", "read_committed"]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Sequence[AssignorName]
    check_crcs: bool
    consumer_timeout_ms: int | None
    exclude_internal_topics: bool
    allow_auto_create_topics: bool
    key_deserializer: DeserializerName | Deserializer | None
    value_deserializer: DeserializerName | Deserializer | None
    client_rack: str


CONSUMER_OPTIONS = client_table("Consumer", ConsumerOptions)


def settled_consumer_options(given: dict[str, Any]) -> ConsumerOptions:
    """The checked options of a consumer; ConfigError names the invalid option and the reason."""
    values, names = CONSUMER_OPTIONS.check(given)
    group_id = values["group_id"]
    settle_common(values, names, f"consumer-{group_id}" if group_id else "consumer")
    _settle_group(values, names)
    _settle_heartbeat(values, names)
    _settle_fetch_wait(values, names)
    return ConsumerOptions(**values)


def _settle_group(values: dict[str, Any], given: set[str]) -> None:
    if values["group_id"] is not None:
        return
    if values["group_instance_id"] is not None:
        raise ConfigError("group_instance_id names a member of a group; give group_id too")
    if values["enable_auto_commit"] and "enable_auto_commit" in given:
        raise ConfigError(
            "enable_auto_commit=True commits offsets for a group; give group_id too, or leave it"
            " out"
        )
    values["enable_auto_commit"] = False


def _settle_heartbeat(values: dict[str, Any], given: set[str]) -> None:
    heartbeat_ms, session_ms = values["heartbeat_interval_ms"], values["session_timeout_ms"]
    if heartbeat_ms < session_ms:
        return
    if "heartbeat_interval_ms" not in given and session_ms > 1:
        values["heartbeat_interval_ms"] = max(1, session_ms // 3)
        return
    raise ConfigError(
        f"heartbeat_interval_ms ({heartbeat_ms}) must be less than session_timeout_ms"
        f" ({session_ms}); a third of it is usual"
    )


def _settle_fetch_wait(values: dict[str, Any], given: set[str]) -> None:
    wait_ms, request_ms = values["fetch_max_wait_ms"], values["request_timeout_ms"]
    if wait_ms < request_ms:
        return
    if "fetch_max_wait_ms" not in given:
        values["fetch_max_wait_ms"] = request_ms // 2
        return
    raise ConfigError(
        f"fetch_max_wait_ms ({wait_ms}) must be less than request_timeout_ms ({request_ms}), or"
        " every fetch of a quiet partition times out; lower it, or raise that"
    )
