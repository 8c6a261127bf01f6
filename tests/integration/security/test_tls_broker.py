"""A broker with TLS: what is said of connections that fail, reloads, bounds."""

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import headrace
from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority, Validity
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.security.tls_brokers import TlsBrokers, consume_ours, produce_ours, tls_lines

MIB = 1_048_576


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBrokers]:
    settings = {"ssl_reload_interval_ms": "100", "ssl_handshake_timeout_ms": "1000"}
    with TlsBrokers(tmp_path_factory.mktemp("broker"), 1, **settings) as brokers:
        yield brokers


def port_of(broker: TlsBrokers, listener: int = 0) -> int:
    return broker.ports[1][listener]


def refused(broker: TlsBrokers, **options: str) -> str:
    """What a client is told that cannot get in, at once."""
    with broker.admin(**options) as admin, pytest.raises(headrace.ConnectionFailed) as caught:
        admin.list_topics()
    return str(caught.value)


def wait_for_line(broker: TlsBrokers, text: str) -> None:
    """Return once the broker has logged a failed connection with a text."""
    wait_until(
        lambda: any(text in line for line in tls_lines(broker.logs[1].text)),
        20,
        lambda: f"{text!r} is not among {tls_lines(broker.logs[1].text)}",
    )


def tls_socket(broker: TlsBrokers) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(broker.authority.certificate_path))
    raw = socket.create_connection(("localhost", port_of(broker)), timeout=scaled(30))
    return context.wrap_socket(raw, server_hostname="localhost")


@pytest.fixture(scope="module")
def certificates(broker: TlsBrokers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificates of clients that are no good, and one that is."""
    stranger = CertificateAuthority.create(tmp_path_factory.mktemp("stranger"))
    return {
        "good": broker.client_file,
        "expired": broker.authority.issue_client("expired", Validity.of_days(-5)),
        "stranger": stranger.issue_client("mallory"),
        "authority of a stranger": stranger.certificate_path,
    }


@pytest.mark.parametrize(
    ("kind", "at_client", "at_broker"),
    [
        (
            "expired",
            "the broker says that this client's certificate has expired",
            "the client's certificate has expired",
        ),
        (
            "stranger",
            "the broker does not trust the issuer of this client's certificate",
            "the client's certificate is from an issuer that is not trusted",
        ),
    ],
)
def test_a_bad_certificate_of_a_client_is_named_at_both_ends(
    broker: TlsBrokers,
    certificates: dict[str, Path],
    kind: str,
    at_client: str,
    at_broker: str,
) -> None:
    said = refused(broker, ssl_keystore_location=str(certificates[kind]))
    assert at_client in said
    wait_for_line(broker, at_broker)


def test_an_authority_that_is_not_trusted_is_named_at_both_ends(
    broker: TlsBrokers, certificates: dict[str, Path]
) -> None:
    other = str(certificates["authority of a stranger"])
    said = refused(broker, ssl_truststore_location=other)
    assert "the broker's certificate is from an issuer that is not trusted" in said
    assert "have ssl_truststore_location name a file" in said
    wait_for_line(broker, "the client does not trust the issuer of this broker's certificate")


def test_another_protocol_is_named_at_both_ends(broker: TlsBrokers) -> None:
    said = refused(broker, security_protocol="PLAINTEXT", ssl_truststore_location="")
    assert "the listener speaks TLS; set security_protocol to SSL or SASL_SSL" in said
    wait_for_line(broker, "the client does not speak TLS")


def test_a_certificate_of_a_client_is_its_principal_and_none_is_needed(
    broker: TlsBrokers, certificates: dict[str, Path]
) -> None:
    with broker.admin(ssl_keystore_location=str(certificates["good"])) as admin:
        admin.list_topics()


def test_a_silent_peer_is_closed(broker: TlsBrokers) -> None:
    with socket.create_connection(("localhost", port_of(broker)), timeout=scaled(30)) as silent:
        silent.sendall(b"\x16\x03\x01")
        assert silent.recv(100) == b""
    wait_for_line(broker, "the client was silent in the handshake for 1 s")


def test_new_certificates_serve_new_connections_under_load(
    broker: TlsBrokers, tmp_path: Path
) -> None:
    def serial() -> str:
        with tls_socket(broker) as connected:
            found = connected.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    failed: list[Exception] = []
    stop = threading.Event()

    def load() -> None:
        try:
            with headrace.Producer(**broker.options()) as producer:
                while not stop.is_set():
                    producer.send("load", bytes(1000))
        except Exception as error:
            failed.append(error)

    path = broker.keystore(1)
    first = serial()
    loader = threading.Thread(target=load)
    loader.start()
    try:
        path.write_text("-----BEGIN GARBAGE-----")
        wait_until(
            lambda: "keeps its old certificates" in broker.logs[1].text,
            20,
            lambda: "the broken file was not noticed",
        )
        assert serial() == first
        path.unlink()
        broker.authority.issue_broker("broker-1", LOOPBACK_HOSTS)
        wait_until(lambda: serial() != first, 20, lambda: "the certificate stays the same")
    finally:
        stop.set()
        loader.join()
    assert not failed
    produce_ours(broker, "after", 10)
    assert len(consume_ours(broker, "after", 10)) == 10


def test_idle_connections_hold_little_memory_after_a_megabyte(broker: TlsBrokers) -> None:
    count = 50
    small = ApiVersionsRequest(client_software_name="idle", client_software_version="1")
    large = ApiVersionsRequest(client_software_name="a" * MIB, client_software_version="1")
    requests = [b"".join(encode_request(asked, 3, 1, "idle")) for asked in (*[small] * 50, large)]

    def ask(connected: ssl.SSLSocket) -> None:
        connected.sendall(b"".join(requests))
        with connected.makefile("rb") as answers:
            for _ in requests:
                answers.read(int.from_bytes(answers.read(4), "big"))

    process = psutil.Process(broker.processes[1].pid)
    connections = [tls_socket(broker)]
    try:
        ask(connections[0])
        before = process.memory_info().rss
        for _ in range(count):
            connections.append(tls_socket(broker))
        for connected in connections[1:]:
            ask(connected)
        assert (process.memory_info().rss - before) / count < 300_000
        with broker.admin() as admin:
            admin.list_topics()
    finally:
        for connected in connections:
            connected.close()
