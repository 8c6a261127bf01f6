"""The options of a read: texts under the names of Spark's Kafka source in, checked values out."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.client.options import from_properties
from headrace.client.options_table import hint
from headrace.errors import ConfigError
from headrace.pipelines.source.errors import OptionError
from headrace.pipelines.source.texts import Texts
from headrace.types import TopicPartition

__all__ = [
    "Bound",
    "COLUMNS",
    "EARLIEST",
    "HEADERS",
    "LATEST",
    "Limits",
    "NAMES",
    "Place",
    "ReadOptions",
    "batch_options",
    "read_options",
    "stream_options",
]

# The key of the topics' ids beside the topics themselves. No topic can have this name.
TOPIC_IDS = "#topicIds"

LATEST = -1
EARLIEST = -2

# In Spark's order: the first that is given counts.
STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STRATEGY = "startingOffsetsByTimestampStrategy"

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a partition: an offset, EARLIEST, LATEST, or the first record not before a time.

    Exactly one of the two is set.
    """

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: one place for all partitions, or one for each.

    `latest_if_no_record` is for times: whether the end will do where no record is that young.
    """

    option: str
    everywhere: Place | None = None
    each: Mapping[TopicPartition, Place] | None = None
    latest_if_no_record: bool = False

    def has(self, offset: int) -> bool:
        """Whether it is at EARLIEST or LATEST in any partition."""
        return Place(offset) in (self.everywhere, *(self.each or {}).values())

    def places(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
        """Where it lies in each partition; OptionError if it leaves one out or names another."""
        wanted = list(partitions)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        assert self.each is not None
        missing = [tp for tp in wanted if tp not in self.each]
        if missing:
            what = "a time" if self.option.endswith("Timestamp") else "an offset, -2 or -1"
            raise OptionError(
                f"option {self.option} says nothing of {listed(missing)}; give {what} for every"
                " partition that is read"
            )
        unknown = sorted(set(self.each) - set(wanted))
        if unknown:
            raise OptionError(
                f"option {self.option} names {listed(unknown)}, which is not read or does not"
                " exist; leave it out, or subscribe to it"
            )
        return {tp: self.each[tp] for tp in wanted}


FROM_EARLIEST = Bound("startingOffsets", Place(EARLIEST))
FROM_LATEST = Bound("startingOffsets", Place(LATEST))
TO_LATEST = Bound("endingOffsets", Place(LATEST))


def bound(texts: Texts, names: tuple[str, str, str]) -> Bound | None:
    """The bound that the first of the options says, if one of them is given."""
    name = next((name for name in names if name in texts), None)
    if name is None:
        return None
    # A batch that ends after the last record ends there; only a start can be a mistake.
    fallback = names is ENDING or texts.choice(STRATEGY, ("error", "latest"), "error") == "latest"
    if name.endswith("OffsetsByTimestamp"):
        times = _each(texts, name, '{"topic": {"0": 1700000000000}}', least=0)
        places = {tp: Place(time_ms=time_ms) for tp, time_ms in times.items()}
        return Bound(name, each=places, latest_if_no_record=fallback)
    if name.endswith("Timestamp"):
        time_ms = texts.number(name, "milliseconds since 1970", least=0)
        return Bound(name, Place(time_ms=time_ms), latest_if_no_record=fallback)
    if texts[name].lower() in ("earliest", "latest"):
        return Bound(name, Place(EARLIEST if texts[name].lower() == "earliest" else LATEST))
    form = 'earliest, latest or {"topic": {"0": 23, "1": -2}}'
    offsets = _each(texts, name, form, least=EARLIEST)
    return Bound(name, each={tp: Place(offset) for tp, offset in offsets.items()})


def _each(texts: Texts, name: str, form: str, least: int) -> dict[TopicPartition, int]:
    """The number of each partition, from JSON as {topic: {partition: number}}."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in texts.json(name, form).items():
        if topic == TOPIC_IDS:
            # Copied from the progress of a query together with its offsets.
            continue
        if not isinstance(numbers, dict):
            raise texts.refusal(name, f"write it as {form}")
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int or number < least:
                raise texts.refusal(name, f"write it as {form}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def listed(items: Iterable[object]) -> str:
    """The items in words, a few of them if they are many."""
    texts = [str(item) for item in items]
    more = len(texts) - _NAMED_MAX
    return ", ".join(texts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


# The options of a read: texts under the names of Spark's Kafka source in, checked values out.
#
# Rule: what users write becomes values in `read_options`, and nowhere else.


COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

_KAFKA = "kafka."
_SUBJECTS = ("subscribe", "subscribePattern", "assign")

NAMES = (
    "path",
    *_SUBJECTS,
    *STARTING,
    STRATEGY,
    *ENDING,
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "splitPartitions",
    "failOnDataLoss",
    "recreatedTopics",
    "includeHeaders",
    "columns",
    "groupId",
    "groupOffsets",
    "maxBatchRows",
    "pushFilters",
)

_NO_MEMBER = "a query is a member of no group; groupId names the group to show its progress in"
# What Spark's own source takes or refuses, and what to do here instead.
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


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch may have, and how much it waits for."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How topics are read; `read_options` makes it, and what it holds needs no more checks.

    One of `topics`, `pattern` and `assigned` is set, or none with `path`, which means all topics.
    `client` has a consumer's properties.
    """

    client: Mapping[str, str]
    columns: tuple[str, ...]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    path: str | None = None
    starting: Bound | None = None
    ending: Bound | None = None
    limits: Limits = Limits()
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
        """Where the brokers are, as messages name them."""
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
    """The options of a read that is given these; OptionError says which is wrong and why.

    >>> read_options({"subscribe": "a, b"}).topics
    ('a', 'b')
    >>> read_options({"subscribe": "a", "startingOffset": "earliest"})
    Traceback (most recent call last):
    headrace.pipelines.source.errors.OptionError: unknown option 'startingOffset' of format \
"headrace"; did you mean startingOffsets?
    """
    for name in given:
        if name.lower() in _REFUSED:
            raise OptionError(f"option {name} is not for reading: {_REFUSED[name.lower()]}")
    own = {name: text for name, text in given.items() if not name.lower().startswith(_KAFKA)}
    texts = Texts(own, NAMES)
    starting = bound(texts, STARTING)
    return ReadOptions(
        client=_client(given),
        columns=_columns(texts),
        **_subject(texts),
        path=texts.get("path"),
        starting=starting,
        ending=bound(texts, ENDING),
        limits=_limits(texts),
        min_partitions=texts.number("minPartitions"),
        max_records_per_partition=texts.number("maxRecordsPerPartition"),
        split_partitions=texts.flag("splitPartitions", default=True),
        fail_on_data_loss=texts.flag("failOnDataLoss", default=True),
        recreated_topics=_recreated_topics(texts),
        group=texts.get("groupId") or None,
        group_offsets=_group_offsets(texts, starting),
        max_batch_rows=texts.number("maxBatchRows") or 10_000,
        # Spark 4.3 keeps what filters left for every other use of the same DataFrame.
        push_filters=texts.flag("pushFilters", default=False),
    )


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read, which cannot begin at the end or end at the beginning."""
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
    """The options of a stream, which has no end."""
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
        from_properties(properties, "consumer")
    except ConfigError as error:
        raise OptionError(f"{error} (an option that begins with {_KAFKA})") from None
    return properties


def _subject(texts: Texts) -> dict[str, Any]:
    """Which topics are read, as the one field of ReadOptions that says so.

    A data directory may say it too: then it is all topics in there.
    """
    named = [name for name in _SUBJECTS if name in texts]
    if len(named) > 1 or not (named or "path" in texts):
        found = " and ".join(named) or "none of them"
        raise OptionError(f"give exactly one of {', '.join(_SUBJECTS)}; found {found}")
    empty = [name for name in (*named, "path") if not texts.get(name, "-").strip(", ")]
    if empty:
        raise OptionError(f"option {empty[0]} is empty; say what to read")
    match named:
        case ["subscribe"]:
            return {"topics": tuple(dict.fromkeys(texts.names("subscribe")))}
        case ["subscribePattern"]:
            return {"pattern": _pattern(texts)}
        case ["assign"]:
            return {"assigned": _assigned(texts)}
    return {}


def _pattern(texts: Texts) -> str:
    text = texts["subscribePattern"]
    try:
        re.compile(text)
    except re.error as error:
        raise texts.refusal(
            "subscribePattern", f"{error}; give a regular expression for whole topic names"
        ) from None
    return text


def _assigned(texts: Texts) -> tuple[TopicPartition, ...]:
    form = '{"topic": [0, 1]}'
    found = []
    for topic, numbers in texts.json("assign", form).items():
        whole = isinstance(numbers, list) and all(
            type(number) is int and number >= 0 for number in numbers
        )
        if not whole:
            raise texts.refusal("assign", f"write it as {form}")
        found += [TopicPartition(topic, number) for number in numbers]
    if not found:
        raise texts.refusal("assign", f"name a partition, as in {form}")
    return tuple(dict.fromkeys(found))


def _columns(texts: Texts) -> tuple[str, ...]:
    headers = (HEADERS,) if texts.flag("includeHeaders", default=False) else ()
    if "columns" not in texts:
        return COLUMNS + headers
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    found: list[str] = []
    for name in texts.names("columns"):
        if name.lower() not in known:
            near = hint(name, known.values()) or f"; there are {', '.join(known.values())}"
            raise OptionError(f"option columns names {name!r}, which is no column{near}")
        found.append(known[name.lower()])
    if not found:
        raise texts.refusal("columns", f"name some of {', '.join(known.values())}")
    return tuple(dict.fromkeys((*found, *headers)))


def _limits(texts: Texts) -> Limits:
    most, least = texts.number("maxOffsetsPerTrigger"), texts.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"option minOffsetsPerTrigger ({least}) is more than maxOffsetsPerTrigger ({most});"
            " lower it, or raise that"
        )
    if "maxTriggerDelay" in texts and least is None:
        raise OptionError(
            "option maxTriggerDelay is how long to wait for minOffsetsPerTrigger; give that too"
        )
    delay_ms = texts.duration_ms("maxTriggerDelay", "15m")
    return Limits(most, texts.number("maxBytesPerTrigger"), least, delay_ms)


def _recreated_topics(texts: Texts) -> Literal["fail", "earliest"]:
    chosen = texts.choice("recreatedTopics", ("fail", "earliest"), "fail")
    return "earliest" if chosen == "earliest" else "fail"


def _group_offsets(texts: Texts, starting: Bound | None) -> Literal["start", "ignore"]:
    if "groupOffsets" in texts and "groupId" not in texts:
        raise OptionError("option groupOffsets tells how to use groupId; give that too")
    default = "start" if "groupId" in texts and starting is None else "ignore"
    chosen = texts.choice("groupOffsets", ("start", "ignore"), default)
    return "start" if chosen == "start" else "ignore"
