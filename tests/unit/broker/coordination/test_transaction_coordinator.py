"""The shell around the transaction coordinator: handlers, orders of markers, producer ids."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.coordination.runtime import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.broker.coordination.transaction_coordinator import (
    MarkerSender,
    TransactionCoordinator,
    TransactionDriver,
)
from headrace.broker.handlers import transactions as handlers
from headrace.broker.handlers.transactions import init_producer_id
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.coordinator.records import encode_transaction
from headrace.coordinator.transactions.transaction_metadata import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    VERSION_WITH_BUMP,
    PendingMarkers,
    TransactionMetadata,
    TransactionSettings,
    TransactionStatus,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import PartitionImage
from headrace.protocol.markers import Marker
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.records import encode_batch
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition
from tests.unit.broker.handling import TOPIC, OneNode
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

ALONE = PartitionImage((1,), (1,), leader=1, leader_epoch=4, partition_epoch=9)
AMONG_TWO = PartitionImage((1, 2), (1, 2), leader=1, leader_epoch=5, partition_epoch=10)
NONE = ErrorCode.NONE


class Ids:
    """Producer ids from 100 on, as long as the controller can be reached."""

    def __init__(self) -> None:
        self.next = 100
        self.reachable = True

    async def next_id(self) -> int:
        await asyncio.sleep(0.01)
        if not self.reachable:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.next += 1
        return self.next - 1


class Sender:
    """Notes what is ordered."""

    def __init__(self) -> None:
        self.orders: list[PendingMarkers] = []
        self.stopped = False

    def send(self, driver: TransactionDriver, orders: Iterable[PendingMarkers]) -> None:
        self.orders += orders

    async def stop(self) -> None:
        self.stopped = True


class Groups:
    """As many partitions of `__consumer_offsets` as are said to be."""

    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count

    def partition_of(self, group_id: str) -> int:
        return int(group_id) % self.partition_count


class Setting(OneNode):
    """A broker that leads the one partition of `__transaction_state`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ids, self.sender = Ids(), Sender()
        self.transactions = TransactionCoordinator(
            self.clock,
            TransactionSettings,
            cast("ProducerIds", self.ids),
            cast("MarkerSender", self.sender),
        )
        self.node.transactions = self.transactions
        self.node.groups = Groups(10)
        name = TopicPartition(TRANSACTIONS_TOPIC, 0)
        config, now_ms = TopicConfig(), self.clock.now_ms()
        log = Log.open(Files(), str(directory / str(name)), name, config, now_ms)
        self.state = Partition(name, log, config, FlushQueue(cast("Any", None)))
        self.lead(ALONE)

    def lead(self, image: PartitionImage) -> None:
        self.state.lead(image, self.clock.now_ms())
        self.transactions.shards.lead(1, {0: self.state})

    async def init(self, transactional_id: str = "id", version: int = 4) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        return await init_producer_id(self.context(version), request)

    async def begin(self, transactional_id: str = "id") -> InitProducerIdResponse:
        """A transaction with a partition of the topic."""
        producer = await self.init(transactional_id)
        assert await self.add(producer, transactional_id) == [(0, NONE)]
        return producer

    async def add(  # type: ignore[override]
        self, producer: InitProducerIdResponse, transactional_id: str = "id", *indexes: int
    ) -> list[tuple[int, int]]:
        answer = await self.ask_add(producer, transactional_id, *indexes)
        [topic] = answer.results_by_topic_v3_and_below
        return [
            (result.partition_index, result.partition_error_code)
            for result in topic.results_by_partition
        ]

    def ask_add(
        self, producer: InitProducerIdResponse, transactional_id: str = "id", *indexes: int
    ) -> Awaitable[AddPartitionsToTxnResponse]:
        return handlers.add_partitions_to_txn(
            self.context(3),
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=TOPIC, partitions=list(indexes or (0,)))
                ],
            ),
        )

    def write_markers(self) -> None:
        """Tell the shard that all it has ordered is done."""
        driver = self.transactions.shards.driver_at(0)
        for order in self.sender.orders:
            driver.perform(
                driver.shard.marker_written(
                    order.transactional_id, order.marker, order.partitions, self.clock.now_ms()
                )
            )
            driver.changed()

    async def end(
        self, producer: InitProducerIdResponse, *, committed: bool = True
    ) -> EndTxnResponse:
        answer = self.ask_end(producer, committed=committed)
        return answer if isinstance(answer, EndTxnResponse) else await answer

    def ask_end(
        self, producer: InitProducerIdResponse, *, committed: bool
    ) -> EndTxnResponse | Awaitable[EndTxnResponse]:
        request = EndTxnRequest(
            transactional_id="id",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
        return handlers.end_txn(self.context(4), request)


def on_loop(directory: Path, test: Callable[[Setting], Coroutine[Any, Any, None]]) -> None:
    async def start() -> None:
        setting = Setting(directory)
        await test(setting)
        await setting.transactions.stop()

    run(FakeClock(), start())


def test_an_id_is_given_a_producer_id_that_nobody_has(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        first, again = await setting.init("a"), await setting.init("a")
        other = await setting.init("b")
        assert [result.error_code for result in (first, again, other)] == [NONE, NONE, NONE]
        assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)
        assert other.producer_id != first.producer_id
        # There is one more before it is asked for.
        await asyncio.sleep(1)
        driver = setting.transactions.shards.driver_at(0)
        assert driver.shard.missing_producer_ids == 0

    on_loop(tmp_path, test)


def test_without_a_controller_there_is_no_id_until_there_is_one(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.ids.reachable = False
        await asyncio.sleep(1)
        [refused] = [await setting.init("a")]
        while not refused.error_code:  # Some were kept from before.
            refused = await setting.init(f"a-{refused.producer_id}")
        assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        setting.ids.reachable = True
        assert (await setting.init("b")).error_code == NONE

    on_loop(tmp_path, test)


def test_a_timeout_gets_a_producer_id_without_a_request(tmp_path: Path) -> None:
    """A new coordinator finds an open transaction at the last epoch, and no controller."""

    async def test(setting: Setting) -> None:
        async def pass_time(seconds: float) -> None:
            setting.clock.sleep(seconds)
            await asyncio.sleep(seconds)

        def state() -> str:
            return setting.transactions.shards.driver_at(0).shard.describe("id").transaction_state

        partition = TopicPartition(TOPIC, 0)
        metadata = TransactionMetadata(
            status=TransactionStatus.ONGOING,
            producer_id=7,
            producer_epoch=CLIENT_EPOCH_MAX,
            timeout_ms=60_000,
            updated_ms=setting.clock.now_ms(),
            start_ms=setting.clock.now_ms(),
            partitions=(partition,),
            client_version=VERSION_WITH_BUMP,
        )
        record = encode_transaction("id", metadata)
        batch = encode_batch([(setting.clock.now_ms(), record.key, record.value, ())])
        setting.state.append_own(batch, setting.clock.now_ms())
        setting.ids.reachable = False
        setting.lead(replace(ALONE, leader_epoch=6))
        await pass_time(1)
        assert state() == "Ongoing"
        for _ in range(10):
            await pass_time(10)
        assert state() == "Ongoing"
        setting.ids.reachable = True
        # One check finds no producer id in stock and has the stock filled; the next takes an id.
        await pass_time(10)
        await pass_time(10)
        assert state() == "PrepareAbort"
        [order] = setting.sender.orders
        assert order.partitions == (partition,)
        assert order.marker == Marker(7, EPOCH_MAX, 6, committed=False)

    on_loop(tmp_path, test)


def test_the_markers_of_a_decision_are_sent_when_it_is_committed(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        producer = await setting.begin()
        setting.lead(AMONG_TWO)
        setting.state.follower_fetched(2, 20, setting.state.log.log_end_offset, 0)
        await asyncio.sleep(0.1)
        ending = asyncio.ensure_future(setting.end(producer))
        await asyncio.sleep(0.1)
        assert not ending.done()
        assert not setting.sender.orders
        setting.state.follower_fetched(2, 20, setting.state.log.log_end_offset, 0)
        assert (await ending).error_code == NONE
        [order] = setting.sender.orders
        assert order.partitions == (TopicPartition(TOPIC, 0),)
        assert order.marker.committed
        # The leader epoch in which it was decided.
        assert order.marker.coordinator_epoch == AMONG_TWO.leader_epoch

    on_loop(tmp_path, test)


def test_the_next_leader_sends_the_markers_again(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.end(await setting.begin())
        assert len(setting.sender.orders) == 1
        setting.lead(replace(ALONE, leader_epoch=6))
        await asyncio.sleep(0.1)
        assert [order.marker.coordinator_epoch for order in setting.sender.orders] == [4, 6]

    on_loop(tmp_path, test)


def test_the_next_leader_decides_nothing_before_its_log_is_committed(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.end(await setting.begin())
        setting.sender.orders.clear()
        # It may be all alone with what it has: then another leader would not know of it.
        known = setting.state
        setting.state = Partition(
            known.name, known.log, known.config, FlushQueue(cast("Any", None)), high_watermark=0
        )
        setting.lead(AMONG_TWO)
        await asyncio.sleep(1)
        assert (await setting.init()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert not setting.sender.orders
        setting.state.follower_fetched(2, 20, setting.state.log.log_end_offset, 0)
        await asyncio.sleep(0.1)
        assert len(setting.sender.orders) == 1
        assert not setting.transactions.shards.driver_at(0).loading

    on_loop(tmp_path, test)


def test_who_waits_is_sent_away_when_the_leader_changes(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        producer = await setting.begin()
        setting.lead(AMONG_TWO)
        setting.state.follower_fetched(2, 20, setting.state.log.log_end_offset, 0)
        await asyncio.sleep(0.1)
        ending = asyncio.ensure_future(setting.end(producer))
        await asyncio.sleep(0.1)
        setting.transactions.shards.lead(1, {})
        assert (await ending).error_code == ErrorCode.NOT_COORDINATOR
        assert (await setting.init()).error_code == ErrorCode.NOT_COORDINATOR

    on_loop(tmp_path, test)


def test_partitions_that_do_not_exist_keep_the_others_out(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        producer = await setting.init()
        unknown, not_tried = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
        )
        assert await setting.add(producer, "id", 0, 9, -1) == [
            (0, not_tried),
            (9, unknown),
            (-1, unknown),
        ]

    on_loop(tmp_path, test)


def test_a_broker_asks_for_many_transactions_at_once(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        producers = {name: await setting.init(name) for name in ("a", "b")}
        topic = AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producers["a"].producer_id,
                    producer_epoch=0,
                    topics=[topic],
                )
                for name in producers
            ]
        )
        answer = await handlers.add_partitions_to_txn(setting.context(5), request)
        told = {
            result.transactional_id: result.topic_results[0]
            .results_by_partition[0]
            .partition_error_code
            for result in answer.results_by_transaction
        }
        assert told == {"a": NONE, "b": ErrorCode.INVALID_PRODUCER_ID_MAPPING}

    on_loop(tmp_path, test)


@pytest.mark.parametrize("soon", [True, False])
def test_the_next_transaction_waits_a_little_for_markers_of_the_one_before(
    tmp_path: Path, soon: bool
) -> None:
    async def test(setting: Setting) -> None:
        producer = await setting.begin()
        await setting.end(producer)
        adding = asyncio.ensure_future(setting.add(producer))
        initing = asyncio.ensure_future(setting.init())
        await asyncio.sleep(0.03)
        assert not adding.done()
        assert not initing.done()
        if soon:
            initing.cancel()
            setting.write_markers()
            assert await adding == [(0, NONE)]
        else:
            busy = ErrorCode.CONCURRENT_TRANSACTIONS
            assert await adding == [(0, busy)]
            assert (await initing).error_code == busy

    on_loop(tmp_path, test)


def test_the_next_transaction_begins_behind_the_record_that_completes_the_last(
    tmp_path: Path,
) -> None:
    """One round of the followers commits both."""

    async def test(setting: Setting) -> None:
        def replicate() -> None:
            setting.state.follower_fetched(2, 20, setting.state.log.log_end_offset, 0)

        producer = await setting.begin()
        setting.lead(AMONG_TWO)
        replicate()
        await asyncio.sleep(0.1)
        ending = asyncio.ensure_future(setting.end(producer))
        await asyncio.sleep(0.01)
        replicate()
        assert (await ending).error_code == NONE
        adding = asyncio.ensure_future(setting.add(producer))
        await asyncio.sleep(0.01)
        end_offset = setting.state.log.log_end_offset
        setting.write_markers()
        await asyncio.sleep(0.01)
        assert setting.state.log.log_end_offset == end_offset + 2
        assert not adding.done()
        replicate()
        assert await adding == [(0, NONE)]

    on_loop(tmp_path, test)


@pytest.mark.parametrize("leaves", [False, True], ids=["all stay", "the first leaves"])
def test_requests_that_wait_for_markers_keep_their_order(tmp_path: Path, leaves: bool) -> None:
    """librdkafka sends an addition and the abort right behind it, and waits for no answer."""

    async def test(setting: Setting) -> None:
        producer = await setting.begin()
        await setting.end(producer)
        gone = asyncio.ensure_future(setting.ask_add(producer)) if leaves else None
        adding = setting.ask_add(producer)
        aborting = setting.ask_end(producer, committed=False)
        assert not isinstance(aborting, EndTxnResponse)
        if gone is not None:
            gone.cancel()
        setting.write_markers()
        # Whoever comes now comes last.
        late = setting.ask_end(producer, committed=True)
        assert not isinstance(late, EndTxnResponse)
        [topic] = (await adding).results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == NONE
        assert (await aborting).error_code == NONE
        assert len(setting.sender.orders) == 2
        setting.sender.orders.pop(0)
        setting.write_markers()
        assert (await late).error_code == ErrorCode.INVALID_TXN_STATE

    on_loop(tmp_path, test)


def test_offsets_are_added_by_the_partition_that_keeps_their_group(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        producer = await setting.begin()
        request = AddOffsetsToTxnRequest(
            transactional_id="id",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id="13",
        )
        answer = await handlers.add_offsets_to_txn(setting.context(4), request)
        assert answer.error_code == NONE
        await setting.end(producer)
        [order] = setting.sender.orders
        assert set(order.partitions) == {TopicPartition(TOPIC, 0), TopicPartition(OFFSETS_TOPIC, 3)}

    on_loop(tmp_path, test)


def test_a_broker_that_others_may_have_replaced_decides_nothing(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        producer = await setting.begin()
        setting.membership.may_write = False
        gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await setting.end(producer)).error_code == gone
        assert await setting.add(producer) == [(0, gone)]
        assert (await setting.init()).error_code == gone

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("id", ["id"]),
        ("i.*", ["id", "idle"]),
        ("d", []),
        ("", ["id", "idle"]),
        (None, ["id", "idle"]),
        ("(i*)*x", []),
        ("(", ErrorCode.INVALID_REGULAR_EXPRESSION),
        (r"(i)\1", ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_transactional_ids_are_listed_by_a_pattern(
    tmp_path: Path, pattern: str | None, ids: list[str] | ErrorCode
) -> None:
    async def test(setting: Setting) -> None:
        for transactional_id in ("id", "idle"):
            await setting.init(transactional_id)
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        listed = handlers.list_transactions(setting.context(2), request)
        found = [state.transactional_id for state in listed.transaction_states]
        if isinstance(ids, ErrorCode):
            assert (listed.error_code, found) == (ids, [])
        else:
            assert (listed.error_code, found) == (NONE, ids)

    on_loop(tmp_path, test)


def test_a_broker_without_a_linear_time_engine_matches_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(setting: Setting) -> None:
        request = ListTransactionsRequest(transactional_id_pattern="i.*")
        listed = handlers.list_transactions(setting.context(2), request)
        assert listed.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    monkeypatch.setitem(sys.modules, "re2", None)
    on_loop(tmp_path, test)


def test_transactions_are_described_and_listed(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        producer = await setting.begin()
        await setting.init("idle")
        described = handlers.describe_transactions(
            setting.context(0), DescribeTransactionsRequest(transactional_ids=["id", "none-such"])
        )
        [found, missing] = described.transaction_states
        assert (found.error_code, found.transaction_state) == (NONE, "Ongoing")
        assert found.producer_id == producer.producer_id
        assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        listed = handlers.list_transactions(setting.context(1), ListTransactionsRequest())
        assert [
            transaction_state.transactional_id for transaction_state in listed.transaction_states
        ] == ["id", "idle"]
        some = ListTransactionsRequest(state_filters=["Ongoing", "Odd"])
        listed = handlers.list_transactions(setting.context(1), some)
        assert [
            transaction_state.transactional_id for transaction_state in listed.transaction_states
        ] == ["id"]
        assert listed.unknown_state_filters == ["Odd"]

    on_loop(tmp_path, test)


def test_an_empty_id_is_no_id(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        assert (await setting.init("")).error_code == ErrorCode.INVALID_REQUEST

    on_loop(tmp_path, test)


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.init()
        await setting.transactions.stop()
        assert setting.sender.stopped
        assert len(asyncio.all_tasks()) == 1

    on_loop(tmp_path, test)
