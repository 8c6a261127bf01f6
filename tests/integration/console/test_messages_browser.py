"""Hostile messages in a real browser: nothing of them runs, hides or stretches a page."""

import pytest
from playwright.sync_api import Browser

from tests.integration.client.feeding import create_topic, feed
from tests.integration.console.test_messages import HOSTILE
from tests.integration.console.watched_pages import RunningConsole, WatchedPage
from tests.support import BrokerProcess

TOPIC = "hostile"


@pytest.fixture(scope="module")
def place(shared_broker: BrokerProcess) -> str:
    """The address of the messages of a topic that has hostile messages alone."""
    create_topic(shared_broker.address, TOPIC, 1)
    feed(
        shared_broker.address,
        TOPIC,
        HOSTILE,
        keys=[b"<i>\x1b[31m" + b"key" * 40] * len(HOSTILE),
        headers=[("<u>trace" + "long" * 40, b"<script>window.hurt = 1</script>" * 20)],
    )
    return f"/topics/{TOPIC}/messages"


class MessagesPage(WatchedPage):
    """A page of messages, with what goes wrong in it."""

    def check(self) -> None:
        """Nothing ran, nothing was refused, nothing is wider than the window."""
        assert self.page.evaluate(
            "[typeof window.hurt, document.querySelectorAll('main i, main u, main b').length]"
        ) == ["undefined", 0]
        assert self.overflow <= 0
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
def test_hostile_messages_harm_no_page(
    browser: Browser, console: RunningConsole, place: str, width: int
) -> None:
    watched = MessagesPage(browser, console, width, "light")
    page = watched.page
    watched.open(place)
    assert page.locator("details.record").count() == len(HOSTILE)
    watched.open_all()
    watched.check()
    # The same, put in by the script of the page as a search finds it.
    watched.open(f"{place}?q=needle%20or%20hurt")
    page.get_by_text("· done").wait_for()
    assert page.locator("details.record").count() == len(HOSTILE)
    watched.open_all()
    watched.check()
    for offset in range(len(HOSTILE)):
        watched.open(f"{place}/0/{offset}")
        watched.open_all()
        watched.check()
    watched.context.close()


def test_messages_are_searched_and_opened_by_keyboard(
    browser: Browser, console: RunningConsole, place: str, shared_broker: BrokerProcess
) -> None:
    watched = MessagesPage(browser, console, 1440, "light")
    page = watched.page
    watched.open(place)
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
    watched.open(place)
    page.get_by_role("button", name="Follow new messages").press("Enter")
    page.get_by_text("following:").wait_for()
    rows = page.locator("details.record")
    before = rows.count()
    feed(shared_broker.address, TOPIC, [b"fresh <b>"])
    rows.get_by_text("fresh <b>").first.wait_for()
    assert rows.count() == before + 1
    page.get_by_role("button", name="Stop").press("Enter")
    page.get_by_text("stopped").wait_for()
    watched.check()
    watched.context.close()
