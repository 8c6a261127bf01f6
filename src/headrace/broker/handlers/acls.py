"""DescribeAcls, CreateAcls and DeleteAcls: the access control lists of the cluster.

Without an authorizer they are refused, as in Kafka: rules that nothing enforces would mislead.
"""

from headrace.broker.node import Node
from headrace.broker.request import RequestContext
from headrace.broker.security_records import submit_security_change
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata import acl_entries as commands
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace.security.authorization import ALLOW_ALL

_NO_AUTHORIZER = (
    "this cluster has no authorizer, so it keeps no ACLs; set authorizer.class.name on every node"
)


def _check_authorizer(node: Node) -> None:
    if node.authorizer is ALLOW_ALL:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER)


def describe(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        _check_authorizer(context.node)
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=error.detail)
    return commands.describe_acls(context.node.store.image.acls, request)


async def create(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    node = context.node

    def command(image: Image) -> CommandResult[CreateAclsResponse]:
        return commands.create_acls(image.acls, request, lambda: node.rng.randbytes(16))

    try:
        _check_authorizer(node)
        return await submit_security_change(node, command)
    except KafkaError as error:
        code, text = error.code, error.detail
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=code, error_message=text) for _ in request.creations]
    )


async def delete(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    node = context.node
    try:
        _check_authorizer(node)
        return await node.store.submit(lambda image, _: commands.delete_acls(image.acls, request))
    except KafkaError as error:
        code, text = error.code, error.detail
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=code, error_message=text) for _ in request.filters
        ]
    )
