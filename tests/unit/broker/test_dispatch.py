"""Which listener answers what, and what becomes of a bug in a handler."""

import asyncio
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker import handlers
from headrace.broker.dispatch import ROUTES, Dispatcher, routes_of
from headrace.config import broker_config
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.apis import Api, encode_request
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.schema import Message
from headrace.tasks import stop_on_bugs

assert handlers.__all__

TWO_LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
}


def test_one_listener_answers_everything_by_default() -> None:
    assert set(routes_of(broker_config({}), "PLAINTEXT")) == set(ROUTES)


def test_a_listener_for_controllers_keeps_clients_and_controllers_apart() -> None:
    config = broker_config(TWO_LISTENERS)
    clients = set(routes_of(config, "PLAINTEXT"))
    controllers = set(routes_of(config, "CONTROLLER"))
    assert {Api.PRODUCE, Api.METADATA, Api.CREATE_TOPICS, Api.FETCH} <= clients
    assert not {Api.VOTE, Api.ENVELOPE, Api.BROKER_HEARTBEAT} & clients
    assert {Api.VOTE, Api.ENVELOPE, Api.BROKER_HEARTBEAT, Api.FETCH} <= controllers
    assert not {Api.PRODUCE, Api.METADATA, Api.JOIN_GROUP} & controllers


def test_a_node_answers_only_what_its_roles_allow() -> None:
    voters = {"controller.quorum.voters": "9@127.0.0.1:9093"}
    broker = routes_of(broker_config({"process.roles": "broker", **voters}), "PLAINTEXT")
    assert Api.PRODUCE in broker
    assert Api.VOTE not in broker
    controller = routes_of(broker_config({"process.roles": "controller"}), "PLAINTEXT")
    assert Api.VOTE in controller
    assert Api.PRODUCE not in controller


def test_a_listener_for_controllers_answers_what_tools_ask_of_controllers() -> None:
    """With `--bootstrap-controller`: quorum, features, settings, topics, elections, moves."""
    controllers = set(routes_of(broker_config(TWO_LISTENERS), "CONTROLLER"))
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bugs: list[tuple[str, BaseException]] = []

    def fail(*_: object) -> Message:
        raise error

    async def fail_later(*_: object) -> Message:
        raise error

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        stop_on_bugs(loop, lambda *bug: bugs.append(bug))
        node = SimpleNamespace(config=broker_config({}), ready=asyncio.Event())
        node.ready.set()
        dispatcher = Dispatcher(cast("Any", node), "PLAINTEXT")
        frame = b"".join(encode_request(request_, 4, 0, "someone"))[4:]
        reply = dispatcher.respond(
            cast("Any", SimpleNamespace(peer_host="host")), memoryview(frame)
        )
        assert isawaitable(reply)
        await reply

    route = ROUTES[request_.api_key]
    handler = fail_later if is_async else fail
    monkeypatch.setitem(ROUTES, request_.api_key, route._replace(handler=handler))
    with pytest.raises(type(error)):
        asyncio.run(ask())
    name = "the handler of HEARTBEAT (client 'someone')"
    assert bugs == ([(name, error)] if is_bug else [])
