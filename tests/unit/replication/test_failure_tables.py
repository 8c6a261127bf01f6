"""The failure tables of the design, with their very numbers, on real logs of three brokers.

Before: the leader is broker 1 with LEO 100 and HW 98, broker 2 has LEO 99, broker 3 LEO 98.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import PartitionImage
from headrace.protocol.batch import scan_headers
from headrace.protocol.records import encode_batch
from headrace.replication.leader import IsrProposal
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition

NOW_MS = 1_700_000_000_000
LAG_MS = 10_000
NAME = TopicPartition("orders", 0)
BEFORE = PartitionImage((1, 2, 3), (1, 2, 3), leader=1, leader_epoch=4, partition_epoch=9)
AFTER = PartitionImage((1, 2, 3), (2, 3), leader=2, leader_epoch=5, partition_epoch=10)


def message(value: bytes, **settings: Any) -> memoryview:
    return memoryview(bytearray(encode_batch([(NOW_MS, None, value, ())], **settings)))


class Replica:
    """One broker's copy of the partition."""

    def __init__(self, directory: Path, broker_id: int, config: TopicConfig) -> None:
        self.id = broker_id
        path = str(directory / f"broker-{broker_id}" / str(NAME))
        Path(path).parent.mkdir(parents=True)
        self.log = Log.open(Files(), path, NAME, config, NOW_MS)
        self.partition = Partition(NAME, self.log, config, FlushQueue(None))  # type: ignore[arg-type]

    @property
    def offsets(self) -> tuple[int, int]:
        """LEO and HW."""
        return self.log.log_end_offset, self.partition.high_watermark

    def fetch_from(self, leader: "Replica", up_to: int | None = None, now_ms: int = NOW_MS) -> None:
        """One fetch as a follower: tell what is here, take what is there, batches below `up_to`."""
        start, source = self.log.log_end_offset, leader.partition
        epoch, end_offset = source.log.end_offset_for_epoch(self.log.latest_epoch)
        if 0 <= end_offset < start or 0 <= epoch < self.log.latest_epoch:
            self.partition.truncate_to(end_offset)
            return
        source.follower_fetched(self.id, self.id, start, now_ms)
        limit = source.log.log_end_offset if up_to is None else up_to
        data = source.log.read(start, 1_000_000, limit, at_least_one=True).records
        headers = scan_headers(data) if data else []
        self.partition.append_replicated(data, headers, source.high_watermark, 0, now_ms)

    def values(self, limit: int) -> list[int]:
        """The producers' sequence numbers of what a consumer or follower reads below `limit`."""
        data = self.log.read(0, 1_000_000, limit, at_least_one=True).records
        return [header.base_sequence for header in scan_headers(data)]


def with_three(
    directory: Path,
    test: Callable[[Replica, Replica, Replica], Coroutine[Any, Any, None]],
    **settings: Any,
) -> None:
    """Run a test from the table's state on."""

    async def run() -> None:
        config = TopicConfig(**settings)
        one, two, three = (Replica(directory, number, config) for number in (1, 2, 3))
        one.partition.lead(BEFORE, NOW_MS)
        two.partition.follow(BEFORE)
        three.partition.follow(BEFORE)
        for number in range(100):
            one.partition.append(produced(number), NOW_MS)
        three.fetch_from(one, up_to=98)
        two.fetch_from(one, up_to=98)
        # Only these tell the leader that both have 98.
        three.fetch_from(one, up_to=98)
        two.fetch_from(one, up_to=98)
        two.fetch_from(one, up_to=99)
        assert one.offsets == (100, 98)
        assert two.offsets == (99, 98)
        assert three.log.log_end_offset == 98
        await test(one, two, three)

    asyncio.run(run())


def produced(number: int) -> memoryview:
    """What an idempotent producer sends as its record `number`."""
    return message(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)


def test_leader_failure_broker_2_wins_with_leo_99_and_hw_98(tmp_path: Path) -> None:
    async def test(one: Replica, two: Replica, three: Replica) -> None:
        two.partition.lead(AFTER, NOW_MS)
        three.partition.follow(AFTER)
        assert two.offsets == (99, 98)
        assert three.log.log_end_offset == 98
        three.fetch_from(two)
        assert two.partition.high_watermark == 98, "broker 3 has not told yet that it has 99"
        three.fetch_from(two)
        assert two.offsets == three.offsets == (99, 99)

    with_three(tmp_path, test)


def test_the_old_leader_truncates_to_where_its_epoch_ended(tmp_path: Path) -> None:
    async def test(one: Replica, two: Replica, three: Replica) -> None:
        two.partition.lead(AFTER, NOW_MS)
        three.partition.follow(AFTER)
        two.partition.append(message(b"of the new leader"), NOW_MS)
        one.partition.follow(AFTER)
        assert two.log.end_offset_for_epoch(4) == (4, 99)
        one.fetch_from(two)
        assert one.offsets == (99, 98), "record 99 was never committed, and gives way"
        for _ in range(2):
            three.fetch_from(two)
            one.fetch_from(two)
        assert two.offsets == (100, 100)
        stored = [each.log.read(0, 1_000_000, 100).records for each in (one, two, three)]
        assert bytes(stored[0]) == bytes(stored[1]) == bytes(stored[2])

    with_three(tmp_path, test)


def test_acks_all_loses_nothing_and_acks_1_may(tmp_path: Path) -> None:
    async def test(one: Replica, two: Replica, three: Replica) -> None:
        assert one.partition.when_committed(97) is None, "record 97 was acknowledged with acks=all"
        waiting = [one.partition.when_committed(offset) for offset in (98, 99)]
        assert [one.partition.when_persisted(offset) for offset in (98, 99)] == [None, None], (
            "acks=1"
        )
        one.partition.follow(AFTER)
        for future in waiting:
            assert future is not None
            error = future.exception()
            assert isinstance(error, KafkaError)
            assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        two.partition.lead(AFTER, NOW_MS)
        three.partition.follow(AFTER)
        for _ in range(2):
            three.fetch_from(two)
        assert two.values(two.partition.high_watermark) == list(range(99))
        # A producer that sends both again: one is known, the other is not.
        assert two.partition.append(produced(98), NOW_MS).duplicate
        appended = two.partition.append(produced(99), NOW_MS)
        assert (appended.duplicate, appended.base_offset) == (False, 99)

    with_three(tmp_path, test)


def test_consumers_see_nothing_above_98(tmp_path: Path) -> None:
    async def test(one: Replica, two: Replica, three: Replica) -> None:
        for replica in (one, two, three):
            assert replica.partition.high_watermark <= 98
        assert one.values(one.partition.high_watermark) == list(range(98))

    with_three(tmp_path, test)


def alter(partition: Partition, now_ms: int, own_epoch: int = 1) -> IsrProposal | None:
    """Let the controller take what the leader proposes."""
    assert partition.leadership is not None
    proposal = partition.leadership.propose(now_ms, LAG_MS, own_epoch, lambda *_: True)
    if proposal is not None:
        partition.isr_changed(
            partition.leadership.proposal_accepted(proposal.isr, proposal.partition_epoch + 1)
        )
    return proposal


def test_follower_failure_isr_1_2_and_back_to_1_2_3(tmp_path: Path) -> None:
    async def test(one: Replica, two: Replica, three: Replica) -> None:
        for _ in range(2):
            two.fetch_from(one)
        assert one.offsets == (100, 98), "broker 3 is in sync still, and has 98"
        assert alter(one.partition, NOW_MS + LAG_MS) is None
        assert alter(one.partition, NOW_MS + LAG_MS + 1) is not None
        assert list(one.partition.isr) == [1, 2]
        assert one.offsets == (100, 100)
        one.partition.check_in_sync()
        for _ in range(2):
            three.fetch_from(one, now_ms=NOW_MS + LAG_MS + 2)
        assert alter(one.partition, NOW_MS + LAG_MS + 2) is not None
        assert list(one.partition.isr) == [1, 2, 3]

    with_three(tmp_path, test, min_insync_replicas=2)


def test_an_isolated_leader_commits_nothing_and_takes_nothing(tmp_path: Path) -> None:
    async def test(one: Replica, two: Replica, three: Replica) -> None:
        # Nobody fetches any more, and the controller is on the other side: the ISR stays.
        appended = one.partition.append(message(b"lost"), NOW_MS + 1)
        waiting = one.partition.when_committed(appended.last_offset)
        assert one.partition.leadership is not None
        assert one.partition.leadership.propose(NOW_MS + 3 * LAG_MS, LAG_MS, 1, lambda *_: True)
        assert one.partition.high_watermark == 98
        assert waiting is not None and not waiting.done()
        # On the other side broker 2 was elected, with broker 3 in sync: writes go on.
        two.partition.lead(AFTER, NOW_MS)
        three.partition.follow(AFTER)
        two.partition.check_in_sync()
        # The partition heals: the ISR grows to all three.
        one.partition.follow(AFTER)
        for _ in range(3):
            one.fetch_from(two)
            three.fetch_from(two)
        assert alter(two.partition, NOW_MS) is not None
        assert sorted(two.partition.isr) == [1, 2, 3]
        assert one.offsets == (99, 99)

    with_three(tmp_path, test, min_insync_replicas=2)


def test_alone_in_sync_a_leader_refuses_when_two_are_asked_for(tmp_path: Path) -> None:
    async def test(one: Replica, two: Replica, three: Replica) -> None:
        waiting = one.partition.when_committed(99)
        assert waiting is not None
        alter(one.partition, NOW_MS + LAG_MS + 1)
        assert one.partition.isr == (1,)
        assert not waiting.done()
        assert one.offsets[1] < 100
        with pytest.raises(KafkaError) as refused:
            one.partition.check_in_sync()
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS

    with_three(tmp_path, test, min_insync_replicas=2)
