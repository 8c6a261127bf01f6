"""What a cluster runs unchanged, where starting one takes too long for every test run."""

from pathlib import Path

import pytest

from headrace.protocol.records import COMPILED
from tests.spark.clusters import HOME, run_stream


@pytest.mark.timeout(400)
def test_executors_of_a_local_cluster_read_and_write(tmp_path: Path) -> None:
    # Spark keeps what its executors leave in its home, so it gets one of its own.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in HOME.iterdir():
        (home / entry.name).symlink_to(entry)
    executors = run_stream("local-cluster[2,1,1024]", tmp_path, SPARK_HOME=str(home))
    assert len({executor.directory for executor in executors}) == 2
    for executor in executors:
        assert executor.directory.is_relative_to(home / "work")
        assert executor.is_compiled == COMPILED
