"""The options of a read: texts under the names of Spark's Kafka source in, checked values out.

Rule: what users write becomes values in `read_options`, and nowhere else.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.client.options import from_properties
from headrace.client.options_table import hint
from headrace.errors import ConfigError
from headrace.pipelines.source.failures import OptionError
from headrace.types import TopicPartition

LATEST = -1
EARLIEST = -2

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

_KAFKA = "kafka."
_SUBJECTS = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "groupId",
    "groupOffsets",
)

NAMES = (
    "path",
    *_SUBJECTS,
    *_STARTING,
    "startingOffsetsByTimestampStrategy",
    *_ENDING,
    *_STREAM_ONLY,
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "maxBatchRows",
)

# What Spark's own source takes or refuses, and what to do here instead.
_REFUSED = {
    "groupidprefix": "queries are members of no group; groupId names the one to show progress in",
    "kafka.group.id": "queries are members of no group; groupId names the one to show progress in",
    "kafka.auto.offset.reset": "say where to start with startingOffsets",
    "kafka.enable.auto.commit": "the checkpoint has the position; groupId shows it to the broker",
    "kafka.auto.commit.interval.ms": "the position is shown to groupId after each batch",
    "kafka.key.deserializer": "keys are bytes; decode them with DataFrame operations",
    "kafka.value.deserializer": "values are bytes; decode them with DataFrame operations",
    "kafka.interceptor.classes": "interceptors are Java classes; use DataFrame operations",
    "kafka.partition.assignment.strategy": "Spark shares partitions out; use minPartitions",
    "kafkaconsumer.polltimeoutms": "how long to wait for a broker is kafka.request.timeout.ms",
    "fetchoffset.numretries": "how long to ask for offsets is kafka.request.timeout.ms",
    "fetchoffset.retryintervalms": "the pause between retries is kafka.retry.backoff.ms",
    "topic": "it belongs to writing; name the topics to read with subscribe",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a partition: an offset, EARLIEST, LATEST, or the first record not before a time.

    Exactly one of the two is set.
    """

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: one place for all partitions, or one for each."""

    option: str
    everywhere: Place | None = None
    each: Mapping[TopicPartition, Place] | None = None
    latest_if_no_record: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch may have, or waits for."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How topics are read; `read_options` makes it, and what it holds needs no more checks.

    One of `topics`, `pattern`, `assigned` and `path` is set. `client` has a consumer's properties.
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
    fail_on_data_loss: bool = True
    group: str | None = None
    group_offsets: Literal["start", "ignore"] = "ignore"
    max_batch_rows: int = 10_000

    @property
    def servers(self) -> str:
        """Where the brokers are, as messages name them."""
        return self.client.get("bootstrap.servers", "the default broker")

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return self.client["isolation.level"] == "read_committed"


def read_options(given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """The options of a read that is given these; OptionError says which is wrong and why.

    >>> read_options({"subscribe": "a, b"}).topics
    ('a', 'b')
    >>> read_options({"subscribe": "a", "startingOffset": "earliest"})
    Traceback (most recent call last):
    headrace.pipelines.source.failures.OptionError: unknown option 'startingOffset' of format \
"headrace"; did you mean startingOffsets?
    """
    texts = _by_known_name(given)
    starting = _bound(texts, _STARTING)
    if streaming:
        _refuse(texts, (*_ENDING, "path"), "a stream has no end", "leave it out, or use spark.read")
    elif "path" not in texts:
        _refuse_backwards(starting, _bound(texts, _ENDING))
    return ReadOptions(
        client=_client(given),
        columns=_columns(texts),
        **_subject(texts),
        starting=starting,
        ending=_bound(texts, _ENDING),
        limits=_limits(texts),
        min_partitions=_number(texts, "minPartitions"),
        max_records_per_partition=_number(texts, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(texts, "failOnDataLoss", default=True),
        group=texts.get("groupId"),
        group_offsets=_group_offsets(texts, starting),
        max_batch_rows=_number(texts, "maxBatchRows") or 10_000,
    )


def _by_known_name(given: Mapping[str, str]) -> dict[str, str]:
    """The options but those of the client, under the names this module uses: case is ignored."""
    known = {name.lower(): name for name in NAMES}
    texts = {}
    for name, text in given.items():
        folded = name.lower()
        if folded in _REFUSED:
            raise OptionError(f"option {name} is not for reading: {_REFUSED[folded]}")
        if folded.startswith(_KAFKA):
            continue
        if folded not in known:
            near = hint(name, NAMES) or "; docs/spark.md lists them all"
            raise OptionError(f'unknown option {name!r} of format "headrace"{near}')
        texts[known[folded]] = text.strip()
    return texts


def _client(given: Mapping[str, str]) -> dict[str, str]:
    properties = {
        name.lower().removeprefix(_KAFKA): text
        for name, text in given.items()
        if name.lower().startswith(_KAFKA)
    }
    properties.setdefault("isolation.level", "read_committed")
    try:
        from_properties(properties, "consumer")
    except ConfigError as error:
        raise OptionError(f"{error} (given with the prefix {_KAFKA})") from None
    return properties


def _subject(texts: Mapping[str, str]) -> dict[str, Any]:
    """What is read, as the one field of ReadOptions that says so."""
    named = [name for name in (*_SUBJECTS, "path") if name in texts]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise OptionError(f"give exactly one of {', '.join(_SUBJECTS)} or path; found {found}")
    name = named[0]
    text = texts[name]
    match name:
        case "subscribe":
            topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
            if not topics:
                raise OptionError("option subscribe names no topic; give one, or a,b")
            return {"topics": topics}
        case "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError(
                    f"option subscribePattern cannot be {text!r}: {error}; give a Python regular"
                    " expression that matches whole topic names"
                ) from None
            return {"pattern": text}
        case "assign":
            return {"assigned": _assigned(text)}
    if not text:
        raise OptionError("option path is empty; give the data directory of a broker")
    return {"path": text}


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    form = '{"topic": [0, 1]}'
    value = _json(text, "assign", form)
    found = [
        TopicPartition(topic, number)
        for topic, numbers in value.items()
        if isinstance(numbers, list)
        for number in numbers
        if type(number) is int and number >= 0
    ]
    if not found or len(found) != sum(
        len(numbers) if isinstance(numbers, list) else 1 for numbers in value.values()
    ):
        raise _malformed("assign", text, form)
    return tuple(dict.fromkeys(found))


def _json(text: str, name: str, form: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _malformed(name, text, form) from None
    if not isinstance(value, dict):
        raise _malformed(name, text, form)
    return value


def _malformed(name: str, text: str, form: str) -> OptionError:
    return OptionError(f"option {name} cannot be {text!r}: write it as {form}")


def _bound(texts: Mapping[str, str], names: tuple[str, str, str]) -> Bound | None:
    """The bound of the first option that is given: Spark's order of precedence."""
    name = next((name for name in names if name in texts), None)
    if name is None:
        return None
    text = texts[name]
    fallback = _latest_if_no_record(texts) if name.startswith("starting") else True
    if name.endswith("Timestamp") and not name.endswith("ByTimestamp"):
        time_ms = _whole(text, name, "milliseconds since 1970", least=0)
        return Bound(name, Place(time_ms=time_ms), latest_if_no_record=fallback)
    if name.endswith("ByTimestamp"):
        times = _each(text, name, '{"topic": {"0": 1700000000000}}', least=0)
        places = {tp: Place(time_ms=time_ms) for tp, time_ms in times.items()}
        return Bound(name, each=places, latest_if_no_record=fallback)
    if text.lower() in ("earliest", "latest"):
        return Bound(name, Place(EARLIEST if text.lower() == "earliest" else LATEST))
    offsets = _each(text, name, 'earliest, latest or {"topic": {"0": 23, "1": -2}}', least=EARLIEST)
    return Bound(name, each={tp: Place(offset) for tp, offset in offsets.items()})


def _each(text: str, name: str, form: str, least: int) -> dict[TopicPartition, int]:
    """The number of each partition, from JSON as {topic: {partition: number}}."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json(text, name, form).items():
        if not isinstance(numbers, dict):
            raise _malformed(name, text, form)
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int or number < least:
                raise _malformed(name, text, form)
            found[TopicPartition(topic, int(partition))] = number
    return found


def _latest_if_no_record(texts: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return _choice(texts, name, ("error", "latest"), "error") == "latest"


def _refuse_backwards(starting: Bound | None, ending: Bound | None) -> None:
    """A batch that begins at the end, or ends at the beginning, is a mistake."""
    for bound, offset, word, other in (
        (starting, LATEST, "latest", "earliest"),
        (ending, EARLIEST, "earliest", "latest"),
    ):
        if bound is None:
            continue
        places = [bound.everywhere, *(bound.each or {}).values()]
        if Place(offset) in places:
            raise OptionError(
                f"option {bound.option} of a batch read cannot be {word} ({offset}): it would read"
                f" nothing; use {other}, an offset, or spark.readStream"
            )


def _refuse(texts: Mapping[str, str], names: tuple[str, ...], reason: str, remedy: str) -> None:
    for name in names:
        if name in texts:
            raise OptionError(f"option {name} is not for streams: {reason}; {remedy}")


def _columns(texts: Mapping[str, str]) -> tuple[str, ...]:
    headers = (HEADERS,) if _flag(texts, "includeHeaders", default=False) else ()
    if "columns" not in texts:
        return COLUMNS + headers
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    found: list[str] = []
    for part in texts["columns"].split(","):
        name = part.strip()
        if name.lower() not in known:
            near = hint(name, known.values()) or f"; there are {', '.join(known.values())}"
            raise OptionError(f"option columns names {name!r}, which is no column{near}")
        found.append(known[name.lower()])
    if len(set(found)) < len(found):
        raise OptionError(f"option columns names a column twice: {texts['columns']}")
    return tuple(dict.fromkeys((*found, *headers)))


def _limits(texts: Mapping[str, str]) -> Limits:
    most, least = _number(texts, "maxOffsetsPerTrigger"), _number(texts, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"option minOffsetsPerTrigger ({least}) is more than maxOffsetsPerTrigger ({most});"
            " lower it, or raise that"
        )
    if "maxTriggerDelay" in texts and least is None:
        raise OptionError("option maxTriggerDelay has no use without minOffsetsPerTrigger; give it")
    delay_ms = _duration_ms(texts.get("maxTriggerDelay", "15m"))
    return Limits(most, _number(texts, "maxBytesPerTrigger"), least, delay_ms)


_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    unit = found and (_UNITS_MS.get(found[2]) or _UNITS_MS.get(found[2].removesuffix("s")))
    if not found or not unit:
        raise OptionError(f"option maxTriggerDelay cannot be {text!r}: write it as 30s, 15m or 1h")
    return int(found[1]) * unit


def _group_offsets(texts: Mapping[str, str], starting: Bound | None) -> Literal["start", "ignore"]:
    if "groupOffsets" in texts and "groupId" not in texts:
        raise OptionError("option groupOffsets tells what groupId means; give groupId too")
    default = "start" if "groupId" in texts and starting is None else "ignore"
    chosen = _choice(texts, "groupOffsets", ("start", "ignore"), default)
    return "start" if chosen == "start" else "ignore"


def _choice(texts: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    text = texts.get(name, default).lower()
    if text not in allowed:
        near = hint(text, allowed)
        raise OptionError(
            f"option {name} cannot be {texts[name]!r}: it is {' or '.join(allowed)}{near}"
        )
    return text


def _flag(texts: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(texts, name, ("true", "false"), str(default).lower()) == "true"


def _number(texts: Mapping[str, str], name: str) -> int | None:
    return _whole(texts[name], name, "a whole number", least=1) if name in texts else None


def _whole(text: str, name: str, what: str, *, least: int) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
        raise OptionError(f"option {name} cannot be {text!r}: it is {what}, at least {least}")
    return int(text)
