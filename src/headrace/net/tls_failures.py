"""Failures of TLS: the reasons that OpenSSL gives, in words, with advice for each.

A failure is `lasting` if another attempt would fail the same way until somebody changes a
certificate or a setting. It has a different text at each end: a client's is for the person who runs
it, and a server's is for its log.
"""

import ssl
from typing import NamedTuple

from headrace.errors import HeadraceError


class TlsFailed(HeadraceError):
    """TLS with a peer failed; `lasting` if another attempt would fail the same way."""

    def __init__(self, what: str, advice: str, *, lasting: bool) -> None:
        super().__init__(what, advice=advice)
        self.lasting = lasting


class ClosedInHandshake(TlsFailed):
    """A handshake in which the peer closed the connection, and said nothing of the reason."""


class _Texts(NamedTuple):
    """The texts for a failure, which is known by the names that OpenSSL has for it."""

    names: tuple[str, ...]
    at_client: tuple[str, str]
    at_server: tuple[str, str]


_PLAIN_PORT = (
    "the listener does not speak TLS",
    "set security_protocol to what the listener speaks (PLAINTEXT or SASL_PLAINTEXT), or give the"
    " address of a listener with TLS",
)
_PLAIN_CLIENT = (
    "the client does not speak TLS",
    "its security.protocol must be SSL or SASL_SSL for this listener",
)
_SEE_BROKER = "the broker's log says more"
_NO_VERSION = (
    "the two ends have no version of TLS in common",
    "see ssl.enabled.protocols of both",
)
_NO_SUITE = (
    "the two ends have no cipher suite in common",
    "see ssl.cipher.suites and the type of the broker's key",
)

_REASONS = (
    _Texts(("WRONG_VERSION_NUMBER", "HTTP_REQUEST"), _PLAIN_PORT, _PLAIN_CLIENT),
    _Texts(
        (
            "UNSUPPORTED_PROTOCOL",
            "TLSV1_ALERT_PROTOCOL_VERSION",
            "VERSION_TOO_LOW",
            "NO_PROTOCOLS_AVAILABLE",
        ),
        _NO_VERSION,
        _NO_VERSION,
    ),
    _Texts(
        ("NO_SHARED_CIPHER", "NO_SUITABLE_SIGNATURE_ALGORITHM", "NO_CIPHERS_AVAILABLE"),
        _NO_SUITE,
        _NO_SUITE,
    ),
    _Texts(
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV1_ALERT_HANDSHAKE_FAILURE"),
        (
            "the broker refused the handshake",
            "it may want a certificate of this client (ssl_keystore_location), or have no version"
            f" or cipher suite in common with it; {_SEE_BROKER}",
        ),
        (
            "the client refused the handshake",
            "it may have no version or cipher suite in common with this broker",
        ),
    ),
    _Texts(
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (
            "the broker wants a certificate of this client, and it has none",
            "give its certificate and key with ssl_keystore_location",
        ),
        (
            "the client has no certificate, and ssl.client.auth is required",
            "give the client one, signed by a certificate in ssl.truststore.location",
        ),
    ),
    _Texts(
        ("TLSV1_ALERT_UNKNOWN_CA",),
        (
            "the broker does not trust the issuer of this client's certificate",
            "add the issuer to ssl.truststore.location of the broker, or take a certificate of an"
            " issuer that it trusts",
        ),
        (
            "the client does not trust the issuer of this broker's certificate",
            "add the issuer to the client's ssl.truststore.location",
        ),
    ),
    _Texts(
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "TLSV1_ALERT_CERTIFICATE_EXPIRED"),
        (
            "the broker says that this client's certificate has expired",
            "renew the certificate in ssl_keystore_location",
        ),
        (
            "the client says that this broker's certificate has expired",
            "renew the certificate in ssl.keystore.location",
        ),
    ),
    _Texts(
        (
            "SSLV3_ALERT_BAD_CERTIFICATE",
            "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
            "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
            "SSLV3_ALERT_CERTIFICATE_REVOKED",
            "TLSV1_ALERT_ACCESS_DENIED",
            "TLSV1_ALERT_DECRYPT_ERROR",
        ),
        ("the broker refused this client's certificate", _SEE_BROKER),
        (
            "the client refused this broker's certificate",
            "see whether it trusts the issuer, whether the certificate is valid now, and whether it"
            " is for the host name that the client connects to",
        ),
    ),
)
_BY_NAME = {name: texts for texts in _REASONS for name in texts.names}

# Codes of OpenSSL for a certificate that is refused (X509_V_ERR_*).
_NOT_YET_VALID = 9
_EXPIRED = 10
_UNTRUSTED = (2, 18, 19, 20, 21, 27)
_WRONG_HOST = (62, 64)


def failure_of(error: BaseException, *, server_side: bool, hostname: str | None) -> TlsFailed:
    """The failure that an error of the ssl module stands for.

    `hostname` is what a client connects to.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_refused(error, server_side=server_side, hostname=hostname)
    if isinstance(error, ssl.SSLError):
        texts = _BY_NAME.get(error.reason or "")
        if texts is not None:
            what, advice = texts.at_server if server_side else texts.at_client
            return TlsFailed(what, advice, lasting=True)
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return TlsFailed(f"TLS failed: {reason}", "see whether both ends speak TLS", lasting=False)
    return TlsFailed(f"TLS failed: {error}", "see whether both ends speak TLS", lasting=False)


def _certificate_refused(
    error: ssl.SSLCertVerificationError, *, server_side: bool, hostname: str | None
) -> TlsFailed:
    whose = "the client's certificate" if server_side else "the broker's certificate"
    truststore = "ssl.truststore.location" if server_side else "ssl_truststore_location"
    code = error.verify_code
    if code == _EXPIRED:
        what, advice = f"{whose} has expired", "renew it; or see whether the clock here is right"
    elif code == _NOT_YET_VALID:
        what = f"{whose} is not valid yet"
        advice = "see whether the clocks of both ends are right"
    elif code in _WRONG_HOST:
        what = f"{whose} is not for {hostname}"
        advice = (
            "connect by a name that is in it (its subject alternative names), or make one that has"
            " this name"
        )
    elif code in _UNTRUSTED:
        what = f"{whose} is from an issuer that is not trusted"
        advice = f"have {truststore} name a file with the certificate of the issuer"
    else:
        what = f"{whose} is refused: {error.verify_message}"
        advice = "take one that is meant for this use, of an issuer that is trusted"
    return TlsFailed(what, advice, lasting=True)


def plain_text_listener() -> TlsFailed:
    """The failure of TLS with a broker that answers in plain text."""
    return TlsFailed(*_PLAIN_PORT, lasting=True)


def closed_in_handshake(*, server_side: bool) -> ClosedInHandshake:
    """The failure of a handshake in which the peer closed the connection."""
    if server_side:
        return ClosedInHandshake(
            "the client closed the connection in the handshake",
            "it may not trust this broker's certificate; its own log says more",
            lasting=False,
        )
    return ClosedInHandshake(
        "the broker closed the connection in the TLS handshake",
        "see whether that listener speaks TLS (security_protocol); the broker's log says more",
        lasting=False,
    )


def silent_in_handshake(seconds: float, *, server_side: bool) -> TlsFailed:
    """The failure of a handshake in which the peer said nothing for too long."""
    if server_side:
        return TlsFailed(
            f"the client was silent in the handshake for {seconds:g} s",
            "see whether it speaks TLS; ssl.handshake.timeout.ms is how long it may be",
            lasting=False,
        )
    return TlsFailed(
        f"the broker was silent in the TLS handshake for {seconds:g} s",
        "see whether that listener speaks TLS (security_protocol), and whether it is healthy",
        lasting=False,
    )
