"""ApiVersions: what a client may ask this broker."""

import re

from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")

# Version 2: the partitions of a transaction are added by those who lead them, and each transaction
# has a producer epoch of its own (KIP-890).
_SUPPORTED = [SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2)]
_FINALIZED = [
    FinalizedFeatureKey(name="transaction.version", min_version_level=2, max_version_level=2)
]
# Before it clients do not take 0 as the lowest version of a feature, and are not told of such.
_ZERO_SINCE = 4


@handles(ApiKey.API_VERSIONS, any_listener=True)
def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _SOFTWARE_NAME.match(request.client_software_name)
        and _SOFTWARE_NAME.match(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if context.connection is not None:
        context.connection.peer_software = (
            request.client_software_name,
            request.client_software_version,
        )
    return ApiVersionsResponse(
        api_keys=context.announced,
        supported_features=_SUPPORTED if context.version >= _ZERO_SINCE else [],
        finalized_features_epoch=context.node.store.image_offset,
        finalized_features=_FINALIZED,
    )
