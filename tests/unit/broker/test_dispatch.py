"""Which listener answers what."""

from headrace.broker import handlers
from headrace.broker.dispatch import ROUTES, routes_of
from headrace.config import broker_config
from headrace.protocol.api import ApiKey

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
    assert {ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.CREATE_TOPICS, ApiKey.FETCH} <= clients
    assert not {ApiKey.VOTE, ApiKey.ENVELOPE, ApiKey.BROKER_HEARTBEAT} & clients
    assert {ApiKey.VOTE, ApiKey.ENVELOPE, ApiKey.BROKER_HEARTBEAT, ApiKey.FETCH} <= controllers
    assert not {ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.JOIN_GROUP} & controllers


def test_a_node_answers_only_what_its_roles_allow() -> None:
    voters = {"controller.quorum.voters": "9@127.0.0.1:9093"}
    broker = routes_of(broker_config({"process.roles": "broker", **voters}), "PLAINTEXT")
    assert ApiKey.PRODUCE in broker
    assert ApiKey.VOTE not in broker
    controller = routes_of(broker_config({"process.roles": "controller"}), "PLAINTEXT")
    assert ApiKey.VOTE in controller
    assert ApiKey.PRODUCE not in controller


def test_a_listener_for_controllers_answers_what_tools_ask_of_controllers() -> None:
    """With `--bootstrap-controller`: quorum, features, settings, topics, elections, moves."""
    controllers = set(routes_of(broker_config(TWO_LISTENERS), "CONTROLLER"))
    assert {
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.UNREGISTER_BROKER,
    } <= controllers
    assert not {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.DESCRIBE_CLIENT_QUOTAS} & controllers
