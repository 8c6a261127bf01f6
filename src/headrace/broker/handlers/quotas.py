"""DescribeClientQuotas and AlterClientQuotas: the limits of users, client ids and addresses."""

from headrace.broker.request import RequestContext
from headrace.broker.security_records import submit_security_change
from headrace.errors import KafkaError
from headrace.metadata.client_quotas import (
    alter_client_quotas,
    answer_of,
    describe_client_quotas,
)
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult
from headrace.protocol.messages import alter_client_quotas as alter
from headrace.protocol.messages import describe_client_quotas as describe


def describe_quotas(
    context: RequestContext, request: describe.DescribeClientQuotasRequest
) -> describe.DescribeClientQuotasResponse:
    return describe_client_quotas(context.node.store.image.client_quotas, request)


async def alter_quotas(
    context: RequestContext, request: alter.AlterClientQuotasRequest
) -> alter.AlterClientQuotasResponse:
    def command(image: Image) -> CommandResult[alter.AlterClientQuotasResponse]:
        return alter_client_quotas(image.client_quotas, request)

    try:
        return await submit_security_change(context.node, command)
    except KafkaError as error:
        return alter.AlterClientQuotasResponse(
            entries=[answer_of(entry, error.code, error.detail) for entry in request.entries]
        )
