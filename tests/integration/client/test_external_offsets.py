"""Offsets in a database of the application's: each record's result once, whoever dies and when.

The programs are those of examples/external_offsets, killed with SIGKILL at random moments, and
stopped with SIGSTOP until somebody else has their partitions.
"""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import psycopg
import pytest

import headrace
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.client.postgres import postgres_server
from tests.integration.wire import Wire
from tests.support import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "external_offsets"
PAGE = ROOT / "docs" / "external-offsets.md"

TOPIC = "orders"
GROUP = "workers"
PARTITIONS = 3
# Enough that a process is never done before it is killed.
RECORDS = 10_000
KILLS = 4
SECONDS = 60.0

EVERYTHING = sorted(f"{number}" for number in range(RECORDS))


class Results(ABC):
    """The database, as anybody can read it."""

    script: str
    connect: str

    @abstractmethod
    def query(self, sql: str) -> list[tuple[object, ...]]:
        """The rows; none if the tables are not there yet."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether somebody is inside a transaction."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the database."""

    def values(self) -> list[str]:
        return sorted(str(value) for (value,) in self.query("SELECT value FROM results"))

    def count(self) -> int:
        rows = self.query("SELECT count(*) FROM results")
        return int(str(rows[0][0])) if rows else 0

    def offsets(self) -> int:
        """How far all partitions are together."""
        rows = self.query("SELECT sum(next_offset) FROM offsets")
        return int(str(rows[0][0] or 0)) if rows else 0


class SQLiteResults(Results):
    script = "sqlite_offsets.py"

    def __init__(self, path: Path) -> None:
        self.connect = str(path)

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.connect, timeout=scaled(SECONDS))) as database:
            try:
                return database.execute(sql).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise

    def is_busy(self) -> bool:
        with closing(sqlite3.connect(self.connect, timeout=0)) as database:
            try:
                database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return True
            database.rollback()
            return False

    def close(self) -> None:
        pass  # Nothing is open between two queries.


class PostgresResults(Results):
    script = "postgres_offsets.py"

    def __init__(self, dsn: str) -> None:
        self.connect = dsn
        # Connecting costs the server a process each time.
        self._database = psycopg.connect(dsn, autocommit=True)
        self.query("DROP TABLE IF EXISTS results, offsets")

    def query(self, sql: str) -> list[tuple[object, ...]]:
        try:
            rows = self._database.execute(sql)
            return rows.fetchall() if rows.description else []
        except psycopg.errors.UndefinedTable:
            return []

    def close(self) -> None:
        self._database.close()

    def is_busy(self) -> bool:
        # Clients only: the server's own workers have transactions too.
        others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        busy = f"SELECT 1 FROM pg_stat_activity WHERE {others} AND xact_start IS NOT NULL"
        return bool(self.query(busy))

    def is_locked(self) -> bool:
        """Whether others have to wait for somebody's transaction."""
        held = "relation = 'offsets'::regclass AND mode = 'RowExclusiveLock'"
        return bool(self.query(f"SELECT 1 FROM pg_locks WHERE {held}"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as dsn:
        yield dsn


@pytest.fixture(params=["sqlite", "postgres"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Results]:
    found: Results
    if request.param == "sqlite":
        found = SQLiteResults(tmp_path / "results.db")
    else:
        found = PostgresResults(request.getfixturevalue("server"))
    with closing(found):
        yield found


class Workers:
    """Processes that run an example, and the group they are in."""

    def __init__(self, address: str, results: Results) -> None:
        self._address = address
        self._results = results
        self._command = [sys.executable, str(EXAMPLES / results.script)]
        self._command += ["--bootstrap-server", address, "--topic", TOPIC, "--group", GROUP]
        self._command += ["--database", results.connect]
        self._running: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        self._running.remove(process)
        process.communicate(timeout=scaled(SECONDS))
        assert process.returncode == -signal.SIGKILL
        self.bury()

    def bury(self) -> None:
        """Take every member out of the group, as the end of its session would."""
        with headrace.Admin(bootstrap_servers=self._address) as admin:
            if GROUP not in admin.list_groups():
                return
            members = admin.describe_group(GROUP).members
        with Wire(self._address) as wire:
            for member in members:
                identity = MemberIdentity(member_id=member.member_id)
                wire.ask(LeaveGroupRequest(group_id=GROUP, members=[identity]))

    def wait(self, is_reached: Callable[[], bool]) -> None:
        deadline = Deadline(SECONDS)
        while not is_reached():
            for process in self._running:
                assert process.poll() is None, process.communicate()[1]
            assert not deadline.has_passed, f"{self._results.count()} results in time"
            time.sleep(0.005)

    def wake(self, process: subprocess.Popen[str]) -> str:
        """Let a stopped process go on to its end; what it said of it."""
        os.kill(process.pid, signal.SIGCONT)
        _, stderr = process.communicate(timeout=scaled(SECONDS))
        self._running.remove(process)
        assert process.returncode == 1, stderr
        return stderr

    def stop(self) -> None:
        """With Ctrl-C, which must end every one of them cleanly."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
        for process in self._running:
            _, stderr = process.communicate(timeout=scaled(SECONDS))
            assert process.returncode == 0, stderr
        self._running.clear()

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def broker_with_records(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = start_broker(**{"group.initial.rebalance.delay.ms": "0"})
    with headrace.Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    with headrace.Producer(bootstrap_servers=broker.address) as producer:
        for number in range(RECORDS):
            producer.send(TOPIC, f"{number}", partition=number % PARTITIONS)
    return broker


@pytest.fixture
def workers(broker_with_records: BrokerProcess, results: Results) -> Iterator[Workers]:
    with closing(Workers(broker_with_records.address, results)) as workers:
        yield workers


def test_results_are_complete_and_single_whenever_a_process_is_killed(
    workers: Workers, results: Results
) -> None:
    rng = Random(4)
    for kill in range(1, KILLS + 1):
        process = workers.start()
        wanted = results.count() + rng.randrange(1, RECORDS // KILLS // 10)
        workers.wait(lambda wanted=wanted: results.count() >= wanted)  # type: ignore[misc]
        # Anywhere in a turn of its loop: polling, storing, between the two.
        time.sleep(rng.uniform(0, 0.01))
        workers.kill(process)
        assert results.count() == results.offsets(), f"they do not agree after kill {kill}"
    assert 0 < results.count() < RECORDS, "all was done before the last one was killed"
    workers.start()
    workers.wait(lambda: results.count() >= RECORDS)
    workers.stop()
    assert results.values() == EVERYTHING
    assert results.offsets() == RECORDS


def test_a_process_that_was_replaced_without_noticing_stores_nothing_twice(
    workers: Workers, results: Results
) -> None:
    zombie = workers.start()
    workers.wait(lambda: results.count() > RECORDS // 50)
    # In a transaction it would keep everybody waiting; that is the next test.
    stop(zombie, until=lambda: not results.is_busy())
    before = results.count()
    assert before < RECORDS
    workers.bury()
    workers.start()
    workers.wait(lambda: results.count() > before + RECORDS // 50)
    # It wakes up with a batch in hand, and with every reason to believe that it is its own.
    os.kill(zombie.pid, signal.SIGCONT)
    workers.wait(lambda: results.count() >= RECORDS)
    workers.stop()
    assert results.values() == EVERYTHING


def test_a_process_stopped_inside_a_transaction_does_not_stop_the_others_for_long(
    broker_with_records: BrokerProcess, server: str
) -> None:
    results = PostgresResults(server)
    workers = Workers(broker_with_records.address, results)
    with closing(results), closing(workers):
        zombie = workers.start()
        workers.wait(lambda: results.count() > RECORDS // 50)
        stop(zombie, until=results.is_locked)
        before = results.count()
        workers.bury()
        workers.start()
        workers.wait(lambda: results.count() > before)
        # Woken up, it finds its transaction ended and fails, as after any crash of a database.
        assert "\npsycopg." in workers.wake(zombie)
        workers.wait(lambda: results.count() >= RECORDS)
        workers.stop()
        assert results.values() == EVERYTHING


def stop(process: subprocess.Popen[str], until: Callable[[], bool]) -> None:
    """Stop a process in its tracks, at a moment of a kind."""
    deadline = Deadline(SECONDS)
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        # What it has sent may still be on its way to the database.
        time.sleep(0.02)
        if until():
            return
        assert not deadline.has_passed
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.0005)


def test_two_processes_share_the_work(workers: Workers, results: Results) -> None:
    workers.start()
    workers.start()
    workers.wait(lambda: results.count() >= RECORDS)
    workers.stop()
    assert results.values() == EVERYTHING


def test_the_page_shows_the_code_that_is_tested() -> None:
    code = "\n".join(path.read_text() for path in sorted(EXAMPLES.glob("*.py")))
    shown = re.findall(r"^```(?:python|sql)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(shown) >= 3
    for piece in shown:
        assert piece in code, piece
