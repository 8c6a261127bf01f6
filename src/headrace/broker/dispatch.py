"""From a frame to its handler and back to a frame.

A handler is a function `(context, request) -> response`. It returns the response, or an awaitable
of it when it must wait, or None when the request wants no answer (Produce with acks=0).
"""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from headrace.broker.node import Node, RequestContext
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError, ProtocolError, error_code
from headrace.net.connection import Connection, Reply
from headrace.protocol.apis import (
    APIS,
    Api,
    RequestHeader,
    announced_versions,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.protocol.schema import Message
from headrace.tasks import is_operating_error, report_bug

Answer: TypeAlias = Message | Awaitable[Message | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any], Answer]
H = TypeVar("H", bound=Handler)


class Route(NamedTuple):
    """Who answers an API.

    `forwarded` ones are the active controller's, to whom other nodes pass them on, but for those
    requests of which `is_local` says that they are for the node they came to. `controller` ones
    are asked by other nodes of the cluster, never by clients. `any_listener` ones are answered by
    the node that is asked, at the listeners of brokers and of controllers.
    """

    handler: Handler
    forwarded: bool
    controller: bool
    any_listener: bool
    is_local: Callable[[Any], bool] | None = None


ROUTES: dict[int, Route] = {}

_FORWARD_SECONDS = 30.0

# APIs that are answered before the node has caught up: a quorum forms with them.
_BEFORE_READY = frozenset({Api.API_VERSIONS, Api.FETCH, Api.DESCRIBE_CLUSTER})

# APIs whose handlers change nothing on this node that outlives the request. A bug in one of them
# leaves nothing half changed, and costs its client the connection; a bug in any other handler
# stops the process.
READ_ONLY = frozenset(
    {
        Api.API_VERSIONS,
        Api.FETCH_SNAPSHOT,
        Api.FIND_COORDINATOR,
        Api.METADATA,
        Api.OFFSET_FETCH,
        Api.OFFSET_FOR_LEADER_EPOCH,
        *(key for key in Api if key.name.startswith(("DESCRIBE_", "LIST_"))),
    }
)


def handles(
    api_key: Api,
    *,
    forwarded: bool = False,
    controller: bool = False,
    any_listener: bool = False,
    is_local: Callable[[Any], bool] | None = None,
) -> Callable[[H], H]:
    """Register the handler of an API; its versions are those of the tables."""

    def register(handler: H) -> H:
        assert api_key not in ROUTES, api_key
        ROUTES[api_key] = Route(handler, forwarded, controller, any_listener, is_local)
        return handler

    return register


def routes_of(config: BrokerConfig, listener: str) -> dict[int, Route]:
    """The APIs that are answered at a listener of a node."""
    own_listener = bool(config.controller_listener_names)
    for_controllers = listener in config.controller_listener_names
    served = {}
    for key, route in ROUTES.items():
        if route.any_listener:
            served[key] = route
        elif route.controller:
            if config.is_controller and (for_controllers or not own_listener):
                served[key] = route
        elif route.forwarded or (config.is_broker and not for_controllers):
            served[key] = route
    return served


class Dispatcher:
    """Answers the frames of all connections of a listener."""

    def __init__(self, node: Node, listener: str) -> None:
        routes = routes_of(node.config, listener)
        self._node = node
        self._listener = listener
        self._announced = announced_versions(routes)
        self._table = {
            (key, version): route
            for key, route in routes.items()
            for version in range(served_versions(key)[0], served_versions(key)[1] + 1)
        }

    def respond(self, connection: Connection, frame: memoryview) -> Reply | Awaitable[Reply]:
        """Answer one request. The frame is only valid during the call."""
        header = read_request_header(frame)
        route = self._table.get((header.api_key, header.api_version))
        if route is None:
            return self._refuse(header)
        node = self._node
        if not node.ready.is_set() and self._must_wait(header, route):
            return self._respond_later(connection, memoryview(bytearray(frame)))
        if route.forwarded and not node.store.is_active:
            if route.is_local is None or not route.is_local(decode_request(header, frame)):
                return _forward(node, bytes(frame), connection.peer_host)
        if header.api_key == Api.PRODUCE and not node.membership.may_write:
            # It will be refused. Who is cut off does not know who leads either, and clients ask
            # where they are connected: they are sent away to ask somebody else.
            asyncio.get_running_loop().call_soon(connection.close)
        request = decode_request(header, frame)
        context = RequestContext(
            node, header, connection.peer_host, self._listener, self._announced, connection
        )
        try:
            answer = route.handler(context, request)
        except Exception as error:
            _report_if_bug(header, error)
            raise
        if answer is None:
            return None
        if isinstance(answer, Message):
            return encode_response(header, answer)
        return _encode_later(header, answer)

    def _must_wait(self, header: RequestHeader, route: Route) -> bool:
        """Whether a request is a client's, who is to see nothing of a start that is under way."""
        return not route.controller and header.api_key not in _BEFORE_READY

    async def _respond_later(self, connection: Connection, frame: memoryview) -> Reply:
        await self._node.ready.wait()
        reply = self.respond(connection, frame)
        return await reply if isawaitable(reply) else reply

    def _refuse(self, header: RequestHeader) -> Reply:
        if header.api_key != Api.API_VERSIONS:
            raise ProtocolError(
                f"API key {header.api_key} version {header.api_version} is not served"
                f" (client {header.client_id!r})"
            )
        # KIP-511: a client from the future is told, in the oldest form, what it may ask.
        response = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._announced
        )
        return encode_response(header._replace(api_version=0), response)


async def _encode_later(header: RequestHeader, answer: Awaitable[Message | None]) -> Reply:
    try:
        response = await answer
    except Exception as error:
        _report_if_bug(header, error)
        raise
    return None if response is None else encode_response(header, response)


def _report_if_bug(header: RequestHeader, error: Exception) -> None:
    """Report a bug in a handler that may have left something half changed."""
    if header.api_key not in READ_ONLY and not is_operating_error(error):
        name = APIS[header.api_key].name
        report_bug(f"the handler of {name} (client {header.client_id!r})", error)


async def ask_controller(node: Node, request: Message) -> Any:
    """What the active controller answers to a request of ours that clients may make too."""
    if node.store.is_active:
        return await answer_locally(node, request)
    version = served_versions(request.api_key)[1]
    frame = b"".join(encode_request(request, version, 0, None))[4:]
    return decode_response(request.api_key, version, await _ask_enveloped(node, frame, ""))[1]


async def _forward(node: Node, frame: bytes, host: str) -> Reply:
    """Have the active controller answer our client."""
    try:
        data = await _ask_enveloped(node, frame, host)
    except KafkaError as error:
        # No code fits every API's answer; clients try again after a lost connection.
        raise ProtocolError(f"a request could not be forwarded: {error}") from error
    return [len(data).to_bytes(4, "big") + data]


async def _ask_enveloped(node: Node, frame: bytes, host: str) -> bytes:
    """The frame the active controller answers a frame with, both without their lengths."""
    envelope = EnvelopeRequest(
        request_data=frame, request_principal=None, client_host_address=host.encode()
    )
    response: EnvelopeResponse = await node.controllers.ask(
        envelope, _FORWARD_SECONDS, repeatable=False
    )
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "the controller refused a request")
    return response.response_data or b""


@handles(Api.ENVELOPE, controller=True)
async def open_envelope(context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    """Answer a request that another node received from its client."""
    node = context.node
    if not node.store.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = memoryview(request.request_data)
    header = read_request_header(frame)
    route = ROUTES.get(header.api_key)
    if route is None or not route.forwarded:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    first, last = served_versions(header.api_key)
    if not first <= header.api_version <= last:
        return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    host = str(request.client_host_address, "utf-8", "replace")
    inner = RequestContext(node, header, host)
    response = await answer_of(route, inner, decode_request(header, frame))
    return EnvelopeResponse(response_data=b"".join(encode_response(header, response))[4:])


async def answer_of(route: Route, context: RequestContext, request: Message) -> Message:
    """What a route answers, waiting for it if it must be waited for."""
    answer = route.handler(context, request)
    response = await answer if isawaitable(answer) else answer
    assert isinstance(response, Message), response
    return response


async def answer_locally(node: Node, request: Message) -> Message:
    """What this node answers to a request of its own."""
    answer = begin_locally(node, request)
    response = await answer if isawaitable(answer) else answer
    assert isinstance(response, Message), response
    return response


def begin_locally(node: Node, request: Message) -> Answer:
    """As `answer_locally`, at once if nothing has to be waited for."""
    key = request.api_key
    header = RequestHeader(key, served_versions(key)[1], 0, "self", 0)
    return ROUTES[key].handler(RequestContext(node, header, "local"), request)
