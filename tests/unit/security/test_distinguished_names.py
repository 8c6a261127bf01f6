"""Subjects of certificates as Java writes them."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.distinguished_names import MalformedCertificate, subject_name

KEY = ec.generate_private_key(ec.SECP256R1())
OIDS = {
    "CN": NameOID.COMMON_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "L": NameOID.LOCALITY_NAME,
    "ST": NameOID.STATE_OR_PROVINCE_NAME,
    "C": NameOID.COUNTRY_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "UID": NameOID.USER_ID,
    "mail": NameOID.EMAIL_ADDRESS,
}


def certificate(subject: x509.Name) -> bytes:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(time)
        .not_valid_after(time)
        .sign(KEY, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )


ALICE = certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "alice")]))


def named(*parts: tuple[str, str]) -> str:
    attributes = [x509.NameAttribute(OIDS[key], value) for key, value in parts]
    return subject_name(certificate(x509.Name(attributes)))


def test_the_most_specific_part_comes_first() -> None:
    parts = (("C", "DE"), ("ST", "Hessen"), ("L", "Kassel"), ("O", "Example"), ("CN", "alice"))
    assert named(*parts) == "CN=alice,O=Example,L=Kassel,ST=Hessen,C=DE"
    assert named(("DC", "org"), ("DC", "example"), ("UID", "al")) == "UID=al,DC=example,DC=org"


def test_special_characters_are_escaped() -> None:
    assert named(("CN", 'a,b+c"d\\e<f>g;h=i#j')) == ('CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j')
    assert named(("CN", " a b  ")) == "CN=\\ a b\\ \\ "
    assert named(("CN", "Jörg")) == "CN=Jörg"


def test_other_attributes_are_written_in_hexadecimal() -> None:
    assert named(("CN", "a"), ("mail", "a@b")) == "1.2.840.113549.1.9.1=#1603614062,CN=a"


def test_several_attributes_of_one_part_are_joined() -> None:
    pair = x509.RelativeDistinguishedName(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "a"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "b"),
        ]
    )
    assert subject_name(certificate(x509.Name([pair]))) in ("CN=a+O=b", "O=b+CN=a")


def test_no_subject_is_an_empty_name() -> None:
    assert named() == ""


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=16))
def test_names_of_any_characters_are_told_apart(text: str) -> None:
    name = named(("CN", text))
    body = name.removeprefix("CN=")
    assert body.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\") == text


@given(st.data())
def test_a_broken_certificate_is_an_error_and_nothing_worse(data: st.DataObject) -> None:
    whole = bytearray(ALICE)
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(whole)))
    with suppress(MalformedCertificate):
        subject_name(bytes(whole[:end]))


def test_an_empty_certificate_is_refused() -> None:
    for data in (b"", b"\x30\x00", b"\x30\x02\x30\x00", b"\x30\x84\xff\xff\xff\xff"):
        with pytest.raises(MalformedCertificate):
            subject_name(data)
