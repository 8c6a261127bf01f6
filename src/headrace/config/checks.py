"""A broker's config from the text its user gave, checked as a whole."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.config.accepted import NO_SECURITY, parse_values
from headrace.config.broker import BROKER_SETTINGS, BrokerConfig
from headrace.config.listeners import ANY_ADDRESS
from headrace.config.properties import Properties
from headrace.config.settings import Scope
from headrace.errors import ConfigError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NO_BRACKETS = str.maketrans("", "", "[]")


def broker_config(properties: Mapping[str, str]) -> BrokerConfig:
    """A broker's config from its properties; ConfigError for an unknown key or a bad value."""
    values: dict[str, Any] = {}
    for name, text in properties.items():
        try:
            values |= parse_values(BROKER_SETTINGS, Scope.BROKER, {name: text})
        except ConfigError as error:
            if isinstance(properties, Properties):
                raise ConfigError(f"line {properties.lines[name]}: {error}") from None
            raise
    values |= _node_id(values)
    config = BrokerConfig(**values, static=dict(properties))
    _check_together(config)
    if _bootstraps_from_itself(config):
        return replace(config, controller_quorum_bootstrap_servers=())
    return config


def _bootstraps_from_itself(config: BrokerConfig) -> bool:
    """Whether a controller is told to look for controllers at its own address and nowhere else.

    So says the properties file that comes with Kafka, which is then formatted as the only voter.
    """
    servers = config.controller_quorum_bootstrap_servers
    if not config.is_controller or config.controller_quorum_voters or not servers:
        return False
    own = set[str]()
    for listener in (*config.listeners, *(config.advertised_listeners or ())):
        if (
            listener.name in config.controller_listener_names
            or not config.controller_listener_names
        ):
            hosts = {listener.host.lower()}
            if listener.host in (*ANY_ADDRESS, *_LOOPBACK):
                hosts |= set(_LOOPBACK)
            own |= {f"{host}:{listener.port}" for host in hosts}
    return all(server.lower().translate(_NO_BRACKETS) in own for server in servers)


def _node_id(values: Mapping[str, Any]) -> dict[str, int]:
    """`node.id` and `broker.id`, which are two names of one number."""
    broker_id = values.get("broker_id", -1)
    if broker_id < 0:
        return {"broker_id": values["node_id"]} if "node_id" in values else {}
    node_id: int = values.get("node_id", broker_id)
    if node_id != broker_id:
        raise ConfigError(
            f"node.id {node_id} and broker.id {broker_id} are two names of one number; give node.id"
        )
    return {"node_id": node_id}


def _check_together(config: BrokerConfig) -> None:
    """Refuse values that are fine each alone but not with each other."""
    _check_listeners(config)
    voters = {voter.node_id for voter in config.controller_quorum_voters}
    if "controller" in config.process_roles:
        if (
            voters
            and config.node_id not in voters
            and not config.controller_quorum_bootstrap_servers
        ):
            raise ConfigError(
                f"node.id {config.node_id} has the role controller but is not in"
                " controller.quorum.voters; add it, or set controller.quorum.bootstrap.servers and"
                " add it later with `headrace quorum add`"
            )
    elif config.node_id in voters:
        raise ConfigError(
            f"node.id {config.node_id} is in controller.quorum.voters but has not the role"
            " controller; add the role to process.roles, or take the voter away"
        )
    elif not voters and not config.controller_quorum_bootstrap_servers:
        raise ConfigError(
            "a node that is no controller must know where they are; set controller.quorum.voters"
            " or controller.quorum.bootstrap.servers"
        )
    if config.broker_heartbeat_interval_ms * 2 > config.broker_session_timeout_ms:
        raise ConfigError(
            "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms"
        )


def _check_listeners(config: BrokerConfig) -> None:
    names = {listener.name for listener in config.listeners}
    protocols = dict(one.partition(":")[::2] for one in config.listener_security_protocol_map)
    for listener in config.listeners:
        if protocols.get(listener.name, listener.name) != "PLAINTEXT":
            raise ConfigError(
                f"listeners has {listener}, which listener.security.protocol.map does not give"
                f" PLAINTEXT: {NO_SECURITY}"
            )
    for setting_name, wanted in (
        ("controller.listener.names", config.controller_listener_names),
        ("inter.broker.listener.name", (config.inter_broker_listener_name,)),
    ):
        for name in wanted:
            if name is not None and "controller" in config.process_roles and name not in names:
                raise ConfigError(f"{setting_name} has {name}, which listeners does not have")
    if config.advertised_listeners is None:
        for listener in config.listeners:
            if listener.host in ANY_ADDRESS and listener.host:
                raise ConfigError(
                    f"listeners has {listener}, which clients cannot connect to;"
                    " set advertised.listeners to a host name or address they can reach"
                )
    elif not {listener.name for listener in config.advertised_listeners} <= names:
        raise ConfigError("advertised.listeners names a listener that listeners does not have")
