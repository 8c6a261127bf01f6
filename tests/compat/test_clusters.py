"""What a cluster runs unchanged, where starting one takes too long for every test run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.protocol.records import COMPILED
from headrace.testing.time_limits import scaled
from tests.spark.clusters import HOME, run_stream, standalone


@pytest.mark.timeout(400)
def test_executors_of_a_local_cluster_read_and_write(tmp_path: Path) -> None:
    # Spark keeps what its executors leave in its home, so it gets one of its own.
    home = tmp_path / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(HOME / name)
    executors = run_stream("local-cluster[2,1,1024]", tmp_path, SPARK_HOME=str(home))
    assert len({executor.directory for executor in executors}) == 2
    for executor in executors:
        assert executor.directory.is_relative_to(home / "work")
        assert executor.is_compiled == COMPILED


@pytest.mark.timeout(400)
def test_executors_of_a_standalone_cluster_have_the_package_they_were_sent(tmp_path: Path) -> None:
    with standalone(tmp_path, workers=2) as master:
        executors = run_stream(master, tmp_path)
    workers = {executor.directory.parents[1].name for executor in executors}
    assert workers == {"worker-0", "worker-1"}
    for executor in executors:
        assert executor.python.is_relative_to(tmp_path / "python")
        assert executor.codec.is_relative_to(executor.directory / "headrace-lib")
        assert executor.is_compiled == COMPILED


SUBMITTED = """
from headrace import pipelines

spark = pipelines.session("submitted")
names = ("spark.sql.session.timeZone", "spark.sql.python.filterPushdown.enabled")
print(spark.sparkContext.master, *map(spark.conf.get, names))
spark.stop()
"""


@pytest.mark.timeout(300)
def test_a_submitted_program_keeps_the_master_and_the_settings_it_was_given(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SUBMITTED)
    answer = subprocess.run(
        [
            *(HOME / "bin" / "spark-submit", "--master", "local[1]"),
            *("--conf", "spark.sql.session.timeZone=Asia/Tokyo", program),
        ],
        env={**os.environ, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(240),
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "local[1] Asia/Tokyo true"
