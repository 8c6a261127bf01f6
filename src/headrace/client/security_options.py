"""Options of clients about the security of connections: the security protocol, TLS and SASL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

from headrace.config.jaas import OAUTH_MODULE, parse_jaas
from headrace.errors import ConfigError
from headrace.net.client_connection import PLAINTEXT, ClientSecurity, SaslLogin
from headrace.net.sasl_login import (
    BearerMechanism,
    ClientLogin,
    Mechanism,
    TokenProvider,
    file_mechanism,
    password_mechanism,
)
from headrace.net.tls_contexts import TlsSettings, client_tls
from headrace.net.tls_stores import Store
from headrace.options import Bool, Custom, ListOf, OneOf, Password, Text, one_of, option
from headrace.types import SecurityProtocol

SaslMechanismName: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_BEARER = "OAUTHBEARER"


def _mechanism(value: Any) -> Any:
    if value is not None and value not in _MECHANISMS:
        raise ValueError
    return value


def _provider(value: Any) -> Callable[[], Any] | None:
    if value is not None and not callable(value):
        raise ValueError
    return value  # type: ignore[no-any-return]


def _jaas(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError
    parse_jaas(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslOptions:
    """Options of the login of connections."""

    sasl_mechanism: SaslMechanismName | None = option(
        Custom(f"one of {', '.join(_MECHANISMS)}", _mechanism),
        None,
        kafka="sasl.mechanism",
        default_text="none",
        aliases=("sasl_mechanisms",),
        doc="How to log in, where `security_protocol` is `SASL_PLAINTEXT` or `SASL_SSL`: `PLAIN`,"
        " `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`. There is no default.",
    )
    sasl_username: str | None = option(
        Text(optional=True),
        None,
        kafka="sasl.username",
        aliases=("sasl_plain_username",),
        doc="The name of the user, for PLAIN and SCRAM; the id of a delegation token.",
    )
    sasl_password: str | None = option(
        Password(optional=True),
        None,
        kafka="sasl.password",
        aliases=("sasl_plain_password",),
        sensitive=True,
        doc="The password of the user; the HMAC, in base64, of a delegation token.",
    )
    sasl_delegation_token: bool = option(
        Bool(),
        False,
        kafka="sasl.delegation.token",
        doc="Whether name and password are those of a delegation token, for SCRAM.",
    )
    sasl_jaas_config: str | None = option(
        Custom("a login module as Kafka's Java clients have it", _jaas),
        None,
        kafka="sasl.jaas.config",
        sensitive=True,
        doc="Name and password as Kafka's Java clients are given them, in place of the options"
        " above.",
    )
    sasl_oauth_token_provider: TokenProvider | None = option(
        Custom("a function, or None", _provider),
        None,
        kafka="sasl.oauth.token.provider",
        doc="A function without arguments, or a coroutine function, that returns the token for"
        " OAUTHBEARER. It is called at every login, on another thread if it is no coroutine"
        " function, and should return the same token until that is about to expire.",
    )
    sasl_oauth_token_file: str | None = option(
        Text(optional=True),
        None,
        kafka="sasl.oauth.token.file",
        doc="The file of the token for OAUTHBEARER, read at every login.",
    )

    def login(self) -> SaslLogin:
        """The login that these options stand for; ConfigError if there is something missing."""
        if self.sasl_mechanism is None:
            raise ConfigError(
                "security_protocol asks for a login; give sasl_mechanism, one of"
                f" {', '.join(_MECHANISMS)}"
            )
        if self.sasl_mechanism == _BEARER:
            return ClientLogin(self._bearer())
        username, password = self.sasl_username, self.sasl_password
        by_token = self.sasl_delegation_token
        if self.sasl_jaas_config is not None:
            if username is not None or password is not None:
                raise ConfigError(
                    "sasl_jaas_config and sasl_username or sasl_password are both given; take one"
                    " of them away"
                )
            module = parse_jaas(self.sasl_jaas_config)
            if module.name == OAUTH_MODULE:
                raise ConfigError(f"sasl_jaas_config has no login for {self.sasl_mechanism}")
            username, password = module.options.get("username"), module.options.get("password")
            by_token = module.options.get("tokenauth", "").lower() == "true"
        if not username or not password:
            raise ConfigError(
                f"a login by {self.sasl_mechanism} needs sasl_username and sasl_password"
            )
        return ClientLogin(
            password_mechanism(self.sasl_mechanism, username, password, by_token=by_token)
        )

    def _bearer(self) -> Mechanism:
        provider, file = self.sasl_oauth_token_provider, self.sasl_oauth_token_file
        if (provider is None) == (file is None):
            raise ConfigError(
                "a login by OAUTHBEARER needs either sasl_oauth_token_provider or"
                " sasl_oauth_token_file"
            )
        return BearerMechanism(provider) if provider is not None else file_mechanism(str(file))


class SaslKeywords(TypedDict, total=False):
    """The keyword arguments about logins that every client takes."""

    sasl_mechanism: SaslMechanismName | None
    sasl_mechanisms: SaslMechanismName | None
    sasl_username: str | None
    sasl_plain_username: str | None
    sasl_password: str | None
    sasl_plain_password: str | None
    sasl_delegation_token: bool
    sasl_jaas_config: str | None
    sasl_oauth_token_provider: TokenProvider | None
    sasl_oauth_token_file: str | None


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
            return PLAINTEXT if login is None else ClientSecurity(login=login)
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
