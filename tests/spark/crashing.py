"""A pipeline whose driver and executors are killed again and again, and what must be true after it.

The pipeline counts by minute and user, which needs state, and writes the counts to a topic and to
Parquet files; if asked to, the records themselves to Parquet files too. What it must give, each
result once, is computed here in plain Python from the numbers of the records.
"""

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Self

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

import headrace
from headrace.testing.time_limits import Deadline
from tests.support import headrace_command

START = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(milliseconds=5)
PARTITIONS = 4
USERS = 50
# Far behind all the others: its time closes their windows, and its own stays open.
LAST_USER = -1
PATIENCE_S = 600.0
LOOK_S = 0.02

PIPELINE = """\
pipeline: killed
broker: {{ bootstrap.servers: "{servers}" }}
checkpoint: ./checkpoints
sources:
  records:
    topic: records
    starting: earliest
    options: {{ maxOffsetsPerTrigger: {batch} }}
    decode:
      format: json
      schema: id BIGINT, user BIGINT, cents BIGINT, at TIMESTAMP
      on_error: fail
    watermark: {{ column: at, delay: 1 minute }}
steps:
  counted:
    sql: |
      SELECT window.start AS minute, user, count(*) AS records, sum(cents) AS cents
      FROM records GROUP BY window(at, '1 minute'), user
sinks:
  counts: {{ from: counted, topic: counts, key: user, mode: append }}
  count_files: {{ from: counted, parquet: ./counts, mode: append }}
"""
RECORD_FILES = """\
  record_files: { from: records, parquet: ./records }
"""

Count = tuple[datetime, int, int, int]


def user_of(number: int) -> int:
    return number * 2_654_435_761 % USERS


def cents_of(number: int) -> int:
    return number * 7_919 % 1_000


def expected_counts(records: int) -> Counter[Count]:
    """Minute, user, how many records and how many cents, each once."""
    found: dict[tuple[datetime, int], tuple[int, int]] = {}
    for number in range(records):
        minute = (START + number * STEP).replace(second=0, microsecond=0)
        count, cents = found.get((minute, user_of(number)), (0, 0))
        found[minute, user_of(number)] = (count + 1, cents + cents_of(number))
    return Counter((*key, *totals) for key, totals in found.items())


def send_records(servers: str, records: int) -> None:
    """Send the records, evenly and in the order of their times, and the one that closes windows."""
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("records", partitions=PARTITIONS)
        admin.create_topic("counts", partitions=PARTITIONS)
    with headrace.Producer(bootstrap_servers=servers, linger_ms=20) as producer:
        for number in range(records):
            at = (START + number * STEP).isoformat()
            user, cents = user_of(number), cents_of(number)
            value = f'{{"id": {number}, "user": {user}, "cents": {cents}, "at": "{at}"}}'
            producer.send("records", value, partition=number % PARTITIONS)
        producer.flush()
        at = (START + records * STEP + timedelta(days=1)).isoformat()
        value = f'{{"id": {records}, "user": {LAST_USER}, "cents": 0, "at": "{at}"}}'
        producer.send("records", value, partition=0).result()
        assert producer.metrics()["record-error-total"] == 0


class Job:
    """`headrace pipeline run` as a process with all it starts: Java, executors, Python workers."""

    def __init__(
        self,
        directory: Path,
        servers: str,
        master: str,
        batch: int,
        *,
        record_files: bool,
        more: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.has_record_files = record_files
        self.starts = 0
        self._master = master
        self._more = more
        self._file = directory / "pipeline.yaml"
        text = PIPELINE.format(servers=servers, batch=batch)
        self._file.write_text(text + RECORD_FILES if record_files else text)
        self._driver: psutil.Popen | None = None
        self._family: set[psutil.Process] = set()

    @property
    def log(self) -> str:
        return (self.directory / "run.log").read_text(errors="replace")

    def start(self) -> None:
        """Start it; it goes on from its checkpoint and ends when it has read everything."""
        self.starts += 1
        command = [headrace_command(), "pipeline", "run", str(self._file)]
        command += ["--master", self._master, "--available-now", *self._more]
        with (self.directory / "run.log").open("ab") as log:
            self._driver = psutil.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def exit_status(self) -> int | None:
        """None while it runs."""
        assert self._driver is not None
        status = self._driver.poll()
        return None if status is None else int(status)

    def batches(self) -> dict[str, tuple[int, int]]:
        """How many batches each query has begun, and how many it has ended, by its checkpoint."""
        found = {}
        for commits in self.directory.glob("checkpoints/**/offsets"):
            query = commits.parent
            found[query.name] = (_numbered(commits), _numbered(query / "commits"))
        return found

    def kill_driver(self) -> None:
        """Kill the command and its Java; executors are left to notice it by themselves."""
        assert self._driver is not None
        family = self._remember()
        java = [entry for entry in family if "SparkSubmit" in _command(entry)]
        for process in [self._driver, *java]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._driver.wait()

    def workers(self) -> list[psutil.Process]:
        """Its executors, or where they are in the driver's Java, the Python workers."""
        family = self._remember()
        executors = [entry for entry in family if "CoarseGrainedExecutorBackend" in _command(entry)]
        return executors or [entry for entry in family if _is_worker(entry)]

    def kill_worker(self, worker: psutil.Process) -> None:
        """Kill a worker with all it has started."""
        for process in [worker, *_descendants(worker)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def close(self) -> None:
        """Leave no process behind."""
        self._remember()
        if self._driver is not None and self._driver.poll() is None:
            self._driver.kill()
            self._driver.wait()
        for process in self._family:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _remember(self) -> list[psutil.Process]:
        """What the driver has started; orphans are found by `close` because they were seen here."""
        found = _descendants(self._driver) if self._driver is not None else []
        self._family.update(found)
        return found


def _numbered(directory: Path) -> int:
    """One more than the newest of the files that are named by numbers; Spark removes old ones."""
    names = [path.name for path in directory.glob("*") if path.name.isdecimal()]
    return max(map(int, names), default=-1) + 1


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def _is_worker(process: psutil.Process) -> bool:
    """Whether it is a process in which Spark runs tasks: forked by a daemon of the same name."""
    name = "pyspark.daemon pyspark.worker"
    try:
        parent = process.parent()
    except psutil.NoSuchProcess:
        return False
    return name in _command(process) and parent is not None and name in _command(parent)


@dataclass
class Kills:
    """What was done to a job."""

    drivers: int = 0
    workers: int = 0
    mid_batch: int = 0
    moments: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.drivers + self.workers


def survive(
    job: Job,
    *,
    victims: list[str],
    batches: int,
    rng: Random,
    on_kill: Callable[[str], None] = lambda line: None,
) -> Kills:
    """Run a job to its end and kill it on the way, at moments that follow from `rng`.

    `batches` is how many all its queries will have together, about. The moments are numbers of
    begun batches, drawn from the first nine tenths of them, and then a part of a second.
    """
    kills = Kills()
    moments = sorted(rng.sample(range(1, max(batches * 9 // 10, len(victims) + 1)), len(victims)))
    job.start()
    for victim, moment in zip(victims, moments, strict=True):
        # A driver that was started again has to get somewhere before the next kill.
        _wait_for_batch(job, max(moment, _begun(job) + 1))
        time.sleep(rng.random() * 0.8)
        worker = None if victim == "driver" else rng.choice(_wait_for_workers(job))
        state = job.batches()
        busy = [name for name, (begun, ended) in state.items() if begun > ended]
        if worker is None:
            job.kill_driver()
            job.start()
            kills.drivers += 1
        else:
            job.kill_worker(worker)
            kills.workers += 1
        kills.mid_batch += bool(busy)
        begun = sum(value for value, _ in state.values())
        line = f"{victim} killed with {begun} batches begun, {len(busy)} of them under way"
        kills.moments.append(line)
        on_kill(line)
    _wait_for_end(job)
    return kills


def _begun(job: Job) -> int:
    return sum(begun for begun, _ in job.batches().values())


def _wait_for_batch(job: Job, moment: int) -> None:
    deadline = Deadline(PATIENCE_S)
    while _begun(job) < moment:
        _go_on_after_failure(job)
        assert job.exit_status() != 0, f"it ended before batch {moment}: {job.batches()}"
        assert not deadline.has_passed, f"no batch {moment} in time\n{job.log}"
        time.sleep(LOOK_S)


def _wait_for_workers(job: Job) -> list[psutil.Process]:
    """A batch may have begun before there is any, and one that was killed takes time to replace."""
    deadline = Deadline(PATIENCE_S)
    while not (workers := job.workers()):
        _go_on_after_failure(job)
        assert not deadline.has_passed, f"no worker in time\n{job.log}"
        time.sleep(LOOK_S)
    return sorted(workers, key=lambda one: one.pid)


def _wait_for_end(job: Job) -> None:
    deadline = Deadline(PATIENCE_S)
    while job.exit_status() != 0:
        _go_on_after_failure(job)
        assert not deadline.has_passed, f"it did not end\n{job.log}"
        time.sleep(LOOK_S)


def _go_on_after_failure(job: Job) -> None:
    """A lost worker may end a query and so the driver, which whoever runs it then starts again."""
    if job.exit_status() not in (None, 0):
        assert job.starts < 40, f"it does not come up again\n{job.log}"
        job.start()


def read_counts(servers: str) -> Iterator[Count]:
    """Every committed record of the topic of counts, in the order of each partition."""
    parts = [headrace.TopicPartition("counts", index) for index in range(PARTITIONS)]
    with headrace.Consumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        value_deserializer="json",
    ) as consumer:
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        while any(consumer.position(tp) < ends[tp] for tp in parts):
            for record in consumer.poll(timeout_ms=1_000):
                yield count_of(record.value)


def count_of(row: dict[str, Any]) -> Count:
    minute = row["minute"]
    at = datetime.fromisoformat(minute) if isinstance(minute, str) else minute
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return at, row["user"], row["records"], row["cents"]


@dataclass(frozen=True)
class Findings:
    """What the sinks have."""

    results: int
    rows: int


def check(job: Job, servers: str, records: int) -> Findings:
    """Require that nothing is missing, and nothing there twice, neither in the topic nor in files.

    Files are read by PyArrow, which knows nothing of Spark's own notes about them.
    """
    wanted = expected_counts(records)
    sent = Counter(read_counts(servers))
    assert sent.keys() == wanted.keys(), _difference(set(sent), set(wanted))
    assert sent == wanted, f"{sent.total() - wanted.total()} results are in the topic again"
    files = Counter(map(count_of, parquet_rows(job.directory / "counts").to_pylist()))
    assert files == wanted, _difference(set(files), set(wanted))
    rows = check_record_files(job, records) if job.has_record_files else 0
    return Findings(len(wanted), rows)


def check_record_files(job: Job, records: int) -> int:
    """Require every record once; how many there are."""
    rows = parquet_rows(job.directory / "records")
    assert sorted(rows["id"].to_pylist()) == list(range(records + 1))
    assert pc.sum(rows["cents"]).as_py() == sum(map(cents_of, range(records)))
    return int(rows.num_rows)


def parquet_rows(directory: Path) -> pa.Table:
    """What anybody who reads the files finds."""
    return dataset(directory, format="parquet").to_table()


def _difference(found: set[Count], wanted: set[Count]) -> str:
    missing, strange = sorted(wanted - found), sorted(found - wanted)
    return f"{len(missing)} missing {missing[:3]}, {len(strange)} unexpected {strange[:3]}"


@contextmanager
def without_spark_leftovers(spark_home: Path) -> Iterator[None]:
    """A cluster on one machine keeps its executors' files in Spark's own directory: remove them."""
    work = spark_home / "work"
    before = set(work.glob("app-*"))
    try:
        yield
    finally:
        for path in set(work.glob("app-*")) - before:
            shutil.rmtree(path, ignore_errors=True)
