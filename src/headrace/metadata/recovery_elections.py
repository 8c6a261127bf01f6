"""Recovery elections: leaders for partitions without any replica that surely has every record.

When every replica of the ISR and the ELR restarted uncleanly, or lost its log, the metadata does
not say which replica has the most records. So the active replicas are asked for the ends of their
logs. The leader is the replica whose last record has the newest leader epoch, and among equals the
longest log: it has every committed record that any of them has (KIP-101, KIP-966).

Rule: the election waits for all replicas, even if they had left the ISR: a record committed before
may be lost on all others. A replica that is lost by its broker's last report is asked too: a disk
that failed may work again after a restart, and a damaged log ends at its damage, which may still be
more than the others have. Only a broker that has no log at all is not waited for. The wait ends
`unclean.recovery.timeout.ms` after the first answer with a log. The outcome tells which records may
be lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metadata.elections import Elections
from headrace.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from headrace.metadata.records import CommandResult
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

# Bounds one batch of elections, so that brokers can follow; the rest comes right after.
_ELECTIONS_MAX = 1000


class LogEnd(NamedTuple):
    """The end of a replica's log. A greater end has all committed records of a smaller end."""

    epoch: int
    """The leader epoch of the last record, -1 if there is none."""
    offset: int
    """-1 if the replica has no log."""

    @property
    def is_lost(self) -> bool:
        """Whether the replica has no log, not even an empty one."""
        return self.offset < 0

    def __str__(self) -> str:
        return f"offset {self.offset} of epoch {self.epoch}"


class LogEndQuestion(NamedTuple):
    """A request for the end of a replica's log, made in a leader epoch without a leader."""

    topic_id: bytes
    partition: TopicPartition
    leader_epoch: int


class WaitingElection(NamedTuple):
    """A partition whose election waits for the answers of brokers."""

    partition: TopicPartition
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """The outcome of a recovery election, and the log ends that decided it."""

    partition: TopicPartition
    leader: int
    log_ends: dict[int, LogEnd]
    """The log end of every replica that answered with one, the leader included."""
    missing: tuple[int, ...]
    lost: tuple[int, ...]
    damaged: tuple[int, ...] = ()
    """The replicas in `log_ends` whose log is damaged at that end."""

    @property
    def is_complete(self) -> bool:
        """Whether every replica that may have had records reported the end of a sound log."""
        return not self.missing and not self.lost and not self.damaged

    @property
    def is_unanimous(self) -> bool:
        """Whether all replicas reported, and all their logs end alike."""
        return self.is_complete and len(set(self.log_ends.values())) == 1

    def __str__(self) -> str:
        states = [
            f"broker {broker_id} ends at {log_end}{self._damage_of(broker_id)}"
            for broker_id, log_end in self.log_ends.items()
            if broker_id != self.leader
        ]
        states += [f"broker {broker_id} lost its log" for broker_id in self.lost]
        states += [f"broker {broker_id} did not answer in time" for broker_id in self.missing]
        text = (
            f"{self.partition} is led by broker {self.leader}, whose log ends at"
            f" {self.log_ends[self.leader]}{self._damage_of(self.leader)}: no replica was sure to"
            " have every acknowledged record, and of those that are back it has the most;"
            f" {'; '.join(states) or 'nobody else is'}."
        )
        if not self.is_complete:
            unsure = sorted((*self.missing, *self.lost, *self.damaged))
            named = f"broker{'s' if len(unsure) > 1 else ''} {', '.join(map(str, unsure))}"
            return (
                f"{text} Acknowledged records after that offset are lost if only {named} had them"
            )
        return (
            f"{text} All that could have more have answered: if machines lost power, acknowledged"
            " records after that offset that no replica had flushed are lost"
        )

    def _damage_of(self, broker_id: int) -> str:
        return ", where it is damaged" if broker_id in self.damaged else ""


@dataclass(slots=True)
class _PartitionRecovery:
    """The wait of one partition: its deadline, and by broker the broker epoch and the log end.

    The answers are void once the partition has another leader epoch. There is no deadline before
    the first answer with a log.
    """

    leader_epoch: int
    deadline_ms: int | None = None
    answers: dict[int, tuple[int, LogEnd]] = field(default_factory=dict)


class PendingElections:
    """The partitions that wait for a recovery election. Time is in monotonic milliseconds.

    To be used in rounds: `find_partitions`, `questions`, an `answer` for each that arrives,
    `decide`. A round in which a replica did not answer decides without it after the deadline.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        # By topic id and partition, since a name may be used again by a new topic.
        self._waiting: dict[tuple[bytes, int], _PartitionRecovery] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def find_partitions(self, image: Image) -> None:
        """Find the partitions that need a recovery election and have an active replica."""
        waiting = {}
        for topic, partition_id, partition in _leaderless(image):
            if _active(image, partition):
                key = (topic.topic_id, partition_id)
                known = self._waiting.get(key)
                if known is None or known.leader_epoch != partition.leader_epoch:
                    known = _PartitionRecovery(partition.leader_epoch)
                waiting[key] = known
        self._waiting = waiting

    def questions(self, image: Image) -> dict[int, list[LogEndQuestion]]:
        """The requests for log ends that each broker has not answered yet."""
        asked: dict[int, list[LogEndQuestion]] = {}
        for topic, partition_id, partition, recovery in self._still_waiting(image):
            name = TopicPartition(topic.name, partition_id)
            for broker_id in _active(image, partition):
                if _answer_of(image, recovery, broker_id) is None:
                    question = LogEndQuestion(topic.topic_id, name, partition.leader_epoch)
                    asked.setdefault(broker_id, []).append(question)
        return asked

    def answer(
        self, question: LogEndQuestion, broker_id: int, broker_epoch: int, log_end: LogEnd
    ) -> None:
        """Note the end of a replica's log; it is valid until its broker restarts."""
        recovery = self._waiting.get((question.topic_id, question.partition.partition))
        if recovery is not None and recovery.leader_epoch == question.leader_epoch:
            recovery.answers[broker_id] = (broker_epoch, log_end)

    def waiting(self, image: Image) -> list[WaitingElection]:
        """The partitions that wait, each with the brokers that have not answered."""
        return [
            WaitingElection(
                TopicPartition(topic.name, partition_id),
                _awaited(image, partition) - set(_answers(image, partition, recovery)),
            )
            for topic, partition_id, partition, recovery in self._still_waiting(image)
        ]

    def decide(self, image: Image, now_ms: int) -> CommandResult[list[RecoveredPartition]]:
        """Hold the elections for which all replicas answered, or whose deadline has passed."""
        elections = Elections(image, unclean_by_default=False)
        records: list[Message] = []
        outcomes: list[RecoveredPartition] = []
        for topic, partition_id, partition, recovery in self._still_waiting(image):
            log_ends = _log_ends(image, partition, recovery)
            if recovery.deadline_ms is None and log_ends:
                recovery.deadline_ms = now_ms + self._timeout_ms
            is_late = recovery.deadline_ms is not None and now_ms >= recovery.deadline_ms
            outcome = _outcome(image, topic, partition_id, recovery, is_late)
            if outcome is None:
                continue
            record = elections.recover(topic, partition_id, outcome.leader)
            assert record is not None, outcome
            records.append(record)
            outcomes.append(outcome)
            if len(records) == _ELECTIONS_MAX:
                break
        return CommandResult(tuple(records), outcomes)

    def _still_waiting(
        self, image: Image
    ) -> Iterator[tuple[TopicImage, int, PartitionImage, _PartitionRecovery]]:
        for (topic_id, partition_id), recovery in self._waiting.items():
            topic = image.topics_by_id.get(topic_id)
            if topic is None or partition_id >= len(topic.partitions):
                continue
            partition = topic.partitions[partition_id]
            if _needs_recovery(partition) and partition.leader_epoch == recovery.leader_epoch:
                yield topic, partition_id, partition, recovery


def _outcome(
    image: Image, topic: TopicImage, partition_id: int, recovery: _PartitionRecovery, is_late: bool
) -> RecoveredPartition | None:
    partition = topic.partitions[partition_id]
    answers = _answers(image, partition, recovery)
    log_ends = _log_ends(image, partition, recovery)
    missing = _awaited(image, partition) - set(answers)
    damaged = tuple(broker_id for broker_id in log_ends if broker_id in partition.lost_replicas)
    # If all logs are damaged, an operator decides which parts are kept.
    if len(damaged) == len(log_ends) or (missing and not is_late):
        return None
    known = partition.last_known_elr
    # Among equal logs a sound one leads, and of these the first in the order of the replicas.
    leader = max(
        log_ends,
        key=lambda broker_id: (
            log_ends[broker_id],
            broker_id not in damaged,
            broker_id in known,
        ),
    )
    return RecoveredPartition(
        partition=TopicPartition(topic.name, partition_id),
        leader=leader,
        log_ends=log_ends,
        missing=tuple(broker_id for broker_id in partition.replicas if broker_id in missing),
        lost=tuple(broker_id for broker_id, log_end in answers.items() if log_end.is_lost),
        damaged=damaged,
    )


def _answers(
    image: Image, partition: PartitionImage, recovery: _PartitionRecovery
) -> dict[int, LogEnd]:
    """The valid answers, in the order of the replicas."""
    return {
        broker_id: log_end
        for broker_id in _active(image, partition)
        if (log_end := _answer_of(image, recovery, broker_id)) is not None
    }


def _log_ends(
    image: Image, partition: PartitionImage, recovery: _PartitionRecovery
) -> dict[int, LogEnd]:
    """The valid answers of replicas that have a log."""
    answers = _answers(image, partition, recovery)
    return {broker_id: log_end for broker_id, log_end in answers.items() if not log_end.is_lost}


def _awaited(image: Image, partition: PartitionImage) -> frozenset[int]:
    """The replicas to wait for: those of unregistered brokers do not come back."""
    return frozenset(broker_id for broker_id in partition.replicas if broker_id in image.brokers)


def _active(image: Image, partition: PartitionImage) -> list[int]:
    """The replicas whose brokers are active, so that they can answer."""
    return [
        broker_id
        for broker_id in partition.replicas
        if broker_id in image.brokers and image.brokers[broker_id].is_active
    ]


def _answer_of(image: Image, recovery: _PartitionRecovery, broker_id: int) -> LogEnd | None:
    broker_epoch, log_end = recovery.answers.get(broker_id, (None, None))
    return log_end if broker_epoch == image.brokers[broker_id].epoch else None


def _needs_recovery(partition: PartitionImage) -> bool:
    return partition.leader == NO_LEADER and not partition.isr and not partition.elr


def _leaderless(image: Image) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for partition_id, partition in enumerate(topic.partitions):
            if _needs_recovery(partition):
                yield topic, partition_id, partition
