"""The console beside `headrace up`: a process that starts after the brokers and ends with them.

Rule: it must not delay the brokers. Until one of them answers, its process has imported nothing.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

_LOOPBACK = "127.0.0.1"
_STOP_S_MAX = 5.0
_POLL_S = 0.1
# A console that ends again and again has a bug that a start does not mend.
_RESTARTS_MAX = 3
# A cluster that was not reached after this time is shown as one that does not answer.
_START_S_MAX = 60.0


@contextmanager
def console_beside(
    bootstrap: str,
    properties: Mapping[str, str],
    listening: socket.socket,
    *,
    signs_in: bool,
) -> Iterator[str]:
    """Run a console of these brokers at a socket; its URL. It ends with the block."""
    document = {
        "bootstrap": bootstrap,
        "properties": dict(properties),
        "signs_in": signs_in,
        "descriptor": listening.fileno(),
    }
    console = _SupervisedConsole(document, listening)
    try:
        yield f"http://{_LOOPBACK}:{listening.getsockname()[1]}"
    finally:
        console.close()


class _SupervisedConsole:
    """The process of a console, started again when it ends by itself, and not for ever."""

    def __init__(self, document: Mapping[str, Any], listening: socket.socket) -> None:
        self._document = json.dumps(document).encode() + b"\n"
        # Kept for the next process: browsers that come in between wait for it.
        self._listening = listening
        self._lock = threading.Lock()
        self._is_closing = False
        self._process = self._started()
        threading.Thread(target=self._supervise, name="console", daemon=True).start()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._is_closing = True
            process = self._process
        with suppress(BrokenPipeError):
            self._input_of(process).close()
        process.terminate()
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._listening.close()

    def _started(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.cli.console_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._listening.fileno(),),
            # Ctrl-C is for the brokers; the console ends when they have ended.
            process_group=0,
        )
        with suppress(BrokenPipeError):  # It has ended already, and said why.
            self._input_of(process).write(self._document)
            self._input_of(process).flush()
        return process

    @staticmethod
    def _input_of(process: "subprocess.Popen[bytes]") -> IO[bytes]:
        assert process.stdin is not None
        return process.stdin

    def _supervise(self) -> None:
        for _ in range(_RESTARTS_MAX):
            status = self._process.wait()
            with self._lock:
                if self._is_closing:
                    return
                _say(f"the console ended with status {status} and is started again")
                with suppress(OSError):
                    self._input_of(self._process).close()
                self._process = self._started()
        status = self._process.wait()
        with self._lock:
            if not self._is_closing:
                _say(
                    f"the console ended with status {status} once more and is not started again;"
                    " `headrace console` starts one, and the brokers go on"
                )
                self._listening.close()


def _say(text: str) -> None:
    sys.stderr.write(f"headrace: {text}\n")
    sys.stderr.flush()


def main() -> None:
    """The process: read the settings, wait for a broker, serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    document: dict[str, Any] = json.loads(sys.stdin.readline())
    # A parent that was killed cannot say so, but its end of the pipe is closed.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _wait_for(document["bootstrap"])
    # Imported now, so that the brokers had the cores to themselves while they started.
    from headrace.cli.console import run_beside  # noqa: PLC0415

    with socket.socket(fileno=document["descriptor"]) as listening:
        run_beside(
            document["bootstrap"],
            document["properties"],
            listening,
            signs_in=document["signs_in"],
        )


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(bootstrap: str) -> None:
    """Return when a broker accepts connections, or after a time in which one should have."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    until = time.monotonic() + _START_S_MAX
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), _POLL_S):
            return
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
