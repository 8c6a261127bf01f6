"""New leaders that lack records a consumer has read (KIP-320), and those that do not."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.client.consumer.aio import Consumer
from headrace.client.failures import NoOffset
from headrace.errors import ErrorCode
from headrace.protocol.messages.metadata import MetadataResponseTopic
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.records import assign, read_header
from headrace.types import TopicPartition
from tests.unit.client.consumer.fakes import Fetchable, on_fakes

TP = TopicPartition("orders", 0)

Run = Callable[..., Any]


class Truncating(Fetchable):
    """Brokers whose leader may be replaced by one that has less."""

    def __init__(self) -> None:
        super().__init__(2)
        self.add_topic("orders", 1)
        self.epoch = 0
        self.ends: dict[int, int] = {}
        self.epoch_faults: list[ErrorCode] = []

    def write(self, tp: TopicPartition, *values: bytes) -> None:
        super().write(tp, *values)
        batch = self.logs[tp].batches[-1]
        header = read_header(batch)
        assign(batch, header, header.base_offset, self.epoch)

    def elect(self, leader: int, *, keeping: int) -> None:
        """Another broker leads, with only the first batches."""
        log = self.logs[TP]
        log.leader = leader
        del log.batches[keeping:]
        log.next_offset = read_header(log.batches[-1]).next_offset
        self.ends[self.epoch] = log.next_offset
        self.epoch += 1
        self.fetch_faults.append(ErrorCode.FENCED_LEADER_EPOCH)

    def _describe(self, name: str) -> MetadataResponseTopic:
        answer = super()._describe(name)
        for partition in answer.partitions:
            partition.leader_epoch = self.epoch
        return answer

    def _OffsetForLeaderEpoch(self, node: int, request: Any) -> OffsetForLeaderEpochResponse:
        assert request.replica_id == -1
        [topic] = request.topics
        [wanted] = topic.partitions
        assert wanted.current_leader_epoch == self.epoch
        answer = EpochEndOffset(partition=0)
        if self.epoch_faults:
            answer.error_code = self.epoch_faults.pop(0)
        elif wanted.leader_epoch in self.ends:
            answer.leader_epoch = wanted.leader_epoch
            answer.end_offset = self.ends[wanted.leader_epoch]
        result = OffsetForLeaderTopicResult(topic=topic.topic, partitions=[answer])
        return OffsetForLeaderEpochResponse(topics=[result])


@pytest.fixture
def brokers() -> Truncating:
    return Truncating()


@pytest.fixture
def run(brokers: Truncating, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(test: Callable[[Consumer], Awaitable[Any]], **options: Any) -> Any:
        return on_fakes(brokers, monkeypatch, test, **options)

    return run


async def values(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(50):
        found += [record.value for record in await consumer.poll(1000)]
        if len(found) >= count:
            break
    return found


def test_records_that_a_new_leader_has_in_place_of_those_read_are_read(
    brokers: Truncating, run: Run
) -> None:
    for value in (b"0", b"1", b"lost 2", b"lost 3"):
        brokers.write(TP, value)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        assert len(await values(consumer, 4)) == 4
        brokers.elect(2, keeping=2)
        # As many as before, and one more: without asking, the reader would find only that.
        for value in (b"new 2", b"new 3", b"new 4"):
            brokers.write(TP, value)
        return await values(consumer, 3)

    assert run(read) == [b"new 2", b"new 3", b"new 4"]
    [request] = brokers.sent(OffsetForLeaderEpochRequest)
    assert request.topics[0].partitions[0].leader_epoch == 0


def test_nothing_is_read_again_of_a_leader_that_has_it(brokers: Truncating, run: Run) -> None:
    for value in (b"0", b"1"):
        brokers.write(TP, value)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        await values(consumer, 2)
        brokers.elect(2, keeping=2)
        brokers.write(TP, b"2")
        found = await values(consumer, 1)
        brokers.write(TP, b"3")
        return found + await values(consumer, 1)

    assert run(read) == [b"2", b"3"]
    assert len(brokers.sent(OffsetForLeaderEpochRequest)) == 1, "once for each leader"


def test_what_was_not_yet_handed_out_is_taken_back(brokers: Truncating, run: Run) -> None:
    for value in (b"0", b"1", b"lost 2"):
        brokers.write(TP, value)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        found = [record.value for record in await consumer.poll(1000, max_records=1)]
        brokers.elect(2, keeping=2)
        brokers.write(TP, b"new 2")
        return found + await values(consumer, 2)

    found = run(read, max_poll_records=1)
    assert found[:2] == [b"0", b"1"]
    assert b"new 2" in found


def test_without_a_reset_policy_the_loss_is_raised(brokers: Truncating, run: Run) -> None:
    for value in (b"0", b"1"):
        brokers.write(TP, value)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        consumer.seek(TP, 0)
        await values(consumer, 2)
        brokers.elect(2, keeping=1)
        with pytest.raises(NoOffset, match=r"from offset 1 on were lost with its leader"):
            await values(consumer, 1)
        brokers.write(TP, b"new 1")
        consumer.seek(TP, 1)
        return await values(consumer, 1)

    assert run(read, auto_offset_reset="none") == [b"new 1"]


def test_errors_are_waited_out_and_an_epoch_that_nobody_knows_is_let_pass(
    brokers: Truncating, run: Run
) -> None:
    brokers.write(TP, b"0")
    brokers.epoch_faults = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        await values(consumer, 1)
        brokers.elect(2, keeping=1)
        brokers.ends.clear()
        brokers.write(TP, b"1")
        return await values(consumer, 1)

    assert run(read) == [b"1"]
    assert len(brokers.sent(OffsetForLeaderEpochRequest)) == 3


def test_a_seek_while_a_leader_is_asked_wins(brokers: Truncating, run: Run) -> None:
    for value in (b"0", b"1", b"lost"):
        brokers.write(TP, value)
    answer = brokers._OffsetForLeaderEpoch

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        await values(consumer, 3)

        def seeking(node: int, request: Any) -> OffsetForLeaderEpochResponse:
            consumer.seek(TP, 0)
            return answer(node, request)

        brokers._OffsetForLeaderEpoch = seeking  # type: ignore[method-assign]
        brokers.elect(2, keeping=2)
        return await values(consumer, 2)

    assert run(read) == [b"0", b"1"]
