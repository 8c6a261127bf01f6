"""Sign-in and sign-out: with a password of a user of the cluster, or by OpenID Connect."""

import logging
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.client.errors import TimedOut, Unreachable
from headrace.console.cluster_access import ClusterAccess
from headrace.console.errors import RequestRefused
from headrace.console.forms import read_form
from headrace.console.oidc_settings import STARTED_S_MAX
from headrace.console.rendering import page, redirect
from headrace.console.sessions import AGE_S_MAX
from headrace.console.viewers import console_of, cookie_text, viewer_of
from headrace.errors import AuthenticationFailed, HeadraceError, KafkaError

logger = logging.getLogger(__name__)

_CHARS_MAX = 1024


async def sign_in(request: Request) -> Response:
    """`/sign-in`: the form, and the login of its user to the cluster."""
    console = console_of(request)
    there = local_path(request.query_params.get("next", "/"))
    if not console.signs_in or (request.method == "GET" and viewer_of(request).access):
        return redirect(request, there)
    if request.method == "GET":
        return _sign_in_page(request, there)
    form = await read_form(request)
    name, password = form.text("user")[:_CHARS_MAX], form.verbatim("password")[:_CHARS_MAX]
    address = request.client.host if request.client else ""
    try:
        wait_s = console.limit.wait_s(address, name)
        if wait_s > 0:
            raise RequestRefused(
                429,
                "too many sign-ins have failed",
                advice=f"wait {wait_s:.0f} seconds before the next",
            )
        if not name or not password:
            raise RequestRefused(400, "a user and a password are needed")
        # Counted before it is tried, so that many at once are counted too.
        console.limit.note_failure(address, name)
        access = await _logged_in(request, name, password)
    except HeadraceError as error:
        return _sign_in_page(request, there, name, error)
    console.limit.forget(address, name)
    response = redirect(request, there)
    await _begin_session(request, response, access)
    return response


def _sign_in_page(
    request: Request, there: str, name: str = "", error: HeadraceError | None = None
) -> Response:
    """The form, with the reason why a sign-in did not succeed."""
    console = console_of(request)
    status = 200
    if error is not None:
        status = error.status if isinstance(error, RequestRefused) else 401
        if isinstance(error, TimedOut | Unreachable):
            status = 503
    return page(
        request,
        "sign_in.html",
        title="Sign in",
        status=status,
        there=there,
        name=name,
        error=error,
        issuer=console.oidc.settings.issuer if console.oidc else "",
        takes_passwords=console.connection.takes_passwords,
    )


async def _begin_session(
    request: Request, response: Response, access: ClusterAccess, age_s_max: float = AGE_S_MAX
) -> None:
    """A session in place of the one that the browser had, if any; its cookie is in the response."""
    console = console_of(request)
    await console.sessions.end(viewer_of(request).viewer_id)
    session = await console.sessions.begin(access, age_s_max)
    access.sampler.start()
    response.headers.append(
        "Set-Cookie", cookie_text(console.cookie, session.token, request.url.scheme)
    )


async def _logged_in(request: Request, name: str, password: str) -> ClusterAccess:
    """The access of a user whose password the cluster has accepted."""
    console = console_of(request)
    access = ClusterAccess(console.connection, name, password, interval_s=console.interval_s)
    try:
        await _log_in(access)
    except AuthenticationFailed:
        logger.warning("a sign-in to the console as %r failed", name)
        raise RequestRefused(
            401, "the cluster does not know this user with this password", advice="try again"
        ) from None
    return access


async def _log_in(access: ClusterAccess) -> None:
    """Log in to the cluster; an access that cannot is closed."""
    try:
        await access.admin.describe_cluster()
    except KafkaError as error:
        # A user without the right to describe the cluster has logged in all the same.
        if not error.code.name.endswith("AUTHORIZATION_FAILED"):
            await access.close()
            raise
    except BaseException:
        await access.close()
        raise


async def begin_oidc(request: Request) -> Response:
    """`GET /oidc/begin`: sends the browser to the provider, with what only it can bring back."""
    provider = console_of(request).oidc
    there = local_path(request.query_params.get("next", "/"))
    if provider is None:
        return redirect(request, "/sign-in")
    try:
        url, text = await provider.begin(_callback_url(request), there)
    except RequestRefused as error:
        return _sign_in_page(request, there, error=error)
    response = RedirectResponse(url, 303)
    response.headers.append("Set-Cookie", _started_cookie(request, text, int(STARTED_S_MAX)))
    return response


async def finish_oidc(request: Request) -> Response:
    """`GET /oidc/callback`: where the provider sends browsers to; its tokens log in to brokers."""
    console = console_of(request)
    provider = console.oidc
    if provider is None:
        return redirect(request, "/sign-in")
    try:
        tokens, there = await provider.finish(
            request.query_params, request.cookies.get(_started_name(request), "")
        )
        access = ClusterAccess(
            console.connection, tokens.name, tokens=tokens, interval_s=console.interval_s
        )
        try:
            await _log_in(access)
        except AuthenticationFailed:
            logger.warning("the brokers refused the token of %r", tokens.name)
            raise RequestRefused(
                401,
                "the brokers do not take the token of this provider",
                advice="see sasl.oauthbearer.expected.issuer and .audience of the brokers",
            ) from None
    except HeadraceError as error:
        refused = _sign_in_page(request, "/", error=error)
        refused.headers.append("Set-Cookie", _started_cookie(request, "", 0))
        return refused
    # Not a redirect: what a provider's page has led to is no navigation of this site, and the
    # browser keeps the cookie of the session back from all of it.
    response = page(request, "signed_in.html", title="Signed in", there=local_path(there))
    age_s = AGE_S_MAX if tokens.is_renewable else tokens.life_s
    await _begin_session(request, response, access, age_s)
    response.headers.append("Set-Cookie", _started_cookie(request, "", 0))
    return response


def _callback_url(request: Request) -> str:
    """The address that the provider sends browsers to; it has to know it."""
    return f"{request.url.scheme}://{request.url.netloc}/oidc/callback"


def _started_name(request: Request) -> str:
    return f"{console_of(request).cookie}-oidc"


def _started_cookie(request: Request, text: str, max_age_s: int) -> str:
    # Lax, since the provider's page leads to the callback.
    return cookie_text(
        _started_name(request),
        text,
        request.url.scheme,
        max_age_s,
        path="/oidc/",
        same_site="Lax",
    )


async def sign_out(request: Request) -> Response:
    """`POST /sign-out`: ends the session, and its connections."""
    await read_form(request)
    console = console_of(request)
    await console.sessions.end(viewer_of(request).viewer_id)
    response = redirect(request, "/sign-in" if console.signs_in else "/")
    response.headers.append(
        "Set-Cookie", cookie_text(console.cookie, "", request.url.scheme, max_age_s=0)
    )
    return response


def local_path(text: str) -> str:
    """A path of this console; the overview for anything that could lead elsewhere."""
    parts = urlsplit(text)
    safe = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if safe and not parts.netloc and not parts.scheme else "/"


ROUTES = [
    Route("/sign-in", sign_in, methods=["GET", "POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
    Route("/oidc/begin", begin_oidc),
    Route("/oidc/callback", finish_oidc),
]
