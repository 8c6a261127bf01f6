"""A viewer of the console without a browser: requests, cookies, and the tokens of forms."""

import http.client
import re
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlencode, urlsplit

from headrace.testing.time_limits import scaled

_COOKIE = re.compile(r"([^=;\s]+)=([^;]*)")
_TOKEN = re.compile(r'name="csrf" value="([0-9a-f]+)"')


@dataclass(frozen=True)
class Page:
    """An answer of the console."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def location(self) -> str:
        return self.headers.get("location", "")

    @property
    def words(self) -> str:
        """The text of the page, without elements and with single blanks."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())


@dataclass
class HttpViewer:
    """One viewer: keeps cookies, and sends the token of the last page with a form."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)
    token: str = ""

    def get(self, path: str, **headers: str) -> Page:
        return self._request("GET", path, None, headers)

    def post(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Page:
        """Send a form, with the token unless the fields have one."""
        body = urlencode({"csrf": self.token, **(fields or {})})
        own = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.url}
        return self._request("POST", path, body, {**own, **headers})

    def submit(self, path: str, fields: dict[str, str] | None = None) -> Page:
        """Open the page of a form for its token, send the form, and follow where it leads."""
        self.get(path)
        answer = self.post(path, fields)
        return self.get(answer.location) if answer.status == 303 else answer

    def _request(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Page:
        place = urlsplit(self.url)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=scaled(15))
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(
                method, path, body, ({"Cookie": cookies} if cookies else {}) | headers
            )
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        for name, value in response.getheaders():
            if name.lower() == "set-cookie" and (cookie := _COOKIE.match(value)):
                self.cookies[cookie[1]] = cookie[2]
        if token := _TOKEN.search(text):
            self.token = token[1]
        found = {name.lower(): value for name, value in response.getheaders()}
        return Page(response.status, found, text)
