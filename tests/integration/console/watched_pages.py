"""A console in this process, and pages of a real browser that note what goes wrong in them."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from headrace.console.app import ConsoleSettings, create_app
from headrace.net.ports import listen_on_unused_port
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.console.http_viewer import HttpViewer

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


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's chromium, which the package index does not have."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "these tests need chromium: `apt install chromium` on Debian and Ubuntu"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=BROWSER_ARGUMENTS)
        yield browser
        browser.close()


class WatchedPage:
    """A page of a browser that notes what goes wrong in it."""

    def __init__(self, browser: Browser, console: RunningConsole, width: int, scheme: str) -> None:
        self._console = console
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        self.context.set_default_timeout(scaled(15) * 1000)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog {dialog.message}"))
        self.page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(console.url)
                else self.faults.append(f"asked for {request.url}")
            ),
        )

    def open(self, path: str) -> None:
        """Go to a page of the console."""
        self.page.goto(self._console.url + path)

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return width
