"""Fixtures and settings every test shares."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import hypothesis
import pytest

from headrace.protocol.codec_build import warn_if_uncompiled
from headrace.testing.broker_runners import WARNINGS_VARIABLE
from tests import fork_server
from tests.support import BrokerProcess

pytest_plugins = ["tests.forked_workers", "tests.no_skips", "tests.time_report"]

# No deadline: a busy machine is not a bug. In CI the examples are fewer and the same on every run;
# elsewhere they are new ones every time.
is_ci = bool(os.environ.get("CI"))
hypothesis.settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=is_ci,
    max_examples=30 if is_ci else 50,
    print_blob=True,
)
# Uncompiled code is slow, and what its tests look for is a difference from the compiled.
hypothesis.settings.register_profile(
    "pure", hypothesis.settings.get_profile("headrace"), max_examples=15
)
is_pure = os.environ.get("HEADRACE_EXPECT_BUILD") == "pure"
hypothesis.settings.load_profile("pure" if is_pure else "headrace")

# Said here, it is not said in whichever test makes the first client and counts warnings.
warn_if_uncompiled(logging.getLogger("tests"))

# No warning of Python's own may reach a broker's log. Users' brokers go on after one.
os.environ.setdefault(WARNINGS_VARIABLE, "error")

# Its process would be started beside every broker of `headrace up`; tests of it say so.
os.environ.setdefault("HEADRACE_NO_CONSOLE", "1")

# Coverage is measured in processes that start by themselves.
if not os.environ.get("COVERAGE_RUN"):
    fork_server.install()

# A run in the background may have been started to ignore Ctrl-C, which tests send to themselves and
# to the processes they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests with processes mostly wait, and simulated clusters keep a core busy. Left together at one
# end of the list they would leave cores idle, or be run by one process when the others are done.
_LONG = (Path("tests/integration"), Path("tests/simulation"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the modules of long tests of each kind evenly over the run."""
    root = Path(__file__).parent.parent
    long: dict[Path, list[list[pytest.Item]]] = {kind: [] for kind in _LONG}
    short: list[pytest.Item] = []
    for path, group in groupby(items, lambda item: item.path):
        kind = next((entry for entry in _LONG if path.is_relative_to(root / entry)), None)
        if kind is None:
            short.extend(group)
        else:
            long[kind].append(list(group))
    places = [
        ((number + 0.5) / len(modules), module)
        for modules in long.values()
        for number, module in enumerate(modules)
    ]
    if not places or not short:
        return
    spread: list[pytest.Item] = []
    step = -(-len(short) // len(places))
    for number, (_, module) in enumerate(sorted(places, key=lambda placed: placed[0])):
        spread += module + short[number * step : (number + 1) * step]
    assert len(spread) == len(items)
    items[:] = spread


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let `make test ARGS="-k name"` choose tests that not every one of its runs has."""
    if session.config.option.keyword and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


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
