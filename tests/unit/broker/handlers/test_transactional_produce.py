"""Produce in transactions: what is asked of their coordinator, and what is appended after that."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.coordination.producer_queue import WAITING_MAX, ProducerQueue
from headrace.broker.coordination.transaction_verifier import ErrorsByPartition
from headrace.broker.handlers.produce import produce
from headrace.broker.replication.partition import Partition
from headrace.errors import ErrorCode
from headrace.metadata.image import PartitionImage
from headrace.protocol.batch import scan_headers
from headrace.protocol.markers import Marker
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.types import TopicPartition
from tests.unit.broker.handling import FOLLOWS, TOPIC, TOPIC_ID, OneNode, batch
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

ALONE = PartitionImage((1,), (1,), leader=1, leader_epoch=4, partition_epoch=9)
REPLICATED = PartitionImage((1, 2), (1, 2), leader=1, leader_epoch=4, partition_epoch=9)
PRODUCER_ID = 7
NONE = ErrorCode.NONE
REFUSED = ErrorCode.INVALID_TXN_STATE


class FakeVerifier:
    """A coordinator that says `code` of every partition, when `gate` is open."""

    def __init__(self) -> None:
        self.code = NONE
        self.asked: list[tuple[int, int, tuple[int, ...], bool]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> ErrorsByPartition:
        assert transactional_id == "id"
        indexes = tuple(name.partition for name in partitions)
        self.asked.append((producer_id, producer_epoch, indexes, add))
        code = self.code
        await self.gate.wait()
        return dict.fromkeys(partitions, code)


class Setting(OneNode):
    """A broker that leads partitions 0 and 1 alone, and a coordinator somewhere."""

    def __init__(self, directory: Path, **settings: str) -> None:
        super().__init__(directory, **settings)
        self.verifier = FakeVerifier()
        self.node.verifier = self.verifier
        self.node.producer_queue = ProducerQueue()
        self.partitions = [self.add(index, ALONE) for index in (0, 1)]

    def request(
        self, *indexes: int, sequence: int = 0, epoch: int = 0, acks: int = -1, **settings: Any
    ) -> ProduceRequest:
        """The same batch to several partitions, in a frame that will be overwritten."""
        settings = {"transactional": True, "producer_id": PRODUCER_ID} | settings
        return ProduceRequest(
            transactional_id="id",
            acks=acks,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name=TOPIC,
                    topic_id=TOPIC_ID,
                    partition_data=[
                        PartitionProduceData(
                            index=index,
                            records=memoryview(
                                batch(
                                    b"a",
                                    now_ms=self.clock.now_ms(),
                                    producer_epoch=epoch,
                                    base_sequence=sequence,
                                    **settings,
                                )
                            ),
                        )
                        for index in indexes
                    ],
                )
            ],
        )

    def begin(self, request: ProduceRequest, version: int = 11) -> asyncio.Future[ProduceResponse]:
        """The answer to come. The frame of the request is used for something else meanwhile."""
        frames = [data.records for topic in request.topic_data for data in topic.partition_data]
        answer = produce(self.context(version), request)
        for frame in frames:
            assert isinstance(frame, memoryview)
            frame[:] = bytes(len(frame))
        assert isinstance(answer, Awaitable), "it does not wait"
        return asyncio.ensure_future(cast("Awaitable[ProduceResponse]", answer))

    def at_once(self, request: ProduceRequest, version: int = 11) -> list[int]:
        """The codes of an answer that need not wait."""
        answer = produce(self.context(version), request)
        assert isinstance(answer, ProduceResponse), "it waits"
        return codes(answer)

    def mark(self, index: int, epoch: int = 0) -> None:
        self.partitions[index].append_marker(Marker(PRODUCER_ID, epoch, 1, True), 0)


def codes(response: ProduceResponse) -> list[int]:
    [topic] = response.responses
    return [partition_response.error_code for partition_response in topic.partition_responses]


def sequences(partition: Partition) -> list[int]:
    data = partition.log.read(0, 1 << 20, partition.log.log_end_offset).records
    return [header.base_sequence for header in scan_headers(data) if not header.is_control]


def on_loop(
    directory: Path, test: Callable[[Setting], Coroutine[Any, Any, None]], **settings: str
) -> None:
    async def start() -> None:
        await test(Setting(directory, **settings))

    run(FakeClock(), start())


def test_the_first_batch_of_a_partition_is_asked_for_and_later_ones_are_not(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        assert codes(await setting.begin(setting.request(0))) == [NONE]
        assert setting.at_once(setting.request(0, sequence=1)) == [NONE]
        assert codes(await setting.begin(setting.request(0, 1, sequence=2))) == [NONE, NONE]
        assert setting.verifier.asked == [
            (PRODUCER_ID, 0, (0,), False),
            (PRODUCER_ID, 0, (1,), False),
        ]
        assert sequences(setting.partitions[0]) == [0, 1, 2]

    on_loop(tmp_path, test)


def test_after_a_marker_it_is_asked_for_again(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin(setting.request(0))
        setting.mark(0)
        await setting.begin(setting.request(0, sequence=1))
        assert len(setting.verifier.asked) == 2
        # A batch of an older epoch begins nothing either.
        setting.verifier.code = REFUSED
        setting.mark(0, epoch=1)
        await setting.begin(setting.request(0, sequence=2))
        assert sequences(setting.partitions[0]) == [0, 1]

    on_loop(tmp_path, test)


@pytest.mark.parametrize(("version", "adds"), [(9, False), (11, False), (12, True), (13, True)])
def test_the_coordinator_adds_partitions_for_clients_of_version_2(
    tmp_path: Path, version: int, adds: bool
) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin(setting.request(0), version)
        assert setting.verifier.asked == [(PRODUCER_ID, 0, (0,), adds)]

    on_loop(tmp_path, test)


def test_nothing_overtakes_what_is_being_looked_up(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        await setting.begin(setting.request(1))
        setting.verifier.gate.clear()
        # The second one could be appended at once: its partition has the transaction open.
        waiting = [setting.begin(setting.request(0, 1, sequence=1))]
        waiting += [setting.begin(setting.request(1, sequence=number)) for number in (2, 3)]
        await asyncio.sleep(0.1)
        assert sequences(setting.partitions[1]) == [0]
        # Another producer's may: it is not asked about either.
        assert setting.at_once(setting.request(1, transactional=False, producer_id=8)) == [NONE]
        setting.verifier.gate.set()
        for answer in waiting:
            assert set(codes(await answer)) == {NONE}
        assert sequences(setting.partitions[1]) == [0, 0, 1, 2, 3]
        assert setting.at_once(setting.request(1, sequence=4)) == [NONE]

    on_loop(tmp_path, test)


def test_who_is_gone_leaves_the_turn_to_the_next(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.gate.clear()
        first, second = (setting.begin(setting.request(0)) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        setting.verifier.gate.set()
        assert codes(await second) == [NONE]
        assert sequences(setting.partitions[0]) == [0]

    on_loop(tmp_path, test)


def test_a_marker_meanwhile_makes_what_was_said_worthless(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.gate.clear()
        waiting = setting.begin(setting.request(0, 1))
        await asyncio.sleep(0.1)
        setting.mark(0)
        setting.verifier.gate.set()
        assert codes(await waiting) == [REFUSED, NONE]
        assert sequences(setting.partitions[0]) == []

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("epoch", "told"),
    [
        # The epoch of the batch: a marker of the transaction before, which began this epoch.
        (0, ErrorCode.NONE),
        # One that ended this transaction has begun the next epoch.
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_with_version_2_the_epoch_tells_which_transaction_a_marker_has_ended(
    tmp_path: Path, epoch: int, told: ErrorCode
) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.gate.clear()
        waiting = setting.begin(setting.request(0), 12)
        await asyncio.sleep(0.1)
        setting.mark(0, epoch)
        setting.verifier.gate.set()
        assert codes(await waiting) == [told]

    on_loop(tmp_path, test)


def test_another_leadership_meanwhile_makes_it_worthless_too(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.gate.clear()
        waiting = setting.begin(setting.request(0))
        await asyncio.sleep(0.1)
        setting.partitions[0].follow(FOLLOWS)
        setting.partitions[0].lead(replace(ALONE, leader_epoch=6), 0)
        setting.verifier.gate.set()
        assert codes(await waiting) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert sequences(setting.partitions[0]) == []

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.INVALID_TXN_STATE, 11, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NETWORK_EXCEPTION, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_what_the_coordinator_says_is_told_so_that_clients_understand(
    tmp_path: Path, said: ErrorCode, version: int, told: ErrorCode
) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.code = said
        assert codes(await setting.begin(setting.request(0), version)) == [told]
        assert sequences(setting.partitions[0]) == []

    on_loop(tmp_path, test)


def test_partitions_led_elsewhere_are_not_asked_for(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.partitions[1].follow(FOLLOWS)
        answer = await setting.begin(setting.request(0, 1))
        assert codes(answer) == [NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert setting.verifier.asked == [(PRODUCER_ID, 0, (0,), False)]
        assert setting.at_once(setting.request(1)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    on_loop(tmp_path, test)


def test_a_partition_that_is_led_here_only_since_is_not_taken_unasked(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.partitions[1].follow(FOLLOWS)
        setting.verifier.gate.clear()
        waiting = setting.begin(setting.request(0, 1))
        await asyncio.sleep(0.1)
        setting.partitions[1].lead(replace(ALONE, leader_epoch=5), 0)
        setting.verifier.gate.set()
        assert codes(await waiting) == [NONE, ErrorCode.NOT_ENOUGH_REPLICAS]

    on_loop(tmp_path, test)


def test_a_batch_of_a_transaction_needs_a_request_with_its_id(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        request = setting.request(0)
        request.transactional_id = None
        told = setting.at_once(request)
        assert told == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        assert sequences(setting.partitions[0]) == []

    on_loop(tmp_path, test)


def test_one_transaction_has_one_producer(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        request = setting.request(0, 1)
        other = setting.request(1, epoch=1)
        request.topic_data[0].partition_data[1] = other.topic_data[0].partition_data[0]
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert setting.at_once(request) == [code, code]

    on_loop(tmp_path, test)


def test_an_id_without_a_transaction_asks_nobody(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        assert setting.at_once(setting.request(0, transactional=False)) == [NONE]
        request = setting.request(0)
        request.topic_data[0].partition_data[0].records = memoryview(bytearray(b"short"))
        assert setting.at_once(request) == [ErrorCode.CORRUPT_MESSAGE]
        assert not setting.verifier.asked

    on_loop(tmp_path, test)


def test_verification_can_be_turned_off_for_clients_that_add_by_themselves(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        assert setting.at_once(setting.request(0)) == [NONE]
        assert not setting.verifier.asked
        await setting.begin(setting.request(1), version=12)
        assert len(setting.verifier.asked) == 1

    on_loop(tmp_path, test, transaction_partition_verification_enable="false")


def test_too_many_waiting_requests_of_a_producer_are_refused(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.gate.clear()
        waiting = [setting.begin(setting.request(0, sequence=number)) for number in range(64)]
        assert setting.at_once(setting.request(0)) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        setting.verifier.gate.set()
        await asyncio.gather(*waiting)
        assert sequences(setting.partitions[0]) == list(range(64))

    on_loop(tmp_path, test)


def test_a_producer_that_leaves_when_its_batch_was_appended_leaves_nothing(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        partition = setting.add(2, REPLICATED)
        setting.verifier.gate.clear()
        answer = setting.begin(setting.request(2))
        await asyncio.sleep(0.1)
        setting.verifier.gate.set()
        while not sequences(partition):
            await asyncio.sleep(0)
        # The task that appended is done; its outcome has not reached who answers.
        answer.cancel()
        await asyncio.wait([answer])
        assert answer.cancelled()
        assert not setting.node.producer_queue.is_busy(PRODUCER_ID)

    on_loop(tmp_path, test)


@pytest.mark.parametrize("version", [11, 12])
def test_later_batches_wait_for_one_whose_coordinator_was_loading(
    tmp_path: Path, version: int
) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        first = setting.begin(setting.request(0, sequence=0), version)
        assert codes(await first) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        setting.verifier.code = NONE
        for sequence in (1, 2, 3, 4):
            later = setting.begin(setting.request(0, sequence=sequence), version)
            assert codes(await later) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert codes(await setting.begin(setting.request(0, sequence=0), version)) == [NONE]
        for sequence in (1, 2, 3, 4):
            assert setting.at_once(setting.request(0, sequence=sequence), version) == [NONE]
        assert sequences(setting.partitions[0]) == [0, 1, 2, 3, 4]

    on_loop(tmp_path, test)


def test_later_batches_wait_for_one_that_had_no_place_in_the_queue(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        setting.verifier.gate.clear()
        waiting = [setting.begin(setting.request(1)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0.1)
        assert setting.at_once(setting.request(0)) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        setting.verifier.gate.set()
        await asyncio.gather(*waiting)
        later = await setting.begin(setting.request(0, sequence=1))
        assert codes(later) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert codes(await setting.begin(setting.request(0))) == [NONE]

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("version", "told"), [(11, NONE), (12, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)]
)
def test_with_version_2_an_unknown_producer_begins_at_sequence_zero(
    tmp_path: Path, version: int, told: ErrorCode
) -> None:
    async def test(setting: Setting) -> None:
        answer = await setting.begin(setting.request(0, sequence=5), version)
        assert codes(answer) == [told]

    on_loop(tmp_path, test)
