"""Failures of TLS that last end an operation of a client at once; those that may pass do not."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.certificate_authority import CertificateAuthority, Validity
from headrace.testing.time_limits import scaled
from tests.integration.security.sasl_nodes import SaslNode, sasl_node
from tests.integration.security.tls_brokers import TlsBrokers

# An operation that went on trying would take as long.
TIMEOUT_MS = 60_000
AT_ONCE_S = 15.0

Change = Callable[[TlsBrokers, "Strangers"], dict[str, Any]]


class Strangers:
    """What clients of the brokers should not have, and brokers that they should not talk to."""

    def __init__(self, directory: Path, brokers: TlsBrokers, node: SaslNode) -> None:
        self.authority = CertificateAuthority.create(directory / "strangers")
        self.client = str(self.authority.issue_client("mallory"))
        self.plain, self.elsewhere = node.addresses["PLAIN"], node.addresses["OTHER"]
        self.expired = str(brokers.authority.issue_client("old", Validity.of_days(-3)))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBrokers]:
    with TlsBrokers(tmp_path_factory.mktemp("tls"), 1, ssl_client_auth="required") as made:
        yield made


@pytest.fixture(scope="module")
def strangers(brokers: TlsBrokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strangers]:
    directory = tmp_path_factory.mktemp("strangers")
    keystore = brokers.authority.issue_broker("elsewhere", ["kafka.example"])
    settings = {
        "inter.broker.listener.name": "PLAIN",
        "ssl.keystore.location": str(keystore),
    }
    with sasl_node(directory, settings, {"PLAIN": "PLAINTEXT", "OTHER": "SSL"}) as node:
        yield Strangers(directory, brokers, node)


LASTING: dict[str, tuple[Change, str]] = {
    "unknown authority": (
        lambda _, strangers: {"ssl_truststore_location": str(strangers.authority.certificate_path)},
        "from an issuer that is not trusted; have ssl_truststore_location",
    ),
    "no client certificate": (
        lambda *_: {"ssl_keystore_location": None},
        "wants a certificate of this client.*ssl_keystore_location",
    ),
    "strange client certificate": (
        lambda _, strangers: {"ssl_keystore_location": strangers.client},
        "does not trust the issuer of this client's certificate",
    ),
    "expired client certificate": (
        lambda _, strangers: {"ssl_keystore_location": strangers.expired},
        "this client's certificate has expired; renew",
    ),
    "certificate of another host": (
        lambda _, strangers: {"bootstrap_servers": strangers.elsewhere},
        "certificate is not for 127.0.0.1; connect by a name that is in it",
    ),
    "listener in plain text": (
        lambda _, strangers: {"bootstrap_servers": strangers.plain},
        "does not speak TLS; set security_protocol",
    ),
    "client in plain text": (
        lambda *_: {"security_protocol": "PLAINTEXT"},
        "the listener speaks TLS; set security_protocol to SSL",
    ),
}


def produce(options: dict[str, Any]) -> None:
    with headrace.Producer(**options) as producer:
        producer.send("t", b"x").result(scaled(TIMEOUT_MS / 1000))


def consume(options: dict[str, Any]) -> None:
    with headrace.Consumer("t", group_id="g", **options) as consumer:
        consumer.poll(TIMEOUT_MS)


def administer(options: dict[str, Any]) -> None:
    with headrace.Admin(**options) as admin:
        admin.list_topics()


@pytest.mark.parametrize("operation", [administer, produce, consume])
@pytest.mark.parametrize("case", LASTING)
# A certificate that has expired is told in the log when it is loaded.
@pytest.mark.filterwarnings("default")
def test_what_lasts_ends_an_operation_at_once_with_what_to_do(
    brokers: TlsBrokers, strangers: Strangers, case: str, operation: Callable[[Any], None]
) -> None:
    change, said = LASTING[case]
    options = brokers.options(
        ssl_keystore_location=str(brokers.client_file), request_timeout_ms=TIMEOUT_MS
    )
    began = time.monotonic()
    with pytest.raises(headrace.ConnectionFailed, match=said):
        operation(options | change(brokers, strangers))
    assert time.monotonic() - began < scaled(AT_ONCE_S)


def test_a_handshake_that_the_broker_closed_is_tried_again(brokers: TlsBrokers) -> None:
    attempts = 0
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_connections() -> None:
            nonlocal attempts
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    attempts += 1

        thread = threading.Thread(target=close_connections)
        thread.start()
        address = f"localhost:{server.getsockname()[1]}"
        try:
            with pytest.raises(headrace.Unreachable, match="closed the connection in the TLS"):
                administer(
                    brokers.options(bootstrap_servers=address, request_timeout_ms=int(scaled(1500)))
                )
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    # Each attempt tries TLS, and then whether plain text is answered.
    assert attempts >= 4
