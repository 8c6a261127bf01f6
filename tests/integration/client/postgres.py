"""A PostgreSQL server of a test's own: on a Unix socket, in a temporary directory."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from headrace.testing.time_limits import Deadline, scaled

SECONDS = 60.0
# The server refuses to run as root; Debian's package comes with the first of these.
OTHER_USERS = ("postgres", "nobody")


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs. Debian keeps most of them out of PATH."""
    installed = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = sorted(installed, key=lambda path: float(path.parts[-3]))[-1:]
    found = shutil.which(name) or next(map(str, newest), None)
    assert found, f"PostgreSQL's {name} was not found; install it: apt-get install postgresql"
    return found


def _unprivileged() -> dict[str, Any]:
    """How to start a process that may run the server."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = next(names[name] for name in OTHER_USERS if name in names)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server for the length of the block; yields how libpq connects to it."""
    identity = _unprivileged()
    # Not in pytest's directory, which only the user who runs pytest may enter.
    with tempfile.TemporaryDirectory(prefix="headrace-pg-") as name:
        if identity:
            os.chown(name, identity["user"], identity["group"])
        data = f"{name}/data"
        create = [program("initdb"), "-D", data, "-U", "tester", "-A", "trust", "--no-sync"]
        subprocess.run(
            [*create, "--encoding=UTF8", "--locale=C"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=name,
            **identity,
        )
        with open(f"{name}/log", "wb") as log:
            server = subprocess.Popen(
                # No TCP, and no fsync: processes are killed here, not machines.
                [program("postgres"), "-D", data, "-k", name, "-h", "", "-F"],
                stdout=log,
                stderr=log,
                cwd=name,
                **identity,
            )
        try:
            dsn = f"host={name} user=tester dbname=postgres"
            _wait_until_ready(dsn, server, Path(name, "log"))
            yield dsn
        finally:
            # A fast shutdown: clients are disconnected.
            server.send_signal(signal.SIGINT)
            server.wait(scaled(SECONDS))


def _wait_until_ready(dsn: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = Deadline(SECONDS)
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            assert server.poll() is None and not deadline.has_passed, log.read_text()
            time.sleep(0.02)
        else:
            return
