"""Problems of a cluster, with advice, for `headrace doctor`, `headrace top` and the console.

Rule: from facts to problems without I/O. A broker that does not answer is a problem, no failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import KafkaError
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.cluster import BrokerHealth
    from headrace.client.admin.reassignments import Reassignment
    from headrace.client.cluster_metadata import BrokerInfo, TopicInfo

MIN_IN_SYNC = "min.insync.replicas"
CRITICAL, WARNING = "critical", "warning"

_SET_ASIDE_SHOWN_MAX = 3
_METADATA_LOG = "__cluster_metadata-0."
# Checks after which records cannot be written or read; the others cost redundancy.
_CRITICAL_CHECKS = frozenset(("controller", "directory", "offline-partition", "under-min-isr"))


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: the check, its subject, the detail with the advice.

    `severity` is "critical" if requests are refused because of it. `kind` and `name` say where more
    is to be seen: "broker" "3", "topic" "orders", "group" "billing".
    """

    check: str
    subject: str
    detail: str
    kind: str = ""
    name: str = ""

    @property
    def severity(self) -> str:
        return CRITICAL if self.check in _CRITICAL_CHECKS else WARNING


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is known of a cluster, to find its problems.

    `health` has the answer of each asked broker, `min_in_sync` the setting `min.insync.replicas` of
    the topics in `lacking_topics`.
    """

    brokers: Mapping[int, BrokerInfo]
    topics: Mapping[str, TopicInfo]
    has_controller: bool = True
    moving: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    health: Mapping[int, BrokerHealth | KafkaError] = field(default_factory=dict)
    min_in_sync: Mapping[str, int] = field(default_factory=dict)

    def lacking_topics(self) -> list[str]:
        """The topics with a led partition whose replicas are not all in sync."""
        return [
            name
            for name, topic in self.topics.items()
            if any(
                partition.leader >= 0 and len(partition.isr) < len(partition.replicas)
                for partition in topic.partitions
            )
        ]


def problems(facts: ClusterFacts) -> list[Problem]:
    """The problems of a cluster: of its controller, its brokers, its partitions, in this order."""
    found = [] if facts.has_controller else [_NO_CONTROLLER]
    found += _broker_problems(facts)
    found += _partition_problems(facts)
    return found


_NO_CONTROLLER = Problem(
    "controller",
    "controller",
    "none answers: see that a majority of the controllers runs; until then nothing of the"
    " cluster can change, and what is told here may be out of date",
)


def _broker_problems(facts: ClusterFacts) -> Iterator[Problem]:
    for broker in facts.brokers.values():
        answer = facts.health.get(broker.node_id)
        subject, name = f"broker {broker.node_id}", str(broker.node_id)
        if broker.is_fenced:
            yield Problem(
                "broker",
                subject,
                "it is down, or was not let in yet: start it, or see its log; if it does not come"
                f" back, move its replicas away with `headrace brokers drain {broker.node_id}`",
                "broker",
                name,
            )
        elif isinstance(answer, KafkaError):
            detail = f"it does not answer, see its log: {answer}"
            yield Problem("broker", subject, detail, "broker", name)
        elif answer is not None:
            yield from _health_problems(subject, name, answer)


def _health_problems(subject: str, name: str, answer: BrokerHealth) -> Iterator[Problem]:
    for directory in answer.directories:
        where = f"{subject}, {directory.path}"
        if directory.error is not None:
            detail = (
                "the data directory does not work: repair or replace the disk, then restart the"
                " broker"
            )
            yield Problem("directory", where, detail, "broker", name)
        elif directory.is_cordoned:
            detail = (
                "the data directory is full and takes no records: delete topics or shorten their"
                " retention, move replicas away, or add space"
            )
            yield Problem("directory", where, detail, "broker", name)
        health = answer.health.get(directory.path)
        names = [] if health is None else [log.name for log in health.set_aside]
        strays = [log for log in names if not log.startswith(_METADATA_LOG)]
        if strays:
            detail = (
                f"{_names(strays, 'log')} set aside: see why with `headrace log strays list"
                f" {directory.path}`, then restore or discard"
            )
            yield Problem("set-aside", where, detail, "broker", name)
        damaged = [log for log in names if log.startswith(_METADATA_LOG)]
        if damaged:
            detail = (
                f"{_names(damaged, 'damaged metadata log')} set aside: check the disk, and delete"
                " it when nobody is going to look at it any more"
            )
            yield Problem("set-aside", where, detail, "broker", name)
    for problem in answer.problems:
        detail = f"the replica is {problem.state}: {problem.reason}"
        where = f"{problem.partition} on {subject}"
        yield Problem("replica", where, detail, "topic", problem.partition.topic)


def _names(names: list[str], noun: str) -> str:
    """The count of names, and the first of them."""
    shown = ", ".join(names[:_SET_ASIDE_SHOWN_MAX])
    more = "..." if len(names) > _SET_ASIDE_SHOWN_MAX else ""
    count, verb = (f"1 {noun}", "was") if len(names) == 1 else (f"{len(names)} {noun}s", "were")
    return f"{count} ({shown}{more}) {verb}"


def _partition_problems(facts: ClusterFacts) -> Iterator[Problem]:
    """Partitions that lack a leader or replicas, grouped by the kind of lack."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for name, topic in facts.topics.items():
        for partition in topic.partitions:
            tp = TopicPartition(name, partition.index)
            adding = facts.moving[tp].adding if tp in facts.moving else ()
            if partition.leader < 0:
                why = f"in sync were {_list(partition.isr)}: start their brokers"
                if not partition.isr:
                    why = "and none is in sync: see what is wrong with the replicas"
                detail = (
                    f"no replica leads; {why}. `headrace topics describe` shows who else could"
                    " lead, `headrace brokers elect --unclean` takes any replica and may lose"
                    " records"
                )
                found.setdefault(("offline-partition", name, detail), []).append(tp.partition)
                continue
            missing = [
                replica
                for replica in partition.replicas
                if replica not in partition.isr and replica not in adding
            ]
            if missing:
                least = facts.min_in_sync.get(name, 1)
                check, detail = _lacking(missing, len(partition.isr), least)
                found.setdefault((check, name, detail), []).append(tp.partition)
    for (check, name, detail), numbers in found.items():
        yield Problem(check, f"{name}:{numbers_text(numbers)}", detail, "topic", name)


def _lacking(missing: Iterable[int], in_sync: int, least: int) -> tuple[str, str]:
    detail = f"replicas on {_list(missing)} are not in sync"
    if in_sync < least:
        return "under-min-isr", (
            f"{detail}, and {MIN_IN_SYNC} is {least}: writes with acks=all are refused; see to"
            " those brokers"
        )
    return "under-replicated", (
        f"{detail}: they catch up by themselves when nothing is wrong with their brokers"
    )


def _list(broker_ids: Iterable[int]) -> str:
    ids = [str(broker_id) for broker_id in broker_ids]
    if not ids:
        return "no brokers"
    return f"{'broker' if len(ids) == 1 else 'brokers'} {', '.join(ids)}"


def numbers_text(numbers: Sequence[int]) -> str:
    """Numbers in ascending order, with three or more in a row as first and last: `0-3,7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )
