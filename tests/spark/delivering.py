"""A program that writes batches as the tasks of a query do, to be killed or stopped at any moment.

What Spark keeps in a checkpoint is a directory here, with a file for each batch that is done.
"""

from pathlib import Path

import pyarrow as pa

from headrace.pipelines.datasource.delivery import SinkTask, deliver
from headrace.pipelines.datasource.exactly_once import ExactlyOnce
from headrace.pipelines.datasource.write_options import stream_write_options

TASKS = 2
ROWS = 5


def rows(batch: int, task: int) -> list[bytes]:
    """The rows of a task, which are the same whenever it is run."""
    return [b"%d/%d/%d" % (batch, task, number) for number in range(ROWS)]


def write_batches(servers: str, topic: str, notes: Path, batches: int) -> None:
    """Write the batches that are not done, one after the other."""
    options = stream_write_options({"kafka.bootstrap.servers": servers})
    for batch in range(len(list(notes.iterdir())), batches):
        for task in range(TASKS):
            values = pa.record_batch({"value": rows(batch, task)})
            deliver(ExactlyOnce(options, SinkTask("killed", batch, task, 0)), [(topic, values)])
        (notes / str(batch)).touch()
