"""Every page of the console in a browser, on three loaded brokers with a pipeline that runs."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as BrowserTimeout
from pyspark.sql import SparkSession
from starlette.routing import Match, Route

from headrace import Acl, Admin, Consumer, Producer, ScramUpsertion
from headrace.clock import SystemClock
from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterConnection
from headrace.console.pipeline_runs import PipelineRuns
from headrace.pipelines.locations import notes_directory
from headrace.pipelines.run.queries import StopRequest
from headrace.pipelines.run.run_state import RunState
from headrace.pipelines.run.runner import run
from headrace.pipelines.spec import load
from headrace.testing import Cluster
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.console.watched_pages import RunningConsole, WatchedPage, chromium

# With a directory in this variable all pages are kept as pictures, at both widths, light and dark.
PICTURES = os.environ.get("HEADRACE_CONSOLE_PICTURES", "")
LOOKS = ((1440, "light"), (390, "dark"))
ALL_LOOKS = ((1440, "light"), (390, "dark"), (1440, "dark"), (390, "light"))
GROUP = "billing"
BROKEN = 30
# A page, and a text that it has only if what it is about is there.
PAGES = {
    "/": "Messages per second",
    "/brokers": "127.0.0.1",
    "/brokers/2": "127.0.0.1",
    "/topics": "orders-dead",
    "/new-topic": "Partitions",
    "/topics/orders": GROUP,
    "/topics/orders/messages": "amount",
    "/topics/orders/messages/0/0": "broken",
    "/topics/orders/produce": "Value",
    "/topics/orders/settings?edit=retention.ms": "retention.ms",
    "/topics/orders/replicas": "Replicas",
    "/topics/orders/delete": "Delete",
    "/groups": GROUP,
    f"/group?name={GROUP}": "Members",
    f"/group/reset?name={GROUP}": "Reset",
    f"/group/delete?name={GROUP}": "Delete",
    "/transactions?all=1": "payments",
    "/pipelines": "running",
    "/pipelines/shop": "not JSON",
    "/pipelines/shop/replay": "were not replayed yet",
    "/users": "alice",
    "/acls": "User:alice",
    "/roles": "readers",
    "/quotas": "alice",
}
# Addresses of `GET` that are no pages: streams, files, what a form leads to.
NO_PAGES = {
    "/events",
    "/healthz",
    "/sign-in",
    "/oidc/begin",
    "/oidc/callback",
    "/topics/{name}/search",
    "/topics/{name}/tail",
    "/topics/{name}/download",
}
PIPELINE = """
    pipeline: shop
    checkpoint: ./shop
    parallelism: 1
    trigger: 1 second
    sources:
      orders:
        topic: orders
        decode: { format: json, schema: "id BIGINT, region STRING, amount DOUBLE" }
        options: { startingOffsets: earliest }
    steps:
      large: { sql: "SELECT id, region, amount FROM orders WHERE amount >= 5" }
    sinks:
      large-orders: { from: large, topic: orders-large, key: region }
    dead_letters: orders-dead
"""


@contextmanager
def in_thread(work: Callable[[], object], stop: Callable[[], None]) -> Iterator[threading.Thread]:
    """Work beside the block in a thread, which `stop` ends; its error is the block's."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop()
        thread.join(scaled(60))
        assert not thread.is_alive(), "the work beside the test did not end"
        if errors:
            raise errors[0]


@contextmanager
def loaded_cluster() -> Iterator[Cluster]:
    """Three brokers that ask for a login, with something for every page, and records coming."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=3, security=True))
        options = cluster.client_options
        with Admin(**options) as admin:
            for topic in ("orders", "orders-large", "orders-dead", "payments"):
                admin.create_topic(topic, 3, 3)
            mechanism = cluster.client_config["sasl.mechanism"]
            admin.alter_user_scram_credentials([ScramUpsertion("alice", mechanism, "secret")])
            admin.create_acls([Acl("User:alice", "read", "topic", "orders", "prefixed")])
            admin.create_role("readers", "who may read orders")
            admin.bind_role("readers", ["User:alice"])
            admin.alter_client_quotas({"producer_byte_rate": 1e6}, user="alice")
        writer = stack.enter_context(Producer(**options))
        for number in range(BROKEN):
            writer.send("orders", b"{broken <script>", partition=number % 3)
        paying = stack.enter_context(Producer(**options, transactional_id="payments"))
        paying.init_transactions()
        paying.begin_transaction()
        paying.send("payments", b"1 EUR").result(scaled(20))
        reader = stack.enter_context(
            Consumer("orders", **options, group_id=GROUP, auto_offset_reset="earliest")
        )
        ended = threading.Event()

        def load() -> None:
            first = 0
            while not ended.wait(0.2):
                for number in range(first, first + 20):
                    order = {"id": number, "region": "north", "amount": number % 10}
                    writer.send("orders", json.dumps(order).encode(), key=str(number).encode())
                first += 20
                reader.poll(timeout_ms=10)

        stack.enter_context(in_thread(load, ended.set))
        yield cluster


@contextmanager
def running_pipeline(cluster: Cluster, directory: Path) -> Iterator[None]:
    """A pipeline over the cluster, which has written its first batch and dead letters."""
    path = directory / "pipeline.yaml"
    path.write_text(f"broker: {json.dumps(cluster.client_config)}\n{dedent(PIPELINE)}")
    stop, has_written = StopRequest(), threading.Event()

    def watch(state: RunState) -> None:
        written = {query.name: query.rows_out or 0 for query in state.queries}
        if written.get("large-orders") and written.get("dead-letters-orders"):
            has_written.set()

    with in_thread(lambda: run(load(path), on_progress=watch, stop=stop), stop.request) as thread:
        wait_until(
            lambda: has_written.is_set() or not thread.is_alive(),
            120,
            "the pipeline has written no batch",
        )
        assert thread.is_alive(), "the pipeline has ended"
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with loaded_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def console(
    spark: SparkSession, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningConsole]:
    """A console of the loaded cluster that shows its pipeline."""
    directory = tmp_path_factory.mktemp("shop")
    with running_pipeline(cluster, directory):
        pipelines = PipelineRuns(
            [notes_directory(load(directory / "pipeline.yaml"))],
            (),
            SystemClock(),
        )
        connection = ClusterConnection(cluster.bootstrap_servers, cluster.client_config)
        settings = ConsoleSettings(connection, signs_in=True, interval_s=1, pipelines=pipelines)
        with RunningConsole(settings) as running:
            yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def signed_in(
    browser: Browser, console: RunningConsole, cluster: Cluster, width: int, scheme: str
) -> WatchedPage:
    """A page of a viewer who may do everything."""
    watched = WatchedPage(browser, console, width, scheme)
    watched.open("/sign-in")
    keep_picture(watched, "sign-in", width, scheme)
    watched.page.get_by_label("User").fill(cluster.client_config["sasl.username"])
    watched.page.get_by_label("Password").fill(cluster.client_config["sasl.password"])
    watched.page.get_by_role("button", name="Sign in").click()
    watched.page.get_by_role("heading", name="Overview").wait_for()
    return watched


def keep_picture(watched: WatchedPage, name: str, width: int, scheme: str) -> None:
    if PICTURES:
        path = Path(PICTURES, f"{name}-{width}-{scheme}.png")
        watched.page.screenshot(path=path, full_page=True)


@pytest.mark.timeout(300)
def test_every_page_shows_a_loaded_cluster_and_its_pipeline(
    browser: Browser, console: RunningConsole, cluster: Cluster
) -> None:
    assert pages_left_out(console) == set()
    faults = []
    for width, scheme in ALL_LOOKS if PICTURES else LOOKS:
        watched = signed_in(browser, console, cluster, width, scheme)
        for path, text in PAGES.items():
            watched.open(path)
            # The samples of a new session come a moment later.
            try:
                watched.page.locator("main").get_by_text(text).first.wait_for(state="attached")
            except BrowserTimeout:
                faults.append(f"{path} has no {text!r}")
            name = path.partition("?")[0].strip("/").replace("/", "-") or "overview"
            keep_picture(watched, name, width, scheme)
            if watched.overflow > 0:
                faults.append(f"{path} is {watched.overflow} pixels wider than {width}")
            if watched.page.locator("h1").count() != 1:
                faults.append(f"{path} has no heading")
            if watched.page.locator(".failure").count():
                faults.append(f"{path}: {watched.page.locator('.failure').first.inner_text()}")
        faults += watched.faults
        watched.context.close()
    assert faults == []


def pages_left_out(console: RunningConsole) -> set[str]:
    """The pages of the console's routes that the test does not open."""
    opened = [{"type": "http", "method": "GET", "path": path.partition("?")[0]} for path in PAGES]
    return {
        route.path
        for route in console.app.routes
        if isinstance(route, Route)
        and "GET" in (route.methods or ())
        and route.path not in NO_PAGES
        and not any(route.matches(scope)[0] is Match.FULL for scope in opened)
    }
