"""Options of the data source for reads, with the names of Spark's Kafka source.

Rule: option texts are converted to values in `read_options`, and nowhere else.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.client.options import from_properties
from headrace.client.property_files import resolved_properties
from headrace.errors import ConfigError
from headrace.options import (
    Bool,
    Custom,
    Duration,
    Given,
    Json,
    ListOf,
    Long,
    Option,
    OptionTable,
    Text,
    one_of,
    suggestion,
)
from headrace.pipelines.datasource.errors import OptionError
from headrace.types import TopicPartition

__all__ = [
    "Bound",
    "COLUMNS",
    "EARLIEST",
    "HEADERS",
    "LATEST",
    "MicroBatchLimits",
    "NAMES",
    "BoundOffset",
    "READ_OPTIONS",
    "ReadOptions",
    "batch_options",
    "read_options",
    "stream_options",
]

# The key of the topic ids beside the topics themselves. No topic can have this name.
TOPIC_IDS = "#topicIds"

LATEST = -1
EARLIEST = -2

# In Spark's order of precedence.
STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STRATEGY = "startingOffsetsByTimestampStrategy"

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class BoundOffset:
    """A position in a partition: an offset, EARLIEST, LATEST, or the first record not before a
    time.

    Exactly one of the two fields is set.
    """

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or the end of a read: the same for all partitions, or one for each.

    `latest_if_no_record` is for times: whether to use the end if every record is older.
    """

    option: str
    everywhere: BoundOffset | None = None
    each: Mapping[TopicPartition, BoundOffset] | None = None
    latest_if_no_record: bool = False

    def has(self, offset: int) -> bool:
        """Whether the bound is EARLIEST or LATEST (`offset`) in any partition."""
        return BoundOffset(offset) in (self.everywhere, *(self.each or {}).values())

    def places(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BoundOffset]:
        """The bound of each partition; OptionError for a missing or an additional partition."""
        wanted = list(partitions)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        assert self.each is not None
        missing = [tp for tp in wanted if tp not in self.each]
        if missing:
            needed = "a time" if self.option.endswith("Timestamp") else "an offset, -2 or -1"
            raise OptionError(
                f"option {self.option} says nothing of {listed(missing)}; give {needed} for every"
                " partition that is read"
            )
        unknown = sorted(set(self.each) - set(wanted))
        if unknown:
            raise OptionError(
                f"option {self.option} names {listed(unknown)}, which is not read or does not"
                " exist; leave it out, or subscribe to it"
            )
        return {tp: self.each[tp] for tp in wanted}


FROM_EARLIEST = Bound("startingOffsets", BoundOffset(EARLIEST))
FROM_LATEST = Bound("startingOffsets", BoundOffset(LATEST))
TO_LATEST = Bound("endingOffsets", BoundOffset(LATEST))


_OFFSETS_FORM = 'earliest, latest or {"topic": {"0": 23, "1": -2}}'
_TIMES_FORM = '{"topic": {"0": 1700000000000}}'
_ASSIGN_FORM = '{"topic": [0, 1]}'


def bound(given: Given, names: tuple[str, str, str]) -> Bound | None:
    """The bound from the first given option of `names`, or None."""
    name = next((name for name in names if name in given.names), None)
    if name is None:
        return None
    value = given.values[name]
    # The end of a batch may be later than its last record; only a start can be a mistake.
    fallback = names is ENDING or given.values[STRATEGY] == "latest"
    if name.endswith("OffsetsByTimestamp"):
        places = {tp: BoundOffset(time_ms=time_ms) for tp, time_ms in value.items()}
        return Bound(name, each=places, latest_if_no_record=fallback)
    if name.endswith("Timestamp"):
        return Bound(name, BoundOffset(time_ms=value), latest_if_no_record=fallback)
    if isinstance(value, BoundOffset):
        return Bound(name, value)
    return Bound(name, each={tp: BoundOffset(offset) for tp, offset in value.items()})


def _offsets(text: str) -> BoundOffset | dict[TopicPartition, int]:
    """EARLIEST or LATEST for all partitions, or an offset for each."""
    match text.lower():
        case "earliest":
            return BoundOffset(EARLIEST)
        case "latest":
            return BoundOffset(LATEST)
    json = Json(_OFFSETS_FORM)
    return _numbers(json.check(json.parse(text)), _OFFSETS_FORM, least=EARLIEST)


def _times(topics: dict[str, Any]) -> dict[TopicPartition, int]:
    return _numbers(topics, _TIMES_FORM, least=0)


def _numbers(topics: dict[str, Any], form: str, least: int) -> dict[TopicPartition, int]:
    """The number of each partition, from {topic: {partition: number}}."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in topics.items():
        if topic == TOPIC_IDS:
            # The topic ids, copied together with the offsets from the progress of a query.
            continue
        if not isinstance(numbers, dict):
            raise ValueError(f"write it as {form}")
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int or number < least:
                raise ValueError(f"write it as {form}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{error}; give a regular expression for whole topic names") from None
    return text


def _assigned(topics: dict[str, Any]) -> tuple[TopicPartition, ...]:
    found = []
    for topic, numbers in topics.items():
        whole = isinstance(numbers, list) and all(
            type(number) is int and number >= 0 for number in numbers
        )
        if not whole:
            raise ValueError(f"write it as {_ASSIGN_FORM}")
        found += [TopicPartition(topic, number) for number in numbers]
    return tuple(dict.fromkeys(found))


def _columns(names: tuple[str, ...]) -> tuple[str, ...]:
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    if not names:
        raise ValueError(f"name some of {', '.join(known.values())}")
    for name in names:
        if name.lower() not in known:
            hint = suggestion(name, known.values()) or f"; there are {', '.join(known.values())}"
            raise ValueError(f"{name!r} is no column{hint}")
    return tuple(dict.fromkeys(known[name.lower()] for name in names))


def listed(items: Iterable[object]) -> str:
    """The items in words; of many only a few."""
    texts = [str(item) for item in items]
    more = len(texts) - _NAMED_MAX
    return ", ".join(texts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

_KAFKA = "kafka."
_SUBJECTS = ("subscribe", "subscribePattern", "assign")

_NO_MEMBER = "a query is a member of no group; groupId names the group to show its progress in"
# Options that Spark's own source accepts or refuses, with advice.
_REFUSED = {
    "groupidprefix": _NO_MEMBER,
    "kafka.group.id": _NO_MEMBER,
    "kafka.group.instance.id": _NO_MEMBER,
    "kafka.auto.offset.reset": "say where to start with startingOffsets",
    "kafka.enable.auto.commit": "the checkpoint has the position; groupId shows it to brokers",
    "kafka.auto.commit.interval.ms": "with groupId the position is shown after each batch",
    "kafka.key.deserializer": "keys are bytes; decode them with DataFrame operations",
    "kafka.value.deserializer": "values are bytes; decode them with DataFrame operations",
    "kafka.interceptor.classes": "it names Java classes; use DataFrame operations",
    "kafka.partition.assignment.strategy": "Spark shares partitions out; see minPartitions",
    "kafkaconsumer.polltimeoutms": "how long to wait for a broker is kafka.request.timeout.ms",
    "fetchoffset.numretries": "how long to ask for offsets is kafka.request.timeout.ms",
    "fetchoffset.retryintervalms": "the pause between retries is kafka.retry.backoff.ms",
    "topic": "it belongs to writing; name the topics to read with subscribe",
}

_NAME_LIST = ListOf(may_be_empty=True, may_repeat=True, skip_empty_items=True)
_TIME = Long(0, unit="milliseconds since 1970")

READ_OPTIONS = OptionTable(
    (
        Option(
            name="path",
            type=Text(),
            default=None,
            doc="The data directory of a broker, for a [direct scan](#direct-scan).",
        ),
        Option(
            name="encryptionKeySource",
            type=Text(),
            default="",
            doc="The keys of encrypted topics, for a direct scan: `file:PATH`, `env:NAME` or"
            " `command:PROGRAM ARGUMENTS`, as every worker finds them. See"
            " [encrypted topics](#encrypted-topics).",
        ),
        Option(name="subscribe", type=_NAME_LIST, default=None, doc="Topics, with commas."),
        Option(
            name="subscribePattern",
            type=Custom("a regular expression for whole topic names", _pattern),
            default=None,
            doc="A regular expression, as Python writes them, that matches whole topic names.",
        ),
        Option(
            name="assign",
            type=Json(_ASSIGN_FORM),
            default=None,
            convert=_assigned,
            doc='Partitions: `{"orders": [0, 1]}`. Exactly one of these three, unless there is a'
            " `path`.",
        ),
        Option(
            name="startingOffsets",
            type=Custom(_OFFSETS_FORM, _offsets),
            default=None,
            default_text="batch `earliest`, stream `latest`",
            doc="`earliest`, `latest`, or an offset for every partition:"
            ' `{"orders": {"0": 23, "1": -2}}`, where -2 is the earliest and -1 the latest.',
        ),
        Option(
            name="startingTimestamp",
            type=_TIME,
            default=None,
            doc="The first record at or after a time, in milliseconds since 1970. Wins over"
            " `startingOffsetsByTimestamp`, which wins over `startingOffsets`.",
        ),
        Option(
            name="startingOffsetsByTimestamp",
            type=Json(_TIMES_FORM),
            default=None,
            convert=_times,
            doc='The same for each partition: `{"orders": {"0": 1767225600000}}`.',
        ),
        Option(
            name=STRATEGY,
            type=one_of("error", "latest", fold_case=True),
            default="error",
            doc="Where no record is that young: `error`, or `latest`.",
        ),
        Option(
            name="endingOffsets",
            type=Custom(_OFFSETS_FORM, _offsets),
            default=None,
            default_text="`latest`",
            doc="Where a batch ends, not included.",
        ),
        Option(
            name="endingTimestamp",
            type=_TIME,
            default=None,
            doc="The same as a time; wins over `endingOffsetsByTimestamp`, which wins over"
            " `endingOffsets`.",
        ),
        Option(
            name="endingOffsetsByTimestamp",
            type=Json(_TIMES_FORM),
            default=None,
            convert=_times,
            doc="The same as a time for each partition.",
        ),
        Option(
            name="maxOffsetsPerTrigger",
            type=Long(1),
            default=None,
            doc="The most offsets a micro-batch has. See [limits](#limits).",
        ),
        Option(
            name="maxBytesPerTrigger",
            type=Long(1),
            default=None,
            doc="The most bytes it has, as they are stored; an estimate.",
        ),
        Option(
            name="minOffsetsPerTrigger",
            type=Long(1),
            default=None,
            doc="A micro-batch waits for so many offsets,",
        ),
        Option(
            name="maxTriggerDelay",
            type=Duration(),
            default="15m",
            doc="but not longer than this after the last one.",
        ),
        Option(
            name="minPartitions",
            type=Long(1),
            default=None,
            doc="The least number of tasks. See [splits](#splits).",
        ),
        Option(
            name="maxRecordsPerPartition",
            type=Long(1),
            default=None,
            doc="The most offsets one task reads.",
        ),
        Option(
            name="splitPartitions",
            type=Bool(),
            default=True,
            doc="With `false` one task reads all of a partition's share, whatever else is asked"
            " for.",
        ),
        Option(
            name="failOnDataLoss",
            type=Bool(),
            default=True,
            doc="Whether records that are gone before they were read end the query. See"
            " [losses](#losses).",
        ),
        Option(
            name="recreatedTopics",
            type=one_of("fail", "earliest", fold_case=True),
            default="fail",
            doc="Whether a topic that was deleted and created again ends the query, or with"
            " `earliest` is read from its beginning. See [losses](#losses).",
        ),
        Option(
            name="includeHeaders",
            type=Bool(),
            default=False,
            doc="Whether there is a column `headers`.",
        ),
        Option(
            name="columns",
            type=_NAME_LIST,
            default=None,
            default_text="all but `headers`",
            convert=_columns,
            doc="The columns wanted, with commas, in their order.",
        ),
        Option(
            name="groupId",
            type=Text(optional=True),
            default=None,
            doc="The consumer group that shows the progress of a stream. See [groups](#groups).",
        ),
        Option(
            name="groupOffsets",
            type=one_of("start", "ignore", fold_case=True),
            default=None,
            doc="`start` or `ignore`: whether a stream starts where the group is.",
        ),
        # Off by default, because Spark 4.3 reuses the filtered rows for every other use of the same
        # DataFrame.
        Option(
            name="pushFilters",
            type=Bool(),
            default=False,
            doc="Whether a batch leaves out what [filters](#filters) do.",
        ),
        Option(
            name="maxBatchRows",
            type=Long(1),
            default=10_000,
            doc="The most rows handed to Spark at once.",
        ),
    ),
    owner='format "headrace"',
    refused=_REFUSED,
    refused_as="is not for reading",
    docs="docs/spark.md",
    error=OptionError,
    label="option ",
)
NAMES = tuple(READ_OPTIONS)


@dataclass(frozen=True, slots=True)
class MicroBatchLimits:
    """Limits of a micro-batch: its most offsets and bytes, and its least offsets."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Checked options of a read, made by `read_options`.

    One of `topics`, `pattern` and `assigned` is set, or none with `path`, which means all topics.
    `client` has a consumer's properties, with references in place of secrets that are kept
    elsewhere: Spark takes these options to every task, and only a connection needs the secrets.
    """

    client: Mapping[str, str] = field(repr=False)
    columns: tuple[str, ...]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    path: str | None = None
    encryption_key_source: str = ""
    starting: Bound | None = None
    ending: Bound | None = None
    limits: MicroBatchLimits = MicroBatchLimits()
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    split_partitions: bool = True
    fail_on_data_loss: bool = True
    recreated_topics: Literal["fail", "earliest"] = "fail"
    group: str | None = None
    group_offsets: Literal["start", "ignore"] = "ignore"
    max_batch_rows: int = 10_000
    push_filters: bool = False

    @property
    def servers(self) -> str:
        """The addresses of the brokers, for messages."""
        return self.client.get("bootstrap.servers", "the default broker")

    @property
    def fail_on_recreated_topics(self) -> bool:
        """Whether a topic that was deleted and created again ends the query."""
        return self.fail_on_data_loss and self.recreated_topics == "fail"

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return self.client["isolation.level"] == "read_committed"


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The checked options of a read; OptionError names the invalid option and the reason.

    >>> read_options({"subscribe": "a, b"}).topics
    ('a', 'b')
    >>> read_options({"subscribe": "a", "startingOffset": "earliest"})
    Traceback (most recent call last):
    headrace.pipelines.datasource.errors.OptionError: unknown option 'startingOffset' of format \
"headrace"; did you mean startingOffsets?
    """
    for name in given:
        READ_OPTIONS.refuse(name)
    texts = {name: text for name, text in given.items() if not name.lower().startswith(_KAFKA)}
    own = READ_OPTIONS.parse(texts, fold_case=True)
    values = own.values
    starting = bound(own, STARTING)
    headers = (HEADERS,) if values["includeHeaders"] else ()
    return ReadOptions(
        client=_client(given),
        columns=tuple(dict.fromkeys((*(values["columns"] or COLUMNS), *headers))),
        **_subject(own),
        path=values["path"],
        encryption_key_source=values["encryptionKeySource"],
        starting=starting,
        ending=bound(own, ENDING),
        limits=_limits(own),
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        split_partitions=values["splitPartitions"],
        fail_on_data_loss=values["failOnDataLoss"],
        recreated_topics=values["recreatedTopics"],
        group=values["groupId"],
        group_offsets=_group_offsets(own, starting),
        max_batch_rows=values["maxBatchRows"],
        push_filters=values["pushFilters"],
    )


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read, which cannot begin at LATEST or end at EARLIEST."""
    options = read_options(given)
    for edge, offset, word, other in (
        (options.starting, LATEST, "latest", "earliest"),
        (options.ending, EARLIEST, "earliest", "latest"),
    ):
        if edge is not None and edge.has(offset):
            raise OptionError(
                f"option {edge.option} of a batch read cannot be {word} ({offset}), where it would"
                f" read nothing; use {other}, an offset, or spark.readStream"
            )
    return options


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a streaming read, which has no end."""
    options = read_options(given)
    if options.ending is not None:
        raise OptionError(
            f"option {options.ending.option} is not for streams, which do not end; use"
            " trigger(availableNow=True) to stop at what is there now, or spark.read"
        )
    if options.path is not None:
        raise OptionError("option path is not for streams; use spark.read, or subscribe to topics")
    return options


def _client(given: Mapping[str, str]) -> dict[str, str]:
    properties = {
        name.lower().removeprefix(_KAFKA): text.strip()
        for name, text in given.items()
        if name.lower().startswith(_KAFKA)
    }
    properties.setdefault("isolation.level", "read_committed")
    try:
        from_properties(resolved_properties(properties), "consumer")
    except ConfigError as error:
        raise OptionError(f"{error} (an option that begins with {_KAFKA})") from None
    return properties


def _subject(given: Given) -> dict[str, Any]:
    """The topics to read, as the one field of ReadOptions for them.

    A data directory alone means all topics in it.
    """
    values, names = given
    named = [name for name in _SUBJECTS if name in names]
    if len(named) > 1 or not (named or "path" in names):
        found = " and ".join(named) or "none of them"
        raise OptionError(f"give exactly one of {', '.join(_SUBJECTS)}; found {found}")
    for name in ("subscribe", "subscribePattern", "path"):
        if name in names and not "".join(values[name]).strip(", "):
            raise OptionError(f"option {name} is empty; say what to read")
    match named:
        case ["subscribe"]:
            return {"topics": tuple(dict.fromkeys(values["subscribe"]))}
        case ["subscribePattern"]:
            return {"pattern": values["subscribePattern"]}
        case ["assign"]:
            if not values["assign"]:
                raise OptionError(f"option assign is empty; name a partition, as in {_ASSIGN_FORM}")
            return {"assigned": values["assign"]}
    return {}


def _limits(given: Given) -> MicroBatchLimits:
    most, least = given.values["maxOffsetsPerTrigger"], given.values["minOffsetsPerTrigger"]
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"option minOffsetsPerTrigger ({least}) is more than maxOffsetsPerTrigger ({most});"
            " lower it, or raise that"
        )
    if "maxTriggerDelay" in given.names and least is None:
        raise OptionError(
            "option maxTriggerDelay is how long to wait for minOffsetsPerTrigger; give that too"
        )
    return MicroBatchLimits(
        most, given.values["maxBytesPerTrigger"], least, given.values["maxTriggerDelay"]
    )


def _group_offsets(given: Given, starting: Bound | None) -> Literal["start", "ignore"]:
    if "groupOffsets" in given.names and "groupId" not in given.names:
        raise OptionError("option groupOffsets tells how to use groupId; give that too")
    default = "start" if "groupId" in given.names and starting is None else "ignore"
    chosen = given.values["groupOffsets"] or default
    return "start" if chosen == "start" else "ignore"
