"""Hostile messages in a real browser: nothing of them runs, hides or stretches a page."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from headrace.testing.time_limits import scaled
from tests.integration.client.feeding import create_topic, feed
from tests.integration.console.conftest import RunningConsole
from tests.integration.console.test_messages import HOSTILE
from tests.support import BrokerProcess

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
TOPIC = "hostile"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium, which the package index does not have."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "these tests need chromium: `apt install chromium` on Debian and Ubuntu"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def place(console: RunningConsole, shared_broker: BrokerProcess) -> str:
    """The address of the messages of a topic that has hostile messages alone."""
    create_topic(shared_broker.address, TOPIC, 1)
    feed(
        shared_broker.address,
        TOPIC,
        HOSTILE,
        keys=[b"<i>\x1b[31m" + b"key" * 40] * len(HOSTILE),
        headers=[("<u>trace" + "long" * 40, b"<script>window.hurt = 1</script>" * 20)],
    )
    return f"{console.url}/topics/{TOPIC}/messages"


class MessagesPage:
    """A page of messages, with what goes wrong in it."""

    def __init__(self, browser: Browser, width: int) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900})
        self.context.set_default_timeout(scaled(15) * 1000)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda message: self.faults.append(message.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog {dialog.message}"))

    def check(self) -> None:
        """Nothing ran, nothing was refused, nothing is wider than the window."""
        assert self.page.evaluate(
            "[typeof window.hurt, document.querySelectorAll('main i, main u, main b').length]"
        ) == ["undefined", 0]
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        text = self.page.locator("main").text_content() or ""
        assert not set(text) & set("\x1b\x00\u202e\u2066\u200b")
        assert self.faults == []

    def open_all(self) -> None:
        """Open every record, and every view of it."""
        opened = "all => all.forEach(part => { part.open = true; })"
        self.page.locator("details.record").evaluate_all(opened)
        # What the script of the page adds to an opened record comes a moment later.
        self.page.locator("details.record:not(:has(.inside))").first.wait_for(state="detached")
        self.page.locator("details.view").evaluate_all(opened)


@pytest.mark.parametrize("width", [390, 1440])
def test_hostile_messages_harm_no_page(browser: Browser, place: str, width: int) -> None:
    watched = MessagesPage(browser, width)
    page = watched.page
    page.goto(place)
    assert page.locator("details.record").count() == len(HOSTILE)
    watched.open_all()
    watched.check()
    # The same, put in by the script of the page as a search finds it.
    page.goto(f"{place}?q=needle%20or%20hurt")
    page.get_by_text("· done").wait_for()
    assert page.locator("details.record").count() == len(HOSTILE)
    watched.open_all()
    watched.check()
    for offset in range(len(HOSTILE)):
        page.goto(f"{place}/0/{offset}")
        watched.open_all()
        watched.check()
    watched.context.close()


def test_messages_are_searched_and_opened_by_keyboard(
    browser: Browser, place: str, shared_broker: BrokerProcess
) -> None:
    watched = MessagesPage(browser, 1440)
    page = watched.page
    page.goto(place)
    page.keyboard.press("/")
    page.keyboard.type("value.user.id = 7")
    page.keyboard.press("Enter")
    page.get_by_text("1 found").wait_for()
    page.locator("details.record > summary").focus()
    page.keyboard.press("Enter")
    page.locator("pre").first.get_by_text('"id": 7').wait_for()
    page.get_by_role("link", name="Open this record").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/messages/0/6")
    assert "offset 6" in page.locator("h2").inner_text()
    # New messages come by themselves once they are followed.
    page.goto(place)
    page.get_by_role("button", name="Follow new messages").press("Enter")
    page.get_by_role("button", name="Stop").wait_for()
    rows = page.locator("details.record")
    before = rows.count()
    feed(shared_broker.address, TOPIC, [b"fresh <b>"])
    rows.get_by_text("fresh <b>").first.wait_for()
    assert rows.count() == before + 1
    page.get_by_role("button", name="Stop").press("Enter")
    page.get_by_text("stopped").wait_for()
    watched.check()
    watched.context.close()
