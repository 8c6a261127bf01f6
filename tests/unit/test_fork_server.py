"""Forked brokers are processes like those that headrace.testing starts."""

import os
import signal

import psutil

from headrace.testing import Broker
from tests.fork_server import started_plainly


def facts(broker: Broker) -> dict[str, object]:
    """All that tests and faults rely on."""
    process = psutil.Process(broker.pid)
    return {
        "parent": process.ppid(),
        "leads its group": os.getpgid(broker.pid) == broker.pid,
        "session": os.getsid(broker.pid),
        "directory": process.cwd(),
        "descriptors": process.num_fds(),
        "program": process.exe(),
    }


def test_a_forked_broker_differs_in_nothing_that_tests_rely_on() -> None:
    with started_plainly(), Broker() as broker:
        plain = facts(broker)
    with Broker() as broker:
        forked = facts(broker)
        assert forked == plain
        os.kill(broker.pid, signal.SIGSTOP)
        os.kill(broker.pid, signal.SIGCONT)
        broker.kill()
        assert not broker.is_running
        broker.start()
