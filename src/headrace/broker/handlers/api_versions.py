"""ApiVersions: what a client may ask this broker."""

import re

from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey, served_versions
from headrace.protocol.messages.api_versions import (
    ApiVersion,
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
    return ApiVersionsResponse(api_keys=api_version_list())


def api_version_list() -> list[ApiVersion]:
    """The versions of every API, as announced to clients."""
    return [_announced(key) for key in ApiKey]


def _announced(key: ApiKey) -> ApiVersion:
    first, last = served_versions(key)
    # Kafka announces Produce from 0 on: clients based on old librdkafka give up otherwise.
    return ApiVersion(
        api_key=key, min_version=0 if key is ApiKey.PRODUCE else first, max_version=last
    )
