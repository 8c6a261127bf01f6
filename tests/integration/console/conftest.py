"""A console beside a broker, both shared by the tests of a module."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from headrace.console.app import ConsoleSettings
from headrace.console.cluster_access import ClusterConnection
from tests.integration.console.watched_pages import RunningConsole, chromium
from tests.support import BrokerProcess


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def console(shared_broker: BrokerProcess) -> Iterator[RunningConsole]:
    """A console of the shared broker, without a sign-in."""
    settings = ConsoleSettings(ClusterConnection(shared_broker.address), interval_s=0.2)
    with RunningConsole(settings) as running:
        running.wait_for("/", "Messages per second")
        yield running
