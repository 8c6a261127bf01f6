"""Spark clusters on this machine for tests, and a driver to run on them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark

import headrace
from headrace.testing import Broker
from headrace.testing.time_limits import Deadline, scaled
from tests.spark import cluster_driver

HOME = Path(pyspark.__file__).parent
_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_START_S_MAX = 120.0
_DRIVER_S_MAX = 240.0


class Executor(NamedTuple):
    """What a task saw."""

    directory: Path
    python: Path
    codec: Path
    is_compiled: bool


def run_stream(master: str, directory: Path, **environment: str) -> list[Executor]:
    """Stream a hundred records from topic to topic on a master, and see that they arrived."""
    with Broker() as broker:
        source, target = broker.create_topic(partitions=2), broker.create_topic(partitions=2)
        with headrace.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(100):
                producer.send(source, f"row {number}", partition=number % 2)
        found = _run_driver(master, broker, source, target, directory, environment)
        with headrace.Consumer(
            target,
            bootstrap_servers=broker.bootstrap_servers,
            auto_offset_reset="earliest",
            consumer_timeout_ms=10_000,
        ) as consumer:
            values = sorted(next(consumer).value for _ in range(100))
    assert values == sorted(f"ROW {number}".encode() for number in range(100))
    return found


def _run_driver(
    master: str,
    broker: Broker,
    source: str,
    target: str,
    directory: Path,
    environment: dict[str, str],
) -> list[Executor]:
    # What other tests of this process have set for their session is not for this one.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")
    }
    driver = subprocess.run(
        [
            *(sys.executable, cluster_driver.__file__, master, broker.bootstrap_servers),
            *(source, target, str(directory / "checkpoint")),
        ],
        env=inherited | environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=scaled(_DRIVER_S_MAX),
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    return [
        Executor(Path(directory), Path(python), Path(codec), is_compiled)
        for directory, python, codec, is_compiled in json.loads(driver.stdout.splitlines()[-1])
    ]


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[str]:
    """The address of a master with workers of one core each, all ended in the end.

    The workers' Python has PyArrow, and not this package.
    """
    environment = {
        **{name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG") if name in os.environ},
        "PATH": os.pathsep.join((str(_bare_python(directory / "python")), os.environ["PATH"])),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": cluster_driver.JAVA_OPTIONS,
    }
    listen = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        log = directory / "master.log"
        master = stack.enter_context(_daemon("master.Master", listen, log, environment))
        url = _address(master, log)
        for number in range(workers):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", f"worker-{number}")
            log = directory / f"worker-{number}.log"
            stack.enter_context(_daemon("worker.Worker", (*listen, *size, url), log, environment))
        yield url


def _bare_python(directory: Path) -> Path:
    """An interpreter like this one, with nothing but PyArrow installed; returns its `bin`."""
    venv.create(directory, symlinks=True, with_pip=False)
    packages = next(directory.glob("lib/python*/site-packages"))
    installed = Path(pyspark.__file__).parents[1]
    for name in ("numpy", "numpy.libs", "pyarrow"):
        (packages / name).symlink_to(installed / name)
    return directory / "bin"


@contextmanager
def _daemon(
    name: str, arguments: tuple[str, ...], log: Path, environment: dict[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            env=environment,
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # A worker's executors are in its group, and their Python ends with them.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(master: "subprocess.Popen[bytes]", log: Path) -> str:
    end = Deadline(_START_S_MAX)
    while not end.has_passed:
        found = _URL.search(log.read_text())
        if found:
            return found[1]
        assert master.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"the master has not started within {_START_S_MAX} s: {log.read_text()}")
