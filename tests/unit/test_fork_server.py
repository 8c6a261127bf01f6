"""Forked brokers are processes like those that headrace.testing starts."""

import os
import signal
from pathlib import Path

import psutil

from headrace.testing import Broker
from tests.fork_server import started_plainly


def opened(pid: int) -> dict[int, str]:
    """The sockets, pipes and files that a process has open now, by descriptor."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:
            continue  # closed since it was listed
    return found


def inherited(broker: Broker) -> list[int]:
    """The descriptors of a broker that it shares with this process or with a fork server."""
    this = psutil.Process()
    others = {this.pid, *(child.pid for child in this.children())} - {broker.pid}
    shared = {target for pid in others for target in opened(pid).values()}
    # An anonymous inode (epoll) has the same name in every process.
    return sorted(
        descriptor
        for descriptor, target in opened(broker.pid).items()
        if target in shared and not target.startswith("anon_inode:")
    )


def facts(broker: Broker) -> dict[str, object]:
    """All that tests and faults rely on."""
    process = psutil.Process(broker.pid)
    return {
        "parent": process.ppid(),
        "leads its group": os.getpgid(broker.pid) == broker.pid,
        "session": os.getsid(broker.pid),
        "directory": process.cwd(),
        "inherited descriptors": inherited(broker),
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
