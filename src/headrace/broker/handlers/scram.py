"""Describe- and AlterUserScramCredentials: the users of SCRAM, kept in the metadata log."""

from headrace.broker.request import RequestContext
from headrace.broker.security_records import submit_security_change
from headrace.errors import KafkaError
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult
from headrace.metadata.scram_credentials import (
    SECRET_BYTES,
    alter_credentials,
    describe_credentials,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)


def describe_user_scram_credentials(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    return describe_credentials(context.node.store.image.scram_credentials, request)


async def alter_user_scram_credentials(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    secret = context.node.rng.randbytes(SECRET_BYTES)

    def command(image: Image) -> CommandResult[AlterUserScramCredentialsResponse]:
        return alter_credentials(image.scram_credentials, request, secret)

    try:
        return await submit_security_change(context.node, command)
    except KafkaError as error:
        names = [change.name for change in request.deletions]
        names += [change.name for change in request.upsertions]
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(
                    user=name, error_code=error.code, error_message=error.detail
                )
                for name in dict.fromkeys(names)
            ]
        )
