"""Settings of the sign-in by OpenID Connect. It imports no library of it."""

import ipaddress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from headrace.errors import ConfigError

# How long a browser may take for the pages of the provider.
STARTED_S_MAX = 600.0

BrokerToken = Literal["access_token", "id_token"]


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """The provider, this console as its client, and which token the brokers get.

    Without a secret the console is a public client, which PKCE protects.
    """

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ("openid",)
    token: BrokerToken = "access_token"
    # Certificates that the provider's is checked with; None for those of the system.
    ca_file: str | None = None

    def __post_init__(self) -> None:
        if not is_safe_url(self.issuer):
            raise ConfigError(
                f"the OpenID issuer {self.issuer!r} is no https URL",
                advice="give it as the provider writes it in its tokens; http is for this machine",
            )
        if "openid" not in self.scopes:
            raise ConfigError("the scopes of OpenID Connect lack `openid`", advice="add it")


def is_safe_url(url: str) -> bool:
    """Whether a URL is of https, or of http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return parts.scheme == "http" and is_local
