"""What Spark finds wrong with a pipeline before it reads a record: names, types, what streams
cannot do."""

import tempfile
from pathlib import Path

from headrace.pipelines.run.catching import explaining
from headrace.pipelines.run.checkpoints import query_parts
from headrace.pipelines.run.launching import query_frame
from headrace.pipelines.run.logs import SparkLog
from headrace.pipelines.run.sessions import opened, session_config
from headrace.pipelines.spec.model import Pipeline

# Plans are made by one thread: more cores would only take longer to start.
_MASTER = "local[1]"


def check_plan(pipeline: Pipeline) -> None:
    """Have Spark plan every query; PipelineFailed says what it refuses. Nothing is read."""
    with tempfile.TemporaryDirectory() as scratch:
        log = SparkLog(Path(scratch, "spark.log"), lambda _: None)
        with opened(pipeline, _MASTER, session_config(pipeline), log) as spark:
            for part in query_parts(pipeline):
                with explaining(pipeline, part):
                    query_frame(spark, pipeline, part)
