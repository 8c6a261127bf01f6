"""New leaders that lack records a consumer has read (KIP-320), and those that do not."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.aio import Consumer
from headrace.client.errors import LogTruncated, NoOffset
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode
from headrace.protocol.batch import assign, read_header
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.metadata import MetadataResponseTopic
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.types import TopicPartition
from tests.unit.client.consumer.fakes import Fetchable, on_fakes
from tests.unit.client.fake_brokers import FakeLog

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
        # What the group has committed in the only partition: an offset, and the epoch before it.
        self.committed = (-1, -1)
        self.metadata_epochs: list[int] = []

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

    def recreate(self, *values: bytes) -> None:
        """Another topic has the name, the first leader epoch, and records at the same offsets."""
        self.topics[TP.topic] = b"n" * 16
        self.logs[TP] = FakeLog(1)
        for value in values:
            self.write(TP, value)

    def _describe(self, name: str) -> MetadataResponseTopic:
        answer = super()._describe(name)
        epoch = self.metadata_epochs.pop(0) if self.metadata_epochs else self.epoch
        for partition in answer.partitions:
            partition.leader_epoch = epoch
        return answer

    def _FindCoordinator(self, node: int, request: Any) -> FindCoordinatorResponse:
        found = [Coordinator(key=key, node_id=1) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)

    def _OffsetFetch(self, node: int, request: Any) -> OffsetFetchResponse:
        offset, epoch = self.committed
        partition = OffsetFetchResponsePartitions(
            partition_index=0, committed_offset=offset, committed_leader_epoch=epoch
        )
        topic = OffsetFetchResponseTopics(
            name=TP.topic, topic_id=self.topics[TP.topic], partitions=[partition]
        )
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    def _OffsetCommit(self, node: int, request: Any) -> OffsetCommitResponse:
        [topic] = request.topics
        [partition] = topic.partitions
        if topic.topic_id != self.topics[TP.topic]:
            partition_answer = OffsetCommitResponsePartition(
                partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
            answer = OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=[partition_answer]
            )
            return OffsetCommitResponse(topics=[answer])
        self.committed = (partition.committed_offset, partition.committed_leader_epoch)
        answer = OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[OffsetCommitResponsePartition(partition_index=0)],
        )
        return OffsetCommitResponse(topics=[answer])

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


def test_errors_are_waited_out_and_an_epoch_that_nobody_knows_is_a_reset(
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
        return await values(consumer, 2)

    assert run(read) == [b"0", b"1"]
    assert len(brokers.sent(OffsetForLeaderEpochRequest)) == 3


@pytest.mark.parametrize("old", [1, 3])
def test_records_of_a_topic_that_is_created_again_are_not_skipped(
    brokers: Truncating, run: Run, old: int, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(old):
        brokers.write(TP, b"old %d" % number)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        await values(consumer, old)
        brokers.recreate(b"new 0", b"new 1", b"new 2")
        return await values(consumer, 3)

    assert run(read) == [b"new 0", b"new 1", b"new 2"]
    [line] = [record.message for record in caplog.records if "created again" in record.message]
    assert f"the topic of orders-0, read up to offset {old}, was deleted" in line


def test_a_position_in_a_deleted_topic_is_not_committed_for_its_namesake(
    brokers: Truncating, run: Run
) -> None:
    brokers.write(TP, b"old")

    async def read(consumer: Consumer) -> list[tuple[int, int]]:
        consumer.assign([TP])
        await values(consumer, 1)
        brokers.recreate(b"new 0", b"new 1")
        committed = []
        await consumer.commit()
        committed.append(brokers.committed)
        # Of an offset that the application gives, it has to know whose it is.
        await consumer.commit({TP: OffsetAndMetadata(1)})
        committed.append(brokers.committed)
        await values(consumer, 2)
        await consumer.commit()
        return [*committed, brokers.committed]

    assert run(read, group_id="g", enable_auto_commit=False) == [(-1, -1), (1, -1), (2, 0)]


def test_without_a_reset_policy_another_topic_of_the_name_is_raised(
    brokers: Truncating, run: Run
) -> None:
    brokers.write(TP, b"old")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        consumer.seek(TP, 0)
        await values(consumer, 1)
        brokers.recreate(b"new 0", b"new 1")
        with pytest.raises(LogTruncated, match="was deleted and created again") as caught:
            await values(consumer, 1)
        assert (caught.value.position, caught.value.offset) == (1, None)
        consumer.seek(TP, 0)
        return await values(consumer, 2)

    assert run(read, auto_offset_reset="none") == [b"new 0", b"new 1"]


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


def test_commits_name_the_epoch_of_the_last_record(brokers: Truncating, run: Run) -> None:
    async def read(consumer: Consumer) -> list[tuple[int, int]]:
        consumer.assign([TP])
        committed = []
        for value in (b"0", b"1"):
            brokers.write(TP, value)
            await values(consumer, 1)
            await consumer.commit()
            committed.append(brokers.committed)
            brokers.elect(2, keeping=1)
        known = await consumer.committed(TP)
        assert known == OffsetAndMetadata(2, leader_epoch=1)
        return committed

    assert run(read, group_id="g", enable_auto_commit=False) == [(1, 0), (2, 1)]


def test_automatic_commits_name_the_epoch_too(brokers: Truncating, run: Run) -> None:
    brokers.epoch = 3
    for value in (b"0", b"1"):
        brokers.write(TP, value)

    async def read(consumer: Consumer) -> None:
        consumer.assign([TP])
        await values(consumer, 2)
        await consumer.poll(0)

    run(read, group_id="g", auto_commit_interval_ms=1)
    assert brokers.committed == (2, 3)


def test_a_committed_offset_is_confirmed_before_it_is_read_from(
    brokers: Truncating, run: Run
) -> None:
    for value in (b"0", b"1", b"lost 2", b"lost 3"):
        brokers.write(TP, value)
    brokers.committed = (4, 0)
    brokers.elect(1, keeping=2)
    brokers.fetch_faults.clear()
    for value in (b"new 2", b"new 3", b"new 4"):
        brokers.write(TP, value)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        found = await values(consumer, 3)
        await consumer.commit()
        return found

    # Without asking, the reader would go on behind "new 3".
    assert run(read, group_id="g") == [b"new 2", b"new 3", b"new 4"]
    [request] = brokers.sent(OffsetForLeaderEpochRequest)
    assert request.topics[0].partitions[0].leader_epoch == 0
    assert brokers.committed == (5, 1)


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_committed_offset_that_the_leader_confirms_is_read_from(
    brokers: Truncating, run: Run, epoch: int
) -> None:
    for value in (b"0", b"1"):
        brokers.write(TP, value)
    brokers.committed = (1, epoch)
    brokers.ends[0] = 2

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        return await values(consumer, 1)

    assert run(read, group_id="g") == [b"1"]
    assert len(brokers.sent(OffsetForLeaderEpochRequest)) == (1 if epoch >= 0 else 0)


def test_without_a_reset_policy_a_committed_offset_that_is_lost_is_raised(
    brokers: Truncating, run: Run
) -> None:
    for value in (b"0", b"1"):
        brokers.write(TP, value)
    brokers.committed = (2, 0)
    brokers.elect(1, keeping=1)
    brokers.fetch_faults.clear()

    async def read(consumer: Consumer) -> LogTruncated:
        consumer.assign([TP])
        with pytest.raises(LogTruncated, match="from offset 1 on were lost") as caught:
            await values(consumer, 1)
        return caught.value

    error = run(read, group_id="g", auto_offset_reset="none")
    assert (error.partition, error.position, error.offset) == (TP, 2, 1)


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_committed_epoch_that_no_leader_has_is_no_position(
    brokers: Truncating, run: Run, policy: str
) -> None:
    # The topic was created again: its epochs begin anew.
    for value in (b"0", b"1", b"2"):
        brokers.write(TP, value)
    brokers.committed = (2, 7)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        if policy == "none":
            with pytest.raises(LogTruncated, match="the topic was created again") as caught:
                await values(consumer, 1)
            assert caught.value.offset is None
            return []
        return await values(consumer, 3)

    found = run(read, group_id="g", auto_offset_reset=policy)
    assert found == ([] if policy == "none" else [b"0", b"1", b"2"])


def test_metadata_older_than_the_committed_epoch_are_asked_for_again(
    brokers: Truncating, run: Run
) -> None:
    for value in (b"0", b"1"):
        brokers.write(TP, value)
    brokers.committed = (1, 2)
    brokers.epoch = 2
    brokers.ends[2] = 2
    brokers.metadata_epochs = [1]

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        return await values(consumer, 1)

    assert run(read, group_id="g") == [b"1"]
    assert len(brokers.sent(OffsetForLeaderEpochRequest)) == 1


def test_a_seek_with_an_epoch_is_confirmed(brokers: Truncating, run: Run) -> None:
    for value in (b"0", b"lost 1"):
        brokers.write(TP, value)
    brokers.elect(1, keeping=1)
    brokers.fetch_faults.clear()
    brokers.write(TP, b"new 1")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([TP])
        consumer.seek(TP, OffsetAndMetadata(2, leader_epoch=0))
        return await values(consumer, 1)

    assert run(read) == [b"new 1"]
