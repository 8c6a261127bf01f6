"""The TLS contexts of a node: which listeners and channels have them, and their renewal."""

import asyncio
from pathlib import Path

import pytest

from headrace.broker.node_security import NodeSecurity
from headrace.clock import SystemClock
from headrace.config import broker_config
from headrace.errors import ConfigError
from headrace.net.client_connection import PLAINTEXT
from headrace.net.tls_failures import TlsFailed
from headrace.security.authorization import ANONYMOUS
from headrace.testing.time_limits import scaled
from tests.unit.net.certificates import authority, broker_file, client_file

TLS = {
    "listeners": "SSL://h:1,PLAINTEXT://h:2,CONTROLLER://h:3",
    "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
    "controller.listener.names": "CONTROLLER",
    "ssl.keystore.location": str(broker_file()),
    "ssl.truststore.location": str(authority().certificate_path),
}


def security_of(more: dict[str, str]) -> NodeSecurity:
    return NodeSecurity(broker_config(TLS | more), SystemClock())


def refusal(more: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        security_of(more)
    return str(caught.value)


def test_a_node_without_tls_has_nothing_to_do() -> None:
    security = NodeSecurity(broker_config({}), SystemClock())
    assert (security.brokers, security.controllers) == (PLAINTEXT, PLAINTEXT)
    assert security.tls_of("PLAINTEXT") is None
    security.start()
    security.stop()


def test_listeners_and_channels_have_tls_where_the_map_says_so() -> None:
    security = security_of({})
    assert security.tls_of("SSL") is not None
    assert security.tls_of("PLAINTEXT") is None
    assert security.brokers is PLAINTEXT
    assert security.controllers.tls is not None
    assert security_of({"inter.broker.listener.name": "SSL"}).brokers.tls is not None


def test_missing_and_contradicting_certificates_are_refused() -> None:
    without = {name: text for name, text in TLS.items() if name != "ssl.keystore.location"}
    with pytest.raises(ConfigError, match="the listener SSL speaks TLS and has no certificate"):
        NodeSecurity(broker_config(without), SystemClock())
    assert "are both given" in refusal({"ssl.keystore.key": "x"})
    assert "are both given" in refusal({"ssl.truststore.certificates": "x"})
    assert "cannot be read" in refusal({"listener.name.ssl.ssl.keystore.location": "/no/such"})
    assert "write RULE:" in refusal({"ssl.principal.mapping.rules": "X"})


def test_keys_and_certificates_may_be_text() -> None:
    key, _, certificate = broker_file().read_text().partition("-----BEGIN CERTIFICATE")
    inline = {
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE{certificate}",
        "ssl.truststore.certificates": authority().certificate_path.read_text(),
    }
    rest = {name: text for name, text in TLS.items() if not name.endswith(".location")}
    assert NodeSecurity(broker_config(rest | inline), SystemClock()).tls_of("SSL") is not None


def test_a_certificate_is_the_principal_that_the_rules_make_of_it() -> None:
    import ssl

    pem = client_file().read_text().partition("-----BEGIN CERTIFICATE")
    der = ssl.PEM_cert_to_DER_cert("".join(pem[1:]))
    tls = security_of({"ssl.principal.mapping.rules": "RULE:CN=(.*)/$1/U"}).tls_of("SSL")
    assert tls is not None
    assert str(tls.principal_of(der)) == "User:ALICE"
    assert tls.principal_of(None) == ANONYMOUS
    tls = security_of({"ssl.principal.mapping.rules": "RULE:UID=(.*)/$1/"}).tls_of("SSL")
    assert tls is not None
    with pytest.raises(TlsFailed, match=r"no rule of ssl\.principal"):
        tls.principal_of(der)
    with pytest.raises(TlsFailed, match="renew the client's certificate"):
        tls.principal_of(b"\x30\x00")


def test_changed_files_and_settings_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "broker.pem"
    path.write_bytes(broker_file().read_bytes())

    async def run() -> None:
        more = {"ssl.keystore.location": str(path), "ssl.reload.interval.ms": "3600000"}
        config = broker_config(TLS | more)
        security = NodeSecurity(config, SystemClock())
        tls = security.tls_of("SSL")
        assert tls is not None
        security.start()
        async with asyncio.timeout(scaled(20)):
            first = tls.context.current
            path.write_bytes(client_file().read_bytes())
            security.reconfigure(config)
            while tls.context.current is first:
                await asyncio.sleep(0.001)
            required = {"listener.name.ssl.ssl.client.auth": "required"}
            while tls.context.settings.client_auth != "required":
                security.reconfigure(config.with_overrides(required))
                await asyncio.sleep(0.001)
        security.stop()

    asyncio.run(run())
