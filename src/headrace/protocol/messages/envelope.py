"""Tables of the Envelope API."""

from headrace.protocol.schema import (
    Message,
    int16,
    raw,
)


class EnvelopeRequest(Message, api_key=58, versions=(0, 0), flexible_from=0):
    request_data: bytes = raw(default=b"")
    request_principal: bytes | None = raw(nullable="0+", default=b"")
    client_host_address: bytes = raw(default=b"")


class EnvelopeResponse(Message, api_key=58, versions=(0, 0), flexible_from=0):
    response_data: bytes | None = raw(nullable="0+", default=None)
    error_code: int = int16(default=0)
