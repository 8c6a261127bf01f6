"""Offsets of topics that are deleted, and perhaps created again under the same name."""

from random import Random

import pytest

from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.records import decode_offset, offset_record
from headrace.coordinator.shard import ShardEffects
from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.offsets_records import OffsetCommitValue
from tests.unit.coordinator.driving import GROUP
from tests.unit.coordinator.transacting import TransactionalShell

OLD, NEW = b"o" * 16, b"n" * 16


class TopicsShell(TransactionalShell):
    """A shell whose shard knows the ids of topics; `topics` may be changed by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, bytes] = {"t": OLD}
        self.shard = self._load()

    def _load(self) -> GroupShard:
        shard = GroupShard(self.settings, Random(2), lambda name: self.topics.get(name))
        for batch in self.batches:
            for record in batch.records:
                shard.replay(record, batch.producer.producer_id)
            if batch.marker is not None:
                shard.end_transaction(batch.marker.producer_id, batch.marker.committed)
        shard.loaded(self.now_ms)
        return shard

    def delete_topic(self, *, created: bytes | None = None) -> None:
        """The coordinator is told of a deletion, and in the same breath of a new topic."""
        self.change_topic(created)
        self.perform(self.shard.remove_stale_offsets(["t"]))

    def change_topic(self, topic_id: bytes | None) -> None:
        """The coordinator is not told, and does not live."""
        self.topics.clear()
        if topic_id is not None:
            self.topics["t"] = topic_id

    def fail_over(self) -> None:
        """Another coordinator loads the log, and removes what is stale."""
        self.shard = self._load()
        if self.shard.has_to_remove_stale_offsets:
            self.perform(self.shard.remove_stale_offsets())

    @property
    def live_records(self) -> int:
        """How many offsets compaction would leave in the log."""
        last = {record.key: record.value for batch in self.batches for record in batch.records}
        return sum(value is not None for value in last.values())


@pytest.fixture
def shell() -> TopicsShell:
    return TopicsShell()


def test_the_id_of_the_topic_is_kept_with_its_offset(shell: TopicsShell) -> None:
    shell.commit(offset=50)
    shell.txn_commit(7, 60, partition=1)
    records = [record for batch in shell.batches for record in batch.records]
    assert [decode_offset(record.value or b"").topic_id for record in records] == [OLD, OLD]


@pytest.mark.parametrize("created", [None, NEW])
def test_a_deletion_removes_offsets_of_every_group(
    shell: TopicsShell, created: bytes | None
) -> None:
    shell.topics["other"] = NEW
    shell.commit(offset=50)
    shell.commit(offset=51, group="second", partition=1)
    shell.commit(offset=52, topic="other")
    shell.topics.pop("t")
    if created:
        shell.topics["t"] = created
    shell.perform(shell.shard.remove_stale_offsets(["t"]))
    assert (shell.committed(), shell.committed("second")) == ({("other", 0): 52}, {})
    assert shell.live_records == 1


def test_offset_of_another_topic_of_the_same_name_is_not_shown(shell: TopicsShell) -> None:
    shell.commit(offset=50)
    shell.change_topic(NEW)
    assert shell.committed() == {}
    assert shell.committed_at("t", 0) == -1
    shell.change_topic(None)
    assert shell.committed() == {}
    assert shell.committed_at("t", 0) == -1


def test_a_reader_that_names_another_id_does_not_see_the_offset(shell: TopicsShell) -> None:
    shell.commit(offset=50)
    wanted = OffsetFetchRequestTopics(name="t", topic_id=NEW, partition_indexes=[0])
    request = OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted])
    [[found]] = [topic.partitions for topic in shell.shard.fetch_offsets(request).topics]
    assert found.committed_offset == -1


def test_a_coordinator_that_missed_the_deletion_removes_offsets_when_it_has_loaded(
    shell: TopicsShell,
) -> None:
    shell.commit(offset=50)
    shell.txn_commit(7, 60, partition=1)
    shell.change_topic(NEW)
    shell.fail_over()
    assert shell.live_records == 0
    shell.end(7)
    assert shell.committed() == {}
    shell.commit(offset=5)
    shell.fail_over()
    assert shell.committed() == {("t", 0): 5}


def test_pending_offset_of_a_deleted_topic_never_holds(shell: TopicsShell) -> None:
    shell.txn_commit(7, 60)
    shell.delete_topic(created=NEW)
    shell.end(7)
    assert shell.committed() == {}
    assert shell.stable().error_code == ErrorCode.NONE
    shell.fail_over()
    assert shell.committed() == {}


def test_a_commit_on_its_way_when_the_topic_is_deleted_is_removed_behind_it(
    shell: TopicsShell,
) -> None:
    shell.is_holding = True
    shell.send_txn_commit(7, 60)
    shell.delete_topic(created=NEW)
    # A commit for the new topic that is written behind the tombstone is not touched by it.
    shell.send_txn_commit(8, 5)
    shell.perform(shell.shard.remove_stale_offsets(["t"]))
    shell.release()
    shell.end(7)
    assert shell.committed() == {}
    shell.end(8)
    assert shell.committed() == {("t", 0): 5}


def test_stale_offset_under_a_pending_one_of_the_new_topic_stays_and_is_not_shown(
    shell: TopicsShell,
) -> None:
    shell.commit(offset=50)
    shell.txn_commit(6, 55)
    shell.change_topic(NEW)
    shell.txn_commit(7, 5)
    shell.fail_over()
    assert shell.committed() == {}
    shell.end(6)
    assert shell.committed() == {}
    shell.end(7, committed=False)
    assert shell.committed() == {}
    shell.fail_over()
    assert shell.live_records == 0


def test_commit_for_a_topic_the_coordinator_does_not_know_is_refused(shell: TopicsShell) -> None:
    shell.change_topic(None)
    assert shell.commit(offset=5) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shell.txn_commit(7, 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shell.batches == []


def test_offset_without_an_id_goes_by_its_name(shell: TopicsShell) -> None:
    record = offset_record(GROUP, "t", 0, OffsetCommitValue(offset=50, commit_timestamp=1))
    shell.perform(ShardEffects((record,)))
    shell.fail_over()
    assert shell.committed() == {("t", 0): 50}
    shell.delete_topic(created=NEW)
    assert shell.committed() == {}
    shell.perform(ShardEffects((record,)))
    shell.change_topic(None)
    shell.fail_over()
    assert shell.live_records == 0
