"""Settings of SASL: of listeners and logins, JAAS texts, and what is missing or wrong."""

import pytest

from headrace.config import broker_config
from headrace.config.jaas import parse_jaas
from headrace.config.sasl import (
    broker_login,
    controller_login,
    listener_sasl,
    parse_bootstrap_credentials,
)
from headrace.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
BASE = {"listeners": "SASL_PLAINTEXT://localhost:9092", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
OTHERS = {"controller.quorum.voters": "1@localhost:9093,2@localhost:9094"}


def refusal(**settings: str) -> str:
    with pytest.raises(ConfigError) as refused:
        broker_config({**BASE, **{name.replace("__", "."): v for name, v in settings.items()}})
    assert "hunter2" not in str(refused.value)
    return str(refused.value)


def test_a_jaas_text_is_read() -> None:
    module = parse_jaas(f'{PLAIN} required username="a\\"b" password=\'c;=d\' user_eve=f ;')
    assert module.name == "PlainLoginModule"
    assert module.options == {"username": 'a"b', "password": "c;=d", "user_eve": "f"}
    assert module.users == {"eve": "f"}
    assert "c;=d" not in repr(module)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{PLAIN} required",
        f'{PLAIN} required password="hunter2"',
        f'{PLAIN} password="hunter2";',
        f'{PLAIN} required password="hunter2;',
        f"{PLAIN} required password hunter2;",
        f"{PLAIN} required password=hunter2; {PLAIN} required;",
        f"{PLAIN} required password=hunter2 password=hunter2;",
        "org.example.Module required password=hunter2;",
        "com.sun.security.auth.module.Krb5LoginModule required;",
    ],
)
def test_a_bad_jaas_text_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_jaas(text)
    assert "hunter2" not in str(refused.value)
    if text:
        assert "(hidden)" in refusal(sasl__jaas__config=text)


def test_users_of_plain_are_those_of_the_listener() -> None:
    config = broker_config(
        {
            **BASE,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.SASL_PLAINTEXT.plain.sasl.jaas.config": f"{PLAIN} required user_a=b;",
            "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "5000",
        }
    )
    found = listener_sasl(config, "SASL_PLAINTEXT")
    assert found.plain_users == {"a": "b"}
    assert found.max_reauth_ms == {"PLAIN": 5000}
    assert "b" not in repr(found).replace("SASL", "")
    assert config.without_effect == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sasl__enabled__mechanisms": ""}, "no mechanism is enabled"),
        ({"sasl__enabled__mechanisms": "GSSAPI"}, "headrace has no Kerberos"),
        ({"sasl__enabled__mechanisms": "PLAIN"}, "knows no user"),
        ({"sasl__enabled__mechanisms": "OAUTHBEARER"}, "sasl.oauthbearer.jwks.endpoint.url"),
        (
            {"sasl__oauthbearer__jwks__endpoint__url": "http://example.org/keys"},
            "must begin with https: or file:",
        ),
        (
            {"controller__quorum__voters": "1@localhost:9093,2@localhost:9094"},
            "set sasl.mechanism.inter.broker.protocol",
        ),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, str], words: str) -> None:
    assert words in refusal(**settings)


def test_unsecured_tokens_are_refused() -> None:
    jaas = f'{BEARER} required unsecuredLoginStringClaim_sub="admin";'
    name = "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config"
    text = refusal(
        sasl__enabled__mechanisms="OAUTHBEARER",
        sasl__oauthbearer__jwks__endpoint__url="file:///keys.json",
        **{name: jaas},
    )
    assert "unsecured tokens" in text


def test_a_node_logs_in_with_its_own_name() -> None:
    config = broker_config(
        {
            **BASE,
            **OTHERS,
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} required username="node" password="hunter2";',
        }
    )
    login = broker_login(config)
    assert login is not None
    assert (login.mechanism, login.username, login.password) == ("SCRAM-SHA-512", "node", "hunter2")
    # At one listener for both, controllers are reached as brokers are.
    assert controller_login(config) == login
    assert "hunter2" not in repr(login)
    assert "hunter2" not in repr(config)


def test_bootstrap_credentials_are_read() -> None:
    plain, hashed = parse_bootstrap_credentials(
        "SCRAM-SHA-256=[name=admin,password=se=cret], SCRAM-SHA-512=[name=node,iterations=8192,"
        "salt=c2FsdA==,saltedpassword=aGFzaA==]"
    )
    assert (plain.name, plain.password, plain.iterations) == ("admin", "se=cret", 4096)
    assert (hashed.salt, hashed.salted_password, hashed.iterations) == (b"salt", b"hash", 8192)
    assert "se=cret" not in repr(plain)


@pytest.mark.parametrize(
    "text",
    [
        "admin",
        "PLAIN=[name=admin,password=hunter2]",
        "SCRAM-SHA-256=[password=hunter2]",
        "SCRAM-SHA-256=[name=admin]",
        "SCRAM-SHA-256=[name=admin,password=hunter2,iterations=1]",
        "SCRAM-SHA-256=[name=admin,password=hunter2,more=1]",
        "SCRAM-SHA-256=[name=admin,salt=?,saltedpassword=hunter2]",
    ],
)
def test_bad_bootstrap_credentials_are_refused_and_not_quoted(text: str) -> None:
    assert "(hidden)" in refusal(scram__bootstrap__credentials=text)
