"""The example for Spark Declarative Pipelines, run as its README says."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace
from headrace.testing import Broker
from headrace.testing.time_limits import scaled

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "declarative"
_RUN_S_MAX = 400


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example that keeps its checkpoints beside it."""
    copied = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    spec = copied / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/headrace-declarative" in text
    spec.write_text(text.replace("file:///tmp/headrace-declarative", f"file://{tmp_path}/storage"))
    return copied


def run(project: Path, broker: Broker) -> None:
    """Run the pipeline until it has taken all that is there."""
    command = Path(sys.executable).with_name("spark-pipelines")
    answer = subprocess.run(
        [command, "--conf", "spark.sql.catalogImplementation=hive", "run"],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "HEADRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=project,
        capture_output=True,
        text=True,
        timeout=scaled(_RUN_S_MAX),
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Run is COMPLETED" in answer.stdout + answer.stderr


def produce(broker: Broker, ids: Iterable[int]) -> None:
    with headrace.Producer(
        bootstrap_servers=broker.bootstrap_servers, value_serializer="json"
    ) as producer:
        for id in ids:
            region = ("north", "south")[id % 2]
            producer.send("orders", {"id": id, "region": region, "cents": id * 1000})


def rows(project: Path, table: str) -> list[dict[str, Any]]:
    return list(pq.read_table(project / "spark-warehouse" / table).to_pylist())


def large(broker: Broker) -> list[int]:
    with headrace.Consumer(
        "large-orders",
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(scaled(5) * 1000),
    ) as consumer:
        return sorted(json.loads(record.value)["id"] for record in consumer)


@pytest.mark.timeout(2 * _RUN_S_MAX + 60)
def test_a_run_takes_what_has_come_since_the_last(project: Path) -> None:
    with Broker() as broker:
        broker.create_topic("orders", partitions=2)
        for count in (12, 20):
            produce(broker, range(count - 8 if count == 20 else 0, count))
            run(project, broker)
            assert sorted(row["id"] for row in rows(project, "orders")) == list(range(count))
            totals = {
                row["region"]: (row["orders"], row["cents"]) for row in rows(project, "revenue")
            }
            assert totals == {
                "north": (count / 2, 1000 * sum(range(0, count, 2))),
                "south": (count / 2, 1000 * sum(range(1, count, 2))),
            }
            assert large(broker) == list(range(10, count))
