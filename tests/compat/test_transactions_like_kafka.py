"""The same requests of producers, right and wrong, to Apache Kafka and to us: the same answers."""

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple, TypeAlias

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
from headrace.protocol.schema import Message
from headrace.testing.time_limits import Deadline
from tests.compat.apache import apache_kafka
from tests.integration.wire import Wire, create_topic
from tests.support import BrokerProcess
from tests.unit.coordinator.transactions.request_table import CELLS, Cell

TOPIC = "compared"
PARTITIONS = 3
RUNS = 60
STEPS = 25
PATIENCE_S = 60.0
# How often the end of a transaction has a request right behind it.
HASTE = 0.3
END_WITH_BUMP = 5
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
        return self._kept(_settled(lambda: self.ask(step, self._sender(step))))

    def perform_together(self, end: Step, hasty: Step) -> tuple[Answer, Answer]:
        """The answers to an end, and to a request that is sent before the end is answered.

        `hasty` is of the producer that goes on after the end.
        """
        sender = self._sender(end)
        assert sender is not None
        raised = 1 if end.version >= END_WITH_BUMP else 0
        next_sender = None
        if hasty.kind != "start":
            next_sender = sender._replace(producer_epoch=sender.producer_epoch + raised)
        self._wire.send(*self._request(end, sender))
        self._wire.send(*self._request(hasty, next_sender))
        first = _answer(end, self._wire.receive())
        second = _answer(hasty, self._wire.receive())
        if first in PASSING:
            first = _settled(lambda: self.ask(end, sender))
        if second in PASSING:
            second = _settled(lambda: self.ask(hasty, next_sender))
        return self._kept(first), self._kept(second)

    def first_after(
        self, end: Step, ending: Producer, hasty: Step, sender: Producer | None
    ) -> Answer:
        """The first answer to a request that is sent right behind an end."""
        self._wire.send(*self._request(end, ending))
        self._wire.send(*self._request(hasty, sender))
        assert isinstance(_answer(end, self._wire.receive()), Producer)
        return _answer(hasty, self._wire.receive())

    def ask(self, step: Step, sender: Producer | None) -> Answer:
        """The first answer."""
        return _answer(step, self._wire.ask(*self._request(step, sender)))

    def state(self) -> State:
        deadline = Deadline(PATIENCE_S)
        while True:
            request = DescribeTransactionsRequest(transactional_ids=[self._id])
            [found] = self._wire.ask(request, 0).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                partitions = [partition for topic in found.topics for partition in topic.partitions]
                return State(
                    found.transaction_state, found.producer_epoch, tuple(sorted(partitions))
                )
            assert not deadline.has_passed

    def _sender(self, step: Step) -> Producer | None:
        if step.kind == "start":
            return None
        given = self.given[step.sender]
        return given._replace(producer_epoch=given.producer_epoch + step.epoch_offset)

    def _kept(self, answer: Answer) -> Answer:
        if isinstance(answer, Producer):
            self.given.append(answer)
        return answer

    def _request(self, step: Step, sender: Producer | None) -> tuple[Message, int]:
        if step.kind in ("start", "go on"):
            return self._initialize(sender), 5
        assert sender is not None
        if step.kind == "end":
            return self._end(sender, step.committed), step.version
        if step.kind == "add":
            return self._add_by_client(sender, step.partition), 3
        verifies = step.kind == "verify"
        return self._add_by_broker(sender, step.partition, verify_only=verifies), 5

    def _initialize(self, expected: Producer | None) -> InitProducerIdRequest:
        producer_id, producer_epoch = expected or (-1, -1)
        return InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    def _add_by_client(self, sender: Producer, partition: int) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=sender.producer_id,
            v3_and_below_producer_epoch=sender.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])],
        )

    def _add_by_broker(
        self, sender: Producer, partition: int, *, verify_only: bool
    ) -> AddPartitionsToTxnRequest:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self._id,
            producer_id=sender.producer_id,
            producer_epoch=sender.producer_epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])],
        )
        return AddPartitionsToTxnRequest(transactions=[transaction])

    def _end(self, sender: Producer, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self._id,
            producer_id=sender.producer_id,
            producer_epoch=sender.producer_epoch,
            committed=committed,
        )


def _answer(step: Step, response: Any) -> Answer:
    if step.kind == "add":
        [topic] = response.results_by_topic_v3_and_below
        return error_code(topic.results_by_partition[0].partition_error_code)
    if step.kind in ("verify", "add by broker"):
        [result] = response.results_by_transaction
        return error_code(result.topic_results[0].results_by_partition[0].partition_error_code)
    if response.error_code or (step.kind == "end" and step.version < END_WITH_BUMP):
        return error_code(response.error_code)
    return Producer(response.producer_id, response.producer_epoch)


def _settled(ask: Callable[[], Answer]) -> Answer:
    deadline = Deadline(PATIENCE_S)
    while (answer := ask()) in PASSING and not deadline.has_passed:
        time.sleep(0.005)
    return answer


def draw_pair(random: Random) -> tuple[Step, Step]:
    """An end by the producer that is current, and what it sends without a pause."""
    version = random.choice([3, 5, 5])
    partition = random.randrange(PARTITIONS)
    end = Step("end", -1, 0, partition, random.random() < 0.7, version)
    kind = random.choice(["end", "end", "end", "add", "add by broker", "start"])
    return end, Step(kind, -1, 0, partition, random.random() < 0.3, version)


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


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, Wire]]:
    """Connections to Apache Kafka and to us."""
    directory = tmp_path_factory.mktemp("brokers")
    settings = {"transaction.state.log.num.partitions": "2"}
    with (
        apache_kafka(directory / "kafka") as kafka,
        BrokerProcess(directory / "ours", settings) as broker,
        Wire(kafka.bootstrap_servers) as theirs,
        Wire(broker.address) as ours,
    ):
        prepare(theirs, kafka.bootstrap_servers)
        prepare(ours, broker.address)
        yield theirs, ours


@pytest.mark.timeout(300)
def test_producers_are_answered_as_by_kafka(wires: tuple[Wire, Wire]) -> None:
    theirs, ours = wires
    compared = sum(
        compare(Random(seed), Peer(theirs, f"id-{seed}"), Peer(ours, f"id-{seed}"))
        for seed in range(RUNS)
    )
    assert compared > RUNS * STEPS / 2


def compare(random: Random, theirs: Peer, ours: Peer) -> int:
    """Ask both the same until they differ on purpose; how many answers were the same."""
    history: list[object] = []
    before = State("", -1, ())
    has_raised = False  # Whether the last end of a transaction has raised the epoch.
    for number in range(STEPS):
        if before.name == "Ongoing" and random.random() < HASTE:
            pair = draw_pair(random)
            all_wanted, all_got = theirs.perform_together(*pair), ours.perform_together(*pair)
            after = ours.state()
            history.append((pair, all_wanted, all_got, after))
            assert list(map(_epoch_or_code, all_wanted)) == list(map(_epoch_or_code, all_got)), (
                history[-5:]
            )
            if isinstance(all_got[0], Producer) or all_got[0] is ErrorCode.NONE:
                has_raised = pair[0].version >= END_WITH_BUMP
        else:
            step = draw(random, ours.given)
            sender_epoch = ours.given[step.sender].producer_epoch if ours.given else 0
            wanted, got = theirs.perform(step), ours.perform(step)
            after = ours.state()
            history.append((step, wanted, got, after))
            if differs_on_purpose(step, before, sender_epoch + step.epoch_offset, has_raised):
                return number
            assert _epoch_or_code(wanted) == _epoch_or_code(got), history[-5:]
            if before.name == "Ongoing" and after.name != "Ongoing":
                has_raised = after.producer_epoch != before.producer_epoch
            elif isinstance(got, Producer) and step.kind == "end":
                has_raised = True
        assert theirs.state() == after, history[-5:]
        before = after
    return STEPS


def _epoch_or_code(answer: Answer) -> int | ErrorCode:
    """The producer ids of two brokers have nothing to do with each other."""
    return answer.producer_epoch if isinstance(answer, Producer) else answer


# -- every cell of the table of requests

# How often to try to meet a transaction that is prepared: Kafka's markers may be quicker.
ATTEMPTS = 50
SENDERS = {"current": 0, "last": -1, "older": -2, "ahead": 1}
OTHER_ID = 1_000_000
CODES = {
    "CON": ErrorCode.CONCURRENT_TRANSACTIONS,
    "FEN": ErrorCode.PRODUCER_FENCED,
    "MAP": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "ITS": ErrorCode.INVALID_TXN_STATE,
    "ABO": ErrorCode.TRANSACTION_ABORTABLE,
}
SETTLED = {
    "EM": "Empty",
    "ON": "Ongoing",
    "PC": "CompleteCommit",
    "PA": "CompleteAbort",
    "CA": "CompleteAbort",
}


def step_of(request: str) -> Step:
    kind, _, version = request.partition("-")
    if kind in ("commit", "abort"):
        return Step("end", -1, 0, 0, kind == "commit", int(version[1:]))
    return Step({"init": "go on", "add": "add by broker"}.get(kind, kind), -1, 0, 0, False, 5)


def sender_of(sender: str, current: Producer) -> Producer | None:
    if sender == "new":
        return None
    if sender == "other":
        return current._replace(producer_id=current.producer_id + OTHER_ID)
    return current._replace(producer_epoch=current.producer_epoch + SENDERS[sender])


def brought_to(peer: Peer, state: str) -> Producer:
    """The current producer of an id that is in a state, whose last epochs are its own too."""
    if state == "unknown":
        return Producer(OTHER_ID, 3)
    peer.perform(Step("start", 0, 0, 0, False, 5))
    for _ in range(3):
        peer.perform(Step("go on", -1, 0, 0, False, 5))
    if state != "Empty":
        for partition in range(PARTITIONS):
            added = peer.perform(Step("add by broker", -1, 0, partition, False, 5))
            assert added is ErrorCode.NONE
    if state.startswith("Complete"):
        peer.perform(Step("end", -1, 0, 0, state == "CompleteCommit", 5))
        assert peer.state().name == state
    return peer.given[-1]


def check_cell(peer: Peer, cell: Cell, answer: Answer, before_epoch: int, outcome: str) -> None:
    """Compare a first answer, and the state that it leads to."""
    if outcome in CODES:
        assert answer is CODES[outcome], cell
        return
    if outcome == "OK":
        assert isinstance(answer, Producer) or answer is ErrorCode.NONE, cell
        return
    status, raised = outcome.split("+")
    is_fencing = cell.request == "init" and status == "PA"
    if is_fencing and isinstance(answer, Producer):
        # Ours waits for the abort, and goes on with the request then.
        assert peer.state().name == "Empty"
        return
    if is_fencing:
        assert answer is ErrorCode.CONCURRENT_TRANSACTIONS, cell
    else:
        assert isinstance(answer, Producer) or answer is ErrorCode.NONE, (cell, answer)
    after = peer.state()
    assert after.name == SETTLED[status], cell
    assert after.producer_epoch == before_epoch + int(raised), cell


@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", [0, 1], ids=["Kafka", "ours"])
def test_complete_states_answer_as_the_table_says(wires: tuple[Wire, Wire], broker: int) -> None:
    cells = [cell for cell in CELLS if not cell.state.startswith("Prepare")]
    assert len(cells) > 100
    for cell in cells:
        peer = Peer(wires[broker], f"cell {cell.request} {cell.sender} {cell.state}")
        current = brought_to(peer, cell.state)
        is_unknown = cell.state == "unknown"
        answer = _settled_load(peer, step_of(cell.request), sender_of(cell.sender, current))
        # Unlike Kafka: it looks at the epoch after the abort.
        differs = cell.outcome == "FEN*"
        outcome = "PA+1" if differs and not broker else cell.outcome.rstrip("*")
        check_cell(peer, cell, answer, 0 if is_unknown else current.producer_epoch, outcome)


@pytest.mark.timeout(300)
def test_kafka_answers_in_prepared_states_as_the_table_says(wires: tuple[Wire, Wire]) -> None:
    """Ours waits for the end there, unless it takes long: unit tests look at its first answer."""
    for cell in CELLS:
        if not cell.state.startswith("Prepare"):
            continue
        wanted = CODES[cell.outcome]
        for attempt in range(ATTEMPTS):
            peer = Peer(wires[0], f"cell {cell.request} {cell.sender} {cell.state} {attempt}")
            ending = brought_to(peer, "Ongoing")
            end = Step("end", -1, 0, 0, cell.state == "PrepareCommit", 5)
            current = ending._replace(producer_epoch=ending.producer_epoch + 1)
            answer = peer.first_after(
                end, ending, step_of(cell.request), sender_of(cell.sender, current)
            )
            if answer is wanted:
                break
        else:
            pytest.fail(f"{cell}: Kafka said {answer}")


def _settled_load(peer: Peer, step: Step, sender: Producer | None) -> Answer:
    """The first answer of a coordinator that is loaded."""
    deadline = Deadline(PATIENCE_S)
    loading = [code for code in PASSING if code is not ErrorCode.CONCURRENT_TRANSACTIONS]
    while (answer := peer.ask(step, sender)) in loading and not deadline.has_passed:
        time.sleep(0.005)
    return answer
