"""The same requests of producers, right and wrong, to Apache Kafka and to us: the same answers."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

import pytest

from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.testing.time_limits import Deadline, scaled
from tests.compat.apache import apache_kafka
from tests.integration.wire import Wire, create_topic
from tests.support import BrokerProcess

TOPIC = "compared"
PARTITIONS = 3
RUNS = 60
STEPS = 25
PATIENCE_S = scaled(60)
# What passes: the transaction before is not complete, or the coordinator not ready.
PASSING = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Producer(NamedTuple):
    producer_id: int
    producer_epoch: int


Answer: TypeAlias = Producer | ErrorCode


class Step(NamedTuple):
    """One request: who sends it, as one of those that a broker handed out, and what it asks."""

    kind: str
    sender: int
    epoch_offset: int
    partition: int
    committed: bool
    version: int


class State(NamedTuple):
    name: str
    producer_epoch: int
    partitions: tuple[int, ...]


class Peer:
    """A broker, and the producers it has handed out for one transactional id."""

    def __init__(self, wire: Wire, transactional_id: str) -> None:
        self._wire = wire
        self._id = transactional_id
        self.given: list[Producer] = []

    def perform(self, step: Step) -> Answer:
        """The answer that stays, when what passes has passed."""
        sender = None
        if step.kind != "start":
            given = self.given[step.sender]
            sender = given._replace(producer_epoch=given.producer_epoch + step.epoch_offset)
        answer = _settled(lambda: self._ask(step, sender))
        if isinstance(answer, Producer):
            self.given.append(answer)
        return answer

    def state(self) -> State:
        deadline = Deadline(PATIENCE_S)
        while True:
            request = DescribeTransactionsRequest(transactional_ids=[self._id])
            [found] = self._wire.ask(request, 0).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                partitions = [one for topic in found.topics for one in topic.partitions]
                return State(
                    found.transaction_state, found.producer_epoch, tuple(sorted(partitions))
                )
            assert not deadline.has_passed

    def _ask(self, step: Step, sender: Producer | None) -> Answer:
        if step.kind in ("start", "go on"):
            return self._initialize(sender)
        assert sender is not None
        if step.kind == "end":
            return self._end(sender, step.committed, step.version)
        if step.kind == "add":
            return self._add_by_client(sender, step.partition)
        return self._add_by_broker(sender, step.partition, verify_only=step.kind == "verify")

    def _initialize(self, expected: Producer | None) -> Answer:
        producer_id, producer_epoch = expected or (-1, -1)
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        answer = self._wire.ask(request, 5)
        if answer.error_code:
            return error_code(answer.error_code)
        return Producer(answer.producer_id, answer.producer_epoch)

    def _add_by_client(self, sender: Producer, partition: int) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=sender.producer_id,
            v3_and_below_producer_epoch=sender.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])],
        )
        [topic] = self._wire.ask(request, 3).results_by_topic_v3_and_below
        return error_code(topic.results_by_partition[0].partition_error_code)

    def _add_by_broker(self, sender: Producer, partition: int, *, verify_only: bool) -> ErrorCode:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self._id,
            producer_id=sender.producer_id,
            producer_epoch=sender.producer_epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])],
        )
        answer = self._wire.ask(AddPartitionsToTxnRequest(transactions=[transaction]), 5)
        [result] = answer.results_by_transaction
        return error_code(result.topic_results[0].results_by_partition[0].partition_error_code)

    def _end(self, sender: Producer, committed: bool, version: int) -> Answer:
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=sender.producer_id,
            producer_epoch=sender.producer_epoch,
            committed=committed,
        )
        answer = self._wire.ask(request, version)
        if answer.error_code or version < 5:
            return error_code(answer.error_code)
        return Producer(answer.producer_id, answer.producer_epoch)


def _settled(ask: Callable[[], Answer]) -> Answer:
    deadline = Deadline(PATIENCE_S)
    while (answer := ask()) in PASSING and not deadline.has_passed:
        time.sleep(0.005)
    return answer


def draw(random: Random, given: list[Producer]) -> Step:
    kinds = ["start", "go on", "add", "verify", "add by broker", *["end"] * 4]
    kind = random.choice(kinds) if given else "start"
    sender = random.choice([-1] * 6 + list(range(len(given)))) if given else 0
    lowest = -given[sender].producer_epoch if given else 0
    return Step(
        kind,
        sender,
        max(random.choice([0] * 8 + [-2, -1, 1, 2]), lowest),
        random.randrange(PARTITIONS),
        random.random() < 0.5,
        random.choice([3, 5, 5]),
    )


def differs_on_purpose(step: Step, before: State, sender_epoch: int, has_raised: bool) -> bool:
    """What Kafka does otherwise, and we do not want."""
    # It looks at the epoch of who goes on only after it has aborted what is open, so a producer
    # that is fenced already ends the transaction of the one that fenced it.
    is_zombie = sender_epoch != before.producer_epoch
    if step.kind == "go on" and is_zombie and before.name == "Ongoing":
        return True
    if step.kind != "end" or step.version < 5 or not is_zombie:
        return False
    # An end of version 1 raises no epoch. It takes the epoch before for that of the same producer
    # all the same, and gives the present one to a producer that was fenced.
    return before.name.startswith("Complete") and not has_raised


def prepare(wire: Wire, address: str) -> None:
    create_topic(address, TOPIC, PARTITIONS)
    deadline = Deadline(PATIENCE_S)
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["any"])
    while wire.ask(request, 4).coordinators[0].error_code:
        assert not deadline.has_passed
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_producers_are_answered_as_by_kafka(broker: BrokerProcess, tmp_path: Path) -> None:
    with (
        apache_kafka(tmp_path / "kafka") as kafka,
        Wire(kafka.bootstrap_servers) as theirs,
        Wire(broker.address) as ours,
    ):
        prepare(theirs, kafka.bootstrap_servers)
        prepare(ours, broker.address)
        compared = sum(
            compare(Random(seed), Peer(theirs, f"id-{seed}"), Peer(ours, f"id-{seed}"))
            for seed in range(RUNS)
        )
    assert compared > RUNS * STEPS / 2


def compare(random: Random, theirs: Peer, ours: Peer) -> int:
    """Ask both the same until they differ on purpose; how many answers were the same."""
    history = []
    before = State("", -1, ())
    has_raised = False  # Whether the last end of a transaction has raised the epoch.
    for number in range(STEPS):
        step = draw(random, ours.given)
        sender_epoch = ours.given[step.sender].producer_epoch if ours.given else 0
        wanted, got = theirs.perform(step), ours.perform(step)
        after = ours.state()
        history.append((step, wanted, got, after))
        if differs_on_purpose(step, before, sender_epoch + step.epoch_offset, has_raised):
            return number
        assert _epoch_or_code(wanted) == _epoch_or_code(got), history[-5:]
        assert theirs.state() == after, history[-5:]
        if before.name == "Ongoing" and after.name != "Ongoing":
            has_raised = after.producer_epoch != before.producer_epoch
        before = after
    return STEPS


def _epoch_or_code(answer: Answer) -> int | ErrorCode:
    """The producer ids of two brokers have nothing to do with each other."""
    return answer.producer_epoch if isinstance(answer, Producer) else answer
