"""Killing a driver and a worker loses nothing, and puts nothing into a topic or files twice.

`make soak ARGS=pipeline` does the same with a million records, executors of their own, ten times.
"""

from pathlib import Path
from random import Random

import pytest

from headrace.testing import Broker
from tests.spark.crashing import Job, check, send_records, survive
from tests.spark.processes import QUICK_START

RECORDS = 15_000
RECORDS_PER_BATCH = 5_000
QUERIES = 2


@pytest.mark.timeout(300)
def test_a_killed_pipeline_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    with Broker() as broker:
        servers = broker.bootstrap_servers
        send_records(servers, RECORDS)
        # A task may fail four times, as on a cluster.
        with Job(
            tmp_path,
            servers,
            "local[2,4]",
            RECORDS_PER_BATCH,
            record_files=False,
            more=QUICK_START,
        ) as job:
            done = survive(
                job,
                victims=["worker", "driver"],
                batches=QUERIES * RECORDS // RECORDS_PER_BATCH,
                rng=Random(2026),
            )
            assert (done.workers, done.drivers) == (1, 1)
        assert check(job, servers, RECORDS).results > 0
