"""Requests are measured once, in the dispatcher, by API and listener."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.apis import SERVED
from headrace.broker.dispatch import Dispatcher
from headrace.broker.quotas import ClientQuotas
from headrace.config import broker_config
from headrace.errors import ErrorCode, KafkaError, ProtocolError
from headrace.metrics.registry import Counter, Histogram, Registry
from headrace.net.server import Reply
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.envelope import EnvelopeResponse
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.schema import Message
from headrace.security.authorization import ALLOW_ALL, ANONYMOUS
from tests.unit.client.fake_brokers import FakeClock

REQUEST = HeartbeatRequest(group_id="g")


def frame_of(request: Message, version: int) -> memoryview:
    return memoryview(b"".join(encode_request(request, version, 0, "someone"))[4:])


class Measured:
    """A dispatcher whose APIs one handler answers, and what it measured."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.clock = FakeClock()
        self.registry = Registry()
        self.ready = asyncio.Event()
        self.ready.set()
        self.node = SimpleNamespace(
            config=broker_config({}),
            ready=self.ready,
            authorizer=ALLOW_ALL,
            clock=self.clock,
            metrics=self.registry,
            quotas=ClientQuotas(self.registry, self.clock.monotonic),
            store=SimpleNamespace(is_active=False),
            controllers=SimpleNamespace(ask=self._ask_controller),
            membership=SimpleNamespace(may_write=True),
        )
        rows = [row._replace(handler=handler) for row in SERVED]
        self.dispatcher = Dispatcher(cast("Any", self.node), "PLAINTEXT", rows)

    async def _ask_controller(self, *_: object, **__: object) -> EnvelopeResponse:
        self.clock.sleep(4)
        return EnvelopeResponse(response_data=b"answered")

    def ask(self, request: Message, version: int = 4, *, in_queue_s: float = 0.0) -> Reply:
        """Answer a request that arrived so long ago."""
        return self.ask_frame(frame_of(request, version), in_queue_s)

    def ask_frame(self, frame: memoryview, in_queue_s: float = 0.0) -> Reply:
        connection = SimpleNamespace(
            peer_host="host",
            received_s=self.clock.monotonic() - in_queue_s,
            principal=ANONYMOUS,
        )

        async def main() -> Reply:
            reply = self.dispatcher.respond(cast("Any", connection), frame)
            return await reply if isawaitable(reply) else reply

        return asyncio.run(main())

    def value(self, name: str, **labels: str) -> Any:
        """A counter's value, or a histogram's count and sum; None if there is no such metric."""
        wanted = {"listener": "PLAINTEXT", **labels}
        for family, metrics, _ in self.registry.collect():
            if family.name != f"headrace_request_{name}":
                continue
            metric = metrics.get(tuple(wanted[label] for label in family.labels))
            if metric is not None:
                if isinstance(metric, Histogram):
                    return metric.count, pytest.approx(metric.sum)
                assert isinstance(metric, Counter)
                return metric.value
        return None


def test_a_request_answered_at_once_has_no_wait() -> None:
    def handler(*_: object) -> Message:
        measured.clock.sleep(0.5)
        return HeartbeatResponse()

    measured = Measured(handler)
    reply = measured.ask(REQUEST, in_queue_s=0.25)
    assert reply is not None
    sent = len(b"".join(reply))
    measured.ask(REQUEST)
    api = "Heartbeat"
    assert measured.value("queue_seconds", api=api) == (2, 0.25)
    assert measured.value("handler_seconds", api=api) == (2, 1.0)
    assert measured.value("waiting_seconds", api=api) == (0, 0.0)
    assert measured.value("received_bytes_total", api=api) == 2 * len(frame_of(REQUEST, 4))
    assert measured.value("sent_bytes_total", api=api) == 2 * sent
    assert measured.value("errors_total", api=api, error="NONE") is None


def test_a_request_that_waits_is_measured_before_and_after() -> None:
    async def later() -> Message:
        measured.clock.sleep(3)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)

    def handler(*_: object) -> Any:
        measured.clock.sleep(0.5)
        return later()

    measured = Measured(handler)
    reply = measured.ask(REQUEST)
    assert reply is not None
    assert measured.value("handler_seconds", api="Heartbeat") == (1, 0.5)
    assert measured.value("waiting_seconds", api="Heartbeat") == (1, 3.0)
    assert measured.value("sent_bytes_total", api="Heartbeat") == len(b"".join(reply))
    error = "REBALANCE_IN_PROGRESS"
    assert measured.value("errors_total", api="Heartbeat", error=error) == 1


def test_a_request_without_an_answer_is_counted() -> None:
    measured = Measured(lambda *_: None)
    assert measured.ask(ProduceRequest(acks=0), 9) is None
    assert measured.value("handler_seconds", api="Produce") == (1, 0.0)
    assert measured.value("sent_bytes_total", api="Produce") == 0


def test_a_forwarded_request_waits_for_the_controller() -> None:
    measured = Measured(lambda *_: None)
    reply = measured.ask(CreateTopicsRequest(), 7)
    assert reply == [b"\0\0\0\x08answered"]
    assert measured.value("waiting_seconds", api="CreateTopics") == (1, 4.0)
    assert measured.value("sent_bytes_total", api="CreateTopics") == 12


@pytest.mark.parametrize("is_async", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT), "REQUEST_TIMED_OUT"),
        (ProtocolError("no"), "INVALID_REQUEST"),
        (OSError("no space"), "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_request_that_fails_is_an_error(error: Exception, name: str, is_async: bool) -> None:
    def fail(*_: object) -> Message:
        raise error

    async def fail_later(*_: object) -> Message:
        raise error

    measured = Measured(fail_later if is_async else fail)
    with pytest.raises(type(error)):
        measured.ask(REQUEST)
    assert measured.value("errors_total", api="Heartbeat", error=name) == 1


def test_a_body_that_cannot_be_read_is_an_error() -> None:
    measured = Measured(lambda *_: HeartbeatResponse())
    with pytest.raises(ProtocolError):
        measured.ask_frame(frame_of(REQUEST, 4)[:-1])
    assert measured.value("errors_total", api="Heartbeat", error="INVALID_REQUEST") == 1
    assert measured.value("handler_seconds", api="Heartbeat") == (1, 0.0)


def test_the_wait_for_a_start_is_time_in_the_queue() -> None:
    measured = Measured(lambda *_: HeartbeatResponse())
    measured.ready.clear()

    async def main() -> None:
        connection = SimpleNamespace(
            peer_host="host", received_s=measured.clock.monotonic(), principal=ANONYMOUS
        )
        reply = measured.dispatcher.respond(cast("Any", connection), frame_of(REQUEST, 4))
        measured.clock.sleep(5)
        connection.received_s = measured.clock.monotonic()
        measured.ready.set()
        assert isawaitable(reply)
        await reply

    asyncio.run(main())
    assert measured.value("queue_seconds", api="Heartbeat") == (1, 5.0)
