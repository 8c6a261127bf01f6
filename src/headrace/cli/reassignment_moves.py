"""Execution of reassignments: plan files, starting moves, throttles, and waiting for their end."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

import click

from headrace.cli.clients import errors_of, outcomes_of
from headrace.cli.errors import report
from headrace.cli.output import ProgressDisplay, bytes_text, counted
from headrace.client.admin.admin import Admin
from headrace.client.admin.cluster import LogDirectory
from headrace.client.admin.reassignment_plan import Assignment, ReassignmentPlan
from headrace.client.admin.reassignments import Reassignment
from headrace.client.cluster_metadata import BrokerInfo, TopicInfo
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.types import TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

PAUSE_S = 0.5
# The interval of progress lines without a terminal.
_LINE_EVERY_S = 10.0


@dataclass(frozen=True)
class ReplicaPlacement:
    """The brokers, partitions and replicas of a cluster, and the reassignments under way."""

    brokers: Mapping[int, BrokerInfo]
    topics: Mapping[str, TopicInfo]
    moving: Mapping[TopicPartition, Reassignment]

    @property
    def alive(self) -> list[int]:
        """The brokers that are not fenced."""
        return [broker.node_id for broker in self.brokers.values() if not broker.is_fenced]

    @property
    def assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of every partition after all moves under way."""
        found: dict[TopicPartition, tuple[int, ...]] = {}
        for name, topic in self.topics.items():
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.index)
                found[tp] = self.moving[tp].target if tp in self.moving else partition.replicas
        return found

    def racks(self, broker_ids: Iterable[int]) -> dict[int, str | None]:
        """The racks of these brokers."""
        return {broker_id: self.brokers[broker_id].rack for broker_id in broker_ids}


def read_placement(admin: Admin) -> ReplicaPlacement:
    """The present placement of the cluster."""
    brokers = admin.describe_cluster(include_fenced=True).brokers
    return ReplicaPlacement(
        {broker.node_id: broker for broker in brokers},
        admin.list_topics(internal=True),
        admin.list_partition_reassignments(),
    )


def sizes_on(admin: Admin, broker_ids: Sequence[int]) -> dict[int, dict[TopicPartition, int]]:
    """The size of each replica on these brokers; without those that do not answer."""
    outcomes = outcomes_of(lambda: admin.describe_log_dirs(broker_ids))
    return sizes_in(outcomes)


def sizes_in(
    outcomes: Mapping[int, tuple[LogDirectory, ...] | KafkaError],
) -> dict[int, dict[TopicPartition, int]]:
    """The size of each replica, from the responses of brokers."""
    return {
        broker_id: {tp: size for directory in outcome for tp, size in directory.replicas.items()}
        for broker_id, outcome in outcomes.items()
        if not isinstance(outcome, KafkaError)
    }


def largest(sizes: Mapping[int, Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """The size of each partition: that of its largest replica."""
    found: dict[TopicPartition, int] = {}
    for replicas in sizes.values():
        for tp, size in replicas.items():
            found[tp] = max(size, found.get(tp, 0))
    return found


def summary(plan: ReassignmentPlan, sizes: Mapping[TopicPartition, int]) -> str:
    """The text for the user about the effect of a plan."""
    added = plan.added()
    if not added:
        return f"{counted(len(plan.after), 'partition')} to change, no data to copy"
    copies = sum(map(len, added.values()))
    return (
        f"{counted(len(plan.after), 'partition')} to change, {counted(copies, 'replica')} to copy,"
        f" {bytes_text(plan.moved_bytes(sizes))}"
    )


def begin(
    admin: Admin, situation: ReplicaPlacement, targets: Assignment, throttle: int | None
) -> dict[TopicPartition, KafkaError]:
    """Start moves, with a throttle in bytes a second if given; returns the failures."""
    if throttle is not None:
        set_throttle(admin, situation, targets, throttle)
    return errors_of(lambda: admin.alter_partition_reassignments(targets))


def set_throttle(admin: Admin, situation: ReplicaPlacement, targets: Assignment, rate: int) -> None:
    """Throttle the copies of a plan, on every broker that sends or receives some."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    involved: set[int] = set()
    for tp in sorted(targets):
        partition = situation.topics[tp.topic].partition(tp.partition)
        present = partition.replicas if partition else ()
        adding = [broker for broker in targets[tp] if broker not in present]
        if adding:
            leaders.setdefault(tp.topic, []).extend(
                f"{tp.partition}:{broker}" for broker in present
            )
            followers.setdefault(tp.topic, []).extend(
                f"{tp.partition}:{broker}" for broker in adding
            )
            involved.update(present, adding)
    for topic, sources in leaders.items():
        lists = {LEADER_REPLICAS: ",".join(sources), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        admin.alter_configs(lists, topic=topic)
    for broker_id in sorted(involved & set(situation.alive)):
        admin.alter_configs({LEADER_RATE: rate, FOLLOWER_RATE: rate}, broker=broker_id)


def set_log_dir_throttle(admin: Admin, brokers: Iterable[int], rate: int) -> None:
    """Throttle the copies between directories of brokers."""
    for broker_id in sorted(brokers):
        admin.alter_configs({LOG_DIR_RATE: rate}, broker=broker_id)


def remove_throttle(admin: Admin, situation: ReplicaPlacement, topics: Iterable[str]) -> bool:
    """Remove the throttles of topics and of all brokers; returns whether there were any."""
    found = False
    for topic in sorted(set(topics) & situation.topics.keys()):
        found |= _reset(admin, (LEADER_REPLICAS, FOLLOWER_REPLICAS), topic=topic)
    for broker_id in situation.alive:
        found |= _reset(admin, (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE), broker=broker_id)
    return found


def _reset(
    admin: Admin, names: Sequence[str], *, topic: str | None = None, broker: int | None = None
) -> bool:
    entries = admin.describe_configs(topic=topic, broker=broker)
    own = ("topic_config", "dynamic_broker_config")
    changed = [name for name in names if name in entries and entries[name].source in own]
    if changed:
        admin.alter_configs(dict.fromkeys(changed), topic=topic, broker=broker)
    return bool(changed)


class MoveMonitor:
    """Displays moves under way until they are done."""

    def __init__(self, admin: Admin, label: str, targets: Assignment, *, shown: bool) -> None:
        self._admin = admin
        self._label = label
        self._targets = targets
        self._shown = shown
        self._wanted = {broker for replicas in targets.values() for broker in replicas}
        self._next_line = 0.0

    def wait(self) -> None:
        """Wait until no partition of the plan moves any more. Ctrl-C only ends the waiting."""
        moving = self._moving()
        adding = {tp: move.adding for tp, move in moving.items()}
        brokers = sorted({broker for added in adding.values() for broker in added})
        sizes = largest(sizes_on(self._admin, self._alive()))
        total = sum(sizes.get(tp, 0) * len(added) for tp, added in adding.items())
        progress = ProgressDisplay(self._label, total or None, shown=self._shown, noun="partition")
        progress.start()
        begun = time.monotonic()
        self._next_line = begun + _LINE_EVERY_S
        copied = 0
        try:
            while moving:
                time.sleep(PAUSE_S)
                moving = self._moving()
                now = self._copied(adding, moving, sizes, brokers)
                progress.items = len(self._targets) - len(moving)
                progress.advance(max(now - copied, 0))
                copied = max(now, copied)
                self._print_line(progress, len(moving), copied, total)
        except KeyboardInterrupt:
            progress.stop()
            click.echo("the moves go on; see how far with `headrace reassign verify`", err=True)
            raise
        finally:
            progress.stop()

    def _alive(self) -> list[int]:
        return [broker.node_id for broker in self._admin.describe_cluster().brokers]

    def _moving(self) -> dict[TopicPartition, Reassignment]:
        moving = self._admin.list_partition_reassignments()
        return {tp: move for tp, move in moving.items() if tp in self._targets}

    def _copied(
        self,
        adding: Mapping[TopicPartition, Sequence[int]],
        moving: Mapping[TopicPartition, Reassignment],
        sizes: Mapping[TopicPartition, int],
        brokers: Sequence[int],
    ) -> int:
        """The bytes that were copied: all of finished moves, and the present size of the others."""
        alive = set(self._alive())
        present = sizes_on(self._admin, [broker for broker in brokers if broker in alive])
        copied = 0
        for tp, added in adding.items():
            size = sizes.get(tp, 0)
            for broker in added:
                there = present.get(broker, {}).get(tp, 0)
                copied += min(there, size) if tp in moving else size
        return copied

    def _print_line(self, progress: ProgressDisplay, left: int, copied: int, total: int) -> None:
        now = time.monotonic()
        if not self._shown or not left or now < self._next_line:
            return
        self._next_line = now + _LINE_EVERY_S
        away = sorted(self._wanted - set(self._alive()))
        if away:
            click.echo(f"broker {away[0]} is down; what goes there waits for it", err=True)
        elif not progress.is_visible:
            click.echo(
                f"{counted(left, 'partition')} left,"
                f" {bytes_text(copied)} of {bytes_text(total)} copied",
                err=True,
            )


def elect_preferred(admin: Admin, partitions: Sequence[TopicPartition]) -> int:
    """Elect the preferred replicas as leaders; returns exit status 1 if one cannot lead."""
    failures = errors_of(lambda: admin.elect_leaders(partitions)) if partitions else {}
    # A topic that was deleted meanwhile needs no leader.
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return report(error for error in failures.values() if error.code is not gone)


# A plan of a hundred thousand partitions is a tenth of this size.
_CHARACTERS_MAX = 100_000_000
_ANY_LOG_DIR = "any"


class InvalidPlanFile(HeadraceError):
    """A file that is not a plan; the text says what is wrong and where."""


class PlanFile(NamedTuple):
    """The content of a plan: the brokers of each partition, and directories on some of them."""

    replicas: dict[TopicPartition, tuple[int, ...]]
    log_dirs: dict[int, dict[TopicPartition, str]]


def plan_document(assignment: Assignment) -> dict[str, Any]:
    """An assignment in the format of Kafka's tool."""
    return {
        "version": 1,
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition, "replicas": list(assignment[tp])}
            for tp in sorted(assignment)
        ],
    }


def read_plan(file: TextIO) -> PlanFile:
    """The plan in a file; output of `headrace reassign generate --json` is accepted too."""
    document = _document(file)
    if isinstance(document, dict) and isinstance(document.get("proposed"), dict):
        document = document["proposed"]
    given = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(given, list) or document.get("version", 1) != 1:
        raise _wrong(file, 'it is not of the form {"version": 1, "partitions": [...]}')
    plan = PlanFile({}, {})
    for number, entry in enumerate(given, 1):
        tp, replicas = _partition(file, number, entry)
        if tp in plan.replicas:
            raise _wrong(file, f"it names {tp} twice")
        plan.replicas[tp] = replicas
        for broker, path in zip(replicas, _log_dirs(file, tp, entry, len(replicas)), strict=True):
            if path != _ANY_LOG_DIR:
                plan.log_dirs.setdefault(broker, {})[tp] = path
    if not plan.replicas:
        raise _wrong(file, "it names no partition")
    return plan


def read_topics(file: TextIO) -> list[str]:
    """The topics in a file for Kafka's --topics-to-move-json-file."""
    document = _document(file)
    given = document.get("topics") if isinstance(document, dict) else None
    topics = [entry.get("topic") if isinstance(entry, dict) else None for entry in given or ()]
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


def _partition(file: TextIO, number: int, entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    known = entry if isinstance(entry, dict) else {}
    topic, index, replicas = known.get("topic"), known.get("partition"), known.get("replicas")
    if not isinstance(topic, str) or not isinstance(index, int) or not _is_number(index):
        raise _wrong(file, f'entry {number} has no "topic" and "partition"')
    tp = TopicPartition(topic, index)
    if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
        raise _wrong(file, f'the "replicas" of {tp} are no list of broker ids')
    return tp, tuple(replicas)


def _log_dirs(file: TextIO, tp: TopicPartition, entry: dict[str, Any], count: int) -> list[str]:
    """The directory for each replica; `any` leaves the choice to the broker."""
    given = entry.get("log_dirs")
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


def _wrong(file: TextIO, problem: str) -> InvalidPlanFile:
    return InvalidPlanFile(
        f"{file.name} is no plan: {problem}; make one with `headrace reassign generate`"
    )
