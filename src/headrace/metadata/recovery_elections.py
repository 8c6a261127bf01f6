"""Recovery elections: a leader for partitions of which no replica is sure to have every record.

When every replica that was in sync or eligible restarted uncleanly, or lost its log, no record of
the metadata says who has how much. So the replicas that are back are asked where their logs end,
and the one leads whose last record is of the newest leader epoch, and among those the longest: it
has every record that any of the others has and that was ever committed (KIP-101, KIP-966).

Rule: the election waits for all replicas that still have a log, also for those that had left the
ISR: what was committed before may be lost by everybody else. It waits until
`unclean.recovery.timeout.ms` after the first replica was back. Whatever may be lost is told.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metadata.elections import Elections
from headrace.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from headrace.metadata.records import Result
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

# So many leaders are chosen at once that everybody can follow; the others come right after.
_ELECTIONS_MAX = 1000


class LogEnd(NamedTuple):
    """Where a replica's log ends. A greater one has all that is committed in a smaller one."""

    epoch: int
    """The leader epoch of the last record, -1 if there is none."""
    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} of epoch {self.epoch}"


class Question(NamedTuple):
    """Where a replica's log ends, asked of one that knows of the leader epoch without a leader."""

    topic_id: bytes
    partition: TopicPartition
    leader_epoch: int


class Waiting(NamedTuple):
    """A partition whose election waits for the answers of brokers."""

    partition: TopicPartition
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The outcome of an election, and what it was decided by."""

    partition: TopicPartition
    leader: int
    log_ends: dict[int, LogEnd]
    """Of every replica that answered, the leader's included."""
    missing: tuple[int, ...]
    lost: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Whether everybody who may have had records has told where its log ends."""
        return not self.missing and not self.lost

    @property
    def is_unanimous(self) -> bool:
        """Whether nobody can have lost anything that another one has."""
        return self.is_complete and len(set(self.log_ends.values())) == 1

    def __str__(self) -> str:
        others = [
            f"broker {broker_id} ends at {log_end}"
            for broker_id, log_end in self.log_ends.items()
            if broker_id != self.leader
        ]
        others += [f"broker {broker_id} lost its log" for broker_id in self.lost]
        others += [f"broker {broker_id} did not answer in time" for broker_id in self.missing]
        text = (
            f"{self.partition} is led by broker {self.leader}, whose log ends at"
            f" {self.log_ends[self.leader]}: no replica was sure to have every acknowledged record,"
            f" and of those that are back it has the most; {'; '.join(others) or 'nobody else is'}."
        )
        if not self.is_complete:
            named = ", ".join(map(str, sorted((*self.missing, *self.lost))))
            return (
                f"{text} Acknowledged records after that offset are lost if only"
                f" {'brokers' if len(self.missing) + len(self.lost) > 1 else 'broker'} {named}"
                " had them"
            )
        return f"{text} All that could have more have answered"


@dataclass(slots=True)
class _Recovery:
    """One partition: until when it waits, and the answers by broker, with the broker's epoch.

    The answers are worth nothing once there was another leader.
    """

    leader_epoch: int
    deadline_ms: int
    answers: dict[int, tuple[int, LogEnd]] = field(default_factory=dict)


class Recoveries:
    """The partitions that wait for a recovery election. Time is a steady clock's milliseconds.

    To be used in rounds: `look`, `questions`, an `answer` for each that comes, `decide`. A round
    without an answer of somebody who is active goes without it, if it may.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        # By topic id, since names may be given again, and partition.
        self._waiting: dict[tuple[bytes, int], _Recovery] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def look(self, image: Image, now_ms: int) -> None:
        """Find the partitions that need an election and have a replica that is back."""
        waiting = {}
        for topic, partition_id, partition in _leaderless(image):
            if _able(image, partition):
                key = (topic.topic_id, partition_id)
                known = self._waiting.get(key)
                if known is None or known.leader_epoch != partition.leader_epoch:
                    known = _Recovery(partition.leader_epoch, now_ms + self._timeout_ms)
                waiting[key] = known
        self._waiting = waiting

    def questions(self, image: Image) -> dict[int, list[Question]]:
        """By broker, the partitions for which it has not told yet where its log ends."""
        asked: dict[int, list[Question]] = {}
        for topic, partition_id, partition, recovery in self._still_waiting(image):
            name = TopicPartition(topic.name, partition_id)
            for broker_id in _able(image, partition):
                if _answer_of(image, recovery, broker_id) is None:
                    question = Question(topic.topic_id, name, partition.leader_epoch)
                    asked.setdefault(broker_id, []).append(question)
        return asked

    def answer(
        self, question: Question, broker_id: int, broker_epoch: int, log_end: LogEnd
    ) -> None:
        """Note where a replica's log ends; it counts for as long as its broker is not restarted."""
        recovery = self._waiting.get((question.topic_id, question.partition.partition))
        if recovery is not None and recovery.leader_epoch == question.leader_epoch:
            recovery.answers[broker_id] = (broker_epoch, log_end)

    def waiting(self, image: Image) -> list[Waiting]:
        """The partitions that wait, and for whom."""
        return [
            Waiting(
                TopicPartition(topic.name, partition_id),
                _awaited(image, partition) - set(_log_ends(image, partition, recovery)),
            )
            for topic, partition_id, partition, recovery in self._still_waiting(image)
        ]

    def decide(self, image: Image, now_ms: int) -> Result[list[Recovered]]:
        """Hold the elections for which enough have answered, or that must wait no longer."""
        elections = Elections(image, unclean_by_default=False)
        records: list[Message] = []
        outcomes: list[Recovered] = []
        for topic, partition_id, _, recovery in self._still_waiting(image):
            is_late = now_ms >= recovery.deadline_ms
            outcome = _outcome(image, topic, partition_id, recovery, is_late)
            if outcome is None:
                continue
            record = elections.recover(topic, partition_id, outcome.leader)
            assert record is not None, outcome
            records.append(record)
            outcomes.append(outcome)
            if len(records) == _ELECTIONS_MAX:
                break
        return Result(tuple(records), outcomes)

    def _still_waiting(
        self, image: Image
    ) -> Iterator[tuple[TopicImage, int, PartitionImage, _Recovery]]:
        for (topic_id, partition_id), recovery in self._waiting.items():
            topic = image.topics_by_id.get(topic_id)
            if topic is None or partition_id >= len(topic.partitions):
                continue
            partition = topic.partitions[partition_id]
            if _needs_recovery(partition) and partition.leader_epoch == recovery.leader_epoch:
                yield topic, partition_id, partition, recovery


def _outcome(
    image: Image, topic: TopicImage, partition_id: int, recovery: _Recovery, is_late: bool
) -> Recovered | None:
    partition = topic.partitions[partition_id]
    log_ends = _log_ends(image, partition, recovery)
    missing = _awaited(image, partition) - set(log_ends)
    if not log_ends or (missing and not is_late):
        return None
    known = partition.last_known_elr
    # Who comes first in the order of the replicas leads where several have the same.
    leader = max(log_ends, key=lambda one: (log_ends[one], one in known))
    return Recovered(
        partition=TopicPartition(topic.name, partition_id),
        leader=leader,
        log_ends=log_ends,
        missing=tuple(one for one in partition.replicas if one in missing),
        lost=partition.lost_replicas,
    )


def _log_ends(image: Image, partition: PartitionImage, recovery: _Recovery) -> dict[int, LogEnd]:
    """The answers that count, in the order of the replicas."""
    return {
        broker_id: log_end
        for broker_id in _able(image, partition)
        if (log_end := _answer_of(image, recovery, broker_id)) is not None
    }


def _awaited(image: Image, partition: PartitionImage) -> frozenset[int]:
    """The replicas that may have committed records which no other has: all that have a log.

    Brokers that were taken out of the cluster do not come back.
    """
    return frozenset(
        broker_id
        for broker_id in partition.replicas
        if broker_id in image.brokers and broker_id not in partition.lost_replicas
    )


def _able(image: Image, partition: PartitionImage) -> list[int]:
    """The replicas that can be asked and can lead."""
    return [
        one
        for one in partition.replicas
        if one in image.brokers
        and image.brokers[one].is_active
        and one not in partition.lost_replicas
    ]


def _answer_of(image: Image, recovery: _Recovery, broker_id: int) -> LogEnd | None:
    broker_epoch, log_end = recovery.answers.get(broker_id, (None, None))
    return log_end if broker_epoch == image.brokers[broker_id].epoch else None


def _needs_recovery(partition: PartitionImage) -> bool:
    return partition.leader == NO_LEADER and not partition.isr and not partition.elr


def _leaderless(image: Image) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for partition_id, partition in enumerate(topic.partitions):
            if _needs_recovery(partition):
                yield topic, partition_id, partition
