"""Markers find the leaders of their partitions, whoever that is, until all are written."""

import asyncio
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.coordination.transaction_coordinator import (
    IN_FLIGHT_MAX,
    MarkerSender,
    TransactionDriver,
)
from headrace.coordinator.shard import ShardEffects
from headrace.coordinator.transactions.transaction_metadata import PendingMarkers
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.markers import Marker
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.types import TopicPartition
from tests.unit.broker.coordinating import FakePeers, Store, on_loop

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def order(*names: TopicPartition, producer_id: int = 7) -> PendingMarkers:
    return PendingMarkers(f"id-{producer_id}", Marker(producer_id, 3, 12, True), names, 2)


class Driver:
    """A shard that notes what it is told of its markers."""

    def __init__(self) -> None:
        self.closed = False
        self.written: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.performed = 0
        self.shard = SimpleNamespace(marker_written=self._marker_written)

    def now_ms(self) -> int:
        return 0

    @property
    def as_driver(self) -> TransactionDriver:
        return cast("TransactionDriver", self)

    def ask(self, question: Callable[[Any], ShardEffects]) -> ShardEffects:
        return question(self.shard)

    def perform(self, effects: ShardEffects) -> None:
        self.performed += 1

    def changed(self) -> None:
        pass

    def _marker_written(
        self, transactional_id: str, marker: Marker, names: Collection[TopicPartition], now_ms: int
    ) -> ShardEffects:
        assert marker.producer_id == int(transactional_id.removeprefix("id-"))
        self.written.append((transactional_id, tuple(names)))
        return ShardEffects()

    @property
    def names(self) -> list[TopicPartition]:
        return sorted(name for _, names in self.written for name in names)


class Leaders(FakePeers):
    """Brokers that write markers, unless `refuses` has a code for the partition or an error."""

    def __init__(self, refuses: Callable[[int, TopicPartition], Any] = lambda *_: 0) -> None:
        super().__init__(self._write)
        self.refuses = refuses

    def _write(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                self._partition(broker_id, TopicPartition(topic.name, index))
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    @staticmethod
    def written(name: TopicPartition, producer_id: int) -> WriteTxnMarkersResponse:
        """The answer that one marker is written."""
        partition = WritableTxnMarkerPartitionResult(partition_index=name.partition)
        topic = WritableTxnMarkerTopicResult(name=name.topic, partitions=[partition])
        return WriteTxnMarkersResponse(
            markers=[WritableTxnMarkerResult(producer_id=producer_id, topics=[topic])]
        )

    def _partition(self, broker_id: int, name: TopicPartition) -> WritableTxnMarkerPartitionResult:
        code = self.refuses(broker_id, name)
        if isinstance(code, HeadraceError):
            raise code
        return WritableTxnMarkerPartitionResult(partition_index=name.partition, error_code=code)


def sender(store: Store, leaders: Leaders) -> MarkerSender:
    return MarkerSender(store.as_store, leaders.as_peers)


def test_every_leader_gets_what_is_its() -> None:
    async def test() -> None:
        leaders, driver = Leaders(), Driver()
        sends = sender(Store(a=(1, 2), b=(1,)), leaders)
        sends.send(driver.as_driver, [order(A0, A1, B0)])
        await asyncio.sleep(1)
        asked = {
            broker_id: [(topic.name, topic.partition_indexes) for topic in marker.topics]
            for broker_id, request in leaders.asked
            for marker in request.markers
        }
        assert asked == {1: [("a", [0]), ("b", [0])], 2: [("a", [1])]}
        marker = leaders.asked[0][1].markers[0]
        assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 12)
        assert (marker.transaction_result, marker.transaction_version) == (True, 2)
        assert driver.names == [A0, A1, B0]
        assert driver.performed == 2  # Once for each answer.

    on_loop(test)


def test_a_leader_is_sent_markers_while_it_has_not_answered_earlier_requests() -> None:
    async def test() -> None:
        leaders, driver = Leaders(), Driver()
        leaders.delay_s = 1.0
        sends = sender(Store(a=(1,)), leaders)
        for producer_id in range(IN_FLIGHT_MAX + 3):
            sends.send(driver.as_driver, [order(A0, producer_id=producer_id)])
            await asyncio.sleep(0.001)
        assert len(leaders.asked) == IN_FLIGHT_MAX
        await asyncio.sleep(3)
        # Those for which there was no room went together.
        assert [len(request.markers) for _, request in leaders.asked] == [1] * IN_FLIGHT_MAX + [3]
        assert leaders.asking_most == IN_FLIGHT_MAX
        assert len(driver.written) == IN_FLIGHT_MAX + 3

    on_loop(test)


def test_markers_of_this_broker_are_written_at_once() -> None:
    async def test() -> None:
        leaders, driver = Leaders(), Driver()
        leaders.here, leaders.delay_s = 1, 2.0
        sends = sender(Store(a=(1, 2)), leaders)
        sends.send(driver.as_driver, [order(A0, A1)])
        # Without a turn of the loop.
        assert driver.names == [A0]
        for producer_id in range(5):
            sends.send(driver.as_driver, [order(A0, producer_id=producer_id)])
        assert len(driver.written) == 6
        await asyncio.sleep(3)
        assert len(driver.written) == 7

    on_loop(test)


def test_markers_of_this_broker_that_wait_for_followers_hold_up_no_others() -> None:
    async def test() -> None:
        leaders, driver = Leaders(), Driver()
        leaders.here = 1
        answers = [asyncio.get_running_loop().create_future() for _ in range(2)]
        waiting = iter(answers)
        leaders.answer_here = lambda request: next(waiting)
        sends = sender(Store(a=(1, 1)), leaders)
        sends.send(driver.as_driver, [order(A0)])
        sends.send(driver.as_driver, [order(A1, producer_id=8)])
        answers[1].set_result(leaders.written(A1, producer_id=8))
        await asyncio.sleep(0.01)
        assert driver.names == [A1]
        answers[0].set_result(leaders.written(A0, producer_id=7))
        await asyncio.sleep(0.01)
        assert driver.names == [A0, A1]

    on_loop(test)


def test_a_partition_without_a_leader_is_waited_for() -> None:
    async def test() -> None:
        leaders, driver, store = Leaders(), Driver(), Store(a=(-1,))
        sender(store, leaders).send(driver.as_driver, [order(A0)])
        await asyncio.sleep(1)
        assert not leaders.asked
        store.lead(a=(2,))
        await asyncio.sleep(1)
        assert [broker_id for broker_id, _ in leaders.asked] == [2]
        assert driver.names == [A0]

    on_loop(test)


@pytest.mark.parametrize(
    "failure",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        HeadraceError("the connection broke"),
    ],
)
def test_what_fails_is_tried_again_where_the_partition_is_led_then(failure: Any) -> None:
    async def test() -> None:
        leaders = Leaders(lambda broker_id, _: failure if broker_id == 1 else 0)
        driver, store = Driver(), Store(a=(1,))
        sender(store, leaders).send(driver.as_driver, [order(A0)])
        await asyncio.sleep(3)
        assert not driver.written
        store.lead(a=(2,))
        await asyncio.sleep(3)
        assert driver.names == [A0]
        assert leaders.asked[-1][0] == 2

    on_loop(test)


def test_one_partition_that_fails_does_not_hold_up_others() -> None:
    async def test() -> None:
        leaders = Leaders(lambda _, name: ErrorCode.REQUEST_TIMED_OUT if name == A0 else 0)
        driver = Driver()
        sends = sender(Store(a=(1, 1)), leaders)
        sends.send(driver.as_driver, [order(A0, A1)])
        await asyncio.sleep(0.5)
        assert driver.names == [A1]
        # The leader has it and has waited for a follower: it is asked again for this one only.
        assert len(leaders.asked) > 5
        assert all(
            [topic.partition_indexes for topic in request.markers[0].topics] == [[0]]
            for _, request in leaders.asked[1:]
        )

    on_loop(test)


def test_a_topic_that_is_gone_needs_no_marker() -> None:
    async def test() -> None:
        leaders, driver = Leaders(), Driver()
        sender(Store(a=(1,)), leaders).send(driver.as_driver, [order(A1, B0)])
        await asyncio.sleep(1)
        assert driver.names == [A1, B0]
        assert not leaders.asked

    on_loop(test)


def test_a_newer_epoch_of_the_producer_leaves_nothing_to_end() -> None:
    async def test() -> None:
        leaders, driver = Leaders(lambda *_: ErrorCode.INVALID_PRODUCER_EPOCH), Driver()
        sender(Store(a=(1,)), leaders).send(driver.as_driver, [order(A0)])
        await asyncio.sleep(1)
        assert driver.names == [A0]

    on_loop(test)


def test_a_newer_coordinator_goes_on_with_it() -> None:
    async def test() -> None:
        leaders, driver = Leaders(lambda *_: ErrorCode.TRANSACTION_COORDINATOR_FENCED), Driver()
        sender(Store(a=(1,)), leaders).send(driver.as_driver, [order(A0)])
        await asyncio.sleep(5)
        assert not driver.written
        assert len(leaders.asked) == 1

    on_loop(test)


def test_nothing_is_sent_or_told_for_a_coordinator_that_is_closed() -> None:
    async def test() -> None:
        leaders, driver = Leaders(), Driver()
        sends = sender(Store(a=(1,)), leaders)
        sends.send(driver.as_driver, [order(A0)])
        await asyncio.sleep(0.001)
        # This one waits behind that one.
        sends.send(driver.as_driver, [order(A0, producer_id=8)])
        driver.closed = True
        await asyncio.sleep(1)
        assert len(leaders.asked) == 1
        assert not driver.written

    on_loop(test)


def test_nothing_is_tried_again_for_a_coordinator_that_is_closed() -> None:
    async def test() -> None:
        driver = Driver()
        sends = sender(Store(a=(-1,)), Leaders())
        sends.send(driver.as_driver, [order(A0)])
        assert sends.waiting == 1
        driver.closed = True
        await asyncio.sleep(1)
        assert sends.waiting == 0

    on_loop(test)


def test_a_coordinator_whose_log_fails_does_not_stop_the_others() -> None:
    class Failing(Driver):
        def perform(self, effects: ShardEffects) -> None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def test() -> None:
        failing, sound = Failing(), Driver()
        sends = sender(Store(a=(1, 1)), Leaders())
        sends.send(failing.as_driver, [order(A0)])
        sends.send(sound.as_driver, [order(A1, producer_id=8)])
        await asyncio.sleep(1)
        assert sound.performed == 1

    on_loop(test)


def test_a_stop_leaves_nothing_under_way() -> None:
    async def test() -> None:
        leaders, driver = Leaders(), Driver()
        leaders.delay_s = 2.0
        sends = sender(Store(a=(1, -1), b=(2,)), leaders)
        sends.send(driver.as_driver, [order(A0, A1, B0)])
        await asyncio.sleep(0.01)
        sends.send(driver.as_driver, [order(A0, producer_id=8)])
        await sends.stop()
        assert leaders.closed
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(5)
        assert len(leaders.asked) == 2
        assert not driver.written

    on_loop(test)
