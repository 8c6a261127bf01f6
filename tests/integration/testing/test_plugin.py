"""The pytest plugin, in runs of pytest of its own."""

import subprocess
import sys

import pytest

from headrace.testing.time_limits import scaled

pytest_plugins = ["pytester"]

# Importing Hypothesis takes a third of the CPU time of such a run.
NOT_NEEDED = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")

STRICT = """
[pytest]
strict_markers = true
strict_config = true
filterwarnings = error
"""

PREPARED = """
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

def send(bootstrap_servers, topic, value):
    from headrace.testing.time_limits import scaled
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(scaled(30)) == 0

def partitions(bootstrap_servers, topic):
    from headrace.testing.time_limits import scaled
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    return len(admin.list_topics(timeout=scaled(30)).topics[topic].partitions)
"""


def run(
    pytester: pytest.Pytester, tests: str, *arguments: str, ini: str = STRICT
) -> pytest.RunResult:
    """Run tests as a user would, in a directory and a process of their own."""
    pytester.makeini(ini)
    pytester.makepyfile(PREPARED + tests)
    return pytester.runpytest_subprocess(*NOT_NEEDED, *arguments)


def test_tests_share_a_broker_and_have_topics_of_their_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
seen = []

@pytest.mark.parametrize("codec", ["gzip", "lz 4"])
def test_send(headrace_broker, headrace_bootstrap_servers, headrace_topic, codec):
    send(headrace_bootstrap_servers, headrace_topic, b"x")
    assert partitions(headrace_bootstrap_servers, headrace_topic) == 1
    seen.append((headrace_broker.pid, headrace_topic))

@pytest.mark.headrace_topic(partitions=3, retention_ms=60_000)
def test_marked(headrace_bootstrap_servers, headrace_topic):
    assert partitions(headrace_bootstrap_servers, headrace_topic) == 3

class TestNamed:
    pytestmark = pytest.mark.headrace_topic(name="orders", partitions=2)

    def test_named(self, headrace_bootstrap_servers, headrace_topic):
        assert headrace_topic == "orders"
        assert partitions(headrace_bootstrap_servers, "orders") == 2

def test_seen():
    (one, first), (two, second) = seen
    assert one == two
    assert (first, second) == ("test_send-gzip-1", "test_send-lz-4-2")
""",
    )
    result.assert_outcomes(passed=5)


def test_a_broker_of_ones_own_can_be_broken(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_break(headrace_fresh_broker, headrace_broker):
    assert headrace_fresh_broker.pid != headrace_broker.pid
    topic = headrace_fresh_broker.create_topic()
    with headrace_fresh_broker.slowed(latency_ms=1):
        send(headrace_fresh_broker.bootstrap_servers, topic, b"x")
    headrace_fresh_broker.kill()

def test_next(headrace_fresh_broker):
    assert headrace_fresh_broker.is_running
""",
    )
    result.assert_outcomes(passed=2)


IN_PROCESS_INI = STRICT + "headrace_in_process = true\n"
IN_PROCESS = """
import os

def test_where(headrace_broker):
    assert headrace_broker.pid == os.getpid()
    send(headrace_broker.bootstrap_servers, headrace_broker.create_topic(), b"x")
"""


def test_the_shared_broker_can_be_in_process(pytester: pytest.Pytester) -> None:
    run(pytester, IN_PROCESS, "--headrace-in-process").assert_outcomes(passed=1)
    run(pytester, IN_PROCESS, ini=IN_PROCESS_INI).assert_outcomes(passed=1)


def test_settings_come_from_the_ini_file(pytester: pytest.Pytester) -> None:
    tests = """
def test_partitions(headrace_broker, headrace_fresh_broker):
    for broker in (headrace_broker, headrace_fresh_broker):
        send(broker.bootstrap_servers, "made-by-itself", b"x")
        assert partitions(broker.bootstrap_servers, "made-by-itself") == 4
"""
    settings = "headrace_config =\n    num.partitions = 4\n    log.retention.hours=1\n"
    run(pytester, tests, ini=STRICT + settings).assert_outcomes(passed=1)
    wrong = run(pytester, tests, ini=STRICT + "headrace_config = num.partitions\n")
    wrong.assert_outcomes(errors=1)
    wrong.stdout.fnmatch_lines(["*headrace_config: 'num.partitions' is not of the form name=value"])


def test_a_failed_test_shows_what_its_broker_said(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import socket

def test_good(headrace_broker):
    pass

def test_bad(headrace_broker):
    with socket.create_connection((headrace_broker.host, headrace_broker.port)) as sock:
        sock.sendall(b"GET / HTTP/1.1" + bytes(100))
        assert sock.recv(1) == b""
    assert False
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Log of headrace_broker*", "headrace * ready on 127.0.0.1:*"])
    assert str(result.stdout).count("ready on") == 1


def test_a_cluster_of_ones_own_can_be_broken_and_says_what_its_brokers_said(
    pytester: pytest.Pytester,
) -> None:
    result = run(
        pytester,
        """
def test_break(headrace_cluster):
    topic = headrace_cluster.create_topic()
    headrace_cluster.slow(1, latency_ms=1)
    send(headrace_cluster.bootstrap_servers, topic, b"x")
    assert partitions(headrace_cluster.bootstrap_servers, topic) == 2
""",
        ini=STRICT + "headrace_config = num.partitions=2\n",
    )
    result.assert_outcomes(failed=1)
    logs = ["*Log of headrace_cluster, broker {}*", "headrace * ready on 127.0.0.1:*"]
    result.stdout.fnmatch_lines([line.format(number) for number in (1, 2, 3) for line in logs])


def test_a_marker_that_is_wrong_says_so(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.headrace_topic(3)
def test_positional(headrace_topic):
    pass

@pytest.mark.headrace_topic(partition=3)
def test_misspelt(headrace_topic):
    pass
""",
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*takes its arguments by name*"])
    result.stdout.fnmatch_lines(["*INVALID_CONFIG: *partition*"])


def test_a_run_without_brokers_does_not_pay_for_them(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import sys

def test_nothing():
    assert [name for name in sys.modules if name.startswith("headrace")] == [
        "headrace", "headrace.testing", "headrace.testing.plugin"
    ]
    assert "uvloop" not in sys.modules
""",
    )
    result.assert_outcomes(passed=1)


def test_workers_of_a_parallel_run_have_brokers_of_their_own() -> None:
    """As pytest-xdist runs them: several processes at the same time, each with its own session."""
    program = "import sys; from headrace.testing import Broker\nwith Broker() as b: print(b.port)"
    workers = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ports = [worker.communicate(timeout=scaled(60))[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert len(set(ports)) == 3
