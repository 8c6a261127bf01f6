"""The part of the long run that kills drivers and executors of a pipeline repeatedly."""

import tempfile
import time
from pathlib import Path
from random import Random

import pyspark

from headrace.testing import Broker
from tests.spark.crashing import Job, check, send_records, survive, without_spark_leftovers

# Two executors with a Java each, beside the driver's.
MASTER = "local-cluster[2,1,1024]"
RECORDS_PER_BATCH = 100_000
QUERIES = 3


def kill_a_pipeline(kills: int, records: int, seed: int) -> None:
    """Kill, restart, and compare the sinks with the expected records."""
    rng = Random(seed)
    victims = ["driver", "executor"] * (kills // 2) + ["driver"] * (kills % 2)
    rng.shuffle(victims)
    begin = time.monotonic()

    def report(line: str) -> None:
        print(f"  {time.monotonic() - begin:.0f} s: {line}")

    spark_home = Path(pyspark.__file__).parent
    with (
        tempfile.TemporaryDirectory(prefix="headrace-soak-") as directory,
        Broker() as broker,
        without_spark_leftovers(spark_home),
    ):
        servers = broker.bootstrap_servers
        print(f"killing a pipeline of {records:,} records {kills} times, seed {seed}")
        send_records(servers, records)
        job = Job(Path(directory), servers, MASTER, RECORDS_PER_BATCH, record_files=True)
        with job:
            batches = QUERIES * (records // RECORDS_PER_BATCH)
            done = survive(job, victims=victims, batches=batches, rng=rng, on_kill=report)
        seconds = time.monotonic() - begin
        found = check(job, servers, records)
        print(
            f"{done.drivers} drivers and {done.workers} executors killed, {done.mid_batch} of"
            f" {done.total} with a batch under way; {job.starts} runs, {seconds:.0f} s\n"
            f"topic: all {found.results:,} results, each once;"
            f" Parquet: the same results and {found.rows:,} records, each once"
        )
