"""Security of outgoing connections, of clients and of nodes to other nodes: TLS and a login."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from headrace.net.client_connection import ClientConnection
    from headrace.net.tls_contexts import ClientTls


class SaslLogin(Protocol):
    """A login by SASL, made anew on every connection."""

    async def authenticate(self, connection: "ClientConnection", deadline: float) -> None:
        """Log in by `deadline`, an instant of the loop's time; HeadraceError if that fails.

        It is called once versions are agreed, before any other request is sent.
        """


class ClientSecurity(NamedTuple):
    """TLS and the login of connections; neither is there where listeners are plain text."""

    tls: "ClientTls | None" = None
    login: SaslLogin | None = None


PLAIN = ClientSecurity()
