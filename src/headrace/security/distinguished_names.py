"""The subject of a certificate as a distinguished name: `CN=alice,O=Example,C=DE`.

Written as Java's `X500Principal` does (RFC 2253): the most specific part first, short keys for the
attributes of RFC 2253, and for all others the object identifier with the value in hexadecimal.
"""

from typing import NamedTuple

from headrace.errors import HeadraceError

_SEQUENCE, _SET, _OBJECT_IDENTIFIER = 0x30, 0x31, 0x06
_VERSION = 0xA0
# Encodings of text by the tag of the value.
_TEXTS = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_KEYS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED = ',=+<>#;"\\'


class MalformedCertificate(HeadraceError):
    """A certificate that is not encoded as X.509 wants it."""


class _Value(NamedTuple):
    """A value of DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    encoded: bytes


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate in DER; MalformedCertificate if it cannot be read."""
    [outer] = _values(certificate)[:1] or [_Value(0, b"", b"")]
    parts = _values(_content(outer, _SEQUENCE))
    if not parts:
        raise MalformedCertificate("the certificate is empty")
    fields = _values(_content(parts[0], _SEQUENCE))
    # Version (absent in version 1), serial number, signature, issuer, validity, subject.
    subject = 5 if fields and fields[0].tag == _VERSION else 4
    if len(fields) <= subject:
        raise MalformedCertificate("the certificate has no subject")
    names = _values(_content(fields[subject], _SEQUENCE))
    return ",".join(_relative_name(name) for name in reversed(names))


def _relative_name(name: _Value) -> str:
    return "+".join(_attribute(pair) for pair in _values(_content(name, _SET)))


def _attribute(pair: _Value) -> str:
    parts = _values(_content(pair, _SEQUENCE))
    if len(parts) != 2:
        raise MalformedCertificate("a part of the subject has no value")
    identifier = _dotted(_content(parts[0], _OBJECT_IDENTIFIER))
    key, value = _KEYS.get(identifier), parts[1]
    encoding = _TEXTS.get(value.tag)
    if key is None or encoding is None:
        return f"{key or identifier}=#{value.encoded.hex()}"
    try:
        return f"{key}={_escaped(value.content.decode(encoding))}"
    except UnicodeDecodeError:
        raise MalformedCertificate(f"{key} of the subject is no text") from None


def _escaped(text: str) -> str:
    body = text.strip(" ")
    # Spaces at the ends would get lost where names are trimmed.
    before = "\\ " * (len(text) - len(text.lstrip(" ")))
    after = "\\ " * (len(text) - len(text.rstrip(" ")))
    escaped = "".join(
        f"\\{char}" if char in _ESCAPED else "\\00" if char == "\0" else char for char in body
    )
    return before + escaped + after if body else before


def _dotted(identifier: bytes) -> str:
    """An object identifier in dotted form."""
    arcs: list[int] = []
    arc = 0
    for octet in identifier:
        arc = arc << 7 | octet & 0x7F
        if not octet & 0x80:
            arcs.append(arc)
            arc = 0
    if not arcs:
        raise MalformedCertificate("an object identifier of the subject is empty")
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))


def _content(value: _Value, tag: int) -> bytes:
    if value.tag != tag:
        raise MalformedCertificate(f"the certificate has {value.tag:#x} where {tag:#x} belongs")
    return value.content


def _values(data: bytes) -> list[_Value]:
    """The values of DER that lie one after the other in some bytes."""
    found = []
    start = 0
    while start < len(data):
        if start + 2 > len(data):
            raise MalformedCertificate("the certificate ends too early")
        tag, size, body = data[start], data[start + 1], start + 2
        if size & 0x80:
            octets = size & 0x7F
            if not 1 <= octets <= 4:
                raise MalformedCertificate("a length in the certificate is not allowed")
            size = int.from_bytes(data[body : body + octets], "big")
            body += octets
        end = body + size
        if end > len(data):
            raise MalformedCertificate("the certificate ends too early")
        found.append(_Value(tag, data[body:end], data[start:end]))
        start = end
    return found
