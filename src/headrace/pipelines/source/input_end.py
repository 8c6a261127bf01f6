"""Whether all rows of a task have come, or only those before something failed.

Spark hands rows to a writer in Python as a stream of Arrow. If the query fails, or its Java process
dies, the stream breaks off, and at the end of a batch that looks as if it were complete: a writer
would commit a part of its rows. Behind the last row of a complete stream Spark writes a number that
says so. It is Spark's to read, after the writer has returned; here it is only looked at.
"""

import struct
import sys
from io import BufferedReader, BufferedRWPair
from pathlib import PurePath
from types import FrameType

from pyspark.serializers import SpecialLengths

from headrace.pipelines.source.write_failures import SinkError

_COMPLETE = struct.pack("!i", SpecialLengths.END_OF_STREAM)
# What Spark's worker calls the stream: since 4.3, and before.
_NAMES = ("input_data_stream", "infile")


def require_all_rows() -> None:
    """Raise SinkError unless the stream of rows that this worker reads has come to its end."""
    stream = _input_stream(sys._getframe())
    if stream is None:
        raise SinkError(
            "this version of Spark does not let a sink see whether all rows have come, without"
            " which they cannot be written exactly once; set deliveryGuarantee to at-least-once,"
            " or use the version of Spark that docs/spark.md names"
        )
    # Waits for a byte or the end of the stream; Spark sends the number in one piece.
    found = stream.peek(len(_COMPLETE))[: len(_COMPLETE)]
    if not found or not _COMPLETE.startswith(found):
        raise SinkError("the query failed before all rows of the task had come; nothing is written")


def _input_stream(frame: FrameType | None) -> BufferedReader | BufferedRWPair | None:
    """The stream of the worker among whose callers this one is; nobody else hands it out."""
    while frame is not None:
        if PurePath(frame.f_code.co_filename).parts[-2:] == ("pyspark", "worker.py"):
            for name in _NAMES:
                found = frame.f_locals.get(name)
                if isinstance(found, BufferedReader | BufferedRWPair):
                    return found
        frame = frame.f_back
    return None
