"""What a broker's process is asked and told."""

import sys

import pytest

from headrace.testing.broker_runners import WARNINGS_VARIABLE, BrokerLog, BrokerProcess
from headrace.testing.ports import BrokerError

# In the place of a broker: `-W error` comes with the command that it is given and does not run.
WARNING = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("x.py:1: RuntimeWarning: coroutine 'f' was never awaited;", *sys.argv)
print("headrace 1.0 ready on 127.0.0.1:1", flush=True)
signal.pause()
"""


def start() -> BrokerProcess:
    process = BrokerProcess(BrokerLog(), 60.0, [sys.executable, "-c", WARNING])
    process.start({}, None, 60.0)
    return process


def test_a_warning_of_python_fails_the_stop_of_a_broker_of_this_suite() -> None:
    with pytest.raises(BrokerError, match=r"RuntimeWarning: coroutine 'f' was.* -W error "):
        start().stop()


def test_users_are_spared_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WARNINGS_VARIABLE)
    start().stop()
