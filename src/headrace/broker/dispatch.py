"""Dispatch of request frames to the handlers of their APIs, and of responses back to frames."""

import asyncio
from collections.abc import Awaitable, Iterable
from inspect import isawaitable

from headrace.broker.apis import Audience, QuotaClass, ServedApi
from headrace.broker.forwarding import forward, forward_if_moved
from headrace.broker.handlers import fetch
from headrace.broker.node import Node
from headrace.broker.quotas import RequestCharge, is_of_the_cluster
from headrace.broker.request import Answer, RequestContext, answer
from headrace.broker.request_metrics import RequestMetrics
from headrace.errors import ErrorCode, ProtocolError
from headrace.net.server import Reply, ServerConnection
from headrace.protocol.apis import (
    Api,
    RequestHeader,
    announced_versions,
    decode_request,
    decode_response,
    encode_response,
    read_request_header,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.schema import Message
from headrace.tasks import is_operating_error, report_bug


class _ListenerApi:
    """An API at a listener, and the metrics of its requests there, made with the first of them."""

    __slots__ = ("metrics", "row")

    def __init__(self, row: ServedApi) -> None:
        self.row = row
        self.metrics: RequestMetrics | None = None


class Dispatcher:
    """Answers the frames of all connections of a listener."""

    def __init__(self, node: Node, listener: str, served: Iterable[ServedApi]) -> None:
        rows = {int(row.api): _ListenerApi(row) for row in served}
        self._node = node
        self._listener = listener
        self._now = node.clock.monotonic
        self._quotas = node.quotas
        self._announced = announced_versions(rows)
        self._table = {
            (key, version): row
            for key, row in rows.items()
            for version in range(served_versions(key)[0], served_versions(key)[1] + 1)
        }

    def respond(
        self, connection: ServerConnection, frame: memoryview, arrived_s: float | None = None
    ) -> Reply | Awaitable[Reply]:
        """Answer one request. The frame is only valid during the call."""
        began_s = self._now()
        if arrived_s is None:
            arrived_s = connection.received_s
        header = read_request_header(frame)
        served = self._table.get((header.api_key, header.api_version))
        if served is None:
            return self._refuse(header)
        row = served.row
        if not self._node.ready.is_set() and _must_wait(row):
            return self._respond_later(connection, memoryview(bytearray(frame)), arrived_s)
        metrics = served.metrics
        if metrics is None:
            metrics = served.metrics = RequestMetrics(self._node.metrics, row.api, self._listener)
        charge = self._charge_of(row, connection, header) if self._quotas.active else None
        try:
            pending: Awaitable[Reply] | None = None
            reply: Reply = None
            if row.forwarded and self._is_for_controller(row, header, frame):
                pending = forward(
                    self._node, bytes(frame), connection.peer_host, connection.principal
                )
                if charge is not None:
                    pending = self._wait_for_throttle(charge, header, pending)
            else:
                response = self._handle(row, connection, header, frame, arrived_s, charge)
                if charge is not None:
                    response = self._charge(charge, response, began_s)
                if isinstance(response, Message):
                    if metrics.has_error_code:
                        metrics.check(response)
                    reply = encode_response(header, response)
                elif response is not None:
                    pending = _encode_later(row, metrics, header, response)
        except Exception as error:
            handler_s = self._now() - began_s
            metrics.handled(len(frame), began_s - arrived_s, handler_s, None, True)
            metrics.failed(error)
            raise
        ended_s = self._now()
        metrics.handled(len(frame), began_s - arrived_s, ended_s - began_s, reply, pending is None)
        connection.sending = metrics.sending
        return reply if pending is None else self._await(metrics, pending, arrived_s, ended_s)

    def _is_for_controller(self, row: ServedApi, header: RequestHeader, frame: memoryview) -> bool:
        """Whether another node is to answer a request of a forwarded API."""
        if self._node.store.is_active:
            return False
        return row.is_local is None or not row.is_local(decode_request(header, frame))

    def _handle(
        self,
        row: ServedApi,
        connection: ServerConnection,
        header: RequestHeader,
        frame: memoryview,
        arrived_s: float,
        charge: RequestCharge | None,
    ) -> Answer:
        node = self._node
        if header.api_key == Api.PRODUCE and not node.membership.may_write:
            # The request will be refused. A broker that is cut off from the controller does not
            # know the new leaders, and clients ask where they are connected: they must reconnect.
            asyncio.get_running_loop().call_soon(connection.close)
        request = decode_request(header, frame)
        context = RequestContext(
            node,
            header,
            connection.peer_host,
            self._listener,
            self._announced,
            connection,
            connection.principal,
            node.authorizer,
            arrived_s,
        )
        try:
            if charge is not None and not self._may_go_on(charge, row, request, frame):
                return fetch.throttled(context, request)
            response = answer(row, context, request)
            if row.forwarded and isawaitable(response):
                return forward_if_moved(context, bytes(frame), response)
            return response
        except Exception as error:
            _report_if_bug(row, header, error)
            raise

    def _charge_of(
        self, row: ServedApi, connection: ServerConnection, header: RequestHeader
    ) -> RequestCharge | None:
        """The charge of a request; None if no quota applies to it."""
        if row.quota is QuotaClass.NONE:
            return None
        limits = self._quotas.limits_of(connection.principal.name, header.client_id)
        return None if limits is None else RequestCharge(self._quotas, limits, connection)

    def _may_go_on(
        self, charge: RequestCharge, row: ServedApi, request: Message, frame: memoryview
    ) -> bool:
        """Charge the bytes of a request before it is handled; False if it may not fetch now."""
        if is_of_the_cluster(row.api, request):
            charge.waive()
        elif row.quota is QuotaClass.PRODUCE:
            charge.produced(len(frame), self._now())
        elif row.quota is QuotaClass.FETCH:
            return charge.may_fetch(request, self._now())
        return True

    def _charge(self, charge: RequestCharge, response: Answer, began_s: float) -> Answer:
        """Charge a handled request, and set the throttle time in its response."""
        now = self._now()
        charge.worked(now - began_s, now)
        if isinstance(response, Message):
            self._charge_answer(charge, response)
        elif response is not None:
            return self._charge_later(charge, response)
        return response

    async def _charge_later(
        self, charge: RequestCharge, pending: Awaitable[Message | None]
    ) -> Message | None:
        response = await pending
        if response is not None:
            self._charge_answer(charge, response)
        return response

    def _charge_answer(self, charge: RequestCharge, response: Message) -> None:
        now = self._now()
        if isinstance(response, FetchResponse):
            charge.fetched(response, now)
        charge.answer(response, now)

    async def _wait_for_throttle(
        self, charge: RequestCharge, header: RequestHeader, pending: Awaitable[Reply]
    ) -> Reply:
        """Hold back a client for the throttle time in the controller's response to its request."""
        reply = await pending
        if reply is not None:
            frame = b"".join(reply)[4:]
            _, response = decode_response(header.api_key, header.api_version, frame)
            charge.answer(response, self._now())
        return reply

    async def _await(
        self, metrics: RequestMetrics, pending: Awaitable[Reply], arrived_s: float, since_s: float
    ) -> Reply:
        try:
            reply = await pending
        except Exception as error:
            metrics.failed(error)
            raise
        now_s = self._now()
        metrics.waited(now_s - since_s, now_s - arrived_s, reply)
        return reply

    async def _respond_later(
        self, connection: ServerConnection, frame: memoryview, arrived_s: float
    ) -> Reply:
        await self._node.ready.wait()
        reply = self.respond(connection, frame, arrived_s)
        return await reply if isawaitable(reply) else reply

    def _refuse(self, header: RequestHeader) -> Reply:
        if header.api_key != Api.API_VERSIONS:
            raise ProtocolError(
                f"API key {header.api_key} version {header.api_version} is not served"
                f" (client {header.client_id!r})"
            )
        # KIP-511: a client newer than this broker gets the supported versions, in version 0.
        response = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._announced
        )
        return encode_response(header._replace(api_version=0), response)


async def _encode_later(
    row: ServedApi,
    metrics: RequestMetrics,
    header: RequestHeader,
    pending: Awaitable[Message | None],
) -> Reply:
    try:
        response = await pending
    except Exception as error:
        _report_if_bug(row, header, error)
        raise
    if response is None:
        return None
    if metrics.has_error_code:
        metrics.check(response)
    return encode_response(header, response)


def _must_wait(row: ServedApi) -> bool:
    """Whether requests of an API wait until the node is ready; those of controllers do not."""
    return row.audience is not Audience.CONTROLLERS and not row.before_ready


def _report_if_bug(row: ServedApi, header: RequestHeader, error: Exception) -> None:
    """Report a bug in a handler that may have left something half changed."""
    if not row.read_only and not is_operating_error(error):
        report_bug(f"the handler of {row.api.name} (client {header.client_id!r})", error)
