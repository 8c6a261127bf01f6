"""A Spark session with what headrace needs set: one call from `pip install` to a running query.

    spark = headrace.pipelines.session("orders")
    frame = spark.read.format("headrace").option("subscribe", "orders").load()

Any other session works too; what is set here, and why, is in docs/spark.md.
"""

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.pipelines.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What tells the data source how many tasks run at once.
PARALLELISM_VARIABLE = "HEADRACE_SPARK_PARALLELISM"

SETTINGS = {
    # Without it Spark refuses a reader that can take filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Timestamps of records are instants; an answer must not depend on where it was asked.
    "spark.sql.session.timeZone": "UTC",
    # What PyIceberg and Delta read; Spark's own default is a deprecated type of 96 bits.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# On one machine: state and shuffles in a few partitions, and a checkpoint file written in a
# quarter of the time by the file system's own rename.
LOCAL_SETTINGS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
}


def session(
    name: str = "headrace",
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
) -> "SparkSession":
    """The session of this process, made if there is none yet.

    `config` has Spark's own names and wins over what is set here. Raises ConfigError where
    pyspark or a Java is missing.
    """
    prepare_environment()
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - only pipelines need Spark
    except ImportError:
        raise ConfigError(
            "pipelines run on Spark, which is not installed: pip install 'headrace[spark]'"
        ) from None
    settings = session_settings(master) | dict(config or {})
    tasks = tasks_at_once(master, settings)
    if tasks is not None:
        # Spark does not tell a data source, which runs in processes that inherit this.
        os.environ[PARALLELISM_VARIABLE] = str(tasks)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def session_settings(master: str) -> dict[str, str]:
    """What a session on this master is given unless it is told otherwise."""
    return SETTINGS | (LOCAL_SETTINGS if master.startswith("local") else {})


def tasks_at_once(master: str, settings: Mapping[str, str]) -> int | None:
    """How many tasks a master runs at once, if that is known before it is asked.

    >>> tasks_at_once("local[4]", {}), tasks_at_once("local-cluster[2,3,1024]", {})
    (4, 6)
    """
    told = settings.get("spark.default.parallelism") or settings.get("spark.cores.max")
    if told is not None:
        return int(told)
    if master == "local":
        return 1
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    threads = re.fullmatch(r"local\[\s*(\d+|\*)\s*(?:,.*)?\]", master)
    if threads:
        return len(os.sched_getaffinity(0)) if threads[1] == "*" else int(threads[1])
    return None


def prepare_environment() -> None:
    """Set what Spark reads from the environment, where the user has not."""
    # Else workers are whatever `python3` is on the path, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
