"""Keys and certificates in PEM and PKCS#12, and what is said of those that cannot be used."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_certificates

from headrace.errors import ConfigError
from headrace.net.tls_stores import Store, load_identity, load_trust
from tests.unit.net.certificates import authority, broker_file, client_file, keys, trust


def load(store: Store) -> bytes:
    return load_identity(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), store)


def trusted(store: Store) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_trust(context, store)
    return len(context.get_ca_certs())


def refusal(store: Store) -> str:
    with pytest.raises(ConfigError) as caught:
        load(store)
    return str(caught.value)


def pem_parts() -> tuple[str, str]:
    """The key and the certificate of a broker, apart."""
    text = broker_file().read_text()
    start = text.index("-----BEGIN CERTIFICATE")
    return text[:start], text[start:]


def encrypted_key(password: bytes) -> str:
    key = load_pem_private_key(broker_file().read_bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    return pem.decode()


def write_pkcs12(path: Path, password: bytes) -> Path:
    key = load_pem_private_key(broker_file().read_bytes(), None)
    [certificate] = load_pem_x509_certificates(broker_file().read_bytes())
    issuer = load_pem_x509_certificate(authority().certificate_path.read_bytes())
    data = pkcs12.serialize_key_and_certificates(
        b"broker",
        key,  # type: ignore[arg-type]
        certificate,
        [issuer],
        BestAvailableEncryption(password),
    )
    path.write_bytes(data)
    return path


def test_key_and_certificate_may_lie_in_one_file_in_two_or_in_text(tmp_path: Path) -> None:
    key, certificate = pem_parts()
    (tmp_path / "key").write_text(key)
    (tmp_path / "certificate").write_text(certificate)
    for store in (
        keys(broker_file()),
        Store("s", path=str(tmp_path / "certificate"), key_path=str(tmp_path / "key")),
        Store("s", text=certificate, key_text=key),
        Store("s", text=certificate, key_text=encrypted_key(b"x"), key_password="x"),
    ):
        assert certificate.encode() in load(store)


def test_pkcs12_holds_key_and_chain_or_what_is_trusted(tmp_path: Path) -> None:
    path = write_pkcs12(tmp_path / "store.p12", b"secret")
    for kind in ("PKCS12", "JKS"):
        pem = load(keys(path, kind=kind, password="secret"))
        assert pem.count(b"BEGIN CERTIFICATE") == 2
    assert trusted(Store("ssl.truststore.location", path=str(path), password="secret")) == 1


def test_what_cannot_be_used_is_named_with_what_to_do(tmp_path: Path) -> None:
    certificate = pem_parts()[1]
    p12 = write_pkcs12(tmp_path / "store.p12", b"secret")
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    other = tmp_path / "other"
    other.write_bytes(b"what is this")
    other_key = client_file().read_text().partition("-----BEGIN CERTIFICATE")[0]
    encrypted = encrypted_key(b"right")
    for store, text in (
        (keys(tmp_path / "no"), f"ssl.keystore.location {tmp_path}/no cannot be read: No such"),
        (keys(jks), f"keytool -importkeystore -srckeystore {jks}"),
        (keys(other), "is neither PEM nor PKCS#12"),
        (keys(p12, kind="PEM"), "is PKCS12, and its type is given as PEM"),
        (keys(p12, password="wrong"), "see whether ssl.keystore.password is right"),
        (keys(authority().certificate_path), "has no private key"),
        (keys(authority().key_path), "has no certificate"),
        (Store("s", text=certificate, key_text=other_key), "the private key is not that of the"),
        (Store("ssl.keystore.key", text=certificate, key_text=encrypted), "set ssl.key.password"),
        (
            Store("ssl_keystore_key", text=certificate, key_text=encrypted, key_password="wrong"),
            "see whether ssl_key_password is right",
        ),
    ):
        said = refusal(store)
        assert text in said, said
        for secret in ("wrong", "right", "secret"):
            assert secret not in said.replace("is right", "")


def test_a_store_does_not_show_its_secrets() -> None:
    store = Store("s", text="a", key_text="secret", password="secret", key_password="secret")
    assert "secret" not in repr(store)


def test_trust_needs_certificates(tmp_path: Path) -> None:
    assert trusted(trust()) == 1
    twice = authority().certificate_path.read_text()
    assert trusted(Store("s", text=f"a comment\n{twice}\n{twice}")) == 1
    empty = tmp_path / "empty"
    empty.write_text("-----BEGIN X-----")
    for store in (Store("s", path=str(empty)), Store("s", text="-----BEGIN CERTIFICATE-----\nx")):
        with pytest.raises(ConfigError, match=r"has no certificates|cannot be read"):
            trusted(store)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(5 << 20))
    assert "is larger than" in refusal(keys(large))
