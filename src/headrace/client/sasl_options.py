"""Options of clients about their login by SASL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

from headrace.config.jaas import OAUTH_MODULE, parse_jaas
from headrace.errors import ConfigError
from headrace.net.client_security import SaslLogin
from headrace.net.sasl_login import (
    BearerMechanism,
    ClientLogin,
    Mechanism,
    TokenProvider,
    file_mechanism,
    password_mechanism,
)
from headrace.options import Bool, Custom, Password, Text, option

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
