"""UpdateFeatures: changes of the feature levels of a cluster."""

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
        return await _update(context.node, request)
    except KafkaError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.detail or None)


async def _update(node: Node, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Update feature levels, `kraft.version`, which may fail, first; returns once committed."""
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
    """The feature ranges of voters that are not brokers; brokers register theirs."""
    brokers = node.store.image.brokers
    voters = [voter.node_id for voter in node.quorum.voters if voter.node_id != node.node_id]
    return {
        voter: await node.quorum.feature_ranges_of(voter)
        for voter in voters
        if voter not in brokers
    }
