"""A certificate authority for development and tests: keys and certificates in files.

Files with private keys are readable by their owner only, and no file is ever overwritten.
"""

import ipaddress
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.errors import HeadraceError

CA_FILE = "ca.pem"
CA_KEY_FILE = "ca.key"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
CA_DAYS = 3650
DAYS = 825
# Clocks of machines differ by a little.
_BACKDATED = timedelta(minutes=5)


class CertificateError(HeadraceError):
    """Certificates that cannot be made; the text says why and what to do."""


class Validity(NamedTuple):
    """The time in which a certificate is valid."""

    begins: datetime
    ends: datetime

    @classmethod
    def of_days(cls, days: float) -> "Validity":
        """From now on for some days; in the past if they are negative."""
        now = datetime.now(UTC)
        if days < 0:
            return cls(now + timedelta(days=days) - _BACKDATED, now - _BACKDATED)
        return cls(now - _BACKDATED, now + timedelta(days=days))


class CertificateAuthority:
    """Issues certificates, signed with the key in a directory."""

    def __init__(
        self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        self.directory = directory
        self._key = key
        self._certificate = certificate

    def __repr__(self) -> str:
        return f"<CertificateAuthority in {self.directory}>"

    @property
    def key_path(self) -> Path:
        """The file of the key that signs."""
        return self.directory / CA_KEY_FILE

    @property
    def certificate_path(self) -> Path:
        """The file of the certificate that clients and brokers have to trust."""
        return self.directory / CA_FILE

    @classmethod
    def create(
        cls, directory: Path, name: str = "headrace CA", validity: Validity | None = None
    ) -> "CertificateAuthority":
        """Make a key and a certificate in a directory, which is made if it is not there."""
        _make_directory(directory)
        _refuse_existing(directory / CA_FILE, directory / CA_KEY_FILE)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        public = key.public_key()
        certificate = (
            _builder(subject, subject, public, validity or Validity.of_days(CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(directory / CA_KEY_FILE, _pem_of_key(key), 0o600)
        _write(directory / CA_FILE, certificate.public_bytes(Encoding.PEM), 0o644)
        return cls(directory, key, certificate)

    @classmethod
    def open(cls, directory: Path) -> "CertificateAuthority":
        """The authority that `create` made in a directory."""
        try:
            key = load_pem_private_key((directory / CA_KEY_FILE).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
        except FileNotFoundError as error:
            raise CertificateError(
                f"{error.filename} is not there; make it with `headrace certs ca --dir {directory}`"
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise CertificateError(
                f"the authority in {directory} cannot be used: {error}; make another one with"
                " `headrace certs ca`"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError(
                f"{directory / CA_KEY_FILE} is no key of `headrace certs ca`; make one with it"
            )
        return cls(directory, key, certificate)

    def issue_broker(
        self, name: str, hosts: Iterable[str], validity: Validity | None = None
    ) -> Path:
        """The file of a key and a certificate for a broker, which connects to others, too."""
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(name, list(hosts), usages, validity)

    def issue_client(self, name: str, validity: Validity | None = None) -> Path:
        """The file of a key and a certificate for a client."""
        return self._issue(name, [], [ExtendedKeyUsageOID.CLIENT_AUTH], validity)

    def _issue(
        self,
        name: str,
        hosts: list[str],
        usages: list[x509.ObjectIdentifier],
        validity: Validity | None,
    ) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise CertificateError(f"{name!r} cannot be the name of a file; choose another name")
        path = self.directory / f"{name}.pem"
        _refuse_existing(path)
        key = ec.generate_private_key(ec.SECP256R1())
        public, signer = key.public_key(), self._key.public_key()
        builder = (
            _builder(
                _name(name),
                self._certificate.subject,
                public,
                validity or Validity.of_days(DAYS),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        _write(path, _pem_of_key(key) + certificate.public_bytes(Encoding.PEM), 0o600)
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.begins)
        .not_valid_after(validity.ends)
    )


def _name(name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise CertificateError(f"{name!r} cannot be the name in a certificate: {error}") from None


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificateError(f"{host!r} is no host name or address: {error}") from None


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CertificateError(f"{directory} cannot be made: {error.strerror or error}") from None


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise CertificateError(f"{path} is there already; remove it, or choose another name")


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise CertificateError(f"{path} cannot be written: {error.strerror or error}") from None
