"""A bug stops the broker that has it, with its stack in the log, and a supervisor starts it again.

The bug is planted in the loop that shrinks the set of in-sync replicas: without it `acks=all` would
wait for a dead follower for ever.
"""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from headrace.broker.replication.isr_proposals import IsrProposer
from headrace.testing import Broker, BrokerError
from headrace.testing.time_limits import wait_until
from tests.integration.test_up import read_until
from tests.integration.wire import is_serving
from tests.support import headrace_command

# How often the planted loop runs: four times in this.
LAG_MS = 800

PLANTED = """
import os
from headrace.broker.replication.isr_proposals import IsrProposer

async def mark_all_due(self):
    if self._node_id == {node_id} and os.path.exists({flag!r}):
        os.remove({flag!r})
        raise AssertionError("planted")

IsrProposer._mark_all_due = mark_all_due
"""


def plant(directory: Path, monkeypatch: pytest.MonkeyPatch, node_id: int) -> Path:
    """Have brokers of this test fail once after the returned file is made."""
    flag = directory / "fail-now"
    code = PLANTED.format(node_id=node_id, flag=str(flag))
    (directory / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    return flag


def serves(address: str) -> bool:
    try:
        return is_serving(address)
    except OSError:
        return False


def test_a_bug_in_a_task_ends_the_process_with_status_70(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = plant(tmp_path, monkeypatch, node_id=1)
    broker = Broker(config={"node.id": 1, "replica.lag.time.max.ms": LAG_MS})
    broker.start()
    flag.touch()
    wait_until(lambda: not broker.is_running, 30, "the broker has ended")
    with pytest.raises(BrokerError, match="had ended by itself with status 70"):
        broker.close()
    assert "CRITICAL bug in task in-sync replicas: this process stops with status 70" in broker.log
    assert "in mark_all_due" in broker.log
    assert "AssertionError: planted" in broker.log


def test_a_bug_in_a_broker_on_a_thread_fails_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mark_all_due(_: IsrProposer) -> None:
        raise AssertionError("planted")

    broker = Broker(in_process=True, config={"replica.lag.time.max.ms": LAG_MS})
    broker.start()
    monkeypatch.setattr(IsrProposer, "_mark_all_due", mark_all_due)
    wait_until(lambda: not broker.is_running, 30, "the broker has ended")
    with pytest.raises(BrokerError, match="of a bug in task in-sync replicas") as caught:
        broker.stop()
    assert str(caught.value.__cause__) == "planted"
    assert "AssertionError: planted" in broker.log
    monkeypatch.undo()
    with broker:  # It can be started again, with what it had on disk.
        assert broker.is_running


def test_a_broker_that_a_bug_has_ended_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = plant(tmp_path, monkeypatch, node_id=2)
    command = [headrace_command(), "up", "--brokers", "2", "--listen", "127.0.0.1:0"]
    command += ["--set", f"replica.lag.time.max.ms={LAG_MS}", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        ready = re.search(r" ready on (\S+), (\S+), data in ", process.stdout.readline())
        assert ready is not None
        flag.touch()
        said = read_until(process.stderr, "broker-2 ended with status 70; starts again in 0.5 s")
        assert "broker-2 | AssertionError: planted" in said
        try:
            wait_until(lambda: serves(ready[2]), 30, "broker-2 serves again")
        finally:
            process.send_signal(signal.SIGINT)
            said += process.stderr.read()
    assert process.returncode == 0, said
