"""Fixtures and settings every test shares."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

from tests.support import BrokerProcess

pytest_plugins = ["tests.no_skips"]

# No deadline: a busy machine is not a bug. In CI the examples are the same on every run.
hypothesis.settings.register_profile(
    "headrace", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("headrace")

# A run in the background may have been started to ignore Ctrl-C, which tests send to themselves and
# to the processes they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start real brokers: `start_broker(**{"flush.messages": "1"})`. Each has its own data."""
    with ExitStack() as stack:
        started = 0

        def start(**settings: str) -> BrokerProcess:
            nonlocal started
            started += 1
            return stack.enter_context(BrokerProcess(tmp_path / f"broker-{started}", settings))

        yield start


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A real broker process with default settings; it must end cleanly after the test."""
    return start_broker()
