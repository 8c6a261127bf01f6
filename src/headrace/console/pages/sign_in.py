"""Sign-in and sign-out: a viewer's name and password are those of a user of the cluster."""

import logging
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.errors import TimedOut, Unreachable
from headrace.console.cluster_access import ClusterAccess
from headrace.console.errors import RequestRefused
from headrace.console.forms import read_form
from headrace.console.rendering import page, redirect
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
        return page(request, "sign_in.html", title="Sign in", there=there, name="")
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
        )
    console.limit.forget(address, name)
    await console.sessions.end(viewer_of(request).viewer_id)
    session = await console.sessions.begin(access)
    access.sampler.start()
    response = redirect(request, there)
    response.headers.append(
        "Set-Cookie", cookie_text(console.cookie, session.token, request.url.scheme)
    )
    return response


async def _logged_in(request: Request, name: str, password: str) -> ClusterAccess:
    """The access of a user whose password the cluster has accepted."""
    console = console_of(request)
    access = ClusterAccess(console.connection, name, password, interval_s=console.interval_s)
    try:
        await access.admin.describe_cluster()
    except AuthenticationFailed:
        await access.close()
        logger.warning("a sign-in to the console as %r failed", name)
        raise RequestRefused(
            401, "the cluster does not know this user with this password", advice="try again"
        ) from None
    except KafkaError as error:
        # A user without the right to describe the cluster has logged in all the same.
        if not error.code.name.endswith("AUTHORIZATION_FAILED"):
            await access.close()
            raise
    except BaseException:
        await access.close()
        raise
    return access


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
]
