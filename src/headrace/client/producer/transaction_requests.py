"""Requests of a producer's transactions, and what their answers say. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.consumer.assignors.wire import numbers_by_topic
from headrace.client.consumer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.client.outcomes import failure
from headrace.client.producer.batches import Identity
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.types import TopicPartition


def add_partitions_request(
    transactional_id: str, identity: Identity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Add partitions to a transaction, in the form that clients use; the newer one is brokers'."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in numbers_by_topic(partitions).items()
        ],
    )


def added_error(response: Any) -> KafkaError | None:
    """Why partitions were not added: the worst of their errors."""
    return _worst(
        (topic.name, one.partition_index, one.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    )


def add_offsets_request(
    transactional_id: str, identity: Identity, group_id: str
) -> AddOffsetsToTxnRequest:
    """Say that a transaction is going to have offsets of a group."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group_id,
    )


def offsets_request(
    transactional_id: str,
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: ConsumerGroupMetadata,
) -> TxnOffsetCommitRequest:
    """Commit offsets of a group in a transaction."""
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    _offset(number, offsets[TopicPartition(name, number)]) for number in numbers
                ],
            )
            for name, numbers in numbers_by_topic(offsets).items()
        ],
    )


def offsets_error(response: Any) -> KafkaError | None:
    """Why offsets were not taken: the worst of their errors."""
    return _worst(
        (topic.name, one.partition_index, one.error_code)
        for topic in response.topics
        for one in topic.partitions
    )


def _offset(number: int, committed: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def _worst(codes: Iterable[tuple[str, int, int]]) -> KafkaError | None:
    """An error that does not pass, if there is one: asking again for the others is for nothing."""
    passing: KafkaError | None = None
    for topic, number, code in codes:
        error = failure(code, subject=f"partition {TopicPartition(topic, number)}")
        if error is None:
            continue
        if not error.code.retriable and error.code is not ErrorCode.OPERATION_NOT_ATTEMPTED:
            return error
        if passing is None or passing.code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            passing = error
    return passing
