"""The pytest plugin: a broker for the whole run, a topic for each test, connected clients.

Rule: this module is imported by every run of pytest, so it imports the broker and the clients only
when a fixture needs them.
"""

import re
import sys
from collections.abc import Generator, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace import Consumer, Producer
    from headrace.testing.broker import Broker
    from headrace.testing.cluster import Cluster

_LOG_LINES = 50
_NAME_LENGTH_MAX = 200
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_TOPIC_MARKER = (
    "headrace_topic(partitions=1, **configs): how the topic of the fixture headrace_topic is made"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the command line and the ini file."""
    in_process = "Run the shared broker on a thread of the test process."
    group = parser.getgroup("headrace")
    group.addoption("--headrace-in-process", action="store_true", default=None, help=in_process)
    parser.addini("headrace_in_process", in_process, type="bool", default=False)
    parser.addini(
        "headrace_config",
        "Broker settings under their Kafka names, one name=value on each line.",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _TOPIC_MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of a failed test's brokers to its report."""
    report = yield
    if report.failed:
        for name, output in _logs_of(item):
            if output:
                lines = output.splitlines(keepends=True)[-_LOG_LINES:]
                report.sections.append((f"Log of {name}", "".join(lines)))
    return report


def _logs_of(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """The logs of the brokers among a test's arguments, each with its name."""
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    # Without a broker in the run there is no need to import the class.
    broker = sys.modules.get("headrace.testing.broker")
    cluster = sys.modules.get("headrace.testing.cluster")
    for name, argument in arguments.items():
        if broker is not None and isinstance(argument, broker.Broker):
            yield name, argument.log
        elif cluster is not None and isinstance(argument, cluster.Cluster):
            for node_id, output in argument.logs.items():
                yield f"{name}, broker {node_id}", output


@pytest.fixture(scope="session")
def headrace_broker(pytestconfig: pytest.Config) -> Iterator["Broker"]:
    """A broker that all tests of the run share; each test should use its own topics."""
    from headrace.testing.broker import Broker  # noqa: PLC0415

    asked = pytestconfig.getoption("--headrace-in-process")
    in_process = pytestconfig.getini("headrace_in_process") if asked is None else asked
    with Broker(in_process=in_process, config=_config(pytestconfig)) as broker:
        yield broker


@pytest.fixture
def headrace_fresh_broker(pytestconfig: pytest.Config) -> Iterator["Broker"]:
    """A separate broker for a test, which it may kill, pause, slow or cut off."""
    from headrace.testing.broker import Broker  # noqa: PLC0415

    with Broker(proxied=True, config=_config(pytestconfig)) as broker:
        yield broker


@pytest.fixture
def headrace_cluster(pytestconfig: pytest.Config) -> Iterator["Cluster"]:
    """A separate cluster of three brokers for a test, which it may kill, pause or cut apart."""
    from headrace.testing.cluster import Cluster  # noqa: PLC0415

    with Cluster(brokers=3, proxied=True, config=_config(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def headrace_bootstrap_servers(headrace_broker: "Broker") -> str:
    """The address of the shared broker, as `127.0.0.1:PORT`."""
    return headrace_broker.bootstrap_servers


@pytest.fixture(scope="session")
def _headrace_numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def headrace_topic(
    request: pytest.FixtureRequest, headrace_broker: "Broker", _headrace_numbers: Iterator[int]
) -> str:
    """A new topic on the shared broker, named after the test; a marker has its settings."""
    marker = request.node.get_closest_marker("headrace_topic")
    arguments = dict(marker.kwargs) if marker else {}
    if marker and marker.args:
        raise pytest.UsageError("the marker headrace_topic takes its arguments by name")
    name = arguments.pop("name", None) or topic_name(request.node.name, next(_headrace_numbers))
    return headrace_broker.create_topic(name, **arguments)


@pytest.fixture
def headrace_producer(headrace_bootstrap_servers: str) -> Iterator["Producer"]:
    """A headrace producer, connected to the shared broker."""
    from headrace import Producer  # noqa: PLC0415

    with Producer(bootstrap_servers=headrace_bootstrap_servers) as producer:
        yield producer


@pytest.fixture
def headrace_consumer(headrace_bootstrap_servers: str, headrace_topic: str) -> Iterator["Consumer"]:
    """A headrace consumer that reads the test's topic from its beginning, in a group."""
    from headrace import Consumer  # noqa: PLC0415

    with Consumer(
        headrace_topic,
        bootstrap_servers=headrace_bootstrap_servers,
        group_id=headrace_topic,
        auto_offset_reset="earliest",
    ) as consumer:
        yield consumer


def topic_name(test: str, number: int) -> str:
    """A readable topic name for a test; `number` makes it unique."""
    # Without dots, which Kafka's metrics cannot tell from underscores.
    readable = _NOT_IN_A_NAME.sub("-", test).strip("-")[:_NAME_LENGTH_MAX]
    return f"{readable or 'topic'}-{number}"


def _config(pytestconfig: pytest.Config) -> dict[str, str]:
    settings = {}
    for line in pytestconfig.getini("headrace_config"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"headrace_config: {line!r} is not of the form name=value")
        settings[name.strip()] = value.strip()
    return settings
