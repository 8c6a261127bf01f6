"""Produce requests from batches, and what an answer says of each of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.client.failures import BatchRefused
from headrace.client.outcomes import failure
from headrace.client.producer.batches import Batch
from headrace.client.producer.buffers import Slot
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.types import ZERO_UUID, TopicPartition

# A request holds at least one batch, and more of other partitions up to this.
REQUEST_BYTES_MAX = 4 * 1_048_576


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A request in flight: its batches, when it left, and its topics' names by their ids."""

    batches: Sequence[tuple[Slot, Batch]]
    names: Mapping[bytes, str]
    sent_at: float


def produce_request(
    batches: Sequence[tuple[Slot, Batch]],
    topic_ids: Mapping[str, bytes],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One request for batches of different partitions, which are encoded."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for _, batch in batches:
        topics.setdefault(batch.tp.topic, []).append(
            PartitionProduceData(index=batch.tp.partition, records=batch.encoded)
        )
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=name, topic_id=topic_ids.get(name, ZERO_UUID), partition_data=data
            )
            for name, data in topics.items()
        ],
    )


def answers(
    response: ProduceResponse, names: Mapping[bytes, str]
) -> dict[TopicPartition, PartitionProduceResponse]:
    """The answers by partition; newer versions name topics by their ids."""
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.index): partition
        for topic in response.responses
        for partition in topic.partition_responses
    }


def unanswered(tp: TopicPartition) -> PartitionProduceResponse:
    """What a partition is treated as that an answer leaves out."""
    return PartitionProduceResponse(
        index=tp.partition,
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR,
        error_message=f"{tp}: the answer has no such partition",
    )


def error_of(batch: Batch, answer: PartitionProduceResponse) -> KafkaError:
    """The error in an answer, with the partition and, if that can help, advice."""
    error = failure(answer.error_code, answer.error_message, str(batch.tp))
    assert error is not None
    if error.code is ErrorCode.MESSAGE_TOO_LARGE:
        return KafkaError(
            error.code,
            f"{error.detail}; a record of {batch.size_bytes} bytes is more than the topic's"
            " max.message.bytes: raise that, or send smaller records",
        )
    return error


def blamed(
    batch: Batch, answer: PartitionProduceResponse, error: KafkaError
) -> tuple[HeadraceError, dict[int, Exception] | None]:
    """The error of most records of a batch, and those of the records that it was refused for.

    Only the latter have the broker's code: with the others nothing is wrong (KIP-467).
    """
    if not answer.record_errors:
        return error, None
    guilty: dict[int, Exception] = {}
    for one in answer.record_errors:
        message = one.batch_index_error_message
        detail = f"{batch.tp}: {message}" if message else error.detail
        guilty[one.batch_index] = KafkaError(error.code, detail)
    rest = f"{batch.tp}: not written, since another record of its batch was refused: {error}"
    return BatchRefused(rest), guilty
