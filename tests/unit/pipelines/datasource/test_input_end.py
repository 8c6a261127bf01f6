"""Whether all rows have come, seen from below a worker of Spark."""

import io
import struct
from collections.abc import Callable

import pytest
from pyspark.serializers import SpecialLengths

from headrace.pipelines.datasource.errors import SourceError
from headrace.pipelines.datasource.writer import require_all_rows

END = struct.pack("!i", SpecialLengths.END_OF_STREAM)


def worker(name: str, path: str = "/site-packages/pyspark/worker.py") -> Callable[..., None]:
    """A function as Spark's worker has one, which calls a sink while it holds its input."""
    code = compile(f"def main({name}, sink):\n    sink()\n", path, "exec")
    found: dict[str, Callable[..., None]] = {}
    exec(code, found)  # noqa: S102 - its frame must have the file name of Spark
    return found["main"]


@pytest.mark.parametrize("name", ["input_data_stream", "infile"])
def test_a_complete_stream_is_left_as_it_was(name: str) -> None:
    stream = io.BufferedReader(io.BytesIO(END + b"more"))
    worker(name)(stream, require_all_rows)
    assert stream.read() == END + b"more"


@pytest.mark.parametrize(
    "left", [b"", struct.pack("!i", SpecialLengths.PYTHON_EXCEPTION_THROWN), b"\x00\x00\x00\x05abc"]
)
def test_a_stream_that_breaks_off_is_noticed(left: bytes) -> None:
    stream = io.BufferedReader(io.BytesIO(left))
    with pytest.raises(SourceError, match="failed before all rows of the task had come"):
        worker("infile")(stream, require_all_rows)


def test_where_nobody_can_tell_nothing_is_promised() -> None:
    with pytest.raises(SourceError, match="set deliveryGuarantee to at-least-once"):
        require_all_rows()
    with pytest.raises(SourceError, match="this version of Spark"):
        worker("other")(io.BufferedReader(io.BytesIO(END)), require_all_rows)
    with pytest.raises(SourceError, match="this version of Spark"):
        worker("infile", "worker.py")(io.BufferedReader(io.BytesIO(END)), require_all_rows)
