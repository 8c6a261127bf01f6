"""Logins of four clients by every mechanism, with right and with wrong credentials."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import aiokafka.abc
import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

import headrace
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.security.sasl_nodes import (
    AUDIENCE,
    BOOTSTRAP,
    ISSUER,
    PASSWORDS,
    SaslNode,
    TokenIssuer,
    plain_jaas,
    sasl_node,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, issuer: TokenIssuer) -> Iterator[SaslNode]:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.long.plain.sasl.jaas.config": plain_jaas(),
        "listener.name.brief.sasl.plain.scram.credentials": "true",
        "listener.name.brief.connections.max.reauth.ms": "2500",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "scram.bootstrap.credentials": BOOTSTRAP,
        "delegation.token.secret.key": "a secret of all nodes",
        "connection.failed.authentication.delay.ms": "20",
    }
    listeners = {"LONG": "SASL_PLAINTEXT", "BRIEF": "SASL_PLAINTEXT"}
    directory = tmp_path_factory.mktemp("node")
    with sasl_node(directory, settings, listeners) as running:
        yield running


def ours(node: SaslNode, mechanism: str, listener: str = "LONG", **options: Any) -> dict[str, Any]:
    if mechanism != "OAUTHBEARER":
        options = {"sasl_username": "admin", "sasl_password": PASSWORDS["admin"], **options}
    return {
        "bootstrap_servers": node.addresses[listener],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        **options,
    }


class Provider(aiokafka.abc.AbstractTokenProvider, AbstractTokenProvider):
    """A token for aiokafka, which awaits it, or for kafka-python."""

    def __init__(self, token: str, *, awaited: bool) -> None:
        self._token, self._awaited = token, awaited

    def token(self) -> Any:
        return self._later() if self._awaited else self._token

    async def _later(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return {}


def try_ours(node: SaslNode, mechanism: str, secret: str, patience_s: float = 30) -> bool:
    given: dict[str, Any] = {"sasl_password": secret}
    if mechanism == "OAUTHBEARER":
        given = {"sasl_oauth_token_provider": lambda: secret}
    try:
        with headrace.Admin(**ours(node, mechanism, **given)) as admin:
            admin.list_topics()
    except headrace.AuthenticationFailed as error:
        told = str(error)
    else:
        return True
    assert secret not in told
    return False


def try_librdkafka(node: SaslNode, mechanism: str, secret: str, patience_s: float = 30) -> bool:
    config: dict[str, Any] = {
        "bootstrap.servers": node.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "log_level": 0,
    }
    if mechanism == "OAUTHBEARER":
        config["oauth_cb"] = lambda _: (secret, 4_000_000_000.0)
    else:
        config |= {"sasl.username": "admin", "sasl.password": secret}
    errors: list[int] = []
    config["error_cb"] = lambda error: errors.append(error.code())
    client = confluent_kafka.Consumer({**config, "group.id": "sasl"})
    try:
        answered: list[bool] = []

        def found() -> bool:
            client.poll(0.05)
            if confluent_kafka.KafkaError._AUTHENTICATION in errors:
                return True
            try:
                client.list_topics(timeout=0.3)
            except confluent_kafka.KafkaException:
                return False
            answered.append(True)
            return True

        wait_until(found, 20, "an answer, or that the login is refused")
        return bool(answered)
    finally:
        client.close()


def try_kafka_python(node: SaslNode, mechanism: str, secret: str, patience_s: float = 30) -> bool:
    given: dict[str, Any] = {"sasl_plain_username": "admin", "sasl_plain_password": secret}
    if mechanism == "OAUTHBEARER":
        given = {"sasl_oauth_token_provider": Provider(secret, awaited=False)}
    wrong = "refused a login"
    before = node.output.text.count(wrong)
    try:
        client = kafka.KafkaAdminClient(
            bootstrap_servers=node.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            bootstrap_timeout_ms=int(patience_s * 1000),
            **given,
        )
    except kafka.errors.KafkaError:
        assert node.output.text.count(wrong) > before
        return False
    client.list_topics()
    client.close()
    return True


def try_aiokafka(node: SaslNode, mechanism: str, secret: str, patience_s: float = 30) -> bool:
    async def attempt() -> bool:
        given: dict[str, Any] = {"sasl_plain_username": "admin", "sasl_plain_password": secret}
        if mechanism == "OAUTHBEARER":
            given = {"sasl_oauth_token_provider": Provider(secret, awaited=True)}
        client = aiokafka.AIOKafkaProducer(
            bootstrap_servers=node.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            **given,
        )
        try:
            await client.start()
        except aiokafka.errors.KafkaError:
            return False
        finally:
            await client.stop()
        return True

    return asyncio.run(attempt())


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
@pytest.mark.parametrize(
    "log_in",
    [try_ours, try_librdkafka, try_kafka_python, try_aiokafka],
    ids=["ours", "librdkafka", "kafka-python", "aiokafka"],
)
def test_right_credentials_log_in_and_wrong_ones_do_not(
    node: SaslNode,
    issuer: TokenIssuer,
    mechanism: str,
    log_in: Callable[[SaslNode, str, str, float], bool],
) -> None:
    logging.disable(logging.CRITICAL)
    try:
        if mechanism == "OAUTHBEARER":
            right, wrong = issuer.token("admin"), issuer.token("admin", iss="https://elsewhere")
        else:
            right, wrong = PASSWORDS["admin"], "not-the-secret"
        assert log_in(node, mechanism, right, scaled(30))
        # One that tries again and again has been refused by then.
        assert not log_in(node, mechanism, wrong, 0.5)
    finally:
        logging.disable(logging.NOTSET)


def test_plain_takes_the_users_of_scram_where_it_is_told_to(node: SaslNode) -> None:
    user = {"sasl_username": "carol", "sasl_password": "carol-secret"}
    with headrace.Admin(**ours(node, "SCRAM-SHA-512")) as admin:
        admin.alter_user_scram_credentials(
            [headrace.ScramUpsertion("carol", "SCRAM-SHA-256", "carol-secret")]
        )
        assert "carol" in admin.describe_user_scram_credentials()
        with headrace.Admin(**ours(node, "PLAIN", "BRIEF", **user)) as carol:
            carol.list_topics()
        with pytest.raises(headrace.AuthenticationFailed):
            with headrace.Admin(**ours(node, "PLAIN", "LONG", **user)) as carol:
                carol.list_topics()
        admin.alter_user_scram_credentials([headrace.ScramDeletion("carol", "SCRAM-SHA-256")])
    with pytest.raises(headrace.AuthenticationFailed):
        with headrace.Admin(**ours(node, "PLAIN", "BRIEF", **user)) as carol:
            carol.list_topics()


def test_a_login_is_renewed_while_records_are_sent(node: SaslNode) -> None:
    with headrace.Producer(
        **ours(node, "SCRAM-SHA-256", "BRIEF"), client_id="renewing"
    ) as producer:
        producer.send("renewed", b"first").result(scaled(10))
        closed = node.output.text.count("closed connection")
        # Twice as long as a login holds.
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            producer.send("renewed", b"more").result(scaled(10))
        assert node.output.text.count("closed connection") == closed


def test_a_delegation_token_logs_in_until_it_is_expired(node: SaslNode) -> None:
    with headrace.Admin(**ours(node, "SCRAM-SHA-512")) as admin:
        token = admin.create_delegation_token(["User:alice"])
        assert token.owner == "User:admin"
        assert token.password not in repr(token)
        options = ours(
            node,
            "SCRAM-SHA-256",
            sasl_username=token.token_id,
            sasl_password=token.password,
            sasl_delegation_token=True,
        )
        with headrace.Admin(**options) as by_token:
            by_token.list_topics()
            with pytest.raises(headrace.KafkaError) as refused:
                by_token.create_delegation_token()
            assert refused.value.code is headrace.ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        with pytest.raises(headrace.AuthenticationFailed):
            # A token is no user.
            with headrace.Admin(**{**options, "sasl_delegation_token": False}) as by_token:
                by_token.list_topics()
        assert [known.token_id for known in admin.describe_delegation_tokens()] == [token.token_id]
        assert admin.renew_delegation_token(token.hmac) >= token.expires_ms
        admin.expire_delegation_token(token.hmac)
        assert admin.describe_delegation_tokens() == []
        with pytest.raises(headrace.AuthenticationFailed):
            with headrace.Admin(**options) as by_token:
                by_token.list_topics()


@pytest.mark.parametrize(
    "claims",
    [
        {"lasts_s": -1},
        {"nbf": 4_000_000_000},
        {"iss": "https://elsewhere"},
        {"aud": "another service"},
        {"exp": None},
        {"sub": None},
    ],
    ids=["expired", "not yet valid", "issuer", "audience", "without expiry", "without name"],
)
def test_tokens_with_wrong_claims_are_refused(
    node: SaslNode, issuer: TokenIssuer, claims: dict[str, Any]
) -> None:
    assert not try_ours(node, "OAUTHBEARER", issuer.token(**claims))


def test_a_new_key_of_the_issuer_is_found(node: SaslNode, issuer: TokenIssuer) -> None:
    assert try_ours(node, "OAUTHBEARER", issuer.token())
    another = TokenIssuer(issuer.file.parent, "second")
    # Keys that were read less than ten seconds ago are not read again for an unknown one.
    wait_until(lambda: try_ours(node, "OAUTHBEARER", another.token()), 30, "the new key to be read")
    assert not try_ours(node, "OAUTHBEARER", issuer.token())
    issuer.publish()
