"""The texts for failures of TLS, each end's own, from handshakes that fail in memory."""

import ssl
from typing import Any

import pytest

from headrace.cli.certificate_authority import Validity
from headrace.net.tls_failures import (
    TlsFailed,
    closed_in_handshake,
    failure_of,
    silent_in_handshake,
)
from tests.unit.net.certificates import (
    authority,
    broker_file,
    client_file,
    context,
    keys,
    stranger,
    trust,
)


def failures(
    server: dict[str, Any], client: dict[str, Any], hostname: str = "localhost"
) -> tuple[TlsFailed | None, TlsFailed | None]:
    """What the server and the client say of a handshake between them."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        context(True, **server).current.wrap_bio(to_server, to_client, server_side=True),
        context(False, **client).current.wrap_bio(to_client, to_server, server_hostname=hostname),
    ]
    said: list[TlsFailed | None] = [None, None]
    for _ in range(6):
        for number in (1, 0):
            if said[number] is not None:
                continue
            try:
                ends[number].do_handshake()
                ends[number].read(1)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                said[number] = failure_of(error, server_side=number == 0, hostname=hostname)
    return said[0], said[1]


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("server", "client", "hostname", "at_server", "at_client"),
    [
        (
            {"client_auth": "required"},
            {},
            "localhost",
            "the client has no certificate, and ssl.client.auth is required",
            "the broker wants a certificate of this client|the broker refused the handshake",
        ),
        (
            {"client_auth": "required"},
            {"identity": keys(stranger().issue_client("m"))},
            "localhost",
            "the client's certificate is from an issuer that is not trusted",
            "the broker does not trust the issuer of this client's certificate",
        ),
        (
            {"identity": keys(authority().issue_broker("e", ["localhost"], Validity.of_days(-9)))},
            {},
            "localhost",
            "the client says that this broker's certificate has expired",
            "the broker's certificate has expired",
        ),
        (
            {},
            {},
            "elsewhere.example.org",
            "the client refused this broker's certificate",
            "the broker's certificate is not for elsewhere.example.org",
        ),
        (
            {},
            {"trust": trust(stranger())},
            "localhost",
            "the client does not trust the issuer",
            "the broker's certificate is from an issuer that is not trusted",
        ),
    ],
)
def test_each_end_says_what_is_wrong_and_what_to_do(
    version: str,
    server: dict[str, Any],
    client: dict[str, Any],
    hostname: str,
    at_server: str,
    at_client: str,
) -> None:
    client = client | {"versions": (version,)}
    said = failures(server, client, hostname)
    for failure, text in zip(said, (at_server, at_client), strict=True):
        assert failure is not None
        assert any(part in failure.what for part in text.split("|")), failure
        assert failure.lasting
        assert failure.advice


def test_versions_and_suites_that_do_not_meet_are_named() -> None:
    said = failures({"versions": ("TLSv1.2",)}, {"versions": ("TLSv1.3",)})
    assert all(failure is not None and "no version of TLS" in failure.what for failure in said)
    suites = {"cipher_suites": ("ECDHE-RSA-AES128-GCM-SHA256",)}
    server, client = failures(suites, {"versions": ("TLSv1.2",)})
    assert server is not None and "no cipher suite in common" in server.what
    assert client is not None and "ssl_keystore_location" in client.advice


def test_a_certificate_that_is_not_valid_yet_is_named() -> None:
    later = Validity.of_days(20)
    begins = later.ends.replace(microsecond=0)
    path = authority().issue_broker(
        "later", ["localhost"], Validity(begins, Validity.of_days(30).ends)
    )
    assert "is not valid yet" in str(failures({"identity": keys(path)}, {})[1])


def test_a_good_handshake_says_nothing() -> None:
    identity = keys(client_file())
    assert failures({"client_auth": "required"}, {"identity": identity}) == (None, None)
    assert broker_file().exists()


def test_a_peer_that_is_gone_or_silent_may_be_tried_again() -> None:
    for server_side in (True, False):
        for failure in (
            closed_in_handshake(server_side=server_side),
            silent_in_handshake(10.0, server_side=server_side),
            failure_of(ValueError("x"), server_side=server_side, hostname=None),
        ):
            assert not failure.lasting
            assert failure.advice
