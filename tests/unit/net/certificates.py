"""Certificates of tests, and TLS contexts that use them."""

import time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority
from headrace.net.tls_contexts import TlsContext, TlsSettings
from headrace.net.tls_stores import Store


@cache
def authority() -> CertificateAuthority:
    """The authority of this process."""
    return CertificateAuthority.create(Path(mkdtemp(prefix="headrace-ca-")))


@cache
def stranger() -> CertificateAuthority:
    """Another authority, which nobody trusts."""
    return CertificateAuthority.create(Path(mkdtemp(prefix="headrace-ca-")))


@cache
def broker_file() -> Path:
    """The key and certificate of a broker on this machine."""
    return authority().issue_broker("broker", LOOPBACK_HOSTS)


@cache
def client_file(name: str = "alice") -> Path:
    """The key and certificate of a client."""
    return authority().issue_client(name)


def keys(path: Path, **more: Any) -> Store:
    return Store("ssl.keystore.location", path=str(path), **more)


def trust(of: CertificateAuthority | None = None) -> Store:
    path = (of or authority()).certificate_path
    return Store("ssl.truststore.location", path=str(path))


def context(server_side: bool, **settings: Any) -> TlsContext:
    """A context of a broker that has a certificate, or of a client that trusts it."""
    identity = keys(broker_file()) if server_side else None
    wanted = TlsSettings(identity=identity, trust=trust())._replace(**settings)
    return TlsContext(wanted, server_side=server_side, name="a test", now_s=time.time)
