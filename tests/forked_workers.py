"""A pytest plugin: `--forked N` runs the tests in N processes, forked once they are collected.

Importing and collecting takes ten seconds of CPU time, here once and not in every process. What is
left of a module is shared only when there is no module left that nobody has begun, so that fixtures
of modules are made once if they can be.
"""

import atexit
import gc
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

_STOPPED_BY_SIGINT = 130


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forked workers")
    group.addoption("--forked", type=int, default=0, help="Run tests in so many forked processes.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if not options.forked or options.collectonly or not session.items:
        return None
    if session.testsfailed and not options.continue_on_collection_errors:
        return None  # pytest's own loop says so.
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.showfspath = False
    # Workers look for garbage among what they make themselves.
    gc.collect()
    gc.freeze()
    run = ForkedRun(session)
    try:
        run.run()
    finally:
        run.end()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


# -- the process that collects


@dataclass(eq=False)
class Worker:
    """A process, and the tests that are meant for it."""

    number: int
    process_id: int
    connection: Connection
    tests: list[int]
    # Those it knows of: the one that runs, and the next, for which fixtures may be kept.
    told: list[int] = field(default_factory=list)
    is_closing: bool = False


class ForkedRun:
    """The tests of a session and who runs them."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._modules = [
            [number for number, _ in group]
            for _, group in groupby(enumerate(session.items), lambda found: found[1].path)
        ]
        self._modules.reverse()
        self._workers: dict[Connection, Worker] = {}

    def run(self) -> None:
        """Return once all tests have run, or enough have failed."""
        for number in range(min(self._config.option.forked, len(self._session.items))):
            self._start(number, [])
        while self._workers:
            for connection in wait(list(self._workers)):
                assert isinstance(connection, Connection)
                worker = self._workers[connection]
                try:
                    self._hear(worker, *connection.recv())
                except (EOFError, ConnectionResetError):
                    self._bury(worker)
            if self._session.shouldfail or self._session.shouldstop:
                return

    def end(self) -> None:
        """Let no process outlive the run."""
        for worker in self._workers.values():
            os.kill(worker.process_id, signal.SIGTERM)
            worker.connection.close()
        for worker in self._workers.values():
            os.waitpid(worker.process_id, 0)

    def _start(self, number: int, tests: list[int]) -> None:
        ours, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings():
            # Libraries have threads of their own, which may be forked.
            warnings.simplefilter("ignore", DeprecationWarning)
            process_id = os.fork()
        if process_id == 0:
            ours.close()
            for other in self._workers:
                other.close()
            _be_worker(self._session, number, theirs)
        theirs.close()
        worker = Worker(number, process_id, ours, tests)
        self._workers[ours] = worker
        self._tell_next(worker)
        self._tell_next(worker)

    def _tell_next(self, worker: Worker) -> None:
        if worker.is_closing:
            return
        if not worker.tests:
            worker.tests = self._modules.pop() if self._modules else self._taken_from_another()
        if worker.tests:
            worker.told.append(worker.tests.pop(0))
            worker.connection.send(worker.told[-1])
        else:
            worker.is_closing = True
            worker.connection.send(None)

    def _taken_from_another(self) -> list[int]:
        """The last half of what the busiest worker has left."""
        left = max((worker.tests for worker in self._workers.values()), key=len, default=[])
        half = len(left) // 2
        taken = left[half:]
        del left[half:]
        return taken

    def _hear(self, worker: Worker, kind: str, said: Any) -> None:
        hook = self._config.hook
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=self._config, data=said)
            self._show(worker, report)
        elif kind == "finished":
            item = self._session.items[worker.told.pop(0)]
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            self._tell_next(worker)
        else:
            assert kind == "failed", kind
            raise RuntimeError(f"worker {worker.number} failed:\n{said}")

    def _show(self, worker: Worker, report: Any) -> None:
        name = f"worker {worker.number}"
        # As pytest-xdist says where a test ran.
        report.node = SimpleNamespace(
            gateway=SimpleNamespace(id=name), _workerinfocache=f"[{name}]"
        )
        self._config.hook.pytest_runtest_logreport(report=report)

    def _bury(self, worker: Worker) -> None:
        """The test that a worker was at has failed if the worker has ended by itself."""
        del self._workers[worker.connection]
        worker.connection.close()
        _, status = os.waitpid(worker.process_id, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == _STOPPED_BY_SIGINT:
            raise KeyboardInterrupt
        if not worker.told:
            assert code == 0, f"worker {worker.number} ended with status {code} after its tests"
            return
        item = self._session.items[worker.told[0]]
        self._show(
            worker,
            pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords={},
                outcome="failed",
                longrepr=f"its process ended with status {code}",
                when="call",
            ),
        )
        self._start(worker.number, [*worker.told[1:], *worker.tests])


# -- the processes that run tests


class _Sender:
    """Sends on what is reported in this process, which shows nothing itself."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


def _be_worker(session: pytest.Session, number: int, connection: Connection) -> NoReturn:
    """Run the tests that come, and end without what the process that collected does at its end."""
    status = 1
    try:
        atexit._clear()
        _settle(session.config, number)
        sender = _Sender(session.config, connection)
        session.config.pluginmanager.register(sender, "forked-sender")
        _run_tests(session.items, connection)
        atexit._run_exitfuncs()
        status = 0
    except KeyboardInterrupt:
        status = _STOPPED_BY_SIGINT
    except (EOFError, BrokenPipeError):
        pass  # Nobody wants to know any more.
    except BaseException as error:
        connection.send(("failed", repr(error)))
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _settle(config: pytest.Config, number: int) -> None:
    """Have output and directories of its own."""
    plugins = config.pluginmanager
    capture: Any = plugins.get_plugin("capturemanager")
    capture.suspend_global_capture(in_=True)
    capture.read_global_capture()
    capture.stop_global_capturing()
    capture.start_global_capturing()
    reporter: Any = plugins.get_plugin("terminalreporter")
    reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115 - until this process ends
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"worker-{number}"
    factory._basetemp.mkdir(mode=0o700, exist_ok=True)


def _run_tests(items: Sequence[pytest.Item], connection: Connection) -> None:
    for item, next_item in _pairs(items, connection):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        connection.send(("finished", None))


def _pairs(
    items: Sequence[pytest.Item], connection: Connection
) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each test with the one after it."""
    number = connection.recv()
    while number is not None:
        following = connection.recv()
        yield items[number], None if following is None else items[following]
        number = following
