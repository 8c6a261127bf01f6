"""Every page of the console in a real browser: no error, nothing refused, nothing too wide."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import Error as BrowserError

from headrace import Admin, Producer, TopicPartition
from headrace.clock import SystemClock
from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterAccess, ClusterConnection
from headrace.console.pipeline_runs import PipelineRuns
from headrace.pipelines.run.progress import QueryProgress
from headrace.pipelines.run.run_state import RunPhase, locked, new_state, write_state
from headrace.pipelines.spec.part_graph import PartGraph, PartNode
from tests.integration.console.watched_pages import RunningConsole, WatchedPage
from tests.support import BrokerProcess

# Names that would run, hide or stretch a page if they could.
GROUP = "<img src=x onerror=alert(1)>\u202e" + "long" * 40
PAGES = (
    "/",
    "/brokers",
    "/brokers/1",
    "/topics",
    "/topics?q=nothing",
    "/new-topic",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/orders/produce",
    "/topics/orders/settings?edit=retention.ms",
    "/topics/orders/replicas",
    "/topics/orders/delete",
    "/groups",
    "/group",
    "/group/reset",
    "/group/delete",
    "/transactions?all=1&hanging=1",
    "/pipelines",
    "/pipelines/shop",
    "/pipelines/shop/replay",
    "/users",
    "/acls",
    "/roles",
    "/quotas",
)


@pytest.fixture(scope="module")
def busy_console(
    shared_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningConsole]:
    """A console of a broker with records, groups, users and a pipeline."""
    with Admin(bootstrap_servers=shared_broker.address) as admin:
        admin.create_topic("orders", 3, 1)
        admin.create_topic("orders-dead", 2, 1)
        with Producer(bootstrap_servers=shared_broker.address) as producer:
            for number in range(100):
                producer.send("orders", str(number))
            producer.send(
                "orders-dead",
                b"{<script>",
                headers=[("headrace.reason", b"no JSON"), ("headrace.topic", b"orders")],
            )
        for group in (GROUP, "shop.lake"):
            offsets = {TopicPartition("orders", partition): 1 for partition in range(3)}
            admin.alter_group_offsets(group, offsets)
    directory = tmp_path_factory.mktemp("pipelines")
    notes = directory / "shop" / "_headrace"
    lake = QueryProgress("lake", batch=4, batches=5, rows_in=70, rows_out=68, batch_ms=300, lag=2)
    dead = QueryProgress("dead-letters-orders", rows_in=2, rows_out=2)
    parts = (PartNode("dead", "dead-letters", "orders", "topic dead", ("orders-dead",)),)
    state = new_state("shop", master="local[2]", available_now=False, graph=PartGraph(parts))
    with locked(notes, "shop"):
        write_state(notes, replace(state, phase=RunPhase.RUNNING, queries=(lake, dead)))
        settings = ConsoleSettings(
            ClusterConnection(shared_broker.address),
            interval_s=0.2,
            pipelines=PipelineRuns((), (Path(directory),), SystemClock()),
        )
        with RunningConsole(settings) as running:
            running.wait_for("/groups", "shop.lake")
            yield running


class ConsolePage(WatchedPage):
    """A page of this console, whose group is found by its link: no address of it is known."""

    def open(self, path: str) -> None:
        if path.startswith("/group") and path != "/groups":
            super().open("/groups")
            self.page.get_by_role("link", name="onerror").click()
            self.page.wait_for_url("**/group?*")
            if path != "/group":
                label = "Reset offsets" if path.endswith("reset") else "Delete"
                self.page.get_by_role("link", name=label).click()
                self.page.wait_for_url(f"**{path}?*")
        else:
            super().open(path)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_no_page_fails_or_is_too_wide(
    browser: Browser, busy_console: RunningConsole, width: int, scheme: str
) -> None:
    watched = ConsolePage(browser, busy_console, width, scheme)
    too_wide, untitled = {}, []
    for path in PAGES:
        watched.open(path)
        if watched.overflow > 0:
            too_wide[path] = watched.overflow
        if watched.page.locator("h1").count() != 1 or "headrace" not in watched.page.title():
            untitled.append(path)
        assert watched.page.locator("main").inner_text().strip()
    watched.context.close()
    assert (watched.faults, too_wide, untitled) == ([], {}, [])


def test_dead_letters_are_shown_with_their_reasons(busy_console: RunningConsole) -> None:
    answer = busy_console.viewer().get("/pipelines/shop")
    assert "no JSON orders" in answer.words
    assert "{&lt;script&gt;" in answer.text


def test_pages_live_and_keys_work(
    browser: Browser, busy_console: RunningConsole, shared_broker: BrokerProcess
) -> None:
    watched = ConsolePage(browser, busy_console, 1440, "light")
    page = watched.page
    watched.open("/topics")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    page.keyboard.press("/")
    assert page.locator("#q").evaluate("field => field === document.activeElement")
    page.keyboard.type("brand-new")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=brand-new**")
    assert page.locator("text=No topic matches").is_visible()
    watched.open("/topics")
    page.get_by_role("link", name="orders", exact=True).wait_for()
    with Admin(bootstrap_servers=shared_broker.address) as admin:
        admin.create_topic("brand-new", 1, 1)
    # It comes by itself.
    page.get_by_role("link", name="brand-new").wait_for()
    page.get_by_role("button", name="Dark").click()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    # Text cannot become HTML by mistake: the browser refuses it to the console's own scripts too.
    with pytest.raises(BrowserError, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>bold</b>'")
    watched.context.close()
    assert [fault for fault in watched.faults if "TrustedHTML" not in fault] == []


def test_a_page_that_waits_for_the_first_sample_shows_it(
    browser: Browser, busy_console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterAccess, "state", None)
    watched = ConsolePage(browser, busy_console, 1440, "light")
    watched.open("/")
    watched.page.get_by_text("Asking the cluster").wait_for()
    monkeypatch.undo()
    watched.page.get_by_text("Messages per second").first.wait_for()
    watched.context.close()
    assert watched.faults == []
