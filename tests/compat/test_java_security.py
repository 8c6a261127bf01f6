"""Kafka's Java clients at secured listeners of a broker of ours and of one of Apache Kafka.

Rule: each login, right or wrong, ends as with Kafka: with the same records or the same exception.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from headrace.testing.time_limits import Deadline, scaled, wait_until
from tests.compat.brokers import Both, ask_both
from tests.compat.java_admin import outcome
from tests.compat.java_gateway import java_gateway, java_list, java_map
from tests.compat.secured_brokers import (
    ALICE,
    ALICE_PASSWORD,
    MECHANISMS,
    SecuredNode,
    allowing_option,
    client_properties,
    secured_brokers,
    with_password,
    with_token_file,
)

TOPIC = "secured"
GROUP = "readers"
RECORDS = 20
_PASSWORDS = tuple(mechanism for mechanism in MECHANISMS if mechanism != "OAUTHBEARER")
_LOGIN_LISTENERS = {"LOGIN": False, "SECURE": True}
_STRINGS = {
    f"{kind}.{role}": f"org.apache.kafka.common.serialization.String{role.capitalize()}"
    for kind in ("key", "value")
    for role in ("serializer", "deserializer")
}
# Of clients that will not be answered, which is found out by waiting.
_SHORT_MS = 4_000

Properties = dict[str, str]


class JavaClients:
    """Java clients of one broker."""

    def __init__(self, jvm: Any, node: SecuredNode) -> None:
        self.jvm = jvm
        self.node = node
        self.credentials = node.credentials

    def properties(self, listener: str, **more: Any) -> Properties:
        """The properties of a client at a listener, without a login."""
        return client_properties(self.credentials, self.node.addresses[listener], **more)

    def admin(self, properties: Mapping[str, str], limit_ms: int | None = None) -> Any:
        limit = limit_ms or int(scaled(60) * 1000)
        times = {"default.api.timeout.ms": str(limit), "request.timeout.ms": str(limit)}
        return self.jvm.org.apache.kafka.clients.admin.Admin.create(
            java_map(self.jvm, {**times, **properties})
        )

    def list_topics(self, properties: Mapping[str, str], limit_ms: int | None = None) -> Any:
        """The names of the topics that a client sees."""
        admin = self.admin(properties, limit_ms)
        try:
            return admin.listTopics().names().get()
        finally:
            admin.close()

    def round_trip(self, properties: Mapping[str, str]) -> str:
        """Write records and read all of the topic with a group; the number that came back."""
        records = self.jvm.org.apache.kafka.clients
        made = {**_STRINGS, "auto.offset.reset": "earliest", "group.id": GROUP, **properties}
        marker = f"{time.monotonic_ns()}"
        producer = records.producer.KafkaProducer(java_map(self.jvm, made))
        try:
            for number in range(RECORDS):
                producer.send(records.producer.ProducerRecord(TOPIC, marker, str(number)))
            producer.flush()
        finally:
            producer.close()
        made |= {"enable.auto.commit": "false", "group.id": f"{GROUP}-{marker}"}
        consumer = records.consumer.KafkaConsumer(java_map(self.jvm, made))
        found = 0
        try:
            consumer.subscribe(self.jvm.java.util.Collections.singletonList(TOPIC))
            deadline = Deadline(60)
            while found < RECORDS:
                assert not deadline.has_passed, f"{found} of {RECORDS} records came back"
                batch = consumer.poll(self.jvm.java.time.Duration.ofMillis(1000)).iterator()
                while batch.hasNext():
                    found += batch.next().key() == marker
        finally:
            consumer.close()
        return f"{found} records"

    def new_token(self) -> tuple[str, str]:
        """The id and the HMAC of a new delegation token of alice."""
        plain = with_password(self.properties("LOGIN"), "PLAIN", ALICE, ALICE_PASSWORD)
        admin = self.admin(plain)
        try:
            token = admin.createDelegationToken().delegationToken().get()
            token_id = token.tokenInfo().tokenId()

            def is_known() -> bool:
                tokens = admin.describeDelegationToken().delegationTokens().get()
                return token_id in {each.tokenInfo().tokenId() for each in tokens}

            wait_until(is_known, 30, f"the token {token_id} is not described")
            return token_id, token.hmacAsBase64String()
        finally:
            admin.close()

    def remove_token(self, secret: str) -> None:
        """End a token of alice at once."""
        plain = with_password(self.properties("LOGIN"), "PLAIN", ALICE, ALICE_PASSWORD)
        admin = self.admin(plain)
        types = self.jvm.org.apache.kafka.clients.admin
        hmac = self.jvm.java.util.Base64.getDecoder().decode(secret)
        try:
            options = types.ExpireDelegationTokenOptions().expiryTimePeriodMs(-1)
            admin.expireDelegationToken(hmac, options).expiryTimestamp().get()
        finally:
            admin.close()

    def alter_user(self, name: str, password: str | None) -> None:
        """Give a user a password for SCRAM-SHA-256, or take it away."""
        types = self.jvm.org.apache.kafka.clients.admin
        kind = types.ScramMechanism.SCRAM_SHA_256
        if password is None:
            change = types.UserScramCredentialDeletion(name, kind)
        else:
            info = types.ScramCredentialInfo(kind, 4096)
            change = types.UserScramCredentialUpsertion(name, info, password)
        admin = self.admin(self.properties("PLAINTEXT"))
        try:
            admin.alterUserScramCredentials(java_list(self.jvm, change)).all().get()
        finally:
            admin.close()

    def list_topics_after(self, properties: Mapping[str, str], revoke: Callable[[], None]) -> Any:
        """The answer to a client that logged in before `revoke`, once nobody can any more."""
        admin = self.admin(properties)
        try:
            admin.listTopics().names().get()
            revoke()

            def is_refused() -> bool:
                return outcome(partial(self.list_topics, properties)) == REFUSED

            wait_until(is_refused, 30, "the login is not refused")
            return admin.listTopics().names().get()
        finally:
            admin.close()


Case = Callable[[JavaClients], Any]
REFUSED = "raises SaslAuthenticationException"


def right_logins() -> dict[str, Case]:
    """Logins that may write and read."""

    def certificate(clients: JavaClients) -> Any:
        properties = clients.properties("MUTUAL", tls=True, certificate="good")
        return clients.round_trip(properties)

    def password(listener: str, tls: bool, mechanism: str, clients: JavaClients) -> Any:
        properties = clients.properties(listener, tls=tls)
        return clients.round_trip(with_password(properties, mechanism, ALICE, ALICE_PASSWORD))

    def bearer(listener: str, tls: bool, clients: JavaClients) -> Any:
        token = clients.credentials.tokens["good"]
        return clients.round_trip(with_token_file(clients.properties(listener, tls=tls), token))

    def delegated(listener: str, tls: bool, mechanism: str, clients: JavaClients) -> Any:
        properties = clients.properties(listener, tls=tls)
        return clients.round_trip(
            with_password(properties, mechanism, *clients.new_token(), token=True)
        )

    cases: dict[str, Case] = {
        "TLS": lambda clients: clients.round_trip(clients.properties("TLS", tls=True)),
        "mutual TLS": certificate,
    }
    for listener, tls in _LOGIN_LISTENERS.items():
        for mechanism in _PASSWORDS:
            cases[f"{mechanism} at {listener}"] = partial(password, listener, tls, mechanism)
        cases[f"OAUTHBEARER at {listener}"] = partial(bearer, listener, tls)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            title = f"a delegation token by {mechanism} at {listener}"
            cases[title] = partial(delegated, listener, tls, mechanism)
    return cases


def wrong_logins() -> dict[str, Case]:
    """Logins that are refused."""

    def password(name: str, secret: str, mechanism: str, clients: JavaClients) -> Any:
        properties = clients.properties("SECURE", tls=True)
        return clients.list_topics(with_password(properties, mechanism, name, secret))

    def bearer(token: str, clients: JavaClients) -> Any:
        properties = clients.properties("SECURE", tls=True)
        return clients.list_topics(with_token_file(properties, clients.credentials.tokens[token]))

    def certificate(name: str | None, clients: JavaClients) -> Any:
        return clients.list_topics(clients.properties("MUTUAL", tls=True, certificate=name))

    def server(listener: str, clients: JavaClients) -> Any:
        return clients.list_topics(clients.properties(listener, tls=True))

    def unknown_authority(clients: JavaClients) -> Any:
        trust = clients.credentials.stranger.certificate_path
        return clients.list_topics(clients.properties("TLS", tls=True, trust=trust))

    def disabled(clients: JavaClients) -> Any:
        properties = clients.properties("FEW", tls=True)
        return clients.list_topics(
            with_password(properties, "SCRAM-SHA-256", ALICE, ALICE_PASSWORD)
        )

    def wrong_token_secret(clients: JavaClients) -> Any:
        token_id, _ = clients.new_token()
        properties = clients.properties("SECURE", tls=True)
        given = with_password(properties, "SCRAM-SHA-256", token_id, "guess", token=True)
        return clients.list_topics(given)

    def removed_token(clients: JavaClients) -> Any:
        token_id, secret = clients.new_token()
        clients.remove_token(secret)
        properties = clients.properties("SECURE", tls=True)
        given = with_password(properties, "SCRAM-SHA-256", token_id, secret, token=True)
        return clients.list_topics(given)

    def unencrypted(listener: str, clients: JavaClients) -> Any:
        return clients.list_topics(clients.properties(listener), _SHORT_MS)

    cases: dict[str, Case] = {
        "a client that trusts another authority": unknown_authority,
        "a client that trusts nobody named": lambda clients: clients.list_topics(
            clients.properties("TLS") | {"security.protocol": "SSL"}
        ),
        "a mechanism that is not enabled": disabled,
        "a token with a wrong secret": wrong_token_secret,
        "a token that was removed": removed_token,
    }
    for listener in ("EXPIRED", "EARLY", "ELSEWHERE"):
        cases[f"a broker's certificate: {listener}"] = partial(server, listener)
    for name in (None, "expired", "early", "unknown"):
        cases[f"a client's certificate: {name}"] = partial(certificate, name)
    for mechanism in _PASSWORDS:
        cases[f"a wrong password by {mechanism}"] = partial(password, ALICE, "guess", mechanism)
        cases[f"an unknown user by {mechanism}"] = partial(
            password, "nobody", ALICE_PASSWORD, mechanism
        )
    for token in ("expired", "early", "other issuer", "other audience", "other key"):
        cases[f"a bearer token: {token}"] = partial(bearer, token)
    for listener in ("LOGIN", "SECURE", "TLS"):
        cases[f"plain text at {listener}"] = partial(unencrypted, listener)
    return cases


def revoked_logins() -> dict[str, Case]:
    """Clients that stay connected while their credentials are taken from them."""

    def user(password: str | None, clients: JavaClients) -> Any:
        name = f"user-{time.monotonic_ns()}"
        clients.alter_user(name, "first-secret")
        properties = clients.properties("SECURE", tls=True)
        given = with_password(properties, "SCRAM-SHA-256", name, "first-secret")
        wait_until(
            lambda: outcome(partial(clients.list_topics, given)) != REFUSED,
            30,
            f"{name} cannot log in",
        )
        return clients.list_topics_after(given, partial(clients.alter_user, name, password))

    def token(clients: JavaClients) -> Any:
        token_id, secret = clients.new_token()
        properties = clients.properties("SECURE", tls=True)
        given = with_password(properties, "SCRAM-SHA-256", token_id, secret, token=True)
        return clients.list_topics_after(given, partial(clients.remove_token, secret))

    return {
        "a user who is deleted": partial(user, None),
        "a user with another password": partial(user, "second-secret"),
        "a delegation token that is removed": token,
    }


RIGHT = right_logins()
WRONG = wrong_logins()
REVOKED = revoked_logins()
CASES = {**RIGHT, **WRONG, **REVOKED}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Both]]:
    """The outcomes of all cases with both brokers."""
    with (
        java_gateway() as jvm,
        secured_brokers(tmp_path_factory.mktemp("security")) as brokers,
    ):
        name, _, value = allowing_option(brokers[0].credentials).removeprefix("-D").partition("=")
        jvm.java.lang.System.setProperty(name, value)
        yield ask_both(partial(run_all, jvm), brokers)


def run_all(jvm: Any, node: SecuredNode) -> dict[str, str]:
    clients = JavaClients(jvm, node)
    _prepare(clients)
    return {title: outcome(partial(case, clients)) for title, case in CASES.items()}


def _prepare(clients: JavaClients) -> None:
    """Make alice, a topic, and the rights of alice to it and to every group."""
    jvm = clients.jvm
    types, common = jvm.org.apache.kafka.clients.admin, jvm.org.apache.kafka.common
    admin = clients.admin(clients.properties("PLAINTEXT"))
    try:
        admin.createTopics(java_list(jvm, types.NewTopic(TOPIC, 1, 1))).all().get()
        kinds = types.ScramMechanism
        for kind in (kinds.SCRAM_SHA_256, kinds.SCRAM_SHA_512):
            info = types.ScramCredentialInfo(kind, 4096)
            alteration = types.UserScramCredentialUpsertion(ALICE, info, ALICE_PASSWORD)
            admin.alterUserScramCredentials(java_list(jvm, alteration)).all().get()
        entries = [
            _allowed(common, user, *granted)
            for user in (ALICE, f"CN={ALICE}")
            for granted in (
                ("TOPIC", TOPIC, "READ"),
                ("TOPIC", TOPIC, "WRITE"),
                ("GROUP", "*", "READ"),
            )
        ]
        admin.createAcls(java_list(jvm, *entries)).all().get()
    finally:
        admin.close()


def _allowed(common: Any, user: str, kind: str, name: str, operation: str) -> Any:
    resource = common.resource.ResourcePattern(
        getattr(common.resource.ResourceType, kind), name, common.resource.PatternType.LITERAL
    )
    entry = common.acl.AccessControlEntry(
        f"User:{user}",
        "*",
        getattr(common.acl.AclOperation, operation),
        common.acl.AclPermissionType.ALLOW,
    )
    return common.acl.AclBinding(resource, entry)


@pytest.mark.parametrize("title", RIGHT)
def test_a_right_login_writes_and_reads(answers: dict[str, Both], title: str) -> None:
    assert answers[title] == Both(f"{RECORDS} records", f"{RECORDS} records")


@pytest.mark.parametrize("title", WRONG)
def test_a_wrong_login_fails_as_with_kafka(answers: dict[str, Both], title: str) -> None:
    answer = answers[title]
    assert answer.headrace == answer.kafka
    assert answer.kafka.startswith("raises ")


@pytest.mark.parametrize("title", REVOKED)
def test_an_open_connection_ends_with_its_credential_unlike_kafkas(
    answers: dict[str, Both], title: str
) -> None:
    assert answers[title].headrace == REFUSED
    # Kafka closes it when the login ends. If that changes, so does SECURITY.md.
    assert not answers[title].kafka.startswith("raises")
