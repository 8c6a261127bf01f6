"""Requests to the active controller when that moves while it works on them."""

import asyncio
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.apis import SERVED
from headrace.broker.cluster.channels import ControllerChannel, NodeChannel
from headrace.broker.dispatch import Dispatcher
from headrace.broker.forwarding import open_envelope, request_of_controller
from headrace.broker.quotas import ClientQuotas
from headrace.broker.request import RequestContext
from headrace.config import broker_config
from headrace.errors import ErrorCode, error_code
from headrace.metrics.registry import Registry
from headrace.net.addresses import Address
from headrace.protocol.apis import (
    Api,
    RequestHeader,
    decode_response,
    encode_request,
    encode_response,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.protocol.schema import Message
from headrace.security.authorization import ALLOW_ALL, ANONYMOUS
from tests.unit.client.fake_brokers import FakeClock

REQUEST = CreateTopicsRequest(topics=[CreatableTopic(name="new")])
VERSION = 7
FRAME = b"".join(encode_request(REQUEST, VERSION, 0, "someone"))[4:]


def created(code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[CreatableTopicResult(name="new", error_code=code)])


class MovingController:
    """A node that is the active controller until it has answered, and then another one."""

    def __init__(self, *answers: ErrorCode) -> None:
        self.envelopes: list[EnvelopeRequest] = []
        self._answers = list(answers)
        self.clock = FakeClock()
        controllers = ControllerChannel(
            is_self=lambda: self.node.store.is_active,
            answer_here=self._unexpected,
            address_of=lambda: Address("10.0.0.2", 9092),
            client_id="node",
            new_link=lambda *_: cast("NodeChannel", SimpleNamespace(ask=self._ask_other)),
        )
        self.rows = {
            int(row.api): row._replace(handler=self._create)
            for row in SERVED
            if row.api is Api.CREATE_TOPICS
        }
        self.node: Any = SimpleNamespace(
            apis=self.rows,
            authorizer=ALLOW_ALL,
            clock=self.clock,
            closing=False,
            config=broker_config({}),
            controllers=controllers,
            metrics=Registry(),
            quotas=ClientQuotas(Registry(), self.clock.monotonic),
            ready=asyncio.Event(),
            store=SimpleNamespace(is_active=True),
        )
        self.node.ready.set()

    async def _create(self, *_: object) -> Message:
        self.node.store.is_active = False
        return created(self._answers.pop(0))

    async def _ask_other(self, envelope: EnvelopeRequest, timeout_s: float) -> EnvelopeResponse:
        """The other node, which becomes active a moment later."""
        self.envelopes.append(envelope)
        if len(self.envelopes) == 1:
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        header = RequestHeader(Api.CREATE_TOPICS, VERSION, 0, None, 0)
        response = encode_response(header, created(ErrorCode.NONE))
        return EnvelopeResponse(response_data=b"".join(response)[4:])

    async def _unexpected(self, request: Message) -> Message:
        raise AssertionError(request)

    async def respond(self) -> ErrorCode:
        """The code that a client of this node gets for its topic."""
        dispatcher = Dispatcher(self.node, "PLAINTEXT", self.rows.values())
        connection = SimpleNamespace(peer_host="host", received_s=0.0, principal=ANONYMOUS)
        reply = dispatcher.respond(cast("Any", connection), memoryview(FRAME))
        assert isawaitable(reply)
        frame = b"".join(await reply or [])[4:]
        [topic] = decode_response(Api.CREATE_TOPICS, VERSION, frame)[1].topics
        return error_code(topic.error_code)


def test_a_client_of_the_controller_is_answered_by_the_next_when_it_moves() -> None:
    moving = MovingController(ErrorCode.NOT_CONTROLLER)
    assert asyncio.run(moving.respond()) is ErrorCode.NONE
    assert [envelope.request_data for envelope in moving.envelopes] == [FRAME, FRAME]


def test_other_answers_of_the_controller_are_final() -> None:
    moving = MovingController(ErrorCode.TOPIC_ALREADY_EXISTS)
    assert asyncio.run(moving.respond()) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert moving.envelopes == []


def test_a_node_that_stops_waits_for_no_other_controller() -> None:
    moving = MovingController(ErrorCode.NOT_CONTROLLER)
    moving.node.closing = True
    assert asyncio.run(moving.respond()) is ErrorCode.NOT_CONTROLLER
    assert moving.envelopes == []


def test_a_request_of_the_controller_itself_is_answered_by_the_next() -> None:
    moving = MovingController(ErrorCode.NOT_CONTROLLER)
    [topic] = asyncio.run(request_of_controller(moving.node, REQUEST)).topics
    assert topic.error_code == ErrorCode.NONE


def test_an_envelope_says_that_its_controller_has_moved() -> None:
    """The node that has sent it asks the next one, which its client would not."""
    moving = MovingController(ErrorCode.NOT_CONTROLLER)
    context = RequestContext(moving.node, RequestHeader(Api.ENVELOPE, 0, 0, "node", 0), "host")
    envelope = EnvelopeRequest(
        request_data=FRAME, request_principal=None, client_host_address=b"client"
    )
    response = asyncio.run(open_envelope(context, envelope))
    assert response == EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
