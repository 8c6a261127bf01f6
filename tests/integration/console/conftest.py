"""A console beside a broker, both shared by the tests of a module."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import uvicorn
from playwright.sync_api import Browser, sync_playwright

from headrace.console.app import ConsoleSettings, create_app
from headrace.console.cluster_access import ClusterConnection
from headrace.net.ports import listen_on_unused_port
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.console.http_viewer import HttpViewer
from tests.support import BrokerProcess

BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]


class RunningConsole:
    """A console on an event loop in a thread of this process."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._listening = listen_on_unused_port("127.0.0.1")
        port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.app = create_app(replace(settings, port=port))
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                http="h11",
                loop="asyncio",
                ws="none",
                log_config=None,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listening]))

    def __enter__(self) -> "RunningConsole":
        self._thread.start()
        wait_until(lambda: self._server.started, 20, "the console does not serve")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(scaled(20))
        self._listening.close()
        assert not self._thread.is_alive(), "the console did not stop"

    def viewer(self) -> HttpViewer:
        return HttpViewer(self.url)

    def wait_for(self, path: str, text: str) -> None:
        """Wait until a page has a text in it: samples are taken now and then."""
        viewer = self.viewer()
        wait_until(lambda: text in viewer.get(path).words, 30, f"{path} has no {text!r}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium, which the package index does not have."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "these tests need chromium: `apt install chromium` on Debian and Ubuntu"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=BROWSER_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def console(shared_broker: BrokerProcess) -> Iterator[RunningConsole]:
    """A console of the shared broker, without a sign-in."""
    settings = ConsoleSettings(ClusterConnection(shared_broker.address), interval_s=0.2)
    with RunningConsole(settings) as running:
        running.wait_for("/", "Messages per second")
        yield running
