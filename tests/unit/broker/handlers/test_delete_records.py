"""Which topics DeleteRecords refuses, and with which codes, as Kafka's brokers do."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.broker.handlers.log_offsets import delete_records
from headrace.config import TopicConfig
from headrace.errors import ErrorCode
from headrace.metadata.image import TopicImage
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.records import encode_batch
from tests.unit.broker.handling import FOLLOWS, LEADS, TOPIC, OneNode

ALONE = replace(LEADS, replicas=(1,), isr=(1,))


def deleted(node: OneNode, topic: str, offset: int) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=1000
    )
    [result] = asyncio.run(delete_records(node.context(2), request)).topics
    return result.partitions[0]


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_records_of_internal_topics_are_never_deleted(tmp_path: Path, topic: str) -> None:
    node = OneNode(tmp_path)
    image = node.node.store.image
    # Refused by any broker, not only by the leader: Kafka looks at the name first.
    internal = TopicImage(topic, b"internal-topic-1", (FOLLOWS,))
    node.node.store.image = replace(image, topics={**image.topics, topic: internal})
    result = deleted(node, topic, 0)
    assert (result.error_code, result.low_watermark) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_an_internal_topic_that_does_not_exist_yet_is_unknown(tmp_path: Path) -> None:
    result = deleted(OneNode(tmp_path), "__consumer_offsets", 0)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("policies", "code", "start"),
    [
        (("compact",), ErrorCode.POLICY_VIOLATION, 0),
        (("compact", "delete"), ErrorCode.NONE, 1),
        (("delete",), ErrorCode.NONE, 1),
        ((), ErrorCode.NONE, 1),
    ],
)
def test_only_topics_that_delete_by_policy_have_records_deleted(
    tmp_path: Path, policies: tuple[str, ...], code: ErrorCode, start: int
) -> None:
    node = OneNode(tmp_path)
    partition = node.add(image=ALONE, config=replace(TopicConfig(), cleanup_policy=policies))
    rows = [(node.clock.now_ms(), b"key", b"value", ())]
    partition.append(memoryview(bytearray(encode_batch(rows))), node.clock.now_ms())
    assert deleted(node, TOPIC, 1).error_code == code
    assert partition.log.log_start_offset == start
