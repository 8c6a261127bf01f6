"""Forwarding of requests to the active controller, and requests of this node to itself.

A node that is not the active controller puts a client's request into an envelope (KIP-590).

Rule: a response with NOT_CONTROLLER is dropped, and its request sent to the next active controller,
as Kafka's brokers do: no client hears of a move of the controller. Records of the first attempt may
be committed after all; the repeated request finds them, and is answered so.
"""

import struct
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from headrace.broker.node import Node
from headrace.broker.request import Answer, RequestContext, answer
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
from headrace.protocol.messages.principal_data import DefaultPrincipalData
from headrace.protocol.schema import Message, Struct, decode_message, encode_message
from headrace.security.authorization import Principal

_FORWARD_SECONDS = 30.0
# In place of an address: requests of nodes of the cluster itself, in an envelope or to themselves.
_ENVELOPED, _LOCAL = "", "local"
OWN_HOSTS = frozenset((_ENVELOPED, _LOCAL))


async def request_of_controller(node: Node, request: Message) -> Any:
    """The active controller's response to a request of this node."""
    if node.store.is_active:
        response = await answer_locally(node, request)
        if node.closing or not is_of_no_controller(response):
            return response
    version = served_versions(request.api_key)[1]
    frame = b"".join(encode_request(request, version, 0, None))[4:]
    answer = await _send_enveloped(node, frame, _ENVELOPED, None)
    return decode_response(request.api_key, version, answer)[1]


async def forward(node: Node, frame: bytes, host: str, principal: Principal) -> Reply:
    """The active controller's response to the frame of a client of this node."""
    try:
        data = await _send_enveloped(node, frame, host, encode_principal(principal))
    except KafkaError as error:
        # No error code fits every API's response; clients retry after a lost connection.
        raise ProtocolError(f"a request could not be forwarded: {error}") from error
    return [len(data).to_bytes(4, "big") + data]


async def forward_if_moved(
    context: RequestContext, frame: bytes, pending: Awaitable[Message | None]
) -> Message | None:
    """The response of this node; of the next active controller if this node is it no more."""
    response = await pending
    if response is None or context.node.closing or not is_of_no_controller(response):
        return response
    principal = encode_principal(context.principal)
    data = await _send_enveloped(context.node, frame, context.host, principal)
    moved: Message = decode_response(context.header.api_key, context.version, data)[1]
    return moved


def is_of_no_controller(message: Struct) -> bool:
    """Whether a response has NOT_CONTROLLER anywhere: its node is not the active controller."""
    for name, spec in message.__specs__.items():
        value = getattr(message, name)
        if name == "error_code" and value == ErrorCode.NOT_CONTROLLER:
            return True
        if spec.struct is not None and value is not None:
            structs = value if spec.is_array else (value,)
            if any(is_of_no_controller(struct) for struct in structs):
                return True
    return False


async def pass_to_controller(context: RequestContext, request: Message) -> Any:
    """The active controller's response to a request that a client sent to this node."""
    version = served_versions(request.api_key)[1]
    frame = b"".join(encode_request(request, version, 0, context.client_id))[4:]
    principal = encode_principal(context.principal)
    data = await _send_enveloped(context.node, frame, context.host, principal)
    return decode_response(request.api_key, version, data)[1]


async def _send_enveloped(node: Node, frame: bytes, host: str, principal: bytes | None) -> bytes:
    """The response frame to a request frame in an envelope, both without their lengths.

    A request without a principal is the node's own.
    """
    envelope = EnvelopeRequest(
        request_data=frame, request_principal=principal, client_host_address=host.encode()
    )
    response: EnvelopeResponse = await node.controllers.ask(
        envelope, _FORWARD_SECONDS, repeatable=False
    )
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "the controller refused a request")
    return response.response_data or b""


async def open_envelope(context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    """Answer a request that another node received from its client, for that client's principal.

    Only nodes may send envelopes, which takes the right of cluster action: their word is taken for
    the principal.
    """
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
    principal, authorizer = context.principal, context.authorizer
    if request.request_principal is not None:
        try:
            principal = decode_principal(request.request_principal)
        except ProtocolError:
            return EnvelopeResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
        authorizer = node.authorizer
    inner = RequestContext(node, header, host, principal=principal, authorizer=authorizer)
    response = await _response_of(answer(row, inner, decode_request(header, frame)))
    if is_of_no_controller(response):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    return EnvelopeResponse(response_data=b"".join(encode_response(header, response))[4:])


# Kafka's form of a principal in an envelope: the version of a message, and the message.
_PRINCIPAL_VERSION = struct.Struct(">h")


def encode_principal(principal: Principal) -> bytes:
    """The bytes of a principal for an envelope."""
    data = DefaultPrincipalData(
        type=principal.kind, name=principal.name, groups=list(principal.groups)
    )
    return _PRINCIPAL_VERSION.pack(0) + encode_message(data, 0)


def decode_principal(data: bytes) -> Principal:
    """The principal in an envelope; ProtocolError if the bytes are none."""
    if len(data) < _PRINCIPAL_VERSION.size or _PRINCIPAL_VERSION.unpack_from(data) != (0,):
        raise ProtocolError("the principal of an envelope has no version that is known")
    message = decode_message(DefaultPrincipalData, 0, memoryview(data)[_PRINCIPAL_VERSION.size :])
    return Principal(message.type, message.name, tuple(message.groups))


async def answer_locally(node: Node, request: Message) -> Message:
    """This node's response to a request of its own."""
    return await _response_of(begin_locally(node, request))


def begin_locally(node: Node, request: Message) -> Answer:
    """As `answer_locally`, but the response itself if it needs no wait."""
    key = request.api_key
    header = RequestHeader(key, served_versions(key)[1], 0, "self", 0)
    return node.apis[key].handler(RequestContext(node, header, _LOCAL), request)


async def _response_of(pending: Answer) -> Message:
    response = await pending if isawaitable(pending) else pending
    assert isinstance(response, Message), response
    return response
