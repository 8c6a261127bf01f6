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
from typing import Any

_LOOPBACK = "127.0.0.1"
_STOP_S_MAX = 5.0
_POLL_S = 0.1
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
    command = [sys.executable, "-P", "-m", "headrace.cli.console_process"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(listening.fileno(),),
        # Ctrl-C is for the brokers; the console ends when they have ended.
        process_group=0,
    )
    assert process.stdin is not None
    document = {
        "bootstrap": bootstrap,
        "properties": dict(properties),
        "signs_in": signs_in,
        "descriptor": listening.fileno(),
    }
    port = listening.getsockname()[1]
    try:
        with suppress(BrokenPipeError):  # It has ended already, and said why.
            process.stdin.write(json.dumps(document).encode() + b"\n")
            process.stdin.flush()
        # Only its own process answers at the port from now on.
        listening.close()
        yield f"http://{_LOOPBACK}:{port}"
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.terminate()
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
