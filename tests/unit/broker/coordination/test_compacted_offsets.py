"""Groups whose log is compacted: a shard loaded from what is left knows what the first one knew."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.coordination.runtime import ShardDriver
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.shard import GroupSettings, RequestClient, ShardEffects
from headrace.protocol.markers import Marker
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.protocol.schema import Message
from headrace.storage.files import Files
from headrace.storage.log import Log
from tests.unit.broker.handlers.test_group_offsets import ALONE, NAME
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run
from tests.unit.storage.compaction.tables import compact_all

CONFIG = TopicConfig(cleanup_policy=("compact",), delete_retention_ms=1_000)
CLIENT = RequestClient("test", "127.0.0.1")
PARTITIONS = [0, 1, 2]

producers = st.integers(1, 2)
partitions = st.sampled_from(PARTITIONS)
steps = st.one_of(
    st.tuples(st.just("commit"), partitions),
    st.tuples(st.just("delete"), partitions),
    st.tuples(st.just("write 1"), partitions),
    st.tuples(st.just("write 2"), partitions),
    st.tuples(st.just("end"), producers),
    st.tuples(st.just("abort"), producers),
    # The number is how long it was put off: tombstones and markers have had their time, or not.
    st.tuples(st.just("compact"), st.sampled_from([0, 2_000])),
)


class Groups:
    """A shard over a log that is compacted now and then."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.log = Log.open(Files(), str(directory / str(NAME)), NAME, CONFIG, self.clock.now_ms())
        self.partition = Partition(NAME, self.log, CONFIG, FlushQueue(cast("Any", None)))
        self.partition.lead(ALONE, 0)
        self.driver = self._new_driver()
        assert self.driver.load_if_empty()
        self._delay_ms = 0
        self._offset = 0

    def _new_driver(self) -> ShardDriver[GroupShard]:
        shard = GroupShard(GroupSettings(), Random(1))
        return ShardDriver(self.partition, shard, self.clock, lambda _: None)

    async def do(self, step: str, number: int) -> None:
        self._offset += 1
        if step == "commit":
            one = OffsetCommitRequestPartition(
                partition_index=number, committed_offset=self._offset
            )
            topic = OffsetCommitRequestTopic(name="t", partitions=[one])
            self._handle(OffsetCommitRequest(group_id="g", topics=[topic]), 8)
        elif step == "delete":
            gone = OffsetDeleteRequestPartition(partition_index=number)
            topics = [OffsetDeleteRequestTopic(name="t", partitions=[gone])]
            self._handle(OffsetDeleteRequest(group_id="g", topics=topics), 0)
        elif step.startswith("write"):
            part = TxnOffsetCommitRequestPartition(
                partition_index=number, committed_offset=self._offset
            )
            request = TxnOffsetCommitRequest(
                group_id="g",
                producer_id=int(step[-1]),
                producer_epoch=0,
                topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
            )
            self._handle(request, 3)
        elif step == "compact":
            self._delay_ms += number
            compact_all(self.log, self.clock.now_ms() + self._delay_ms)
            await self._reload()
        else:
            marker = Marker(number, 0, 0, step == "end")
            await self.driver.perform_and_wait(ShardEffects(marker=marker))

    def _handle(self, request: Message, version: int) -> None:
        assert isinstance(self.driver.handle(request, version, CLIENT), Message)

    async def _reload(self) -> None:
        """Go on with a shard that knows what the log says."""
        before, after = self.driver, self._new_driver()
        await after.load()
        for stable in (False, True):
            assert offsets_of(after.shard, stable) == offsets_of(before.shard, stable)
        before.close()
        self.driver = after


def offsets_of(shard: GroupShard, stable: bool) -> OffsetFetchResponseGroup:
    wanted = OffsetFetchRequestTopics(name="t", partition_indexes=PARTITIONS)
    return shard.fetch_offsets(OffsetFetchRequestGroup(group_id="g", topics=[wanted]), stable)


@given(st.lists(steps, min_size=10, max_size=60))
@settings(max_examples=20, deadline=None)
def test_shard_knows_after_a_compaction_what_it_knew_before(todo: list[tuple[str, int]]) -> None:
    async def test(directory: Path) -> None:
        groups = Groups(directory)
        for step in todo:
            await groups.do(*step)
        # Twice: what one pass leaves for a while, the next takes.
        for delay_ms in (2_000, 2_000):
            await groups.do("compact", delay_ms)
        groups.driver.close()

    with TemporaryDirectory() as directory:
        run(FakeClock(), test(Path(directory)))
