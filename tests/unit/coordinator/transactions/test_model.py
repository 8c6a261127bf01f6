"""Random producers over a few partitions, while markers are late and coordinators crash.

What transactions promise: every one of them ends, in all of its partitions the same way, and as its
producer was told; a producer that was replaced commits nothing; no epoch is given to two producers.
Writes and markers arrive whenever the test likes, and those of a coordinator that is gone too.
Producer ids are in stock, or come late, since no controller is there to ask.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.coordinator.records import (
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
)
from headrace.coordinator.transactions.decisions import ProducerIdAndEpoch
from headrace.coordinator.transactions.transaction_metadata import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    SOURCES,
    VERSION_WITH_BUMP,
    PendingMarkers,
    TransactionMetadata,
    TransactionSettings,
    TransactionStatus,
)
from headrace.errors import ErrorCode
from headrace.protocol.markers import Marker
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.types import TopicPartition
from tests.unit.coordinator.transactions.driving import START_MS, Shell

T = TypeVar("T")

TIMEOUT_MS = 1_000
SETTINGS = TransactionSettings(id_expiration_ms=10_000, timeout_check_ms=100)
# By then every transaction that was open is aborted.
TIMED_OUT_MS = TIMEOUT_MS + SETTINGS.timeout_check_ms
IDS = ("fresh", "worn")
PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
WORN_PRODUCER_ID = 5
SURELY_REFUSED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
)
# After these a client asks again; the second says that no producer id is in stock.
RETRIABLE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

# Choices of a random example, all of them about the id "worn". A client aborts a transaction and is
# replaced. The next client adds a partition at epoch 32763 when the coordinator crashes; a third
# client has that transaction aborted. A client of version 2 gets 32765; a rival's InitProducerId
# aborts its transaction; it aborts too, which counts as its own end, and goes on with 32766, the
# last epoch. It writes to partition 0, the coordinator crashes, and no request follows.
FAILOVER_AT_LAST_EPOCH = (
    bytes.fromhex("46010005000032000005055c00003bd4")
    + bytes(11)
    + bytes.fromhex("dc01009101")
    + bytes(13)
    + bytes.fromhex("6d")
    + bytes(6)
    + bytes.fromhex("710000ab000137f7")
    + bytes(25)
    + bytes.fromhex("869f")
    + bytes(60)
    + bytes.fromhex("ae004601")
    + bytes(24)
    + bytes.fromhex("bc0001")
    + bytes(11)
    + bytes.fromhex("ea00002d010100000047")
    + bytes(65)
    + bytes.fromhex("0509ee")
    + bytes(7)
    + bytes.fromhex("0122bc")
    + bytes(19)
    + bytes.fromhex("160000004a")
)


@dataclass
class KnownProducer:
    epoch: int
    is_open: bool = False
    coordinator_epoch: int = -1
    markers: int = 0


@dataclass
class Log:
    """A partition: records and markers of producers, and the checks that every log makes."""

    producers: dict[int, KnownProducer] = field(default_factory=dict)
    # A number names the transaction of a record; a marker says how it ended.
    events: list[tuple[int, int | Marker]] = field(default_factory=list)

    def markers(self, producer_id: int) -> int:
        known = self.producers.get(producer_id)
        return 0 if known is None else known.markers

    def append(self, producer: ProducerIdAndEpoch, transaction: int, markers: int) -> bool:
        """`markers` is how many there were before the coordinator was asked."""
        known = self.producers.setdefault(
            producer.producer_id, KnownProducer(producer.producer_epoch)
        )
        if producer.producer_epoch < known.epoch:
            return False
        is_in_it = known.is_open and known.epoch == producer.producer_epoch
        if not is_in_it and known.markers != markers:
            return False
        known.epoch, known.is_open = producer.producer_epoch, True
        self.events.append((producer.producer_id, transaction))
        return True

    def mark(self, marker: Marker, version: int) -> ErrorCode:
        known = self.producers.setdefault(marker.producer_id, KnownProducer(marker.producer_epoch))
        is_late = (
            version >= VERSION_WITH_BUMP and known.is_open and known.epoch == marker.producer_epoch
        )
        if is_late or marker.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < known.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        known.epoch, known.is_open = marker.producer_epoch, False
        known.coordinator_epoch = marker.coordinator_epoch
        known.markers += 1
        self.events.append((marker.producer_id, marker))
        return ErrorCode.NONE

    def outcomes(self) -> dict[int, bool]:
        """How each transaction ended here; no marker ends two of them."""
        ended: dict[int, bool] = {}
        open_: dict[int, int] = {}
        for producer_id, event in self.events:
            if isinstance(event, Marker):
                transaction = open_.pop(producer_id, None)
                if transaction is not None:
                    ended[transaction] = event.committed
            else:
                assert open_.setdefault(producer_id, event) == event
                assert event not in ended, f"a record of {event} came after its marker"
        assert not open_, "a transaction hangs"
        return ended


@dataclass(eq=False)
class Client:
    """A producer as it sees itself."""

    number: int
    transactional_id: str
    is_bumping: bool
    producer: ProducerIdAndEpoch | None = None
    transaction: int | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    # Writes that are not answered, and whether one was refused.
    writing: int = 0
    has_failed: bool = False
    # How it asked its transaction to end, which it will go on asking.
    wish: bool | None = None
    is_in_doubt: bool = False
    is_over: bool = False
    # A request that is not answered: where, and what to do with the answer.
    token: int | None = None
    then: Callable[[int], None] | None = None


@dataclass
class Flight:
    """A write that the coordinator has let pass, on its way to a partition."""

    client: Client
    producer: ProducerIdAndEpoch
    transaction: int
    partition: TopicPartition
    markers: int


class World:
    """Clients, partitions and the coordinator of the hour. A byte decides each choice."""

    def __init__(self, choices: bytes, *, has_controller: bool = True) -> None:
        """Without a controller producer ids come only when time has passed."""
        worn = TransactionMetadata(
            status=TransactionStatus.EMPTY,
            producer_id=WORN_PRODUCER_ID,
            producer_epoch=EPOCH_MAX - 6,
            timeout_ms=TIMEOUT_MS,
            updated_ms=START_MS,
        )
        log = [encode_transaction("worn", worn)]
        self.shell = Shell(SETTINGS, log, has_controller=has_controller)
        self.retriable = RETRIABLE[:1] if has_controller else RETRIABLE
        self.logs = {partition: Log() for partition in PARTITIONS}
        self.clients: list[Client] = []
        self.owner: dict[str, Client] = {}
        self.holder: dict[ProducerIdAndEpoch, Client] = {}
        self.told: dict[int, bool] = {}
        self.flights: list[Flight] = []
        self.orders: list[tuple[Shell, PendingMarkers, TopicPartition]] = []
        self.numbers = count(1)
        self._choices = iter(choices)

    def run(self) -> None:
        """Do what the choices say, then let everything come to rest, and judge."""
        actions = (
            *(self.write,) * 5,
            *(self.land,) * 4,
            *(self.end,) * 4,
            *(self.mark,) * 5,
            *(self.commit,) * 2,
            self.appear,
            self.start,
            self.hold,
            self.pass_time,
            self.crash,
        )
        for choice in self._choices:
            actions[choice % len(actions)]()
        self.settle()

    def _choose(self, several: int) -> int:
        return next(self._choices, 0) % several

    def _of(self, several: Sequence[T]) -> T:
        return several[self._choose(len(several))]

    def _flip(self) -> bool:
        return bool(self._choose(2))

    # What clients do.

    def appear(self) -> None:
        client = Client(next(self.numbers), self._of(IDS), self._flip())
        self.clients.append(client)
        self._start(client, None)

    def start(self) -> None:
        goes_on = self._flip()
        client = self._pick(
            lambda candidate: candidate.producer is None or (goes_on and not candidate.writing)
        )
        if client is not None:
            self._start(client, client.producer)

    def _start(self, client: Client, expected: ProducerIdAndEpoch | None) -> None:
        request = InitProducerIdRequest(
            transactional_id=client.transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=-1 if expected is None else expected.producer_id,
            producer_epoch=-1 if expected is None else expected.producer_epoch,
        )
        if expected is not None and client.transaction is not None:
            client.has_failed = True

        def started(token: int) -> None:
            answer = self.shell.initialized(token)
            if isinstance(answer, ProducerIdAndEpoch):
                self._give_up(client)
                self._hand_out(client, answer)
                self.owner[client.transactional_id] = client
            elif answer in SURELY_REFUSED:
                client.is_over = True
            else:
                assert answer in self.retriable

        self._ask(client, self.shell.send(request, 5), started)

    def write(self) -> None:
        client = self._pick(
            lambda candidate: (
                candidate.producer is not None
                and candidate.wish is None
                and not candidate.has_failed
            )
        )
        if client is None:
            return
        partition = self._of(PARTITIONS)
        assert client.producer is not None
        if client.transaction is None:
            client.transaction = next(self.numbers)
        client.writing += 1
        markers = self.logs[partition].markers(client.producer.producer_id)
        flight = Flight(client, client.producer, client.transaction, partition, markers)

        def added(token: int) -> None:
            [code] = self.shell.added(token).values()
            if code is not ErrorCode.NONE:
                client.writing -= 1
                client.has_failed = True
            elif client.is_bumping:
                self.flights.append(flight)
            else:
                # Under version 1 a late write may end up in the next transaction: that is known.
                self._land(flight)

        token = self.shell.add_request(
            client.producer,
            partition,
            version=4 if client.is_bumping else 3,
            transactional_id=client.transactional_id,
        )
        self._ask(client, token, added)

    def land(self) -> None:
        if self.flights:
            self._land(self.flights.pop(self._choose(len(self.flights))))

    def _land(self, flight: Flight) -> None:
        log = self.logs[flight.partition]
        is_written = log.append(flight.producer, flight.transaction, flight.markers)
        if flight.client.transaction == flight.transaction:
            flight.client.writing -= 1
            flight.client.partitions.add(flight.partition)
            flight.client.has_failed |= not is_written

    def end(self) -> None:
        client = self._pick(lambda candidate: candidate.producer is not None)
        if client is None:
            return
        if client.wish is None:
            committed = self._flip()
            if committed and (client.writing or client.has_failed or not client.partitions):
                return
            if not client.is_bumping and (client.writing or not client.partitions):
                return
            client.wish = committed
        self._end(client)

    def _end(self, client: Client) -> None:
        assert client.producer is not None
        assert client.wish is not None
        wish, transaction = client.wish, client.transaction

        def ended(token: int) -> None:
            answer = self.shell.ended(token)
            if isinstance(answer, ProducerIdAndEpoch) or answer is ErrorCode.NONE:
                assert self.owner[client.transactional_id] is client, "a zombie was served"
                if transaction is not None:
                    self.told[transaction] = wish
                self._give_up(client)
                if isinstance(answer, ProducerIdAndEpoch):
                    self._hand_out(client, answer)
            elif answer in SURELY_REFUSED:
                if transaction is not None and not client.is_in_doubt:
                    self.told[transaction] = False
                client.is_over = True
            else:
                assert answer in self.retriable

        version = 5 if client.is_bumping else 3
        token = self.shell.end_request(
            client.producer, wish, version=version, transactional_id=client.transactional_id
        )
        self._ask(client, token, ended)

    def _give_up(self, client: Client) -> None:
        """Go on without the transaction; what is still in the air is nobody's business."""
        client.transaction, client.wish = None, None
        client.partitions = set()
        client.writing, client.has_failed, client.is_in_doubt = 0, False, False

    def _hand_out(self, client: Client, producer: ProducerIdAndEpoch) -> None:
        assert self.holder.setdefault(producer, client) is client, "an epoch was given twice"
        assert producer.producer_epoch < EPOCH_MAX
        client.producer = producer

    # What happens to the coordinator.

    def hold(self) -> None:
        self.shell.is_holding = True

    def commit(self) -> None:
        if self.shell.held:
            limit = self._choose(len(self.shell.held) + 1)
            self.shell.release(limit or None)
            self._look()

    def pass_time(self) -> None:
        self.shell.advance(self._of((1, 1, 400, TIMED_OUT_MS, SETTINGS.id_expiration_ms)))
        self.shell.add_producer_ids()
        self._look()

    def crash(self) -> None:
        """Another coordinator finds what was committed, and perhaps some of what was not."""
        lost = self._choose(len(self.shell.log) - self.shell.committed + 1)
        self.shell = self.shell.reload(len(self.shell.log) - lost)
        for client in self.clients:
            if client.token is not None:
                client.is_in_doubt |= client.wish is not None
                if client.wish is None and client.writing:
                    client.has_failed = True
                    client.writing = 0
                client.token, client.then = None, None
        self._look()

    def mark(self) -> None:
        if not self.orders:
            return
        sent = self.orders.pop(self._choose(len(self.orders)))
        # Under version 1 a marker that comes again may end the next transaction: that is known.
        if sent[1].transaction_version >= VERSION_WITH_BUMP and self._choose(4) == 0:
            self.orders.append(sent)
        self._mark(*sent)

    def _mark(self, shell: Shell, order: PendingMarkers, partition: TopicPartition) -> None:
        code = self.logs[partition].mark(order.marker, order.transaction_version)
        if code is not ErrorCode.TRANSACTION_COORDINATOR_FENCED and shell is self.shell:
            self.shell.written(order, partition)
            self._look()

    # Common.

    def _pick(self, fits: Callable[[Client], bool]) -> Client | None:
        """A client that does not wait for an answer."""
        idle = [
            client
            for client in self.clients
            if client.token is None and not client.is_over and fits(client)
        ]
        return self._of(idle) if idle else None

    def _ask(self, client: Client, token: int, then: Callable[[int], None]) -> None:
        client.token, client.then = token, then
        self._look()

    def _look(self) -> None:
        """Have clients read their answers, in the order these were given, and markers sent."""
        for token in self.shell.answers:
            for client in self.clients:
                if client.token == token and client.then is not None:
                    then = client.then
                    client.token, client.then = None, None
                    then(token)
        self.shell.answers.clear()
        for order in self.shell.shard.take_marker_orders():
            self.orders += [(self.shell, order, partition) for partition in order.partitions]

    def settle(self) -> None:
        self.shell.has_controller = True
        for _ in range(3):
            self.shell.release()
            self._look()
            while self.flights:
                self._land(self.flights.pop(0))
            while self.orders:
                self._mark(*self.orders.pop(0))
            self.shell.advance(TIMED_OUT_MS)
            self._look()
        assert not self.orders
        self._check_outcomes()
        self._check_history()

    def _check_outcomes(self) -> None:
        ended: dict[int, bool] = {}
        for log in self.logs.values():
            for transaction, committed in log.outcomes().items():
                assert ended.setdefault(transaction, committed) == committed, "torn apart"
        for transaction, committed in self.told.items():
            assert ended.get(transaction, committed) == committed, "not what it was told"

    def _check_history(self) -> None:
        """Every change of an id is one that the table has, and an outcome stays what it is."""
        states: dict[str, TransactionMetadata | None] = {}
        for record in self.shell.log:
            transactional_id = decode_transaction_key(record.key)
            assert transactional_id is not None
            before = states.get(transactional_id)
            after = None if record.value is None else decode_transaction(record.value)
            source = None if before is None else before.status
            assert source in SOURCES[None if after is None else after.status]
            states[transactional_id] = after


def test_a_new_coordinator_aborts_a_transaction_at_the_last_epoch_without_a_request() -> None:
    """The last steps of FAILOVER_AT_LAST_EPOCH, where the transaction stayed open for ever.

    A producer with the last epoch of its producer id writes, and is gone. So is its coordinator.
    The next coordinator gets no request until the transaction times out. The abort needs a new
    producer id, so the stock has to be filled without a request.
    """
    partition = PARTITIONS[0]
    producer = ProducerIdAndEpoch(WORN_PRODUCER_ID, CLIENT_EPOCH_MAX)
    worn = TransactionMetadata(
        status=TransactionStatus.EMPTY,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        timeout_ms=TIMEOUT_MS,
        updated_ms=START_MS,
    )
    shell = Shell(SETTINGS, [encode_transaction("worn", worn)])
    assert shell.add(producer, partition, transactional_id="worn") is ErrorCode.NONE
    successor = shell.reload()
    successor.advance(TIMED_OUT_MS)
    assert successor.state("worn") == "PrepareAbort"
    [order] = successor.write_markers()
    assert order.partitions == (partition,)
    marker = Marker(WORN_PRODUCER_ID, EPOCH_MAX, successor.coordinator_epoch, committed=False)
    assert order.marker == marker
    assert successor.state("worn") == "CompleteAbort"
    next_producer = successor.end(producer, committed=False, transactional_id="worn")
    assert isinstance(next_producer, ProducerIdAndEpoch)
    assert next_producer.producer_id != WORN_PRODUCER_ID
    assert next_producer.producer_epoch == 0


@settings(max_examples=60)
@given(choices=st.binary(min_size=300, max_size=900), has_controller=st.booleans())
@example(choices=FAILOVER_AT_LAST_EPOCH, has_controller=True)
@example(choices=FAILOVER_AT_LAST_EPOCH, has_controller=False)
def test_transactions(choices: bytes, has_controller: bool) -> None:
    World(choices, has_controller=has_controller).run()
