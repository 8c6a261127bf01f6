"""Asking the active controller while it moves, on virtual time."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.cluster import channels
from headrace.broker.cluster.channels import ControllerChannel, RequestNotSent
from headrace.errors import ErrorCode, KafkaError
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.schema import Message
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

REQUEST = AllocateProducerIdsRequest(broker_id=1, broker_epoch=5)
HERE = Address("here", 1)


class Elsewhere:
    """The other node, behind a link: each answer is a response or a failure."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked = 0

    def link(self, address_of: Callable[[], Address | None], client_id: str) -> "Elsewhere":
        return self

    async def ask(self, request: Message, timeout_s: float) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def ask(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Any],
    *,
    is_self: Callable[[], bool] = lambda: False,
    timeout_s: float = 5.0,
    repeatable: bool = True,
) -> tuple[Any, int, float]:
    """The answer, how often the other node was asked, and how long that took."""
    elsewhere, clock = Elsewhere(answers), FakeClock()
    monkeypatch.setattr(channels, "NodeChannel", elsewhere.link)

    async def answer_here(request: Message) -> Message:
        assert request is REQUEST
        return AllocateProducerIdsResponse(producer_id_start=77)

    async def main() -> Any:
        link = ControllerChannel(
            is_self=is_self, answer_here=answer_here, address_of=lambda: HERE, client_id="test"
        )
        return await link.ask(REQUEST, timeout_s, repeatable=repeatable)

    began = clock.monotonic()
    return run(clock, main()), elsewhere.asked, clock.monotonic() - began


def test_a_node_that_is_the_controller_asks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked, _ = ask(monkeypatch, [], is_self=lambda: True)
    assert (answer.producer_id_start, asked) == (77, 0)


def test_a_controller_that_moved_or_died_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
    died = ConnectionFailed(HERE, "it is gone", "wait")
    found = AllocateProducerIdsResponse(producer_id_start=3)
    answer, asked, seconds = ask(monkeypatch, [moved, died, moved, found])
    assert (answer, asked) == (found, 4)
    assert seconds < 1


def test_other_errors_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    assert ask(monkeypatch, [refused])[:2] == (refused, 1)


def test_without_a_controller_asking_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaError, match=r"REQUEST_TIMED_OUT.*it is gone"):
        ask(monkeypatch, [ConnectionFailed(HERE, "it is gone", "wait")], timeout_s=2.0)


def test_a_node_that_becomes_the_controller_meanwhile_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = iter([False, False, True])
    died = ConnectionFailed(HERE, "it is gone", "wait")
    answer, asked, _ = ask(monkeypatch, [died], is_self=lambda: next(turns))
    assert (answer.producer_id_start, asked) == (77, 2)


def test_what_may_have_been_done_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    done = AllocateProducerIdsResponse(producer_id_start=3)
    away, moved = (
        RequestNotSent("nobody listens"),
        AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER),
    )
    assert ask(monkeypatch, [away, moved, done], repeatable=False)[:2] == (done, 3)
    lost = ConnectionFailed(HERE, "it is gone", "wait")
    with pytest.raises(KafkaError, match="may have been done or not"):
        ask(monkeypatch, [lost, done], repeatable=False)


def test_a_heartbeat_waits_neither_behind_others_nor_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic may take seconds to be created, and the lease of a broker has only a few."""
    made: list[list[tuple[type[Message], float]]] = []

    class Slow:
        def __init__(self, address_of: Callable[[], Address | None], client_id: str) -> None:
            self.asked: list[tuple[type[Message], float]] = []
            made.append(self.asked)

        async def ask(self, request: Message, timeout_s: float) -> Any:
            self.asked.append((type(request), timeout_s))
            raise ConnectionFailed(HERE, "no answer in time", "wait")

    monkeypatch.setattr(channels, "NodeChannel", Slow)

    async def main() -> None:
        link = ControllerChannel(
            is_self=lambda: False, answer_here=fail, address_of=lambda: HERE, client_id="test"
        )
        for request in (REQUEST, BrokerHeartbeatRequest()):
            with pytest.raises(KafkaError):
                await link.ask(request, 2.0)

    async def fail(request: Message) -> Message:
        raise AssertionError(request)

    run(FakeClock(), main())
    others, heartbeats = made
    assert {other for other, _ in others} == {AllocateProducerIdsRequest}
    assert {heartbeat for heartbeat, _ in heartbeats} == {BrokerHeartbeatRequest}
    assert max(timeout_s for _, timeout_s in others) == 2.0
    assert max(timeout_s for _, timeout_s in heartbeats) == 0.5
