"""Rendering of pages: templates, the text of values, redirects with a notice.

Rule: every text that a template puts out is escaped for HTML, and characters in it that act instead
of being seen are made visible (`headrace.visible_text`). Only `Verbatim` text keeps them, for the
values of form fields, which are sent back.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from headrace import __version__
from headrace.console.errors import words_of
from headrace.console.viewers import console_of, cookie_text, viewer_of
from headrace.errors import HeadraceError
from headrace.visible_text import printable, printable_lines

NOTICE_COOKIE = "headrace-notice"
THEME_COOKIE = "headrace-theme"
_NOTICE_CHARS_MAX = 600
# A name may be a megabyte long; a page shows its beginning.
TEXT_CHARS_MAX = 4000

# The sections of the navigation: path, title, and the paths below it.
SECTIONS = (
    ("/", "Overview"),
    ("/brokers", "Brokers"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/transactions", "Transactions"),
    ("/pipelines", "Pipelines"),
    ("/users", "Users"),
    ("/acls", "ACLs"),
    ("/roles", "Roles"),
    ("/quotas", "Quotas"),
)


class Verbatim(str):
    """Text of a form field: escaped for HTML, and otherwise as it is."""

    __slots__ = ()


def _finalized(value: Any) -> Any:
    """What a template puts out for a value, before it is escaped for HTML."""
    if value is None:
        return ""
    return printable(value[:TEXT_CHARS_MAX]) if type(value) is str else value


def bytes_text(count: float | None) -> str:
    """A size in decimal units: 1.5 MB."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def count_text(number: float | None) -> str:
    """A number with thin groups of thousands."""
    return "–" if number is None else f"{number:,.0f}"


def rate_text(rate: float | None) -> str:
    """A rate per second, with a decimal place where it matters."""
    if rate is None:
        return "–"
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def duration_text(seconds: float | None, *, at_least: bool = False) -> str:
    """A time span in its two largest units: 3 min 20 s."""
    if seconds is None:
        return "–"
    sign = "≥ " if at_least else ""
    if seconds < 10:
        return f"{sign}{seconds:.1f} s" if seconds else "0 s"
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    left, parts = int(seconds), []
    for unit, size in units:
        if left >= size or unit == "s":
            parts.append(f"{left // size} {unit}")
            left %= size
        if len(parts) == 2:
            break
    return sign + " ".join(part for part in parts if not part.startswith("0 ") or len(parts) == 1)


def time_text(time_ms: float | None) -> str:
    """An instant in UTC, to the second."""
    if time_ms is None or time_ms < 0:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def link(path: str, **query: object) -> str:
    """A path of the console, each segment quoted by the caller (`segment`), with a query."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


@cache
def environment() -> Environment:
    """The templates of the package."""
    templates = Environment(
        loader=PackageLoader("headrace.console", "templates"),
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "bytes": bytes_text,
        "count": count_text,
        "rate": rate_text,
        "duration": duration_text,
        "instant": time_text,
        "segment": segment,
        "verbatim": lambda text: Verbatim("" if text is None else text),
        "lines": lambda text: Verbatim(printable_lines(text)),
    }
    templates.globals |= {
        "link": link,
        "sections": SECTIONS,
        "version": __version__,
        "words_of": words_of,
    }
    return templates


def page(
    request: Request, template: str, *, title: str, status: int = 200, **values: Any
) -> Response:
    """A page for the viewer of a request."""
    console, viewer = console_of(request), viewer_of(request)
    access = viewer.access
    notice = unquote(request.cookies.get(NOTICE_COOKIE, ""))[:_NOTICE_CHARS_MAX]
    theme = request.cookies.get(THEME_COOKIE, "")
    common: dict[str, Any] = {
        "title": title,
        "path": request.url.path,
        "query": request.url.query,
        "csrf": console.csrf.token(viewer.viewer_id),
        "cluster": access.state if access else None,
        "user": access.user if access else None,
        "has_access": access is not None,
        "signs_in": console.signs_in,
        "notice": notice,
        "theme": theme if theme in ("dark", "light") else "",
        "now_ms": time.time() * 1000,
        "error": None,
    }
    body = environment().get_template(template).render(common | values)
    response = HTMLResponse(body, status)
    if notice:
        response.headers.append(
            "Set-Cookie", cookie_text(NOTICE_COOKIE, "", request.url.scheme, max_age_s=0)
        )
    return response


def redirect(request: Request, path: str, notice: str = "") -> Response:
    """After a change: another page, with a notice of what was done."""
    response = RedirectResponse(path, 303)
    if notice:
        value = quote(notice[:_NOTICE_CHARS_MAX], safe="")
        response.headers.append(
            "Set-Cookie", cookie_text(NOTICE_COOKIE, value, request.url.scheme, max_age_s=60)
        )
    return response


def failed_form(
    request: Request,
    template: str,
    error: HeadraceError,
    *,
    title: str,
    values: Mapping[str, Any],
) -> Response:
    """The page of a form once more, with what was typed and what is wrong with it."""
    return page(request, template, title=title, status=400, **{**values, "error": error})
