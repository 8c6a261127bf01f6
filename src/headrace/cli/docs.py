"""`headrace docs`: the documentation as a site, served to a browser.

The site is an archive in the package, made by `make docs`. Only its entries can be asked for: there
are no paths of files in a request.
"""

import base64
import hashlib
import io
import mimetypes
import re
import threading
import webbrowser
import zipfile
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import click

from headrace import __version__
from headrace.cli.options import examples
from headrace.errors import ConfigError, HeadraceError

ARCHIVE = "documentation.zip"
INDEX = "index.html"
NOT_FOUND = "404.html"

# A browser opens six connections to a host; more than a few readers are not expected.
CONNECTIONS_MAX = 64
# A connection that says nothing for so long is closed.
IDLE_S = 30.0

# Scripts inside of a page are named by their hashes, and nothing comes from another host. Styles of
# elements are set by the theme.
POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; worker-src 'self' blob:; style-src 'self'"
    " 'unsafe-inline'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


class NoDocumentation(HeadraceError):
    """The installation has no archive of the documentation."""


class Page(NamedTuple):
    """A file of the site, as it is sent."""

    body: bytes
    content_type: str
    tag: str
    policy: str


class DocumentationSite:
    """The entries of the archive. Threads may share it."""

    def __init__(self, archive: bytes) -> None:
        self._archive = zipfile.ZipFile(io.BytesIO(archive))
        self._names = frozenset(self._archive.namelist())
        self._lock = threading.Lock()
        self._page = cache(self._read)

    def page(self, path: str) -> Page | None:
        """The page at the path of a URL, or None if there is none."""
        name = unquote(urlsplit(path).path).removeprefix("/") or INDEX
        if name.endswith("/"):
            name += INDEX
        return self._page(name) if name in self._names else None

    def not_found(self) -> Page:
        """What is shown in place of a page that does not exist."""
        return self._page(NOT_FOUND)

    def _read(self, name: str) -> Page:
        with self._lock:
            body = self._archive.read(name)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        text = kind.startswith("text/") or kind == "application/json"
        return Page(
            body,
            f"{kind}; charset=utf-8" if text else kind,
            f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            POLICY.format(hashes=_script_hashes(body) if kind == "text/html" else ""),
        )


def _script_hashes(page: bytes) -> str:
    """The scripts inside of a page, as a policy names them."""
    digests = {hashlib.sha256(script).digest() for script in _INLINE_SCRIPT.findall(page)}
    return "".join(f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in sorted(digests))


def packaged_site() -> DocumentationSite:
    """The site that came with this installation."""
    try:
        archive = files("headrace").joinpath(ARCHIVE).read_bytes()
    except FileNotFoundError:
        raise NoDocumentation(
            "this installation has no documentation in it",
            advice="in a source tree build it with `make docs`, or read its directory docs;"
            " packages made with `make dist` have it",
        ) from None
    return DocumentationSite(archive)


class DocumentationServer(ThreadingHTTPServer):
    """An HTTP server of one site, with a bound on its connections."""

    daemon_threads = True
    # The next start may take the port at once.
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        site: DocumentationSite,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        super().__init__(address, DocumentationHandler)
        self.site = site
        self._free = threading.BoundedSemaphore(connections_max)

    def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        # Unlike a queue, a refusal takes no memory and tells the browser at once.
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        """Say nothing: a browser that goes away in the middle of a response is no event."""


class DocumentationHandler(BaseHTTPRequestHandler):
    """GET and HEAD of pages. http.server bounds the lines and headers of a request."""

    server: DocumentationServer
    protocol_version = "HTTP/1.1"
    server_version = f"headrace/{__version__}"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        found = self.server.site.page(self.path)
        page = found or self.server.site.not_found()
        status = HTTPStatus.OK if found else HTTPStatus.NOT_FOUND
        if found and self.headers.get("If-None-Match") == page.tag:
            status = HTTPStatus.NOT_MODIFIED
        self.send_response(status)
        self.send_header("ETag", page.tag)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", page.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if with_body and status is not HTTPStatus.NOT_MODIFIED:
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: it is a reader's own server."""


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {text!r} is not of the form HOST:PORT.")
    return host.strip("[]"), int(port)


@click.command(
    short_help="Show the documentation in a browser.",
    epilog=examples("headrace docs", "headrace docs --open", "headrace docs --listen 127.0.0.1:0"),
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9088",
    show_default=True,
    help="Where to serve it; port 0 takes any free port.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open a browser there.")
def docs(listen: str, open_browser: bool) -> int:
    """Serve the documentation as a site with a search, until Ctrl-C.

    It needs no network: everything is in the package, and nothing is loaded from other hosts.
    """
    host, port = _address(listen)
    site = packaged_site()
    try:
        server = DocumentationServer((host, port), site)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {listen}: {error.strerror or error}",
            advice="name another address with --listen",
        ) from None
    with server:
        url = f"http://{host}:{server.server_port}/"
        click.echo(f"documentation of headrace {__version__} at {url}")
        if open_browser:
            webbrowser.open(url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0
