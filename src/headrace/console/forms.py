"""Values of forms: read within a bound, with the token that proves which viewer sent them."""

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from headrace.console.errors import FieldError, RequestRefused
from headrace.console.viewers import console_of, viewer_of

FORM_BYTES_MAX = 4 * 1024 * 1024
FIELDS_MAX = 2000
READ_S_MAX = 30.0
CSRF_FIELD = "csrf"


class Form:
    """The values of a form; of a name that is there several times the last one counts."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        self.values: Mapping[str, str] = dict(pairs)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str, default: str = "") -> str:
        """A value without blanks around it, or the default where it is empty."""
        return self.values.get(name, "").strip() or default

    def verbatim(self, name: str) -> str:
        """A value as it was typed."""
        return self.values.get(name, "")

    def required(self, name: str, label: str) -> str:
        """A value that must not be empty."""
        value = self.text(name)
        if not value:
            raise FieldError(name, f"{label} is missing", advice="fill it in")
        return value

    def number(
        self, name: str, label: str, lowest: int, highest: int, default: int | None = None
    ) -> int:
        """A whole number within bounds."""
        text = self.text(name)
        if not text and default is not None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= highest:
            raise FieldError(
                name, f"{label} is {text or 'missing'}", advice=f"give {lowest} to {highest}"
            )
        return value

    def all(self, name: str) -> list[str]:
        """All values of a name, in order."""
        return [value for key, value in self.pairs if key == name]

    def confirm(self, name: str) -> None:
        """Check that the name of what is to be deleted was typed."""
        if self.text("confirmation") != name:
            raise FieldError(
                "confirmation", f"to go on, type the name {name}", advice="nothing was changed"
            )


async def read_form(request: Request) -> Form:
    """The form that a viewer sent; `RequestRefused` if it is too large or from elsewhere."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise RequestRefused(415, f"a form cannot be sent as {kind or 'nothing'}")
    body = bytearray()
    try:
        async with asyncio.timeout(READ_S_MAX):
            async for part in request.stream():
                body += part
                if len(body) > FORM_BYTES_MAX:
                    raise RequestRefused(413, "the form is larger than 4 MiB")
    except TimeoutError:
        raise RequestRefused(408, "the form did not arrive in time") from None
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict"
        )
    except (UnicodeDecodeError, ValueError):
        raise RequestRefused(400, "the form cannot be read") from None
    form = Form(pairs)
    viewer_id = viewer_of(request).viewer_id
    if not console_of(request).csrf.is_valid(viewer_id, form.verbatim(CSRF_FIELD)):
        raise RequestRefused(
            403,
            "the page is too old, and nothing was changed",
            advice="go back, reload the page and try again",
        )
    return form
