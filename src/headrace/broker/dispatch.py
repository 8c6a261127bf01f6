"""From a frame to its handler and back to a frame, the same way for every API."""

import asyncio
from collections.abc import Awaitable, Iterable
from inspect import isawaitable

from headrace.broker.apis import Audience, ServedApi
from headrace.broker.forwarding import forward
from headrace.broker.node import Node
from headrace.broker.request import RequestContext, answer
from headrace.errors import ErrorCode, ProtocolError
from headrace.net.connection import Connection, Reply
from headrace.protocol.apis import (
    Api,
    RequestHeader,
    announced_versions,
    decode_request,
    encode_response,
    read_request_header,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.schema import Message
from headrace.tasks import is_operating_error, report_bug


class Dispatcher:
    """Answers the frames of all connections of a listener."""

    def __init__(self, node: Node, listener: str, served: Iterable[ServedApi]) -> None:
        rows = {int(row.api): row for row in served}
        self._node = node
        self._listener = listener
        self._announced = announced_versions(rows)
        self._table = {
            (key, version): row
            for key, row in rows.items()
            for version in range(served_versions(key)[0], served_versions(key)[1] + 1)
        }

    def respond(self, connection: Connection, frame: memoryview) -> Reply | Awaitable[Reply]:
        """Answer one request. The frame is only valid during the call."""
        header = read_request_header(frame)
        row = self._table.get((header.api_key, header.api_version))
        if row is None:
            return self._refuse(header)
        node = self._node
        if not node.ready.is_set() and _must_wait(row):
            return self._respond_later(connection, memoryview(bytearray(frame)))
        if row.forwarded and not node.store.is_active:
            if row.is_local is None or not row.is_local(decode_request(header, frame)):
                return forward(node, bytes(frame), connection.peer_host)
        if header.api_key == Api.PRODUCE and not node.membership.may_write:
            # It will be refused. Who is cut off does not know who leads either, and clients ask
            # where they are connected: they are sent away to ask somebody else.
            asyncio.get_running_loop().call_soon(connection.close)
        request = decode_request(header, frame)
        context = RequestContext(
            node,
            header,
            connection.peer_host,
            self._listener,
            self._announced,
            connection,
            authorizer=node.authorizer,
        )
        try:
            reply = answer(row, context, request)
        except Exception as error:
            _report_if_bug(row, header, error)
            raise
        if reply is None:
            return None
        if isinstance(reply, Message):
            return encode_response(header, reply)
        return _encode_later(row, header, reply)

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


async def _encode_later(
    row: ServedApi, header: RequestHeader, pending: Awaitable[Message | None]
) -> Reply:
    try:
        response = await pending
    except Exception as error:
        _report_if_bug(row, header, error)
        raise
    return None if response is None else encode_response(header, response)


def _must_wait(row: ServedApi) -> bool:
    """Whether requests are those of clients, who are to see nothing of a start under way."""
    return row.audience is not Audience.CONTROLLERS and not row.before_ready


def _report_if_bug(row: ServedApi, header: RequestHeader, error: Exception) -> None:
    """Report a bug in a handler that may have left something half changed."""
    if not row.read_only and not is_operating_error(error):
        report_bug(f"the handler of {row.api.name} (client {header.client_id!r})", error)
