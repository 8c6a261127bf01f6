"""Files that say where partitions go, in the format of Kafka's kafka-reassign-partitions."""

import json
from typing import Any, NamedTuple, TextIO

from headrace.client.administration.planning import Assignment
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

# A plan of a hundred thousand partitions has a tenth of that.
_CHARACTERS_MAX = 100_000_000
_ANY_LOG_DIR = "any"


class WrongPlan(HeadraceError):
    """A file is no plan; the text says what is wrong and where."""


class PlanFile(NamedTuple):
    """What a file asks for: the brokers of each partition, and directories on some of them."""

    replicas: dict[TopicPartition, tuple[int, ...]]
    log_dirs: dict[int, dict[TopicPartition, str]]


def plan_document(assignment: Assignment) -> dict[str, Any]:
    """An assignment as Kafka's tool reads and writes it."""
    return {
        "version": 1,
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition, "replicas": list(assignment[tp])}
            for tp in sorted(assignment)
        ],
    }


def read_plan(file: TextIO) -> PlanFile:
    """The plan in a file; also what `headrace reassign generate --json` printed."""
    document = _document(file)
    if isinstance(document, dict) and isinstance(document.get("proposed"), dict):
        document = document["proposed"]
    given = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(given, list) or document.get("version", 1) != 1:
        raise _wrong(file, 'it is not of the form {"version": 1, "partitions": [...]}')
    plan = PlanFile({}, {})
    for number, one in enumerate(given, 1):
        tp, replicas = _partition(file, number, one)
        if tp in plan.replicas:
            raise _wrong(file, f"it names {tp} twice")
        plan.replicas[tp] = replicas
        for broker, path in zip(replicas, _log_dirs(file, tp, one, len(replicas)), strict=True):
            if path != _ANY_LOG_DIR:
                plan.log_dirs.setdefault(broker, {})[tp] = path
    if not plan.replicas:
        raise _wrong(file, "it names no partition")
    return plan


def read_topics(file: TextIO) -> list[str]:
    """The topics of a file as Kafka's --topics-to-move-json-file takes it."""
    document = _document(file)
    given = document.get("topics") if isinstance(document, dict) else None
    topics = [one.get("topic") if isinstance(one, dict) else None for one in given or ()]
    names = [topic for topic in topics if isinstance(topic, str)]
    if not names or len(names) < len(topics):
        raise _wrong(file, 'it is not of the form {"topics": [{"topic": "orders"}, ...]}')
    return list(dict.fromkeys(names))


def _document(file: TextIO) -> Any:
    try:
        text = file.read(_CHARACTERS_MAX + 1)
    except UnicodeDecodeError:
        raise _wrong(file, "it is not UTF-8") from None
    if len(text) > _CHARACTERS_MAX:
        raise _wrong(file, f"it has more than {_CHARACTERS_MAX:,} characters")
    try:
        return json.loads(text)
    except ValueError as error:
        raise _wrong(file, f"it is no JSON ({error})") from None
    except RecursionError:
        raise _wrong(file, "its JSON is nested too deeply") from None


def _partition(file: TextIO, number: int, one: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    known = one if isinstance(one, dict) else {}
    topic, index, replicas = known.get("topic"), known.get("partition"), known.get("replicas")
    if not isinstance(topic, str) or not isinstance(index, int) or not _is_number(index):
        raise _wrong(file, f'entry {number} has no "topic" and "partition"')
    tp = TopicPartition(topic, index)
    if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
        raise _wrong(file, f'the "replicas" of {tp} are no list of broker ids')
    return tp, tuple(replicas)


def _log_dirs(file: TextIO, tp: TopicPartition, one: dict[str, Any], count: int) -> list[str]:
    """The directory for each replica; `any` leaves it to the broker."""
    given = one.get("log_dirs")
    if given is None:
        return [_ANY_LOG_DIR] * count
    paths = [path for path in given if isinstance(path, str)] if isinstance(given, list) else []
    if not isinstance(given, list) or len(paths) < len(given) or len(given) != count:
        raise _wrong(file, f'the "log_dirs" of {tp} are not a path, or "any", for each replica')
    wrong = [path for path in paths if path != _ANY_LOG_DIR and not path.startswith("/")]
    if wrong:
        raise _wrong(file, f'the path {wrong[0]!r} in "log_dirs" of {tp} is not absolute')
    return paths


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _wrong(file: TextIO, what: str) -> WrongPlan:
    return WrongPlan(f"{file.name} is no plan: {what}; make one with `headrace reassign generate`")
