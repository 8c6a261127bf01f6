"""InitProducerId: an id for an idempotent producer."""

from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


@handles(ApiKey.INIT_PRODUCER_ID)
async def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        # Transactions are not available yet, and this code is the one clients do not retry.
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    try:
        producer_id = await context.node.producer_ids.take()
    except KafkaError as error:
        return _refused(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
