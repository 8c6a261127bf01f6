"""Processes of tests, forked by a server that has imported their modules already.

Importing takes most of the CPU time of a broker, a command or a consumer that a test starts, and
the suite starts more than a thousand. They are processes like others: children of the test's
process, each with its own standard streams, process group, environment and directory.

    python fork_server.py DESCRIPTOR MODULE PRELOADED...

serves requests that come on a socket; `ForkServer` is the other end of it.
"""

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES_MAX = 1 << 17


class Program(NamedTuple):
    """A module whose `main` is run in each process, and the modules to import before.

    `package.*` is a package with all that is in it.
    """

    module: str
    preloaded: tuple[str, ...]


BROKER = Program("headrace.testing.child", ("headrace.broker.app",))
COMMAND = Program("headrace.cli.main", ("headrace.cli.*", "headrace.client.admin"))
MEMBER = Program(
    "tests.integration.groups.member",
    (
        "headrace.client.*",
        "confluent_kafka",
        "kafka.coordinator.assignors.*",
        "aiokafka.coordinator.assignors.*",
    ),
)
COPIER = Program(
    "tests.integration.transactions.copy_program",
    ("headrace.client.*", "confluent_kafka", "kafka.coordinator.assignors.*"),
)


class ForkedProcess(subprocess.Popen[Any]):
    """A process that a server has forked. It is a child of this process, as Popen's are."""

    def __init__(self, args: Sequence[str], pid: int, streams: "Streams", *, text: bool) -> None:
        # Not Popen's: the process exists already. These are the fields that its methods use.
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = streams.ours(0, text=text)
        self.stdout = streams.ours(1, text=text)
        self.stderr = streams.ours(2, text=text)
        self.text_mode = text
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._communication_started = False
        self._input = None


class Streams:
    """The standard streams of a process to start, from Popen's arguments."""

    def __init__(self, stdin: Any, stdout: Any, stderr: Any) -> None:
        self._ours: dict[int, int] = {}
        self._opened: list[int] = []
        self.theirs: list[int] = []
        for number, given in enumerate((stdin, stdout, stderr)):
            self.theirs.append(self._descriptor(number, given))

    def _descriptor(self, number: int, given: Any) -> int:
        match given:
            case None:
                return number
            case subprocess.STDOUT:
                return self.theirs[1]
            case subprocess.PIPE:
                read, write = os.pipe()
                ours, theirs = (write, read) if number == 0 else (read, write)
                self._ours[number] = ours
                self._opened.append(theirs)
                return theirs
            case subprocess.DEVNULL:
                theirs = os.open(os.devnull, os.O_RDWR)
                self._opened.append(theirs)
                return theirs
            case int():
                return given
        return int(given.fileno())

    def ours(self, number: int, *, text: bool) -> Any:
        """This process's end of a stream, or None."""
        if number not in self._ours:
            return None
        stream = open(self._ours[number], "wb" if number == 0 else "rb")  # noqa: SIM115
        return io.TextIOWrapper(stream, "utf-8", "replace") if text else stream

    def close_theirs(self) -> None:
        for descriptor in self._opened:
            os.close(descriptor)


class ForkServer:
    """The server's process, and the socket for requests to fork a program."""

    def __init__(
        self, program: Program, python: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        # A process whose parent has ended becomes a child of this one, not of PID 1, so that it can
        # be waited for.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._command = [*python, "-m", program.module]
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [__file__, str(theirs.fileno()), program.module, *program.preloaded]
            self._process = subprocess.Popen(
                [*python, *arguments],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for the tests.
                process_group=0,
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: Streams,
        *,
        text: bool = False,
    ) -> ForkedProcess:
        """A process that runs the program with these arguments."""
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": os.getcwd(),
        }
        message = json.dumps(request).encode()
        assert len(message) < _MESSAGE_BYTES_MAX
        try:
            with self._lock:
                socket.send_fds(self._socket, [message], streams.theirs)
                answer = self._socket.recv(64)
        finally:
            streams.close_theirs()
        assert answer, "the fork server has ended"
        return ForkedProcess([*self._command, *arguments], int(answer), streams, text=text)


def server_of(
    program: Program, environment: Mapping[str, str], python: Sequence[str] = (sys.executable,)
) -> ForkServer:
    """The server for a program with these variables of Python's; a process has its own servers."""
    variables = {name: environment[name] for name in environment if name.startswith("PYTHON")}
    paths = [str(ROOT), str(ROOT / "src"), *variables.get("PYTHONPATH", "").split(os.pathsep)]
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    variables |= {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return _server(os.getpid(), program, tuple(python), json.dumps(variables, sort_keys=True))


@cache
def _server(
    _process_id: int, program: Program, python: tuple[str, ...], environment: str
) -> ForkServer:
    return ForkServer(program, python, json.loads(environment))


Start = Callable[[Sequence[str], Sequence[str], str, Mapping[str, str]], "subprocess.Popen[str]"]
_plain_start: Start | None = None  # Of `headrace.testing.broker_runners`, which `install` replaces.


@contextmanager
def started_plainly() -> Iterator[None]:
    """Start brokers without forking, for the tests of the start itself."""
    from headrace.testing import broker_runners as runners

    forked = runners.start_child
    runners.start_child = _plain_start or forked  # type: ignore[assignment]
    try:
        yield
    finally:
        runners.start_child = forked


def _start_broker(
    prefix: Sequence[str], python: Sequence[str], argument: str, environment: Mapping[str, str]
) -> "subprocess.Popen[str]":
    """Fork a broker; takes the place of `headrace.testing.broker_runners.start_child`."""
    from headrace.testing import broker_runners as runners

    if prefix:  # A command that runs the interpreter itself.
        assert _plain_start is not None
        return _plain_start(prefix, python, argument, environment)
    streams = Streams(subprocess.PIPE, subprocess.PIPE, subprocess.STDOUT)
    server = server_of(BROKER, environment, python)
    process = server.start([], environment, streams, text=True)
    runners.give_argument(process, argument)
    return process


def install() -> None:
    """Make `headrace.testing` fork the brokers that it starts in this process."""
    from headrace.testing import broker_runners as runners

    global _plain_start  # noqa: PLW0603 - set once, before the first test
    if sys.platform == "linux" and _plain_start is None:
        _plain_start = runners.start_child
        runners.start_child = _start_broker


# -- the server


def serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request; returns its arguments in the new process, None at their end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES_MAX, 3)
        if not message:
            return None
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            # Forked twice: the first process ends, which makes the second a child of the tester.
            forked = os.fork()
            if forked:
                os.write(write, str(forked).encode())
                os._exit(0)
            for descriptor in (read, write, requests.detach()):
                os.close(descriptor)
            return _become(json.loads(message), descriptors)
        os.close(write)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(child, 0)
        requests.send(os.read(read, 64))
        os.close(read)


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> list[str]:
    """Take over the streams, the environment and the directory of a request."""
    # Not the tester's group: if that has a stopped process, and no shell to look after it, the
    # kernel hangs up the whole group when the parent ends, which it does right after forking.
    os.setpgid(0, 0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    arguments: list[str] = request["arguments"]
    return arguments


def _import(name: str) -> None:
    package = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)


def main() -> int | None:
    descriptor, module, *preloaded = sys.argv[1:]
    for name in preloaded:
        _import(name)
    program = importlib.import_module(module)
    # Nothing of this is garbage: no process need look at it, which would copy its pages.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with socket.socket(fileno=int(descriptor)) as requests:
        arguments = serve(requests)
    if arguments is None:
        return 0
    sys.argv = [module, *arguments]
    status: int | None = program.main()
    return status


if __name__ == "__main__":
    sys.exit(main())
