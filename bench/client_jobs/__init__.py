"""Load from one client, in a separate process.

    python -m bench.client_jobs.CLIENT JOB ADDRESS JSON

Every client gets the same sizes and waits, and is called as its documentation shows. Each job
counts its sent or received messages, checks the length of every value, and prints one JSON object.
"""

import json
import sys
import time
from collections.abc import Callable

BATCH_BYTES = 262_144
BUFFER_BYTES = 33_554_432
LINGER_MS = 5
FETCH_BYTES = 52_428_800
PARTITION_FETCH_BYTES = 1_048_576
POLL_RECORDS = 5_000
PATIENCE_S = 60.0

Measured = dict[str, float]


class Stopwatch:
    """A clock that starts when the client is ready, and stops when the last message is done."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._cpu_began = time.process_time()

    def stop(self, count: int, size: int) -> Measured:
        seconds = time.perf_counter() - self._began
        cpu_seconds = time.process_time() - self._cpu_began
        return {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "messages": count,
            "bytes": count * size,
        }


def wrong_size(found: int, size: int) -> SystemExit:
    return SystemExit(f"a value of {found} bytes instead of {size}")


def run(*jobs: Callable[..., Measured]) -> None:
    """Run the job named on the command line."""
    job, address, arguments = sys.argv[1:]
    named = {job.__name__: job for job in jobs}
    print(json.dumps(named[job](address, **json.loads(arguments))))
