"""Pages of errors: what happened, and what to do about it."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.console.errors import RequestRefused, status_of
from headrace.console.rendering import page
from headrace.errors import HeadraceError

logger = logging.getLogger(__name__)

_TITLES = {
    400: "That did not work",
    401: "The sign-in is not valid any more",
    403: "Not allowed",
    404: "Not found",
    409: "That is not possible now",
    503: "The cluster does not answer",
}


async def on_error(request: Request, error: Exception) -> Response:
    """The page for an error that a page or a change ended with."""
    assert isinstance(error, HeadraceError)
    status = status_of(error)
    title = _TITLES.get(status, _TITLES[400])
    return page(request, "error.html", title=title, status=status, error=error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """The page for an address that no page has, or a method that it does not take."""
    assert isinstance(error, HTTPException)
    what = "there is no such page"
    if error.status_code != 404:
        what = f"this request is not served: {error.detail}"
    refused = RequestRefused(error.status_code, what, advice="begin at the overview")
    return await on_error(request, refused)


async def on_bug(request: Request, error: Exception) -> Response:
    """What is answered after a bug of the console, which the server logs with its stack."""
    return PlainTextResponse(
        f"A bug of the console ended this request ({type(error).__name__}). Its log has the"
        " details; please report it.\n",
        500,
    )
