"""InitProducerId: an id for an idempotent or a transactional producer."""

from contextlib import suppress

from headrace.broker.handlers.transactions import ask_in_order
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.schema import Message


async def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    try:
        if request.transactional_id is not None:
            return await _init_transactional(context, request, request.transactional_id)
        producer_id = await context.node.producer_ids.take()
    except KafkaError as error:
        return _refused(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    context: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    if not transactional_id:
        return _refused(ErrorCode.INVALID_REQUEST)
    with suppress(KafkaError):
        # Without the controller there are none, and most requests need none.
        await context.node.transactions.stock(transactional_id)
    answer = ask_in_order(context, transactional_id, request)
    response = answer if isinstance(answer, Message) else await answer
    assert isinstance(response, InitProducerIdResponse)
    return response


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
