"""The interface that each sink of pipelines implements in its own file, and the shell around it."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Advice for errors of the operating system, reported by Java or Python.
_REMEDIES: Mapping[str, str] = {
    "Permission denied": "let the user who runs Spark write there",
    "Read-only file system": "choose a path that can be written",
    "No space left on device": "free some space; the batch is written again on the next run",
    "Disk quota exceeded": "free some space; the batch is written again on the next run",
    "Not a directory": "a file is in the way; choose another path",
}
_TEXT_MAX = 400
# Colours, and the arrows of deltalake's errors.
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|↳")


class SinkFailed(HeadraceError):
    """A batch that could not be written to its target."""

    def __init__(self, pipeline: str, sink: str, text: str) -> None:
        super().__init__(f"pipeline {pipeline}, sink {sink}: {text}")


class TargetError(HeadraceError):
    """An error of a target; becomes a SinkFailed with the names of pipeline and sink."""


def one_line(text: object) -> str:
    """The text of a library's error without line breaks, truncated if long."""
    line = " ".join(_DECORATION.sub("", str(text)).split())
    return line if len(line) <= _TEXT_MAX else f"{line[: _TEXT_MAX - 3]}..."


def library(module: str, extra: str) -> Any:
    """An optional library; TargetError says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = (error.name or module).partition(".")[0]
        raise TargetError(f"{name} is not installed; pip install 'headrace[{extra}]'") from None


def java_error() -> type[Exception]:
    """The Python exception for a Java error that Spark has no class for."""
    found: type[Exception] = library("py4j.protocol", extra="spark").Py4JJavaError
    return found


def remedy(text: str) -> str | None:
    """The advice about an error of the operating system, if there is any."""
    return next(
        (f"{said.lower()}; {what}" for said, what in _REMEDIES.items() if said in text), None
    )


@contextmanager
def named(pipeline: str, sink: str) -> Iterator[None]:
    """Add the names of pipeline and sink to the errors of a target.

    Other errors pass through: those of a source or a step name their origin themselves.
    """
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - it is there

    try:
        yield
    except TargetError as error:
        raise SinkFailed(pipeline, sink, str(error)) from error
    except OSError as error:
        known = remedy(str(error))
        where = f"{error.filename}: " if error.filename else ""
        raise SinkFailed(pipeline, sink, f"{where}{known or one_line(error)}") from error
    except AnalysisException as error:
        text = one_line(str(error).partition(" SQLSTATE")[0])
        raise SinkFailed(pipeline, sink, f"Spark cannot write this; {text}") from error
    except (PySparkException, java_error()) as error:
        known = remedy(str(error))
        if known is None:
            raise
        raise SinkFailed(pipeline, sink, known) from error


# The shell around a target that takes a batch at a time: Spark's foreachBatch, once per batch.
#
# Spark runs a batch again after a crash, with the same number and the same input. A target keeps
# the number of the last batch beside the data, in one atomic step with it, and reports a repeated
# batch.


QUERY_PROPERTY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The permanent identity of a batch: a query keeps its id through restarts, and gets another
    one when its checkpoint is reset, with numbers from 0.
    """

    pipeline: str
    sink: str
    query: str
    number: int

    @property
    def writer(self) -> str:
        """The writer's id, for tables with several writers."""
        return f"headrace:{self.pipeline}.{self.sink}:{self.query}"


class SinkTarget(Protocol):
    """A target of batches, in their order, from one query at a time."""

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Write the batch, and return True; or return False because it was written before.

        Runs all of the plan at once: state is kept by the tasks that run it. On False the shell
        runs it.
        """


def batch_function(
    pipeline: str, sink: str, target: SinkTarget
) -> Callable[["DataFrame", int], None]:
    """The function that foreachBatch calls, on the driver."""

    def take(frame: "DataFrame", number: int) -> None:
        with named(pipeline, sink):
            batch = MicroBatch(pipeline, sink, query_id(frame), number)
            if not target.write(frame, batch):
                drain(frame)

    return take


def query_id(frame: "DataFrame") -> str:
    """The id of the streaming query that a batch belongs to; stored in its checkpoint."""
    found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
    if not found:
        raise TargetError(
            "Spark does not say which query a batch is of;"
            " unset PYSPARK_PIN_THREAD, which must not be false"
        )
    return found


def drain(frame: "DataFrame") -> None:
    """Run a batch whose rows were written before, to bring its state forward."""
    frame.write.format("noop").mode("overwrite").save()
