"""The authority for development and tests: its files and certificates."""

import stat
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from headrace.cli.certificate_authority import (
    CertificateAuthority,
    CertificateError,
    Validity,
)


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "certs"
    authority = CertificateAuthority.create(directory)
    files = [authority.key_path, authority.issue_broker("b", ["h"]), authority.issue_client("c")]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_brokers_certificate_has_its_hosts(tmp_path: Path) -> None:
    CertificateAuthority.create(tmp_path, "authority", Validity.of_days(10))
    authority = CertificateAuthority.open(tmp_path)
    path = authority.issue_broker("b", ["kafka.example.org", "10.0.0.5", "::1"])
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kafka.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.5"), ip_address("::1")]
    issuer = x509.load_pem_x509_certificate(authority.certificate_path.read_bytes())
    certificate.verify_directly_issued_by(issuer)


def test_nothing_is_overwritten_and_mistakes_are_explained(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path)
    authority.issue_client("alice")
    for attempt, text in (
        (lambda: CertificateAuthority.create(tmp_path), "ca.pem is there already"),
        (lambda: authority.issue_client("alice"), "alice.pem is there already"),
        (lambda: authority.issue_client("../alice"), "cannot be the name of a file"),
        (lambda: authority.issue_client("a" * 65), "cannot be the name in a certificate"),
        (lambda: authority.issue_broker("b", ["höst"]), "is no host name or address"),
        (lambda: CertificateAuthority.open(tmp_path / "no"), "make it with `headrace certs ca"),
    ):
        with pytest.raises(CertificateError, match=text):
            attempt()
    authority.key_path.write_text("garbage")
    with pytest.raises(CertificateError, match="cannot be used"):
        CertificateAuthority.open(tmp_path)
