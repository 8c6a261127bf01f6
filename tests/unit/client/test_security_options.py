"""Options of clients about security, under the names of several clients."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.client.options import admin_options, from_properties, producer_options
from headrace.client.security_options import SecurityOptions
from headrace.errors import ConfigError
from headrace.net.client_connection import PLAINTEXT
from tests.unit.net.certificates import authority, broker_file, client_file

CA = str(authority().certificate_path)


def options(**given: Any) -> SecurityOptions:
    return admin_options(security_protocol="SSL", ssl_truststore_location=CA, **given)


def test_plain_text_is_the_default() -> None:
    assert admin_options().client_security() == PLAINTEXT


def test_tls_needs_no_more_than_the_protocol() -> None:
    assert admin_options(security_protocol="SSL").client_security().tls is not None


@pytest.mark.parametrize(
    "properties",
    [
        {"ssl.truststore.location": CA, "ssl.keystore.location": str(client_file())},
        {
            "ssl.ca.location": CA,
            "ssl.certificate.location": str(client_file()),
            "ssl.key.location": str(client_file()),
        },
        {"ssl.truststore.certificates": authority().certificate_path.read_text()},
    ],
)
def test_the_names_of_kafka_and_of_librdkafka_are_understood(properties: dict[str, str]) -> None:
    given = from_properties({"security.protocol": "SSL", **properties}, "producer")
    assert producer_options(**given).client_security().tls is not None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: options(ssl_keystore_location="/no/such"), "/no/such cannot be read"),
        (lambda: options(ssl_truststore_certificates="x"), "are both given"),
        (
            lambda: options(ssl_keystore_location="a", ssl_keystore_key="b"),
            "ssl_keystore_location and ssl_keystore_certificate_chain are both given",
        ),
        (lambda: options(ssl_keystore_key="b"), "the private key is given without a certificate"),
        (lambda: options(ssl_keystore_location=str(broker_file()), ssl_keystore_type="PKCS12"),
         "its type is given as PKCS12"),
        (lambda: admin_options(security_protocol="SASL_SSL"), "asks for a login"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    make: Callable[[], SecurityOptions], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make().client_security()


def test_secrets_are_not_shown() -> None:
    shown = repr(options(ssl_key_password="hunter2", ssl_keystore_password="hunter2"))
    assert "hunter2" not in shown
    with pytest.raises(ConfigError) as caught:
        admin_options(ssl_key_password=["hunter2"])  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
