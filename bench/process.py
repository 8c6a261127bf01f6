"""Processes of a benchmark: a fresh broker each time, and a load."""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

_READY = re.compile(rb"ready on (\S+:\d+)")


def run_load(job: str, bootstrap_servers: str, **arguments: Any) -> dict[str, float]:
    """Run a job of `bench.load` in its own process."""
    command = [sys.executable, "-m", "bench.load", job, bootstrap_servers, json.dumps(arguments)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    measured: dict[str, float] = json.loads(output)
    return measured


class BackgroundLoad:
    """A job of `bench.load` in its own process, which has started, and ends with this object."""

    def __init__(self, job: str, bootstrap_servers: str, **arguments: Any) -> None:
        command = [sys.executable, "-m", "bench.load", job, bootstrap_servers]
        self._process = subprocess.Popen(
            [*command, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.measured: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        output, _ = self._process.communicate("")
        if error is None:
            self.measured = json.loads(output)


class BrokerProcess:
    """`headrace broker` on a free port with its data in a new directory below `directory`.

    Or the same of another `module` that has its command line.
    """

    def __init__(
        self, directory: Path, *, module: str = "headrace.cli.main", **settings: str
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(dir=directory, prefix="broker-")
        properties = {
            "log.dirs": f"{self._directory.name}/data",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            # As `headrace up` has them.
            "group.initial.rebalance.delay.ms": "0",
            "log.format": "text",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        path = Path(self._directory.name, "server.properties")
        path.touch(0o600)
        path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        command = [sys.executable, "-m", module, "broker", "--config", str(path)]
        self._log = Path(self._directory.name, "broker.log")
        self.started = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        ready = _READY.search(line)
        if ready is None:
            raise SystemExit(f"the broker did not start: {line!r}\n{self._log.read_text()}")
        self.address = ready[1].rstrip(b",").decode()
        self._psutil = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        for line in self._log.read_text().splitlines():
            if " INFO " not in line:
                print(line, file=sys.stderr)
        self._directory.cleanup()

    @property
    def data_dir(self) -> str:
        return f"{self._directory.name}/data"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident_mb(self) -> float:
        return float(self._psutil.memory_info().rss) / 1e6

    @property
    def loop_cpu_seconds(self) -> float:
        """CPU time of the event loop's thread alone, to the nanosecond."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        return int(path.read_text().split()[0]) / 1e9

    @property
    def cpu_seconds(self) -> float:
        times = self._psutil.cpu_times()
        return float(times.user + times.system)
