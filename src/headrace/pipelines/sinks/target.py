"""The interface of a target of batches, the shell around it, and its errors."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What the operating system says, wherever Java or Python met it.
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
    """A batch that could not be brought to its target."""

    def __init__(self, pipeline: str, sink: str, text: str) -> None:
        super().__init__(f"pipeline {pipeline}, sink {sink}: {text}")


class TargetError(HeadraceError):
    """An error of a target; becomes a SinkFailed with the names of pipeline and sink."""


def one_line(text: object) -> str:
    """The text of a library's error without its line breaks, cut where it gets long."""
    line = " ".join(_DECORATION.sub("", str(text)).split())
    return line if len(line) <= _TEXT_MAX else f"{line[: _TEXT_MAX - 3]}..."


def library(module: str, extra: str) -> Any:
    """An optional library, or a TargetError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = (error.name or module).partition(".")[0]
        raise TargetError(f"{name} is not installed; pip install 'headrace[{extra}]'") from None


def java_error() -> type[Exception]:
    """The Python error of an error in Java, where Spark has no name of its own for it."""
    found: type[Exception] = library("py4j.protocol", extra="spark").Py4JJavaError
    return found


def remedy(text: str) -> str | None:
    """The advice about an error of the operating system, if the text has one."""
    return next(
        (f"{said.lower()}; {what}" for said, what in _REMEDIES.items() if said in text), None
    )


@contextmanager
def named(pipeline: str, sink: str) -> Iterator[None]:
    """Give the errors of a target the names of its pipeline and sink.

    Errors that are none of the target's go through: the ones of a source or a step say themselves
    where they come from.
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
# the number of the last batch beside the data, in one atomic step with it, and says so when it is
# asked to take that batch again.


QUERY_PROPERTY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which batch it is, for ever: a query keeps its id through restarts, and has another one when
    it starts anew (its checkpoint was reset), with numbers from 0."""

    pipeline: str
    sink: str
    query: str
    number: int

    @property
    def writer(self) -> str:
        """The writer's id, for tables with several writers."""
        return f"headrace:{self.pipeline}.{self.sink}:{self.query}"


class SinkTarget(Protocol):
    """Takes batches in their order, from one query at a time."""

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Take the batch, and return True; or return False because it is there already.

        Runs all of the plan in one go: state is kept by the tasks that run it. On False the shell
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
    """The id of the streaming query that this is a batch of; the one in its checkpoint."""
    found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
    if not found:
        raise TargetError(
            "Spark does not say which query a batch is of;"
            " unset PYSPARK_PIN_THREAD, which must not be false"
        )
    return found


def drain(frame: "DataFrame") -> None:
    """Run a batch whose rows nobody needs again: its state must still be brought forward."""
    frame.write.format("noop").mode("overwrite").save()
