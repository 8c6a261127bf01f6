"""Which listener answers what, and what becomes of a bug in a handler."""

import asyncio
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.apis import SERVED, served_at
from headrace.broker.dispatch import Dispatcher
from headrace.broker.quotas import ClientQuotas
from headrace.config import broker_config
from headrace.errors import ErrorCode, KafkaError
from headrace.metrics.registry import Registry
from headrace.protocol.apis import Api, encode_request
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.schema import Message
from headrace.security.authorization import ALLOW_ALL, ANONYMOUS
from headrace.tasks import stop_on_bugs
from tests.unit.client.fake_brokers import FakeClock

TWO_LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
}


def keys_at(settings: dict[str, str], listener: str = "PLAINTEXT") -> set[Api]:
    return {row.api for row in served_at(broker_config(settings), listener)}


def test_every_api_has_one_row() -> None:
    assert sorted(row.api for row in SERVED) == sorted(Api)


def test_one_listener_answers_everything_by_default() -> None:
    assert keys_at({}) == {row.api for row in SERVED}


def test_a_listener_for_controllers_keeps_clients_and_controllers_apart() -> None:
    clients = keys_at(TWO_LISTENERS)
    controllers = keys_at(TWO_LISTENERS, "CONTROLLER")
    assert {Api.PRODUCE, Api.METADATA, Api.CREATE_TOPICS, Api.FETCH} <= clients
    assert not {Api.VOTE, Api.ENVELOPE, Api.BROKER_HEARTBEAT} & clients
    assert {Api.VOTE, Api.ENVELOPE, Api.BROKER_HEARTBEAT, Api.FETCH} <= controllers
    assert not {Api.PRODUCE, Api.METADATA, Api.JOIN_GROUP} & controllers


def test_a_node_answers_only_what_its_roles_allow() -> None:
    voters = {"controller.quorum.voters": "9@127.0.0.1:9093"}
    broker = keys_at({"process.roles": "broker", **voters})
    assert Api.PRODUCE in broker
    assert Api.VOTE not in broker
    controller = keys_at({"process.roles": "controller"})
    assert Api.VOTE in controller
    assert Api.PRODUCE not in controller


def test_a_listener_for_controllers_answers_what_tools_ask_of_controllers() -> None:
    """With `--bootstrap-controller`: quorum, features, settings, topics, elections, moves."""
    controllers = keys_at(TWO_LISTENERS, "CONTROLLER")
    assert {
        Api.API_VERSIONS,
        Api.DESCRIBE_CLUSTER,
        Api.DESCRIBE_QUORUM,
        Api.DESCRIBE_CONFIGS,
        Api.INCREMENTAL_ALTER_CONFIGS,
        Api.CREATE_TOPICS,
        Api.DESCRIBE_ACLS,
        Api.ALTER_CLIENT_QUOTAS,
        Api.ELECT_LEADERS,
        Api.ADD_RAFT_VOTER,
        Api.UNREGISTER_BROKER,
    } <= controllers
    assert not {Api.GET_TELEMETRY_SUBSCRIPTIONS, Api.DESCRIBE_CLIENT_QUOTAS} & controllers


@pytest.mark.parametrize("is_async", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("request_", "error", "is_bug"),
    [
        (HeartbeatRequest(group_id="g"), AssertionError("planted"), True),
        (HeartbeatRequest(group_id="g"), KafkaError(ErrorCode.REQUEST_TIMED_OUT), False),
        (HeartbeatRequest(group_id="g"), OSError("no space"), False),
        # It changes nothing, so nothing can be half changed.
        (ListGroupsRequest(), AssertionError("planted"), False),
    ],
)
def test_a_bug_in_a_handler_that_changes_something_is_reported(
    request_: Message,
    error: Exception,
    is_bug: bool,
    is_async: bool,
) -> None:
    bugs: list[tuple[str, BaseException]] = []

    def fail(*_: object) -> Message:
        raise error

    async def fail_later(*_: object) -> Message:
        raise error

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        stop_on_bugs(loop, lambda *bug: bugs.append(bug))
        node = SimpleNamespace(
            config=broker_config({}),
            ready=asyncio.Event(),
            authorizer=ALLOW_ALL,
            clock=FakeClock(),
            metrics=Registry(),
            quotas=ClientQuotas(Registry(), FakeClock().monotonic),
        )
        node.ready.set()
        [row] = [row for row in SERVED if row.api == request_.api_key]
        failing = row._replace(handler=fail_later if is_async else fail)
        dispatcher = Dispatcher(cast("Any", node), "PLAINTEXT", [failing])
        frame = b"".join(encode_request(request_, 4, 0, "someone"))[4:]
        reply = dispatcher.respond(
            cast("Any", SimpleNamespace(peer_host="host", received_s=0.0, principal=ANONYMOUS)),
            memoryview(frame),
        )
        assert isawaitable(reply)
        await reply

    with pytest.raises(type(error)):
        asyncio.run(ask())
    name = "the handler of HEARTBEAT (client 'someone')"
    assert bugs == ([(name, error)] if is_bug else [])
