"""Runners of a test's broker, as a child process or on a thread of this one, and its output."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from errno import EADDRINUSE
from pathlib import Path
from typing import NoReturn

import headrace
from headrace.broker.app import BrokerServer, StartError
from headrace.client.blocking import LoopThread
from headrace.client.errors import Closed, TimedOut
from headrace.config import broker_config
from headrace.tasks import stop_on_bugs
from headrace.testing.ports import PORT_TAKEN_STATUS, BrokerError, PortTaken
from headrace.testing.time_limits import Deadline, scaled, wait_in_parts

_LINES_MAX = 100_000
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class BrokerLog:
    """The newest lines of a broker's output. One thread may add to it while others read it."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)

    @property
    def text(self) -> str:
        return "".join(self._lines.copy())

    def add(self, line: str) -> None:
        """Add a line, which includes its newline."""
        self._lines.append(line)

    def clear(self) -> None:
        """Clear the recorded lines."""
        self._lines.clear()

    def tail(self, count: int) -> str:
        """The last lines."""
        return "".join(list(self._lines.copy())[-count:])


class LogHandler(logging.Handler):
    """Adds the log records of one thread of this process to a broker's log."""

    def __init__(self, log: BrokerLog, thread_id: int) -> None:
        super().__init__()
        self.setFormatter(_FORMAT)
        self._log = log
        self._thread_id = thread_id

    def emit(self, record: logging.LogRecord) -> None:
        # Another broker, or a client, may log in the same process.
        if record.thread == self._thread_id:
            self._log.add(f"{self.format(record)}\n")


_READY = re.compile(r"headrace \S+ ready on ")
PYTHON_WARNING = re.compile(r"\b[A-Z]\w*Warning: ")

# "error" in the tests of headrace itself: a Python warning fails the stop of the broker.
WARNINGS_VARIABLE = "HEADRACE_TEST_WARNINGS"


def start_child(
    prefix: Sequence[str], python: Sequence[str], argument: str, environment: Mapping[str, str]
) -> "subprocess.Popen[str]":
    """Start `headrace.testing.child`, which is given this; `prefix` is a command that runs it.

    It reads the argument from its standard input, for the arguments of a process are no secret.
    """
    process = subprocess.Popen(
        [*prefix, *python, "-m", "headrace.testing.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(environment),
        # Ctrl-C is for the tests, which stop their brokers in their own order.
        process_group=0,
    )
    give_argument(process, argument)
    return process


def give_argument(process: "subprocess.Popen[str]", argument: str) -> None:
    """Write its argument to a child that was started."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # It has ended already, which its output explains.
        process.stdin.write(f"{argument}\n")
        process.stdin.flush()


class BrokerProcess:
    """The process and the thread that reads its output. It can be started again."""

    def __init__(self, log: BrokerLog, stop_timeout_s: float, prefix: Sequence[str] = ()) -> None:
        self._prefix = prefix  # A command that runs the command in its arguments.
        self._log = log
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self._settled = threading.Event()
        self._crashed = False
        self._warnings: list[str] = []

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._require().pid

    def start(
        self, properties: Mapping[str, str], remove: Path | None, start_timeout_s: float
    ) -> None:
        """Start the process and wait until ready. `remove` is deleted if this process is killed."""
        self.launch(properties, remove)
        self.wait_until_ready(start_timeout_s)

    def launch(self, properties: Mapping[str, str], remove: Path | None) -> None:
        """Start the process; `wait_until_ready` must follow."""
        self._reap()
        arguments = {"properties": dict(properties), "remove": str(remove) if remove else None}
        process = start_child(
            self._prefix,
            [sys.executable, "-P", *(["-W", "error"] if _warnings_are_errors() else [])],
            json.dumps(arguments),
            environment(Path(headrace.__file__).parents[1]),
        )
        self._settled = threading.Event()
        self._ready = threading.Event()
        self._process = process
        self._reader = threading.Thread(
            target=self._read,
            args=(process, self._ready, self._settled),
            name="headrace-log",
            daemon=True,
        )
        self._reader.start()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when the broker is ready; else kill the process and raise BrokerError."""
        assert self._process is not None
        has_settled = False
        status = 0
        try:
            has_settled = wait_in_parts(self._settled.wait, timeout_s)
        finally:
            # Also on Ctrl-C the process must not stay behind.
            if not has_settled:
                self._process.kill()
            if not self._ready.is_set():
                status = self._reap()
        if not self._ready.is_set():
            self._fail_to_start(status if has_settled else None, timeout_s)

    def stop(self) -> None:
        """Shut it down cleanly; BrokerError if that fails, or if it has ended by itself."""
        self.request_stop()
        self.wait_until_stopped()

    def request_stop(self) -> None:
        """Tell it to shut down; `wait_until_stopped` must follow."""
        self._crashed = self._process is not None and self._process.poll() is not None
        if self._process is not None and not self._crashed:
            self._process.send_signal(signal.SIGTERM)
            # A paused process would not receive it.
            self._process.send_signal(signal.SIGCONT)

    def wait_until_stopped(self) -> None:
        """Return when it has shut down; BrokerError as in `stop`."""
        if self._process is None:
            return
        process, crashed = self._process, self._crashed
        status = _status_within(process, self._stop_timeout_s)
        if status is None:
            process.kill()
        self._reap()
        if crashed or status != 0:
            how = (
                f"did not stop within {self._stop_timeout_s:g} s"
                if status is None
                else f"{'had ended by itself' if crashed else 'stopped'} with status {status}"
            )
            raise BrokerError(f"the broker {how}; it said:\n{self._log.tail(100)}")
        if self._warnings and _warnings_are_errors():
            raise BrokerError(f"Python warned in the broker: {'; '.join(self._warnings)}")

    def kill(self) -> None:
        """Kill the process, like a power cut."""
        self._require().kill()
        self._reap()

    def pause(self) -> None:
        """Pause the process; returns when it has stopped."""
        process = self._require()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._require().send_signal(signal.SIGCONT)

    def _require(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerError("the broker is not running; start() it first")
        return self._process

    def _fail_to_start(self, status: int | None, start_timeout_s: float) -> NoReturn:
        output = self._log.tail(100)
        if status == PORT_TAKEN_STATUS:
            raise PortTaken(output.rstrip())
        outcome = (
            f"was not ready within {start_timeout_s:g} s; see what it waits for, or give it more"
            " with start_timeout_s=..."
            if status is None
            else f"ended with status {status} instead of becoming ready"
        )
        raise BrokerError(f"the broker {outcome}; it said:\n{output or '(nothing)'}")

    def _read(
        self, process: subprocess.Popen[str], ready: threading.Event, settled: threading.Event
    ) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._log.add(line)
            if PYTHON_WARNING.search(line):
                self._warnings.append(line.rstrip())
            if not ready.is_set() and _READY.match(line):
                ready.set()
                settled.set()
        settled.set()  # The process ended without being ready: there is nothing to wait for.

    def _reap(self) -> int:
        """Clean up a process that has ended or is about to; returns its exit status."""
        if self._process is None:
            return 0
        assert self._reader is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        status = self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = self._reader = None
        return status


def _warnings_are_errors() -> bool:
    return os.environ.get(WARNINGS_VARIABLE) == "error"


def _status_within(process: subprocess.Popen[str], seconds: float) -> int | None:
    """The exit status of a process; None if it does not end in time."""
    deadline = Deadline(seconds)
    while True:
        try:
            status = process.wait(deadline.left_s)
        except subprocess.TimeoutExpired:
            if deadline.has_passed:
                return None
        else:
            deadline.end()
            return status


def environment(root: Path) -> dict[str, str]:
    """The environment, without variables that would make brokers differ between developers.

    `root` is the directory that headrace was imported from.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") and name != "PYTHONINSPECT"
    }
    if root.name not in ("site-packages", "dist-packages"):
        # A source tree that only the `sys.path` of this process may know.
        paths = [str(root), *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


_LOGGER = logging.getLogger("headrace")


class BrokerThread:
    """A broker and its event loop on a thread. It can be started again.

    A bug in the broker ends it, and fails its `stop`, as the exit of a process would.
    """

    def __init__(self, log: BrokerLog, stop_timeout_s: float) -> None:
        self._log = log
        self._stop_timeout_s = stop_timeout_s
        self._thread: LoopThread | None = None
        self._broker: BrokerServer | None = None
        self._handler: LogHandler | None = None
        self._bug: tuple[str, BaseException] | None = None

    @property
    def is_running(self) -> bool:
        return self._broker is not None and self._bug is None

    @property
    def pid(self) -> int:
        return os.getpid()

    def start(self, properties: Mapping[str, str], start_timeout_s: float) -> None:
        """Return when the broker serves."""
        broker = BrokerServer(broker_config(properties))
        if self._thread is not None:
            self._end()  # After a bug has ended it.
        self._bug = None
        self._thread = LoopThread("headrace-broker")
        stop_on_bugs(self._thread.loop, self._on_bug)
        self._handler = LogHandler(self._log, self._thread.run(_thread_id()))
        _LOGGER.addHandler(self._handler)
        try:
            self._thread.run(broker.start(), scaled(start_timeout_s))
            self._broker = broker
        except TimedOut:
            raise BrokerError(f"the broker was not ready within {start_timeout_s:g} s") from None
        except Closed:
            raise self._bug_error() from None
        except StartError as error:
            cause = error.__cause__
            taken = isinstance(cause, OSError) and cause.errno == EADDRINUSE
            kind = PortTaken if taken else BrokerError
            raise kind(f"the broker did not start: {error}") from error
        finally:
            if self._broker is None:
                self._end()

    def stop(self) -> None:
        """Shut down cleanly; BrokerError if that takes too long, or a bug has ended the broker."""
        if self._thread is None or self._broker is None:
            return
        try:
            if self._bug is not None:
                raise self._bug_error()
            self._thread.run(self._broker.stop(), scaled(self._stop_timeout_s))
        except Closed:
            raise self._bug_error() from None
        except TimedOut:
            raise BrokerError(
                f"the broker did not stop within {self._stop_timeout_s:g} s; it said:\n"
                f"{self._log.tail(100)}"
            ) from None
        finally:
            self._end()

    def _end(self) -> None:
        assert self._thread is not None
        assert self._handler is not None
        self._thread.close()
        self._thread.join()
        _LOGGER.removeHandler(self._handler)
        self._thread = self._broker = self._handler = None

    def _on_bug(self, where: str, error: BaseException) -> None:
        """End the loop with everything on it: no further request may be answered."""
        if self._bug is None and self._thread is not None:
            self._bug = (where, error)
            if self._broker is not None:
                self._broker.abandon()
            self._thread.close()

    def _bug_error(self) -> BrokerError:
        assert self._bug is not None
        where, error = self._bug
        failure = BrokerError(
            f"the broker had ended by itself, of a bug in {where}; it said:\n{self._log.tail(100)}"
        )
        failure.__cause__ = error
        return failure


async def _thread_id() -> int:
    return threading.get_ident()
