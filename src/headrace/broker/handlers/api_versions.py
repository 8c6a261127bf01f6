"""ApiVersions: what a client may ask this broker."""

import re

from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


@handles(ApiKey.API_VERSIONS)
def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _SOFTWARE_NAME.match(request.client_software_name)
        and _SOFTWARE_NAME.match(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=context.announced)
