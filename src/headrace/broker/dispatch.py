"""From a frame to its handler and back to a frame.

A handler is a function `(context, request) -> response`. It returns the response, or an awaitable
of it when it must wait, or None when the request wants no answer (Produce with acks=0).
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from headrace.broker.node import Node, RequestContext
from headrace.errors import ErrorCode, ProtocolError
from headrace.net.connection import Connection, Reply
from headrace.protocol.api import (
    ApiKey,
    RequestHeader,
    announced_versions,
    decode_request,
    encode_response,
    read_request_header,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.schema import Message

Answer: TypeAlias = Message | Awaitable[Message | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any], Answer]
H = TypeVar("H", bound=Handler)

HANDLERS: dict[int, Handler] = {}


def handles(api_key: ApiKey) -> Callable[[H], H]:
    """Register the handler of an API; its versions are those of the tables."""

    def register(handler: H) -> H:
        assert api_key not in HANDLERS, api_key
        HANDLERS[api_key] = handler
        return handler

    return register


class Dispatcher:
    """Answers the frames of all connections of a broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._table = {
            (key, version): handler
            for key, handler in HANDLERS.items()
            for version in range(served_versions(key)[0], served_versions(key)[1] + 1)
        }

    def respond(self, connection: Connection, frame: memoryview) -> Reply | Awaitable[Reply]:
        """Answer one request. The frame is only valid during the call."""
        header = read_request_header(frame)
        handler = self._table.get((header.api_key, header.api_version))
        if handler is None:
            return _refuse(header)
        request = decode_request(header, frame)
        answer = handler(RequestContext(self._node, header, connection.peer_host), request)
        if answer is None:
            return None
        if isinstance(answer, Message):
            return encode_response(header, answer)
        return _encode_later(header, answer)


async def _encode_later(header: RequestHeader, answer: Awaitable[Message | None]) -> Reply:
    response = await answer
    return None if response is None else encode_response(header, response)


def _refuse(header: RequestHeader) -> Reply:
    if header.api_key != ApiKey.API_VERSIONS:
        raise ProtocolError(
            f"API key {header.api_key} version {header.api_version} is not served"
            f" (client {header.client_id!r})"
        )
    # KIP-511: a client from the future is told, in the oldest form, what it may ask.
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=announced_versions(HANDLERS)
    )
    return encode_response(header._replace(api_version=0), response)
