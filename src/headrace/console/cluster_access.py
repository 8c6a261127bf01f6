"""Access to a cluster as one user: an admin client, samples, and consumers and producers.

Rule: what a viewer sees and changes goes through the clients of that viewer's own access, so that
the cluster's ACLs decide about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace import aio
from headrace.client.options import from_properties
from headrace.errors import ConfigError
from headrace.monitoring.cluster_history import ClusterHistory
from headrace.monitoring.cluster_status import ClusterStatus
from headrace.monitoring.sampler import INTERVAL_S, Sampler
from headrace.net.sasl_login import TokenProvider

CLIENT_ID = "headrace-console"
# A page must answer while brokers are away: it says then what is missing.
REQUEST_TIMEOUT_MS = 8_000
MECHANISM = "SCRAM-SHA-512"

ClientKind = Literal["admin", "consumer", "producer"]

# Properties that say as whom to log in; those of the viewer take their place.
_LOGIN = (
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.delegation.token",
    "sasl.oauth.token.file",
)
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """How to reach a cluster: brokers, and properties under the names of Kafka's clients."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def uses_sasl(self) -> bool:
        """Whether the brokers ask for a login."""
        return self.properties.get("security.protocol", "").upper().startswith("SASL_")

    @property
    def takes_passwords(self) -> bool:
        """Whether viewers can sign in with a password: the mechanism has them, or none is given."""
        return self.properties.get("sasl.mechanism", MECHANISM) in _PASSWORD_MECHANISMS

    def arguments(
        self,
        kind: ClientKind,
        user: str | None = None,
        password: str | None = None,
        tokens: TokenProvider | None = None,
    ) -> dict[str, Any]:
        """The options of a client, which logs in as the user if there is one."""
        properties = dict(self.properties)
        if user is not None:
            for name in _LOGIN:
                properties.pop(name, None)
        if tokens is not None:
            properties["sasl.mechanism"] = "OAUTHBEARER"
        elif user is not None:
            mechanism = properties.setdefault("sasl.mechanism", MECHANISM)
            if mechanism not in _PASSWORD_MECHANISMS:
                raise ConfigError(
                    f"nobody can sign in with sasl.mechanism={mechanism}, which has no passwords",
                    advice=f"give one of {', '.join(_PASSWORD_MECHANISMS)}, or --oidc-issuer, or"
                    " --no-sign-in",
                )
        arguments: dict[str, Any] = {
            **from_properties(properties, kind),
            "bootstrap_servers": self.bootstrap,
            "client_id": CLIENT_ID,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
        }
        if tokens is not None:
            arguments["sasl_oauth_token_provider"] = tokens
        elif user is not None:
            arguments |= {"sasl_username": user, "sasl_password": password}
        return arguments


class ClusterAccess:
    """A cluster as one user sees it. For one event loop; `close` ends its clients and samples.

    `user` is None where everybody acts as the user of the connection's properties.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        user: str | None = None,
        password: str | None = None,
        *,
        tokens: TokenProvider | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.user = user
        self._connection = connection
        self._password = password
        self._tokens = tokens
        self.admin = aio.Admin(**self._arguments("admin"))
        self.sampler = Sampler(self.admin, interval_s=interval_s)
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<ClusterAccess {self.user or '-'}>"

    @property
    def history(self) -> ClusterHistory:
        """The samples, and the series made of them."""
        return self.sampler.history

    @property
    def state(self) -> ClusterStatus | None:
        """The newest state of the cluster; None before the first sample."""
        return self.sampler.state

    def consumer_arguments(self) -> dict[str, Any]:
        """The options of a consumer of this user without a group."""
        arguments = self._arguments("consumer")
        arguments.pop("group_id", None)
        return arguments

    def consumer(self, **options: Any) -> aio.Consumer:
        """A consumer of this user, without a group unless the options have one."""
        return aio.Consumer(**(self.consumer_arguments() | options))

    def producer(self, **options: Any) -> aio.Producer:
        """A producer of this user."""
        arguments = self._arguments("producer")
        return aio.Producer(**(arguments | options))

    def _arguments(self, kind: ClientKind) -> dict[str, Any]:
        return self._connection.arguments(kind, self.user, self._password, self._tokens)

    async def close(self) -> None:
        """End the samples and close the connections."""
        if not self.is_closed:
            self.is_closed = True
            await self.sampler.close()
            await self.admin.close()
