"""Members of groups of both protocols; ListGroups, descriptions of groups, DeleteGroups."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from headrace.broker.request import RequestContext
from headrace.coordinator.shard import RequestClient, ShardEffects
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from headrace.protocol.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.protocol.schema import Message
from headrace.security.acls import AclOperation, AclResourceType

Response = TypeVar("Response", bound=Message)


def ask_shard(
    context: RequestContext,
    group_id: str,
    request: Message,
    refuse: Callable[[ErrorCode], Response],
    client: RequestClient | None = None,
) -> Response | Awaitable[Response]:
    """The response of a group's shard, or `refuse(code)` without an available shard."""
    if client is None:
        client = RequestClient(context.client_id or "", context.host)
    try:
        driver = context.node.groups.driver_of(group_id)
        answer = driver.handle(request, context.version, client)
    except KafkaError as error:
        return refuse(error.code)
    if isinstance(answer, Message):
        return cast("Response", answer)
    return _wait(cast("Awaitable[Response]", answer), refuse)


async def _wait(answer: Awaitable[Response], refuse: Callable[[ErrorCode], Response]) -> Response:
    try:
        return await answer
    except KafkaError as error:
        return refuse(error.code)


def join_group(
    context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    return ask_shard(
        context,
        request.group_id,
        request,
        lambda code: JoinGroupResponse(error_code=code, member_id=request.member_id),
    )


def sync_group(
    context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    return ask_shard(
        context, request.group_id, request, lambda code: SyncGroupResponse(error_code=code)
    )


def heartbeat(
    context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    return ask_shard(
        context, request.group_id, request, lambda code: HeartbeatResponse(error_code=code)
    )


def leave_group(
    context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    return ask_shard(
        context, request.group_id, request, lambda code: LeaveGroupResponse(error_code=code)
    )


def _consumer_groups_are_on(context: RequestContext) -> bool:
    """Whether groups may be of the consumer protocol: in this cluster, and at this broker."""
    node = context.node
    enabled = node.config.group_coordinator_rebalance_protocols
    return "consumer" in enabled and node.store.image.has_consumer_groups


def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    if not _consumer_groups_are_on(context):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    # Only here: a classic member keeps its client, and would keep the request with it.
    client = RequestClient(
        context.client_id or "",
        context.host,
        lambda topic: context.sees(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic),
    )
    return ask_shard(
        context,
        request.group_id,
        request,
        lambda code: ConsumerGroupHeartbeatResponse(error_code=code),
        client,
    )


def consumer_group_describe(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            _describe_consumer_group(context, group_id, request) for group_id in request.group_ids
        ]
    )


def _describe_consumer_group(
    context: RequestContext, group_id: str, request: ConsumerGroupDescribeRequest
) -> DescribedConsumerGroup:
    if not _consumer_groups_are_on(context):
        code = ErrorCode.UNSUPPORTED_VERSION
        return DescribedConsumerGroup(group_id=group_id, error_code=code)
    if not group_id:
        code = ErrorCode.INVALID_GROUP_ID
        return DescribedConsumerGroup(group_id=group_id, error_code=code)
    try:
        shard = context.node.groups.driver_of(group_id).shard
    except KafkaError as error:
        return DescribedConsumerGroup(group_id=group_id, error_code=error.code)
    found = shard.describe_consumer_group(group_id)
    if request.include_authorized_operations:
        found.authorized_operations = context.operations_on(AclResourceType.GROUP, group_id)
    return found


def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    drivers = list(context.node.groups)
    if any(driver.loading for driver in drivers):
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return ListGroupsResponse(
        groups=[
            group
            for driver in drivers
            for group in driver.shard.list(request.states_filter, request.types_filter)
        ]
    )


def describe_groups(
    context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[_describe(context, group_id, request) for group_id in request.groups]
    )


def _describe(
    context: RequestContext, group_id: str, request: DescribeGroupsRequest
) -> DescribedGroup:
    try:
        shard = context.node.groups.driver_of(group_id).shard
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    described = shard.describe(group_id, context.version)
    if request.include_authorized_operations:
        described.authorized_operations = context.operations_on(AclResourceType.GROUP, group_id)
    return described


async def delete_groups(
    context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=await _delete(context, group_id))
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )


async def _delete(context: RequestContext, group_id: str) -> int:
    try:
        driver = context.node.groups.driver_of(group_id)
        records, code = driver.ask(lambda shard: shard.delete(group_id))
        if records:
            await driver.perform_and_wait(ShardEffects(records))
    except KafkaError as error:
        return error.code
    return code
