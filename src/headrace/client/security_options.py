"""Options of clients about the security of connections: the security protocol, and TLS."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.client.sasl_options import SaslKeywords, SaslOptions
from headrace.errors import ConfigError
from headrace.net.client_security import PLAIN, ClientSecurity
from headrace.net.tls_contexts import TlsSettings, client_tls
from headrace.net.tls_stores import Store
from headrace.options import ListOf, OneOf, Password, Text, one_of, option
from headrace.types import SecurityProtocol

SecurityProtocolName: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
StoreType: TypeAlias = Literal["PEM", "PKCS12", "JKS"]
TlsVersion: TypeAlias = Literal["TLSv1.2", "TLSv1.3"]

_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_STORE_TYPES = one_of("PEM", "PKCS12", "JKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions(SaslOptions):
    """Options of the security of connections, under the names of Kafka's own clients."""

    security_protocol: SecurityProtocol = option(
        OneOf({protocol.name: protocol for protocol in SecurityProtocol}),
        "PLAINTEXT",
        kafka="security.protocol",
        doc="What the brokers' listener speaks: `PLAINTEXT`, `SSL` (TLS), `SASL_PLAINTEXT` or"
        " `SASL_SSL`.",
    )
    ssl_truststore_location: str | None = option(
        Text(optional=True),
        None,
        kafka="ssl.truststore.location",
        aliases=("ssl_cafile", "ssl_ca_location"),
        doc="The file of the certificates that are trusted, PEM or PKCS#12. Without any, those that"
        " the operating system trusts are.",
    )
    ssl_truststore_certificates: str | None = option(
        Text(optional=True),
        None,
        kafka="ssl.truststore.certificates",
        aliases=("ssl_cadata", "ssl_ca_pem"),
        doc="The certificates that are trusted, as PEM text in place of a file.",
    )
    ssl_truststore_password: str | None = option(
        Password(optional=True),
        None,
        kafka="ssl.truststore.password",
        sensitive=True,
        doc="The password of the file of trusted certificates, if it is PKCS#12.",
    )
    ssl_truststore_type: StoreType = option(
        _STORE_TYPES,
        "JKS",
        kafka="ssl.truststore.type",
        doc="The format of that file: `PEM` or `PKCS12`. `JKS`, Kafka's default, stands for"
        " whichever of the two it is; a file that is JKS in truth is refused.",
    )
    ssl_keystore_location: str | None = option(
        Text(optional=True),
        None,
        kafka="ssl.keystore.location",
        doc="The file of this client's private key and certificate, for brokers that ask for one:"
        " PEM (both in one file) or PKCS#12.",
    )
    ssl_keystore_password: str | None = option(
        Password(optional=True),
        None,
        kafka="ssl.keystore.password",
        sensitive=True,
        doc="The password of that file, if it is PKCS#12.",
    )
    ssl_keystore_type: StoreType = option(
        _STORE_TYPES,
        "JKS",
        kafka="ssl.keystore.type",
        doc="The format of that file, as `ssl_truststore_type` says it.",
    )
    ssl_certificate_location: str | None = option(
        Text(optional=True),
        None,
        kafka="ssl.certificate.location",
        aliases=("ssl_certfile",),
        doc="The PEM file of the certificate alone, where the private key is in another file."
        " Kafka's Java clients do not have it.",
    )
    ssl_key_location: str | None = option(
        Text(optional=True),
        None,
        kafka="ssl.key.location",
        aliases=("ssl_keyfile",),
        doc="The PEM file of the private key alone. Kafka's Java clients do not have it.",
    )
    ssl_keystore_certificate_chain: str | None = option(
        Text(optional=True),
        None,
        kafka="ssl.keystore.certificate.chain",
        aliases=("ssl_certificate_pem",),
        doc="This client's certificate and those that issued it, as PEM text.",
    )
    ssl_keystore_key: str | None = option(
        Password(optional=True),
        None,
        kafka="ssl.keystore.key",
        aliases=("ssl_key_pem",),
        sensitive=True,
        doc="This client's private key, as PEM text.",
    )
    ssl_key_password: str | None = option(
        Password(optional=True),
        None,
        kafka="ssl.key.password",
        aliases=("ssl_password",),
        sensitive=True,
        doc="The password of an encrypted private key.",
    )
    ssl_endpoint_identification_algorithm: str = option(
        one_of("https", ""),
        "https",
        kafka="ssl.endpoint.identification.algorithm",
        doc="How the host name of a broker is checked against its certificate. Empty text turns the"
        " check off, and anyone with a certificate of the same issuer can be the broker then.",
    )
    ssl_enabled_protocols: tuple[str, ...] = option(
        ListOf(choices=_TLS_VERSIONS),
        _TLS_VERSIONS,
        kafka="ssl.enabled.protocols",
        doc="Versions of TLS that may be spoken.",
    )
    ssl_cipher_suites: tuple[str, ...] = option(
        ListOf(may_be_empty=True),
        (),
        kafka="ssl.cipher.suites",
        default_text="all good ones",
        doc="Cipher suites, in the names of Java or of OpenSSL. Those of TLS 1.3 cannot be chosen"
        " one by one: naming none of them turns TLS 1.3 off.",
    )

    def client_security(self) -> ClientSecurity:
        """TLS and login of the connections of a client with these options."""
        login = self.login() if self.security_protocol.uses_sasl else None
        if not self.security_protocol.uses_tls:
            return PLAIN if login is None else ClientSecurity(login=login)
        settings = TlsSettings(
            identity=self._identity(),
            trust=self._trust(),
            versions=self.ssl_enabled_protocols,
            cipher_suites=self.ssl_cipher_suites,
            checks_host=bool(self.ssl_endpoint_identification_algorithm),
        )
        return ClientSecurity(client_tls(settings), login)

    def _identity(self) -> Store | None:
        """This client's key and certificate, of the one way in which they are given."""
        chain, key = self.ssl_keystore_certificate_chain, self.ssl_keystore_key
        certificate_file, key_file = self.ssl_certificate_location, self.ssl_key_location
        ways = {
            "ssl_keystore_location": self.ssl_keystore_location is not None,
            "ssl_certificate_location": (certificate_file or key_file) is not None,
            "ssl_keystore_certificate_chain": (chain or key) is not None,
        }
        names = [name for name, given in ways.items() if given]
        if len(names) > 1:
            raise ConfigError(f"{' and '.join(names)} are both given; take one of them away")
        if not names:
            return None
        if (certificate_file is None and key_file) or (chain is None and key):
            raise ConfigError(f"the private key is given without a certificate; give {names[0]}")
        return Store(
            names[0],
            path=self.ssl_keystore_location or certificate_file,
            text=chain,
            key_path=key_file,
            key_text=key,
            kind=self.ssl_keystore_type if self.ssl_keystore_location else "PEM",
            password=self.ssl_keystore_password,
            key_password=self.ssl_key_password,
        )

    def _trust(self) -> Store | None:
        path, text = self.ssl_truststore_location, self.ssl_truststore_certificates
        if path is not None and text is not None:
            raise ConfigError(
                "ssl_truststore_location and ssl_truststore_certificates are both given; take one"
                " of them away"
            )
        if path is None and text is None:
            return None
        return Store(
            "ssl_truststore_location" if text is None else "ssl_truststore_certificates",
            path=path,
            text=text,
            kind=self.ssl_truststore_type,
            password=self.ssl_truststore_password,
        )


class SecurityKeywords(SaslKeywords, total=False):
    """The keyword arguments about security that every client takes."""

    security_protocol: SecurityProtocolName
    ssl_truststore_location: str | None
    ssl_cafile: str | None
    ssl_ca_location: str | None
    ssl_truststore_certificates: str | None
    ssl_cadata: str | None
    ssl_ca_pem: str | None
    ssl_truststore_password: str | None
    ssl_truststore_type: StoreType
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_type: StoreType
    ssl_certificate_location: str | None
    ssl_certfile: str | None
    ssl_key_location: str | None
    ssl_keyfile: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_certificate_pem: str | None
    ssl_keystore_key: str | None
    ssl_key_pem: str | None
    ssl_key_password: str | None
    ssl_password: str | None
    ssl_endpoint_identification_algorithm: Literal["https", ""]
    ssl_enabled_protocols: list[TlsVersion] | tuple[TlsVersion, ...] | str
    ssl_cipher_suites: list[str] | tuple[str, ...] | str
