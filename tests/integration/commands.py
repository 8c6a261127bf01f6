"""The commands as processes, on pipes and on a terminal."""

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.testing.time_limits import Deadline, scaled
from tests.fork_server import COMMAND, Streams, server_of
from tests.support import headrace_command

SECONDS = 60.0


class Cli:
    """`headrace` with the address of a broker in its environment."""

    def __init__(self, address: str) -> None:
        self.environment = {**os.environ, "HEADRACE_BOOTSTRAP_SERVER": address}

    def run(
        self, *arguments: str, stdin: bytes = b"", status: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        streams = Streams(subprocess.PIPE, subprocess.PIPE, subprocess.PIPE)
        server = server_of(COMMAND, self.environment)
        with server.start(arguments, self.environment, streams) as process:
            output, errors = process.communicate(stdin, scaled(SECONDS))
            code = process.poll()
        assert code is not None
        result = subprocess.CompletedProcess(arguments, code, output, errors)
        assert result.returncode == status, (arguments, result)
        assert b"Traceback" not in result.stderr, result.stderr.decode()
        return result

    def text(self, *arguments: str, stdin: bytes = b"") -> str:
        return self.run(*arguments, stdin=stdin).stdout.decode()

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(self.text(*arguments, "--json", stdin=stdin))

    def error(self, *arguments: str, stdin: bytes = b"", status: int = 1) -> str:
        """The one line a command fails with."""
        result = self.run(*arguments, stdin=stdin, status=status)
        lines = result.stderr.decode().splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("headrace: ")
        return lines[0]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [headrace_command(), *arguments],
            stdin=options.pop("stdin", subprocess.PIPE),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            **options,
        )


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line a process prints; fails if none comes."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], scaled(SECONDS))[0], "nothing was printed"
    return process.stdout.readline()


def end(process: subprocess.Popen[bytes], status: int) -> bytes:
    """Wait for a process to end by itself; what it said on stderr."""
    _, stderr = process.communicate(timeout=scaled(SECONDS))
    assert process.returncode == status, stderr.decode()
    assert b"Traceback" not in stderr
    return stderr


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = Deadline(SECONDS)
    while not condition():
        assert not deadline.has_passed
        time.sleep(0.01)


def unread_bytes(address: str) -> int:
    """What clients have sent to a broker and it has not read yet, by the kernel's own account."""
    port = int(address.rpartition(":")[2])
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    # local address, remote address, state, queues as "sending:received", all in hexadecimal
    return sum(int(row[4][9:], 16) for row in rows if int(row[1][9:], 16) == port)


def on_terminal(cli: Cli, arguments: Sequence[str], typed: bytes = b"") -> tuple[int, str]:
    """Run a command on a terminal of its own; its status and all that was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**cli.environment, "TERM": "xterm", "COLUMNS": "120"}
        os.execve(headrace_command(), [headrace_command(), *arguments], environment)
    if typed:
        os.write(terminal, typed)
    shown = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # The other side is closed.
            break
        if not data:
            break
        shown += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()
