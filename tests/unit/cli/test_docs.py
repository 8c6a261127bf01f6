"""`headrace docs`: the site of an archive, over HTTP."""

import http.client
import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.cli import docs
from headrace.cli.docs import DocumentationServer, DocumentationSite
from headrace.testing.time_limits import scaled
from tests.unit.cli.invoking import invoke

HOME = b"<html><script>start()</script><script src='a.js'></script></html>"
FILES = {
    "index.html": HOME,
    "404.html": b"no such page",
    "design/index.html": b"decisions",
    "search.json": b"{}",
    "a b.svg": b"<svg/>",
}


def archive() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as output:
        for name, body in FILES.items():
            output.writestr(name, body)
    return data.getvalue()


@contextmanager
def serving(connections_max: int = 10) -> Iterator[DocumentationServer]:
    site = DocumentationSite(archive())
    with DocumentationServer(("127.0.0.1", 0), site, connections_max) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[DocumentationServer]:
    with serving() as server:
        yield server


def ask(
    server: DocumentationServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=scaled(10))
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


def test_pages_are_served_by_their_names(server: DocumentationServer) -> None:
    assert ask(server, "/")[:2] == (200, HOME)
    assert ask(server, "/index.html?q=x")[:2] == (200, HOME)
    assert ask(server, "/design/")[:2] == (200, b"decisions")
    status, _, headers = ask(server, "/a%20b.svg")
    assert (status, headers["Content-Type"]) == (200, "image/svg+xml")
    assert ask(server, "/search.json")[2]["Content-Type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/none.html", "/../index.html", "/%2e%2e/etc/passwd", "/design", "x"]
)
def test_anything_else_is_not_found(server: DocumentationServer, path: str) -> None:
    assert ask(server, path)[:2] == (404, b"no such page")


def test_head_has_no_body(server: DocumentationServer) -> None:
    status, body, headers = ask(server, "/", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(HOME)))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(server: DocumentationServer, method: str) -> None:
    assert ask(server, "/", method)[0] == 501


def test_a_page_that_the_browser_has_is_not_sent_again(server: DocumentationServer) -> None:
    tag = ask(server, "/")[2]["ETag"]
    status, body, _ = ask(server, "/", **{"If-None-Match": tag})
    assert (status, body) == (304, b"")
    assert ask(server, "/", **{"If-None-Match": '"other"'})[0] == 200


def test_only_the_scripts_of_the_page_itself_may_run(server: DocumentationServer) -> None:
    policy = ask(server, "/")[2]["Content-Security-Policy"]
    # printf 'start()' | openssl sha256 -binary | base64
    assert "script-src 'self' 'sha256-DIm7WJS6ZKDYe5qFLPy+h4JFI9Bol5QmYC57mt3Fb00=';" in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in ask(server, "/design/")[2]["Content-Security-Policy"]


def test_connections_beyond_the_limit_are_closed() -> None:
    with serving(connections_max=1) as server:
        address = ("127.0.0.1", server.server_port)
        with socket.create_connection(address) as first:
            first.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert first.recv(12) == b"HTTP/1.1 200"  # It is kept open, and counts.
            with socket.create_connection(address) as second:
                second.settimeout(scaled(10))
                assert second.recv(1) == b""


def test_a_silent_connection_is_closed(
    server: DocumentationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs.DocumentationHandler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_port)) as silent:
        silent.settimeout(scaled(10))
        assert silent.recv(1) == b""


def test_an_installation_without_documentation_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docs, "ARCHIVE", "missing.zip")
    result = invoke("docs", "--listen", "127.0.0.1:0")
    assert result.exit_code == 1
    assert "make docs" in result.stderr


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "packaged_site", lambda: DocumentationSite(archive()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = invoke("docs", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 2
    assert "cannot listen on 127.0.0.1" in result.stderr
    assert "--listen" in result.stderr


@pytest.mark.parametrize("listen", ["9088", "host:", ":1", "host:70000", "host:x"])
def test_a_malformed_address_is_refused(listen: str) -> None:
    result = invoke("docs", "--listen", listen)
    assert result.exit_code == 2
    assert "HOST:PORT" in result.stderr


def test_serving_ends_with_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: DocumentationServer) -> None:
        raise KeyboardInterrupt

    opened: list[str] = []
    monkeypatch.setattr(docs, "packaged_site", lambda: DocumentationSite(archive()))
    monkeypatch.setattr(DocumentationServer, "serve_forever", interrupted)
    monkeypatch.setattr("webbrowser.open", opened.append)
    result = invoke("docs", "--listen", "127.0.0.1:0", "--open")
    assert result.exit_code == 0
    assert len(opened) == 1
    assert opened[0] in result.output
