"""The program of a broker that a supervisor runs: `python -m headrace.cli.broker_process
[--verbose]`.

Its standard input is a JSON object of settings under Kafka's names: some are secrets, and everybody
on the machine can see the arguments of a process. Rule: it does not outlive its supervisor.
"""

import ctypes
import json
import os
import signal
import sys

from headrace.cli.main import fail
from headrace.cli.serve import serve
from headrace.cli.supervisor import VERBOSE
from headrace.errors import HeadraceError

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve until SIGTERM, which the kernel also sends when the supervisor dies."""
    supervisor = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != supervisor:
        return 1  # The supervisor died before the signal was requested.
    try:
        return serve(json.load(sys.stdin), verbose=VERBOSE in sys.argv[1:])
    except HeadraceError as error:
        fail(str(error), 1)


if __name__ == "__main__":
    sys.exit(main())
