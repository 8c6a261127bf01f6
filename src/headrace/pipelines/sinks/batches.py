"""The shell around a target that takes a batch at a time: Spark's foreachBatch, once per batch.

Spark runs a batch again after a crash, with the same number and the same input. A target keeps the
number of the last batch beside the data, in one atomic step with it, and says so when it is asked
to take that batch again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.pipelines.sinks.failures import TargetError, named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_PROPERTY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Batch:
    """Which batch it is, for ever: a query keeps its id through restarts, and has another one when
    it starts anew (its checkpoint was reset), with numbers from 0."""

    pipeline: str
    sink: str
    query: str
    number: int

    @property
    def writer(self) -> str:
        """Who writes, for tables with several writers."""
        return f"headrace:{self.pipeline}.{self.sink}:{self.query}"


class Target(Protocol):
    """Takes batches in their order, from one query at a time."""

    def write(self, frame: "DataFrame", batch: Batch) -> bool:
        """Take the batch, and return True; or return False because it is there already.

        Runs all of the plan in one go: state is kept by the tasks that run it. On False the shell
        runs it.
        """


def batch_function(pipeline: str, sink: str, target: Target) -> Callable[["DataFrame", int], None]:
    """What foreachBatch calls, on the driver."""

    def take(frame: "DataFrame", number: int) -> None:
        with named(pipeline, sink):
            batch = Batch(pipeline, sink, query_id(frame), number)
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
