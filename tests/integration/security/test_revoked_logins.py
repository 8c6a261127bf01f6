"""Open connections of users and tokens that are changed or removed."""

from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace import ScramDeletion, ScramUpsertion
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.scram import ScramClient, ScramMechanism
from tests.integration.security.sasl_nodes import BOOTSTRAP, PASSWORDS, SaslNode, sasl_node
from tests.integration.wire import Wire

PASSWORD = "bob-secret"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.plain.scram.credentials": "true",
        "scram.bootstrap.credentials": BOOTSTRAP,
        "delegation.token.secret.key": "a secret of all nodes",
    }
    with sasl_node(
        tmp_path_factory.mktemp("node"), settings, {"LOGIN": "SASL_PLAINTEXT"}
    ) as running:
        yield running


@pytest.fixture
def admin(node: SaslNode) -> Iterator[headrace.Admin]:
    options: dict[str, Any] = {
        "bootstrap_servers": node.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "admin",
        "sasl_password": PASSWORDS["admin"],
    }
    with headrace.Admin(**options) as made:
        yield made


def connected(node: SaslNode, mechanism: str, name: str, secret: str, *, token: bool) -> Wire:
    """A connection that has logged in."""
    wire = Wire(node.address)
    assert wire.ask(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
    if mechanism == "PLAIN":
        messages = iter([f"\0{name}\0{secret}".encode()])
        client = None
    else:
        client = ScramClient(ScramMechanism.SCRAM_SHA_256, name, secret, "nonce", by_token=token)
        messages = iter([client.first()])
    answer = wire.ask(SaslAuthenticateRequest(auth_bytes=next(messages)), 2)
    if client is not None:
        final = client.final(answer.auth_bytes)
        answer = wire.ask(SaslAuthenticateRequest(auth_bytes=final), 2)
    assert answer.error_code == 0, answer.error_message
    assert wire.ask(MetadataRequest(topics=[]), 9).brokers
    return wire


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("change", ["deleted", "another password"])
def test_connections_of_a_user_are_closed_with_the_users_credential(
    node: SaslNode, admin: headrace.Admin, mechanism: str, change: str
) -> None:
    admin.alter_user_scram_credentials(
        [ScramUpsertion(name, "SCRAM-SHA-256", PASSWORD) for name in ("bob", "carol")]
    )
    bob = connected(node, mechanism, "bob", PASSWORD, token=False)
    carol = connected(node, mechanism, "carol", PASSWORD, token=False)
    with bob, carol:
        altered = (
            ScramDeletion("bob", "SCRAM-SHA-256")
            if change == "deleted"
            else ScramUpsertion("bob", "SCRAM-SHA-256", "another-secret")
        )
        admin.alter_user_scram_credentials([altered])
        # An idle connection, too: nothing was asked.
        assert bob.closed_by_peer()
        assert carol.ask(MetadataRequest(topics=[]), 9).brokers
    assert "the credential of User:bob was changed or removed" in node.output.text


def test_connections_of_a_token_are_closed_with_it(node: SaslNode, admin: headrace.Admin) -> None:
    removed, shortened = (admin.create_delegation_token() for _ in range(2))
    first, second = (
        connected(node, "SCRAM-SHA-256", token.token_id, token.password, token=True)
        for token in (removed, shortened)
    )
    with first, second:
        admin.expire_delegation_token(removed.hmac)
        assert first.closed_by_peer()
        assert second.ask(MetadataRequest(topics=[]), 9).brokers
        # It may go on for no millisecond, and so ends with the next request.
        admin.expire_delegation_token(shortened.hmac, 0)
        second.send(MetadataRequest(topics=[]), 9)
        assert second.closed_by_peer()
