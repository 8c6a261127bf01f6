"""Forwarding of requests to the active controller, and requests of this node to itself.

A node that is not the active controller puts a client's request into an envelope (KIP-590).
"""

from inspect import isawaitable
from typing import Any

from headrace.broker.node import Node
from headrace.broker.request import AccessDenied, Answer, RequestContext, answer
from headrace.errors import ErrorCode, KafkaError, ProtocolError, error_code
from headrace.net.server import Reply
from headrace.protocol.apis import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
    served_versions,
)
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.protocol.schema import Message

_FORWARD_SECONDS = 30.0


async def ask_controller(node: Node, request: Message) -> Any:
    """The active controller's response to a request of this node."""
    if node.store.is_active:
        return await answer_locally(node, request)
    version = served_versions(request.api_key)[1]
    frame = b"".join(encode_request(request, version, 0, None))[4:]
    return decode_response(request.api_key, version, await _ask_enveloped(node, frame, ""))[1]


async def forward(node: Node, frame: bytes, host: str) -> Reply:
    """The active controller's response to the frame of a client of this node."""
    try:
        data = await _ask_enveloped(node, frame, host)
    except KafkaError as error:
        # No error code fits every API's response; clients retry after a lost connection.
        raise ProtocolError(f"a request could not be forwarded: {error}") from error
    return [len(data).to_bytes(4, "big") + data]


async def _ask_enveloped(node: Node, frame: bytes, host: str) -> bytes:
    """The response frame to a request frame in an envelope, both without their lengths."""
    envelope = EnvelopeRequest(
        request_data=frame, request_principal=None, client_host_address=host.encode()
    )
    response: EnvelopeResponse = await node.controllers.ask(
        envelope, _FORWARD_SECONDS, repeatable=False
    )
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "the controller refused a request")
    return response.response_data or b""


async def open_envelope(context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    """Answer a request that another node received from its client."""
    node = context.node
    if not node.store.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = memoryview(request.request_data)
    header = read_request_header(frame)
    row = node.apis.get(header.api_key)
    if row is None or not row.forwarded:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    first, last = served_versions(header.api_key)
    if not first <= header.api_version <= last:
        return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    host = str(request.client_host_address, "utf-8", "replace")
    inner = RequestContext(node, header, host, authorizer=node.authorizer)
    try:
        response = await _response_of(answer(row, inner, decode_request(header, frame)))
    except AccessDenied:
        return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return EnvelopeResponse(response_data=b"".join(encode_response(header, response))[4:])


async def answer_locally(node: Node, request: Message) -> Message:
    """This node's response to a request of its own."""
    return await _response_of(begin_locally(node, request))


def begin_locally(node: Node, request: Message) -> Answer:
    """As `answer_locally`, but the response itself if it needs no wait."""
    key = request.api_key
    header = RequestHeader(key, served_versions(key)[1], 0, "self", 0)
    return node.apis[key].handler(RequestContext(node, header, "local"), request)


async def _response_of(pending: Answer) -> Message:
    response = await pending if isawaitable(pending) else pending
    assert isinstance(response, Message), response
    return response
