"""ApiVersions: the APIs, their versions and the features of this node."""

import re

from headrace.broker.node import Node
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode
from headrace.metadata.features import KRAFT_VERSION, SUPPORTED, levels_of
from headrace.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")

# What is kept of the name and the version of a client's software, for as long as it is connected.
_SOFTWARE_CHARS_MAX = 256

# Older clients reject 0 as the lowest version of a feature: they do not get such features.
_ZERO_SINCE = 4


def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _SOFTWARE_NAME.match(request.client_software_name)
        and _SOFTWARE_NAME.match(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if context.connection is not None:
        context.connection.peer_software = (
            request.client_software_name[:_SOFTWARE_CHARS_MAX],
            request.client_software_version[:_SOFTWARE_CHARS_MAX],
        )
    return ApiVersionsResponse(
        api_keys=context.announced,
        supported_features=[
            SupportedFeatureKey(name=name, min_version=supported.min, max_version=supported.max)
            for name, supported in SUPPORTED.items()
            if supported.min > 0 or context.version >= _ZERO_SINCE
        ],
        finalized_features_epoch=context.node.store.image_offset,
        finalized_features=_finalized(context.node),
    )


def _finalized(node: Node) -> list[FinalizedFeatureKey]:
    """The feature levels of the cluster, as known here; features that are off are left out.

    Clients act on them: from `transaction.version` 2 on leaders add partitions to transactions,
    and each transaction has a producer epoch of its own (KIP-890).
    """
    levels = {**levels_of(node.store.image.features), KRAFT_VERSION: node.quorum.kraft_version}
    return [
        FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in levels.items()
        if level > 0
    ]
