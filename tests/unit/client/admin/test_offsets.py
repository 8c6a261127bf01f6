from typing import Any

import pytest

from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.client.errors import SomeFailed, TimedOut
from headrace.client.types import OffsetAndTimestamp
from headrace.errors import ErrorCode, KafkaError, UnknownTopic
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.types import TopicPartition
from tests.unit.client.admin.fakes import AdminBrokers

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


def test_offsets_are_asked_of_each_leader() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.add_topic("a", partitions=2)
    brokers.add_topic("b")
    brokers.logs[A0].start_offset, brokers.logs[A1].next_offset = 5, 9
    wanted = {A1: LATEST, TopicPartition("b", 0): EARLIEST, A0: EARLIEST}
    found = brokers.admin(lambda admin: admin.offsets(wanted))
    assert list(found.items()) == [
        (A1, OffsetAndTimestamp(9, -1)),
        (TopicPartition("b", 0), OffsetAndTimestamp(0, -1)),
        (A0, OffsetAndTimestamp(5, -1)),
    ]
    assert sorted(brokers.asked(ListOffsetsRequest)) == [1, 2]
    # One question for all topics.
    assert len(brokers.sent(MetadataRequest)) == 1
    assert brokers.admin(lambda admin: admin.offsets({A0: 123})) == {A0: OffsetAndTimestamp(-1, -1)}


def test_offsets_follow_a_leader_that_moved() -> None:
    brokers = AdminBrokers(nodes=2)
    brokers.add_topic("a")

    async def scenario(admin: Any) -> Any:
        await admin.offsets({A0: LATEST})
        brokers.logs[A0].leader = 2
        return await admin.offsets({A0: LATEST})

    assert brokers.admin(scenario)[A0].offset == 0
    assert brokers.asked(ListOffsetsRequest) == [1, 1, 2]


def test_offsets_of_what_is_not_there_are_refused_at_once() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a")
    with pytest.raises(UnknownTopic, match="topic a has no partition 7; it has 1"):
        brokers.admin(lambda admin: admin.offsets({TopicPartition("a", 7): LATEST}))
    with pytest.raises(UnknownTopic, match="topic b does not exist"):
        brokers.admin(lambda admin: admin.offsets({TopicPartition("b", 0): LATEST}))
    assert brokers.clock.seconds == 1000


def test_a_partition_without_a_leader_is_waited_for() -> None:
    brokers = AdminBrokers()
    brokers.add_topic("a")
    brokers.logs[A0].leader = -1
    with pytest.raises(TimedOut, match="LEADER_NOT_AVAILABLE: a-0 has no leader"):
        brokers.admin(lambda admin: admin.offsets({A0: LATEST}), timeout_s=3)
    assert brokers.clock.seconds <= 1003


def deleting(brokers: AdminBrokers, *faults: ErrorCode) -> None:
    left = list(faults)

    def one(node: int, topic: str, wanted: Any) -> DeleteRecordsPartitionResult:
        log = brokers.logs[TopicPartition(topic, wanted.partition_index)]
        code = left.pop(0) if left else ErrorCode.NONE
        if log.leader != node:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not code and wanted.offset > log.next_offset:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        if not code:
            log.start_offset = log.next_offset if wanted.offset == -1 else wanted.offset
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index,
            low_watermark=-1 if code else log.start_offset,
            error_code=code,
        )

    brokers._DeleteRecords = lambda node, request: DeleteRecordsResponse(  # type: ignore[attr-defined]
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[one(node, topic.name, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def brokers_with_records() -> AdminBrokers:
    brokers = AdminBrokers(nodes=2)
    brokers.add_topic("a", 3)
    for tp in (A0, A1, A2):
        brokers.logs[tp].next_offset = 10
    return brokers


def test_records_are_deleted_by_their_leaders() -> None:
    brokers = brokers_with_records()
    deleting(brokers, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    before = {A0: 4, A1: LATEST, A2: 0}
    assert brokers.admin(lambda admin: admin.delete_records(before)) == {A0: 4, A1: 10, A2: 0}
    asked = [
        (
            node,
            [
                partition.partition_index
                for topic in request.topics
                for partition in topic.partitions
            ],
        )
        for node, request in brokers.requests
        if isinstance(request, DeleteRecordsRequest)
    ]
    # Only what failed is asked for again.
    assert asked == [(1, [0, 2]), (2, [1]), (1, [0])]


def test_a_partition_that_refuses_does_not_hide_the_others() -> None:
    brokers = brokers_with_records()
    deleting(brokers)
    with pytest.raises(SomeFailed, match="partition a-0: offset out of range") as caught:
        brokers.admin(lambda admin: admin.delete_records({A0: 11, A1: 3}))
    assert caught.value.outcomes[A1] == 3
    assert isinstance(caught.value.errors[A0], KafkaError)


def test_deleting_is_repeated_when_its_answer_is_lost() -> None:
    brokers = brokers_with_records()
    deleting(brokers)
    brokers.lost = [DeleteRecordsRequest]
    assert brokers.admin(lambda admin: admin.delete_records({A0: 4})) == {A0: 4}
    assert brokers.asked(DeleteRecordsRequest) == [1, 1]
