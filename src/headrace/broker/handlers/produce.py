"""Produce: append a batch to each named partition and answer when it is as safe as `acks` asks."""

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple

from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.broker.partition import Partition
from headrace.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError, error_code
from headrace.protocol.api import ApiKey
from headrace.protocol.compression import Compression
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.protocol.records import RefusedBatch

_ACKS = (-1, 0, 1)
_ZSTD_SINCE = 7
_TOPIC_IDS_SINCE = 13
# The codec lies in the low bits of the second attribute byte of a batch.
_ATTRIBUTES = 22


class _Pending(NamedTuple):
    committed: asyncio.Future[None]
    result: PartitionProduceResponse


@handles(ApiKey.PRODUCE)
def produce(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    now_ms = context.node.clock.now_ms()
    pending: list[_Pending] = []
    response = ProduceResponse(
        responses=[
            _append_topic(context, request, topic, now_ms, pending) for topic in request.topic_data
        ]
    )
    if request.acks == 0:
        _refuse_silently(response)
        return None
    if not pending:
        return response
    return _answer_when_committed(response, pending, request.timeout_ms)


def _append_topic(
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    now_ms: int,
    pending: list[_Pending],
) -> TopicProduceResponse:
    name: str | None = topic.name
    if context.version >= _TOPIC_IDS_SINCE:
        name = context.node.replicas.name_of(topic.topic_id)
    results = []
    for data in topic.partition_data:
        # Errors are per partition: one bad batch must not fail its neighbours.
        try:
            if request.acks not in _ACKS:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}")
            if name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            result = _append(context, name, data, now_ms, pending if request.acks else None)
        except KafkaError as error:
            result = _failed(data.index, error.code, error.detail)
        except RefusedBatch as error:
            result = _failed(data.index, error.code, str(error))
        except CorruptBatch as error:
            result = _failed(data.index, ErrorCode.CORRUPT_MESSAGE, str(error))
        results.append(result)
    return TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=results
    )


def _append(
    context: RequestContext,
    topic: str,
    data: PartitionProduceData,
    now_ms: int,
    pending: list[_Pending] | None,
) -> PartitionProduceResponse:
    partition: Partition = context.node.replicas.leader_of(topic, data.index)
    records = data.records
    if not records:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request has no records")
    assert isinstance(records, memoryview)
    if (
        context.version < _ZSTD_SINCE
        and len(records) > _ATTRIBUTES
        and records[_ATTRIBUTES] & 7 == Compression.ZSTD
    ):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    appended = partition.append(records, now_ms)
    result = PartitionProduceResponse(
        index=data.index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
    )
    if pending is not None:
        committed = partition.committed(appended.last_offset)
        if committed is not None:
            pending.append(_Pending(committed, result))
    return result


def _failed(index: int, code: ErrorCode, detail: str) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=detail or None
    )


def _refuse_silently(response: ProduceResponse) -> None:
    """Without an answer, closing the connection is the only way to tell of an error."""
    for topic in response.responses:
        for result in topic.partition_responses:
            if result.error_code:
                code = error_code(result.error_code)
                raise ProtocolError(f"Produce with acks=0 to {topic.name} failed: {code.name}")


async def _answer_when_committed(
    response: ProduceResponse, pending: list[_Pending], timeout_ms: int
) -> ProduceResponse:
    await asyncio.wait([one.committed for one in pending], timeout=max(timeout_ms, 0) / 1000)
    for committed, result in pending:
        if not committed.done():
            committed.cancel()
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.base_offset = -1
        elif (error := committed.exception()) is not None:
            assert isinstance(error, KafkaError)
            result.error_code = error.code
            result.error_message = error.detail
            result.base_offset = -1
    return response
