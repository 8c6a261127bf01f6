"""The program of a test's broker process: the broker of `headrace up`, without its command line.

    echo '{"properties": {...}, "remove": DIRECTORY or null}' | python -m headrace.testing.child

Settings may be secrets, and everybody on the machine can see the arguments of a process. Rule: it
ends when the other end of its stdin is closed, and then leaves no files behind.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from errno import EADDRINUSE

from headrace.config import broker_config
from headrace.errors import HeadraceError
from headrace.testing.ports import PORT_TAKEN_STATUS

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve until SIGTERM or until stdin ends; returns the exit status."""
    # Until the broker has its own handler, SIGTERM ends the process at once.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    arguments = json.loads(_read_line())
    orphaned = threading.Event()
    threading.Thread(target=_watch_parent, args=(orphaned,), daemon=True).start()
    try:
        return _run(arguments["properties"])
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error}\n")
        return PORT_TAKEN_STATUS if _is_port_taken(error) else 1
    finally:
        if orphaned.is_set() and arguments["remove"]:
            import shutil  # noqa: PLC0415  # Most are stopped, and need not wait for it.

            shutil.rmtree(arguments["remove"], ignore_errors=True)


def _run(properties: Mapping[str, str]) -> int:
    # As in the command line: importing leaves no garbage to collect.
    gc.disable()
    from headrace.broker.app import run  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    return run(broker_config(properties))


def _read_line() -> bytes:
    """The first line of stdin; nothing follows it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(0, 65_536)
        if not part:
            sys.exit(1)  # The parent has ended.
        line += part
    return bytes(line)


def _watch_parent(orphaned: threading.Event) -> None:
    # A paused process cannot notice the end of its stdin, so the kernel has to wake it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))
    while os.read(0, 1024):
        pass
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _is_port_taken(error: HeadraceError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == EADDRINUSE


if __name__ == "__main__":
    sys.exit(main())
