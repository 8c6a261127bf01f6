"""Viewers: who sent a request, by its cookie, and with which access to the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.console.dead_letter_replay import Replays
from headrace.console.sessions import CsrfTokens, Sessions, SignInLimit, new_token

if TYPE_CHECKING:
    from headrace.console.cluster_access import ClusterAccess, ClusterConnection
    from headrace.console.oidc import OidcProvider
    from headrace.console.pipeline_runs import PipelineRuns

# Of the browser's tab in the background: it does not keep a session alive.
LIVE_HEADER = "x-headrace-live"
_TOKEN_CHARS_MAX = 100
# Asked for without a sign-in.
_OPEN_PATHS = ("/sign-in", "/oidc/", "/static/", "/healthz", "/favicon.ico")


@dataclass(slots=True)
class Console:
    """What all requests share. `everybody` is the access of all viewers if nobody signs in."""

    connection: ClusterConnection
    sessions: Sessions
    limit: SignInLimit
    signs_in: bool
    cookie: str
    csrf: CsrfTokens = field(default_factory=CsrfTokens)
    everybody: ClusterAccess | None = None
    # None if the console was given no pipelines.
    pipelines: PipelineRuns | None = None
    # None if nobody signs in by OpenID Connect.
    oidc: OidcProvider | None = None
    replays: Replays = field(default_factory=Replays)
    interval_s: float = 2.0
    # The event streams that are open now.
    streams: int = 0
    # The searches that run now, each a process of its own.
    searches: int = 0


@dataclass(frozen=True, slots=True)
class Viewer:
    """The sender of a request. `access` is None for a viewer who has to sign in."""

    viewer_id: str
    access: ClusterAccess | None


def console_of(request: HTTPConnection) -> Console:
    """The console that serves a request."""
    console: Console = request.app.state.console
    return console


def viewer_of(request: HTTPConnection) -> Viewer:
    """The sender of a request."""
    viewer: Viewer = request.scope["headrace.viewer"]
    return viewer


def access_of(request: HTTPConnection) -> ClusterAccess:
    """The access to the cluster of the sender of a request, who has signed in if need be."""
    access = viewer_of(request).access
    assert access is not None, "a page behind the sign-in was served without it"
    return access


class ViewerGate:
    """ASGI middleware: finds the viewer of each request, and sends strangers to the sign-in."""

    def __init__(self, app: ASGIApp, *, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        token = request.cookies.get(self._console.cookie, "")[:_TOKEN_CHARS_MAX]
        viewer = self._viewer(request, token)
        scope["headrace.viewer"] = viewer
        is_new = viewer.viewer_id != token

        async def with_cookie(message: Message) -> None:
            if is_new and message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # A sign-in has set the cookie of its session.
                if "set-cookie" not in headers:
                    value = cookie_text(self._console.cookie, viewer.viewer_id, scope["scheme"])
                    headers.append("Set-Cookie", value)
            await send(message)

        path = request.url.path
        if viewer.access is None and not path.startswith(_OPEN_PATHS):
            query = f"?{request.url.query}" if request.url.query else ""
            there = path + query if request.method == "GET" else "/"
            answer = RedirectResponse(f"/sign-in?next={quote(there, safe='')}", 303)
            await answer(scope, receive, with_cookie)
        else:
            await self._app(scope, receive, with_cookie)

    def _viewer(self, request: Request, token: str) -> Viewer:
        if not self._console.signs_in:
            return Viewer(token or new_token(), self._console.everybody)
        is_use = LIVE_HEADER not in request.headers and request.url.path != "/events"
        session = self._console.sessions.find(token, is_use=is_use)
        return Viewer(token or new_token(), session.access if session else None)


def cookie_text(
    name: str,
    value: str,
    scheme: str,
    max_age_s: int | None = None,
    *,
    path: str = "/",
    same_site: str = "Strict",
) -> str:
    """A Set-Cookie header: not for scripts nor other sites, and only over TLS where there is."""
    cookie: SimpleCookie = SimpleCookie()
    cookie[name] = value
    morsel = cookie[name]
    morsel["path"] = path
    morsel["httponly"] = True
    morsel["samesite"] = same_site
    if scheme == "https":
        morsel["secure"] = True
    if max_age_s is not None:
        morsel["max-age"] = max_age_s
    return morsel.OutputString()
