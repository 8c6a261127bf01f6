"""UpdateFeatures: the levels of what a cluster has switched on."""

from copy import copy

from headrace.broker.node import Node
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.feature_updates import raises_kraft_version
from headrace.metadata.features import Ranges
from headrace.protocol.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_SECONDS_MAX = 60.0


async def update_features(
    context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    try:
        return await _updated(context.node, request)
    except KafkaError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.detail or None)


async def _updated(node: Node, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """The answer to an update, once it is committed. `kraft.version`, which may fail, is first."""
    controller, quorum = node.controller, node.quorum
    if controller is None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    controllers = await _other_controllers(node)
    kraft_version = quorum.kraft_version
    if not request.validate_only and raises_kraft_version(request, kraft_version):
        trial = copy(request)
        trial.validate_only = True
        answer = await controller.update_features(
            trial, kraft_version=kraft_version, controllers=controllers
        )
        if answer.error_code:
            return answer
        await quorum.record_voters(min(max(request.timeout_ms / 1000, 0.0), _SECONDS_MAX))
        kraft_version = quorum.kraft_version
    return await controller.update_features(
        request, kraft_version=kraft_version, controllers=controllers
    )


async def _other_controllers(node: Node) -> dict[int, Ranges | None]:
    """What the voters support that are no brokers; those told it when they registered."""
    brokers = node.store.image.brokers
    voters = [one.node_id for one in node.quorum.voters if one.node_id != node.node_id]
    return {voter: await node.quorum.ranges_of(voter) for voter in voters if voter not in brokers}
