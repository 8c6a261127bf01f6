"""A transaction shard with the shell's part played by the test: a clock, a log, and markers."""

from collections.abc import Iterable
from itertools import count, islice

from headrace.coordinator.shard import CoordinatorRecord, Reply, RequestClient, ShardEffects
from headrace.coordinator.transactions.decisions import ProducerIdAndEpoch
from headrace.coordinator.transactions.transaction_metadata import (
    AddOffsets,
    AddPartitions,
    PendingMarkers,
    TransactionSettings,
)
from headrace.coordinator.transactions.transaction_shard import TransactionShard
from headrace.errors import ErrorCode, error_code
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
FIRST_PRODUCER_ID = 1_000
ID = "orders"
A = TopicPartition("a", 0)
B = TopicPartition("b", 1)
OFFSETS = TopicPartition("__consumer_offsets", 7)
CLIENT = RequestClient("app", "/10.0.0.7")
# Timeouts are looked for at every millisecond.
SETTINGS = TransactionSettings(timeout_check_ms=1)


class Shell:
    """Runs one shard. Records are committed at once unless `is_holding`.

    Answers go out in order, behind the records before them, as the driver does it. As in the
    broker, the stock of producer ids is filled after loading and whenever effects took hold, so
    also without a request; but not while `has_controller` is False.
    """

    def __init__(
        self,
        settings: TransactionSettings = SETTINGS,
        log: Iterable[CoordinatorRecord] = (),
        now_ms: int = START_MS,
        coordinator_epoch: int = 1,
        producer_ids: Iterable[int] | None = None,
        *,
        has_controller: bool = True,
    ) -> None:
        self.settings = settings
        self.coordinator_epoch = coordinator_epoch
        self.shard = TransactionShard(settings, coordinator_epoch)
        self.log = list(log)
        self.committed = len(self.log)
        for record in self.log:
            self.shard.replay(record)
        self.now_ms = now_ms
        self.shard.loaded(now_ms)
        self.is_holding = False
        self.held: list[ShardEffects] = []
        self.answers: dict[int, Message] = {}
        self._tokens = count(1)
        self._producer_ids = iter(
            count(FIRST_PRODUCER_ID) if producer_ids is None else producer_ids
        )
        self.has_controller = has_controller
        self._stock()

    def send(self, request: Message, version: int) -> int:
        """Handle a request; its answer will be in `answers` under the token returned here."""
        self._stock()
        token = next(self._tokens)
        self.perform(self.shard.handle(request, version, token, CLIENT, self.now_ms))
        return token

    def perform(self, effects: ShardEffects) -> None:
        self.log += effects.records
        self.held.append(effects)
        if not self.is_holding:
            self.release()

    def release(self, limit: int | None = None) -> None:
        """Commit what was held, or the first `limit` of it."""
        if limit is None:
            self.is_holding, limit = False, len(self.held)
        for _ in range(limit):
            effects = self.held.pop(0)
            self.committed += len(effects.records)
            if effects.records:
                self._tell(self.shard.commit(effects, self.now_ms))
            else:
                self._tell(effects.replies)
        self._stock()

    def add_producer_ids(self) -> None:
        """Fill the stock of producer ids."""
        self.shard.add_producer_ids(islice(self._producer_ids, self.shard.missing_producer_ids))

    def advance(self, duration_ms: int) -> None:
        """Let time pass, waking the shard exactly when it asks to be woken."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.shard.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.perform(self.shard.tick(self.now_ms))
        self.now_ms = end_ms

    def reload(self, keep: int | None = None) -> "Shell":
        """The next coordinator, which finds so many records (or all) in the log."""
        log = self.log if keep is None else self.log[:keep]
        return Shell(
            self.settings,
            log,
            self.now_ms,
            self.coordinator_epoch + 1,
            self._producer_ids,
            has_controller=self.has_controller,
        )

    def write_markers(self) -> list[PendingMarkers]:
        """Write every marker that is ordered."""
        orders = self.shard.take_marker_orders()
        for order in orders:
            self.written(order, *order.partitions)
        return orders

    def written(self, order: PendingMarkers, *partitions: TopicPartition) -> None:
        self.perform(
            self.shard.marker_written(order.transactional_id, order.marker, partitions, self.now_ms)
        )

    def init(
        self,
        expected: ProducerIdAndEpoch | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        version: int = 5,
        transactional_id: str = ID,
    ) -> ProducerIdAndEpoch | ErrorCode:
        """What a producer gets that starts, or goes on with what it has."""
        producer_id, producer_epoch = expected or (-1, -1)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        return self.initialized(self.send(request, version))

    def initialized(self, token: int) -> ProducerIdAndEpoch | ErrorCode:
        answer = self.answers[token]
        assert isinstance(answer, InitProducerIdResponse)
        if answer.error_code:
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
            return error_code(answer.error_code)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def start(self, transactional_id: str = ID, timeout_ms: int = TIMEOUT_MS) -> ProducerIdAndEpoch:
        """A producer that nobody stands in the way of."""
        producer = self.init(transactional_id=transactional_id, timeout_ms=timeout_ms)
        assert isinstance(producer, ProducerIdAndEpoch)
        return producer

    def add_request(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        version: int = 4,
        verify: bool = False,
        transactional_id: str = ID,
    ) -> int:
        request = AddPartitions(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            verify_only=verify,
            partitions=partitions,
        )
        return self.send(request, version)

    def add(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        version: int = 4,
        verify: bool = False,
        transactional_id: str = ID,
    ) -> ErrorCode:
        """The code that all partitions got."""
        token = self.add_request(
            producer,
            *partitions,
            version=version,
            verify=verify,
            transactional_id=transactional_id,
        )
        codes = self.added(token)
        assert list(codes) == list(partitions)
        [code] = set(codes.values())
        return code

    def added(self, token: int) -> dict[TopicPartition, ErrorCode]:
        answer = self.answers[token]
        assert isinstance(answer, AddPartitionsToTxnResponse)
        [result] = answer.results_by_transaction
        return {
            TopicPartition(topic.name, entry.partition_index): error_code(
                entry.partition_error_code
            )
            for topic in result.topic_results
            for entry in topic.results_by_partition
        }

    def add_offsets(self, producer: ProducerIdAndEpoch, *, version: int = 4) -> ErrorCode:
        request = AddOffsets(
            transactional_id=ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topic=OFFSETS.topic,
            partition=OFFSETS.partition,
        )
        answer = self.answers[self.send(request, version)]
        assert isinstance(answer, AddOffsetsToTxnResponse)
        return error_code(answer.error_code)

    def end_request(
        self,
        producer: ProducerIdAndEpoch,
        committed: bool,
        *,
        version: int = 5,
        transactional_id: str = ID,
    ) -> int:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
        return self.send(request, version)

    def ended(self, token: int) -> ProducerIdAndEpoch | ErrorCode:
        """What to go on with, or an error; NONE if the client goes on as it was."""
        answer = self.answers[token]
        assert isinstance(answer, EndTxnResponse)
        if answer.producer_id == -1:
            return error_code(answer.error_code)
        assert answer.error_code == ErrorCode.NONE
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def end(
        self,
        producer: ProducerIdAndEpoch,
        committed: bool,
        *,
        version: int = 5,
        transactional_id: str = ID,
    ) -> ProducerIdAndEpoch | ErrorCode:
        return self.ended(
            self.end_request(
                producer, committed, version=version, transactional_id=transactional_id
            )
        )

    def commit(self, producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """Commit, with version 2, what must be possible to commit."""
        after = self.end(producer, True)
        assert isinstance(after, ProducerIdAndEpoch)
        return after

    def abort(self, producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        after = self.end(producer, False)
        assert isinstance(after, ProducerIdAndEpoch)
        return after

    def state(self, transactional_id: str = ID) -> str:
        described = self.shard.describe(transactional_id)
        if described.error_code:
            return error_code(described.error_code).name
        return described.transaction_state

    def _stock(self) -> None:
        if self.has_controller:
            self.add_producer_ids()

    def _tell(self, replies: Iterable[Reply]) -> None:
        for token, response in replies:
            assert isinstance(token, int)
            assert token not in self.answers, f"{token} was answered twice"
            self.answers[token] = response
