"""Settings of security protocols and of TLS: listeners, and settings of one listener."""

import pytest

from headrace.config import BrokerConfig, broker_config, describe_broker
from headrace.errors import ConfigError
from headrace.types import SecurityProtocol

SSL = {
    "listeners": "SSL://localhost:1,INSIDE://localhost:2,CONTROLLER://localhost:3",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "SSL:SSL,inside:SSL,CONTROLLER:SSL",
}


def refusal(properties: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        broker_config(properties)
    return str(caught.value)


def test_a_listener_speaks_what_the_map_says_or_its_name() -> None:
    config = broker_config(SSL)
    assert config.protocol_of("INSIDE") is SecurityProtocol.SSL
    assert broker_config({"listeners": "SSL://h:1"}).protocol_of("SSL") is SecurityProtocol.SSL
    assert BrokerConfig().protocol_of("CONTROLLER") is SecurityProtocol.PLAINTEXT


def test_listeners_for_controllers_are_not_plain_text_beside_tls_without_a_word() -> None:
    properties = {"listeners": "SSL://h:1,C://h:2", "controller.listener.names": "C"}
    assert "does not say what the listener C speaks; add C:PLAINTEXT" in refusal(properties)
    plain = properties | {"listeners": "PLAINTEXT://h:1,C://h:2"}
    assert broker_config(plain).protocol_of("C") is SecurityProtocol.PLAINTEXT
    assert "does not say what the listener INSIDE" in refusal({"listeners": "INSIDE://h:1"})


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "SSL"),
        ({"inter.broker.listener.name": "INSIDE"}, "INSIDE"),
        ({"security.inter.broker.protocol": "SSL"}, "SSL"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:4,CONTROLLER://h:3",
          "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL"}, "PLAINTEXT"),
    ],
)  # fmt: skip
def test_the_listener_between_brokers(more: dict[str, str], name: str) -> None:
    config = broker_config(SSL | more)
    assert config.inter_broker_listener == name
    assert config.inter_broker_protocol is config.protocol_of(name)
    assert config.controller_listener == "CONTROLLER"


def test_settings_of_a_listener_that_there_is_not_are_refused() -> None:
    said = refusal(SSL | {"listener.name.insid.ssl.client.auth": "required"})
    assert "the listener INSID, of which" in said
    assert "did you mean INSIDE?" in said
    # One that is named by the map, as of another node, or was taken out of listeners.
    mapped = SSL["listener.security.protocol.map"] + ",OLD:SSL"
    broker_config(
        SSL
        | {"listener.security.protocol.map": mapped, "listener.name.old.ssl.client.auth": "none"}
    )


def test_contradictions_about_the_listener_between_brokers_are_refused() -> None:
    both = {"security.inter.broker.protocol": "SSL", "inter.broker.listener.name": "SSL"}
    assert "are both given" in refusal(SSL | both)
    assert "no listener of this broker speaks that" in refusal(
        {"listeners": "PLAINTEXT://h:1", "security.inter.broker.protocol": "SSL"}
    )


def test_each_role_has_the_listeners_that_it_serves() -> None:
    names = {
        "listener.security.protocol.map": SSL["listener.security.protocol.map"],
        "inter.broker.listener.name": "INSIDE",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "2@h:3",
    }
    controller = {"process.roles": "controller", "node.id": "2", "listeners": "CONTROLLER://h:3"}
    broker = {"process.roles": "broker", "listeners": "INSIDE://h:2"}
    # The names of the other role's listeners may be in every node's settings.
    assert broker_config(names | controller).inter_broker_listener == "INSIDE"
    assert broker_config(names | broker).controller_listener == "CONTROLLER"
    assert "inter.broker.listener.name has INSIDE" in refusal(
        names | broker | {"listeners": "SSL://h:1"}
    )
    assert "controller.listener.names has CONTROLLER" in refusal(
        names | controller | {"listeners": "INSIDE://h:2"}
    )


def test_a_setting_of_one_listener_goes_before_that_of_all() -> None:
    config = broker_config(
        SSL | {"ssl.client.auth": "requested", "listener.name.inside.ssl.client.auth": "required"}
    )
    assert config.value_at("INSIDE", "ssl.client.auth") == "required"
    assert config.value_at("SSL", "ssl.client.auth") == "requested"
    changed = config.with_overrides({"listener.name.inside.ssl.client.auth": "none"})
    assert changed.value_at("INSIDE", "ssl.client.auth") == "none"
    assert config.without_effect == ()


def test_passwords_are_not_shown() -> None:
    secret = {"ssl.key.password": "hunter2", "listener.name.ssl.ssl.keystore.password": "hunter2"}
    config = broker_config(SSL | secret)
    assert "hunter2" not in repr(config)
    assert describe_broker(config)["ssl.key.password"].setting.sensitive
    assert describe_broker(config)["listener.name.ssl.ssl.keystore.password"].setting.sensitive
    assert "hunter2" not in refusal({"ssl.keystore.key": "hunter2", "ssl.client.auth": "hunter"})


def test_a_listener_with_sasl_needs_a_mechanism() -> None:
    assert "no mechanism is enabled" in refusal({"listeners": "SASL_SSL://h:1"})


def test_the_map_is_checked() -> None:
    assert "is not NAME:PROTOCOL" in refusal({"listener.security.protocol.map": "A:TLS"})
