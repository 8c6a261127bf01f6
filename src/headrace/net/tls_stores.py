"""Keys, certificates and trusted certificates: from PEM text, PEM files and PKCS#12 files.

Rule: a file is read once, whole, and all that is made of it comes from those bytes; it may be
replaced at any time. Private keys never lie in a temporary file on a disk.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

_FILE_BYTES_MAX = 4 * 1_048_576
_PEM_START = b"-----BEGIN "
_JKS_START = b"\xfe\xed\xfe\xed"
_JCEKS_START = b"\xce\xce\xce\xce"
_DER_SEQUENCE = 0x30
_CONVERT = (
    "convert it with `keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12"
    " -deststoretype PKCS12`, and name that file"
)


class Store(NamedTuple):
    """A file with keys or certificates, or their PEM text.

    `name` is the setting that has it, for messages. At most one of `path` and `text` is given;
    `key_path` and `key_text` are there if the key is apart from the certificate.
    """

    name: str
    path: str | None = None
    text: str | None = None
    key_path: str | None = None
    key_text: str | None = None
    kind: str = "JKS"
    password: str | None = None
    key_password: str | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self.path or 'inline'}>"

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it is made of."""
        return tuple(path for path in (self.path, self.key_path) if path is not None)


class _Identity(NamedTuple):
    """A private key with its certificate chain, as PEM."""

    pem: bytes
    password: str | None

    def __repr__(self) -> str:
        return "<private key and certificates>"


def load_identity(context: ssl.SSLContext, store: Store) -> bytes:
    """Have a context use the key and certificate of a store; returns the chain as PEM.

    ConfigError says what is wrong with the store.
    """
    identity = _identity(store)
    if b"PRIVATE KEY-----" not in identity.pem:
        raise ConfigError(f"{_place(store)} has no private key; it must have the key, too")
    if b"-----BEGIN CERTIFICATE-----" not in identity.pem:
        raise ConfigError(f"{_place(store)} has no certificate; it must have the certificate, too")
    # Without a function for it OpenSSL would ask for the password at the terminal.
    password = identity.password or ""
    with _as_file(identity.pem) as path:
        try:
            context.load_cert_chain(path, password=lambda: password)
        except ssl.SSLError as error:
            raise ConfigError(_unusable(store, identity, error)) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{_place(store)} cannot be used: {error}") from None
    return identity.pem


def load_trust(context: ssl.SSLContext, store: Store) -> None:
    """Have a context trust the certificates of a store; ConfigError if there are none."""
    data = _content(store.path, store.name) if store.text is None else store.text.encode()
    if _kind_of(data, store) == "PKCS12":
        data = _trusted_of_pkcs12(data, store)
    try:
        text = data.decode("ascii", "ignore")
        if "-----BEGIN CERTIFICATE-----" not in text:
            raise ConfigError(f"{_place(store)} has no certificates")
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{_place(store)} has a certificate that cannot be read: {error}"
        ) from None


def _identity(store: Store) -> _Identity:
    if store.path is None:
        certificate = (store.text or "").encode()
    else:
        certificate = _content(store.path, store.name)
        if _kind_of(certificate, store) == "PKCS12":
            return _Identity(_identity_of_pkcs12(certificate, store), None)
    key = (store.key_text or "").encode()
    if store.key_path is not None:
        key = _content(store.key_path, store.name)
    # Kafka decrypts a PEM key with the password of the key only; people give that of the file.
    return _Identity(key + b"\n" + certificate, store.key_password or store.password)


def _content(path: str | None, name: str) -> bytes:
    assert path is not None
    try:
        with Path(path).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{name} {path} cannot be read: {error.strerror or error}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{name} {path} is larger than {_FILE_BYTES_MAX} bytes; is it the file?")
    return data


def _kind_of(data: bytes, store: Store) -> str:
    """PEM or PKCS12; ConfigError for another format."""
    if data.startswith((_JKS_START, _JCEKS_START)):
        convert = _CONVERT.format(path=store.path)
        raise ConfigError(f"{_place(store)} is a JKS file, which only Java reads; {convert}")
    if _PEM_START in data:
        found = "PEM"
    elif data[:1] and data[0] == _DER_SEQUENCE:
        found = "PKCS12"
    else:
        raise ConfigError(f"{_place(store)} is neither PEM nor PKCS#12")
    # Java reads PKCS#12 files under the type JKS, too, which is its default.
    if store.kind not in (found, "JKS"):
        raise ConfigError(f"{_place(store)} is {found}, and its type is given as {store.kind}")
    return found


def _identity_of_pkcs12(data: bytes, store: Store) -> bytes:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415  # Rarely needed.
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    bag = _pkcs12_bag(data, store)
    if bag.key is None or bag.cert is None:
        raise ConfigError(f"{_place(store)} has no private key with its certificate")
    key = bag.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [bag.cert, *bag.additional_certs]
    return key + b"".join(link.certificate.public_bytes(Encoding.PEM) for link in chain)


def _trusted_of_pkcs12(data: bytes, store: Store) -> bytes:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415  # Rarely needed.
        Encoding,
    )

    bag = _pkcs12_bag(data, store)
    found = [*([bag.cert] if bag.cert else []), *bag.additional_certs]
    return b"".join(entry.certificate.public_bytes(Encoding.PEM) for entry in found)


def _pkcs12_bag(data: bytes, store: Store) -> "PKCS12KeyAndCertificates":
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  # Rarely needed.
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415

    try:
        return pkcs12.load_pkcs12(data, _bytes_of(store.password))
    except UnsupportedAlgorithm as error:
        raise ConfigError(
            f"{_place(store)} is PKCS#12 of an old kind that is not read ({error}); write it again,"
            " with `openssl pkcs12 -legacy -in FILE` and `openssl pkcs12 -export`"
        ) from None
    except (ValueError, TypeError):
        raise ConfigError(_unreadable_pkcs12(store)) from None


def _unreadable_pkcs12(store: Store) -> str:
    password = store.name.rpartition(".")[0] or store.name.rpartition("_")[0]
    separator = "." if "." in store.name else "_"
    return (
        f"{_place(store)} cannot be opened as PKCS#12; see whether {password}{separator}password"
        " is right"
    )


def _bytes_of(password: str | None) -> bytes | None:
    return None if password is None else password.encode()


def _unusable(store: Store, identity: _Identity, error: ssl.SSLError) -> str:
    """The text for a key and certificate that OpenSSL does not take."""
    prefix = store.name.partition("keystore")[0]
    separator = "." if "." in store.name else "_"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{_place(store)}: the private key is not that of the certificate"
    if b"ENCRYPTED" in identity.pem and not identity.password:
        return f"{_place(store)}: the private key is encrypted; set {prefix}key{separator}password"
    if b"ENCRYPTED" in identity.pem:
        return (
            f"{_place(store)}: the private key cannot be decrypted; see whether"
            f" {prefix}key{separator}password is right"
        )
    reason = (error.reason or "PEM that cannot be read").replace("_", " ").lower()
    return f"{_place(store)} cannot be used: {reason}"


def _place(store: Store) -> str:
    return store.name if store.path is None else f"{store.name} {store.path}"


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which OpenSSL reads some bytes: the ssl module takes keys from files only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("headrace", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(mode="wb") as file:  # Readable by its owner only.
        file.write(data)
        file.flush()
        yield file.name
