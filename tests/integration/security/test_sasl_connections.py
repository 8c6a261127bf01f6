"""Connections that have not logged in: all they may do, and all that ends them."""

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from headrace.errors import ErrorCode
from headrace.log_output import WINDOW_S
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.scram import ScramClient, ScramMechanism
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.security.sasl_nodes import (
    BOOTSTRAP,
    PASSWORDS,
    SaslNode,
    plain_jaas,
    sasl_node,
)
from tests.integration.wire import Wire

LINES_MAX = 20
ADMIN = f"\0admin\0{PASSWORDS['admin']}".encode()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.long.plain.sasl.jaas.config": plain_jaas(),
        "listener.name.brief.plain.sasl.jaas.config": plain_jaas(),
        "listener.name.brief.sasl.server.authentication.timeout.ms": "300",
        "listener.name.brief.plain.connections.max.reauth.ms": "1500",
        "sasl.server.max.receive.size": "10000",
        "scram.bootstrap.credentials": BOOTSTRAP,
        "connection.failed.authentication.delay.ms": "20",
        "log.repeated.lines.max": str(LINES_MAX),
    }
    listeners = {"LONG": "SASL_PLAINTEXT", "BRIEF": "SASL_PLAINTEXT"}
    with sasl_node(tmp_path_factory.mktemp("node"), settings, listeners) as running:
        yield running


def log_in(wire: Wire, message: bytes = ADMIN) -> int:
    """Log in by PLAIN; the error code of the answer."""
    assert wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    code: int = wire.ask(SaslAuthenticateRequest(auth_bytes=message), 2).error_code
    return code


def test_versions_are_told_before_a_login_and_all_else_is_refused(node: SaslNode) -> None:
    with Wire(node.address) as wire:
        assert wire.ask(ApiVersionsRequest(), 2).error_code == 0
        wire.send(MetadataRequest(topics=None), 9)
        assert wire.closed_by_peer()
    with Wire(node.address) as wire:
        assert log_in(wire) == 0
        assert wire.ask(MetadataRequest(topics=None), 9).brokers


def test_lines_about_refused_logins_are_limited_whatever_their_names(node: SaslNode) -> None:
    guesses = 6 * LINES_MAX

    def refused_lines() -> int:
        return sum("refused a login" in line for line in node.output.text.splitlines())

    def guess(number: int) -> int:
        with Wire(node.address) as wire:
            return log_in(wire, b"\0guess-%d\0secret" % number)

    before, began = refused_lines(), time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(guess, range(guesses)))
    windows = 2 + int((time.monotonic() - began) / WINDOW_S)
    assert codes == [ErrorCode.SASL_AUTHENTICATION_FAILED] * guesses
    # A window may end, and another begin, and its end is told in a line.
    assert 0 < refused_lines() - before <= windows * (LINES_MAX + 1)


def test_a_request_behind_a_login_that_is_not_answered_ends_the_connection(node: SaslNode) -> None:
    with Wire(node.address) as wire:
        wire.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        wire.send(SaslAuthenticateRequest(auth_bytes=b"\0admin\0wrong"), 2)
        wire.send(MetadataRequest(topics=None), 9)
        assert wire.receive().error_code == 0
        assert wire.closed_by_peer()


def test_a_refused_login_is_told_why_and_closed(node: SaslNode) -> None:
    with Wire(node.address) as wire:
        assert log_in(wire, b"\0admin\0wrong") == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.closed_by_peer()


@pytest.mark.parametrize(
    "message",
    [b"", b"admin", b"\0\0\0\0", b"\0admin\0", b"\xff\0\xff\0\xff", b"\0admin\0" + b"x" * 9000],
    ids=["empty", "no fields", "too many", "no password", "no text", "long"],
)
def test_bad_messages_are_refused(node: SaslNode, message: bytes) -> None:
    with Wire(node.address) as wire:
        assert log_in(wire, message) == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(node: SaslNode) -> None:
    with Wire(node.address) as wire:
        answer = wire.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
        assert wire.closed_by_peer()


def test_an_announced_frame_above_the_limit_ends_the_connection(node: SaslNode) -> None:
    host, _, port = node.address.rpartition(":")
    with socket.create_connection((host, int(port)), scaled(10)) as bare:
        bare.sendall(struct.pack(">i", 10_001))
        assert bare.recv(1) == b""
    with Wire(node.address) as wire:
        assert log_in(wire) == 0
        # After the login the limit is that of every other request.
        topics = [MetadataRequestTopic(name="x" * 200) for _ in range(100)]
        assert len(wire.ask(MetadataRequest(topics=topics), 9).topics) > 0


def test_silent_connections_do_not_pile_up(node: SaslNode) -> None:
    host, _, port = node.addresses["BRIEF"].rpartition(":")
    silent = [socket.create_connection((host, int(port)), scaled(10)) for _ in range(100)]
    try:
        for connection in silent[:50]:
            connection.sendall(b"\0\0")
        for connection in silent:
            assert connection.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()


def test_bare_tokens_follow_the_handshake_of_version_0(node: SaslNode) -> None:
    with Wire(node.address) as wire:
        assert wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == 0
        wire.send_bytes(struct.pack(">i", len(ADMIN)) + ADMIN)
        assert wire.read_frame() == b""
        assert wire.ask(MetadataRequest(topics=None), 9).brokers
    with Wire(node.address) as wire:
        assert wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == 0
        wire.send_bytes(struct.pack(">i", 8) + b"\0admin\0x")
        assert wire.closed_by_peer()


def test_a_login_that_is_over_ends_the_connection_with_the_next_request(node: SaslNode) -> None:
    with Wire(node.addresses["BRIEF"]) as wire:
        assert wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        answer = wire.ask(SaslAuthenticateRequest(auth_bytes=ADMIN), 2)
        assert 0 < answer.session_lifetime_ms <= 1500

        def is_over() -> bool:
            wire.send(MetadataRequest(topics=[]), 9)
            try:
                wire.receive()
            except (OSError, EOFError, AssertionError):
                return True
            return False

        wait_until(is_over, 10, "the end of the login")


def test_nobody_goes_on_as_another_user(node: SaslNode) -> None:
    alice = f"\0alice\0{PASSWORDS['alice']}".encode()
    with Wire(node.addresses["BRIEF"]) as wire:
        assert log_in(wire) == 0
        # A second login within a second is refused whoever asks.
        answer = wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    with Wire(node.addresses["BRIEF"]) as wire:
        assert log_in(wire) == 0
        # Brokers of Kafka too want a second between two logins.
        Event().wait(1.1)
        assert log_in(wire, alice) == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.closed_by_peer()


def challenge(node: SaslNode, name: str) -> bytes:
    client = ScramClient(ScramMechanism.SCRAM_SHA_256, name, "wrong", "nonce")
    with Wire(node.address) as wire:
        assert wire.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1).error_code == 0
        answer = wire.ask(SaslAuthenticateRequest(auth_bytes=client.first()), 2)
        assert answer.error_code == 0
        final = wire.ask(SaslAuthenticateRequest(auth_bytes=client.final(answer.auth_bytes)), 2)
        assert final.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        return bytes(answer.auth_bytes).partition(b",")[2] + final.error_message.encode()


def test_users_who_do_not_exist_are_answered_like_those_who_do(node: SaslNode) -> None:
    unknown, again = challenge(node, "nobody"), challenge(node, "nobody")
    known = challenge(node, "admin")
    assert unknown == again
    assert len(unknown) == len(known)
    assert unknown.partition(b",")[2] == known.partition(b",")[2]
    assert challenge(node, "somebody else") != unknown
