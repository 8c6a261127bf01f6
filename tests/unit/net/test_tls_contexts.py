"""TLS contexts made of settings, and made again when files change."""

import asyncio
import logging
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cli.certificate_authority import Validity
from headrace.errors import ConfigError
from headrace.net.tls_contexts import TlsContext, TlsSettings, client_tls
from tests.unit.net.certificates import authority, broker_file, client_file, context, keys, trust


def names(made: ssl.SSLContext) -> set[str]:
    return {cipher["name"] for cipher in made.get_ciphers()}


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(ConfigError, match=text):
        yield


def test_a_context_is_as_strict_as_it_can_be() -> None:
    server, client = context(True).current, context(False).current
    for made in (server, client):
        assert made.options & ssl.OP_NO_RENEGOTIATION
        assert made.minimum_version is ssl.TLSVersion.TLSv1_2
    assert server.num_tickets == 1
    assert server.verify_mode is ssl.CERT_NONE
    assert client.verify_mode is ssl.CERT_REQUIRED
    assert client.check_hostname
    assert not context(False, checks_host=False).current.check_hostname
    assert context(True, client_auth="required").current.verify_mode is ssl.CERT_REQUIRED


def test_suites_have_the_names_of_java_or_of_openssl() -> None:
    java = ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384")
    made = context(True, cipher_suites=java).current
    assert {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-SHA384"} <= names(made)
    assert made.maximum_version is ssl.TLSVersion.TLSv1_2
    chacha = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
    assert "ECDHE-RSA-CHACHA20-POLY1305" in names(context(True, cipher_suites=(chacha,)).current)
    made = context(True, cipher_suites=("TLS_AES_128_GCM_SHA256",)).current
    assert made.minimum_version is ssl.TLSVersion.TLSv1_3
    with refused("no suite that OpenSSL knows: TLS_X_WITH_Y"):
        context(True, cipher_suites=("TLS_X_WITH_Y",))
    with refused("no suite of a version in ssl.enabled.protocols"):
        context(True, cipher_suites=("TLS_AES_128_GCM_SHA256",), versions=("TLSv1.2",))


def test_a_changed_file_makes_a_new_context_and_a_broken_one_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "broker.pem"
    path.write_bytes(broker_file().read_bytes())
    made = context(True, identity=keys(path))
    first = made.current
    assert not made.renew()
    path.write_text("-----BEGIN GARBAGE-----")
    assert not made.renew()
    assert not made.renew()
    path.unlink()
    assert not made.renew()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "keeps its old certificates" in caplog.text
    assert made.current is first
    path.write_bytes(client_file().read_bytes())
    assert made.renew()
    assert made.current is not first
    assert not made.renew()


def test_changed_settings_make_a_new_context() -> None:
    made = context(True)
    changed = made.settings._replace(client_auth="required")
    assert made.renew(changed)
    assert made.current.verify_mode is ssl.CERT_REQUIRED
    assert not made.renew(changed)


def test_certificates_out_of_their_time_are_complained_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expired = authority().issue_broker("expired", ["localhost"], Validity.of_days(-10))
    soon = authority().issue_broker("soon", ["localhost"], Validity.of_days(5))
    for path in (expired, soon):
        context(True, identity=keys(path))
    assert "expired at" in caplog.text
    assert "expires at" in caplog.text
    TlsContext(TlsSettings(identity=keys(soon)), server_side=True, name="x", now_s=lambda: 0.0)
    assert "is not valid before" in caplog.text


def test_a_clients_context_is_renewed_when_it_connects(tmp_path: Path) -> None:
    path = tmp_path / "alice.pem"
    path.write_bytes(client_file().read_bytes())

    async def run() -> None:
        tls = client_tls(TlsSettings(identity=keys(path), trust=trust()))
        first = await tls.context()
        path.write_bytes(broker_file().read_bytes())
        assert await tls.context() is first  # Not at every connection.
        tls._renewed_at = time.monotonic() - 60
        assert await tls.context() is not first

    asyncio.run(run())
