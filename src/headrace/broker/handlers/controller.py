"""Requests to the active controller: registrations, heartbeats, ISRs, elections."""

from headrace.broker.cluster.controller import ActiveController
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from headrace.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


def _controller(context: RequestContext) -> ActiveController:
    controller = context.node.controller
    if controller is None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    return controller


async def register(
    context: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    try:
        epoch = await _controller(context).register_broker(request)
    except KafkaError as error:
        return BrokerRegistrationResponse(error_code=error.code)
    return BrokerRegistrationResponse(broker_epoch=epoch)


async def heartbeat(
    context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    try:
        return await _controller(context).heartbeat(request)
    except KafkaError as error:
        return BrokerHeartbeatResponse(error_code=error.code)


async def alter_partition(
    context: RequestContext, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    try:
        return await _controller(context).alter_partition(request)
    except KafkaError as error:
        return AlterPartitionResponse(error_code=error.code)


async def assign_replicas_to_dirs(
    context: RequestContext, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    try:
        return await _controller(context).assign_replicas_to_dirs(request)
    except KafkaError as error:
        return AssignReplicasToDirsResponse(error_code=error.code)


async def allocate_producer_ids(
    context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    try:
        block = await _controller(context).allocate_producer_ids(request)
    except KafkaError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=block.first_id, producer_id_len=block.size)


async def unregister(
    context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    try:
        await _controller(context).unregister_broker(request)
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.detail)
    return UnregisterBrokerResponse(error_message=None)


async def elect_leaders(
    context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    try:
        return await _controller(context).elect_leaders(request)
    except KafkaError as error:
        return ElectLeadersResponse(error_code=error.code)
