"""Protection of every request and answer: hosts, origins, sizes, headers of answers.

Rule: no page has a script or a style inside of it, and none is loaded from elsewhere, so the policy
forbids all of them: what a record or a name contains cannot run.
"""

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_READS = ("GET", "HEAD")


class AllowedHosts:
    """The names by which this console may be asked for.

    An address can be nobody's name, so only names are checked: a page of another site whose name
    was pointed at this machine (DNS rebinding) names itself.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.casefold().rstrip(".") for name in ("localhost", *names)}

    def allows(self, host: str) -> bool:
        """Whether the value of a Host header is good."""
        name = _host_name(host)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.casefold().rstrip(".") in self._names
        return True


def _host_name(host: str) -> str:
    """The host without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class Protection:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, protected)
        else:
            await self._app(scope, receive, protected)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            return PlainTextResponse(
                "This console is not known by the name that the request has for it."
                " Whoever runs it can allow the name with --host-name.\n",
                421,
            )
        if scope["method"] in _READS:
            return None
        # A browser says which page a change comes from; a page of another site must not make any.
        if headers.get("origin", "").casefold() != f"{scope['scheme']}://{host}".casefold():
            return PlainTextResponse(
                "Changes are accepted from the console's own pages only. Behind a proxy that speaks"
                " TLS, start the console with --proxy.\n",
                403,
            )
        return None
