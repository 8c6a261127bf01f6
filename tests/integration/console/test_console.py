"""The console beside a real broker: who may ask, what every answer has, and its process."""

import re
import ssl
import subprocess
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from headrace.cli.certificate_authority import CertificateAuthority
from headrace.testing.time_limits import scaled
from tests.integration.console.watched_pages import RunningConsole
from tests.support import BrokerProcess, headrace_command


def test_every_answer_forbids_what_is_not_the_consoles_own(console: RunningConsole) -> None:
    viewer = console.viewer()
    for path in ("/", "/nothing-here", "/static/console.js"):
        headers = viewer.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    cookie = console.viewer().get("/").headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie


def test_a_page_of_another_site_can_neither_read_nor_change(console: RunningConsole) -> None:
    viewer = console.viewer()
    # A name of another site that resolves to this machine.
    assert viewer.get("/", Host="evil.example").status == 421
    assert viewer.get("/", Host="localhost").status == 200
    viewer.get("/")
    assert viewer.post("/sign-out", Origin="https://evil.example").status == 403
    answer = viewer.post("/sign-out", {"csrf": "0" * 64})
    assert answer.status == 403
    assert "nothing was changed" in answer.words


def test_an_unknown_page_says_so_and_links_back(console: RunningConsole) -> None:
    answer = console.viewer().get("/nothing-here")
    assert answer.status == 404
    assert "There is no such page" in answer.words
    assert 'href="/"' in answer.text


def test_pages_hear_of_new_samples(console: RunningConsole) -> None:
    place = urlsplit(console.url)
    assert place.hostname is not None
    connection = HTTPConnection(place.hostname, place.port, timeout=scaled(15))
    connection.request("GET", "/events")
    stream = connection.getresponse()
    assert stream.getheader("content-type", "").startswith("text/event-stream")
    lines = [stream.readline() for _ in range(6)]
    connection.close()
    assert b"event: sample\n" in lines
    assert any(re.match(rb'data: \{"version": \d+', line) for line in lines)


def test_the_command_serves_until_it_is_stopped(
    shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    command = [headrace_command(), "console", "-b", shared_broker.address]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"console at (http://127\.0\.0\.1:\d+)/\n", process.stdout.readline())
        assert found is not None
        place = urlsplit(found[1])
        connection = HTTPConnection("127.0.0.1", place.port, timeout=scaled(15))
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
        process.terminate()
        assert process.wait(scaled(20)) in (0, -15)


def test_other_machines_are_not_served_without_sign_in_or_tls(
    shared_broker: BrokerProcess,
) -> None:
    command = [headrace_command(), "console", "-b", shared_broker.address]
    ended = subprocess.run(
        [*command, "--listen", "0.0.0.0:0"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "without a sign-in" in ended.stderr


def test_over_tls_cookies_are_for_tls_only(shared_broker: BrokerProcess, tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path)
    # One file has both the key and the certificate.
    file = str(authority.issue_broker("console", ["localhost"]))
    command = [headrace_command(), "console", "-b", shared_broker.address]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--ssl-certfile", file, "--ssl-keyfile", file],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = re.search(r"console at https://127\.0\.0\.1:(\d+)/\n", process.stdout.readline())
        assert found is not None
        context = ssl.create_default_context(cafile=authority.certificate_path)
        connection = HTTPSConnection("localhost", int(found[1]), context=context)
        connection.request("GET", "/")
        cookie = connection.getresponse().getheader("set-cookie", "")
        connection.close()
        process.terminate()
        process.wait(scaled(20))
    assert "Secure" in cookie and "HttpOnly" in cookie


def test_a_certificate_that_cannot_be_used_is_a_wrong_setting(
    shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "no-certificate.pem"
    file.write_text("nothing")
    command = [headrace_command(), "console", "-b", shared_broker.address, "--listen"]
    ended = subprocess.run(
        [*command, "127.0.0.1:0", "--ssl-certfile", str(file), "--ssl-keyfile", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "certificate or key of the console cannot be used" in ended.stderr
