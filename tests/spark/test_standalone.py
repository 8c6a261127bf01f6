"""A query on a standalone cluster: executors that have nothing but PyArrow are sent the rest."""

from pathlib import Path

import pytest

from headrace.protocol.records import COMPILED
from tests.spark.clusters import run_stream, standalone


@pytest.mark.timeout(400)
def test_executors_read_and_write_with_the_package_they_were_sent(tmp_path: Path) -> None:
    with standalone(tmp_path, workers=2) as master:
        executors = run_stream(master, tmp_path)
    workers = {executor.directory.parents[1].name for executor in executors}
    assert workers == {"worker-0", "worker-1"}
    for executor in executors:
        assert executor.python.is_relative_to(tmp_path / "python")
        assert executor.codec.is_relative_to(executor.directory / "headrace-lib")
        assert executor.is_compiled == COMPILED
