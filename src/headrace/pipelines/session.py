"""A Spark session with headrace's settings: one call from `pip install` to a running query.

    spark = headrace.pipelines.session("orders")
    frame = spark.read.format("headrace").option("subscribe", "orders").load()

Any other session works too; these settings, with their reasons, are in docs/spark.md.
"""

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.pipelines.executor_archive import shipping_settings, write_archive
from headrace.pipelines.java import java_home, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Set by `spark-submit` for the program that it runs.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

# Tells the data source how many tasks run at once.
PARALLELISM_VARIABLE = "HEADRACE_SPARK_PARALLELISM"

SETTINGS = {
    # Without it Spark refuses a reader that accepts filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Timestamps of records are instants; results must not depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # The type that PyIceberg and Delta read; Spark's default is a deprecated type of 96 bits.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A batch that is repeated must have the same tasks: exactly-once writes are keyed by the number
    # of the task.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # Secrets among options of clients that Spark does not know as such by the words it has:
    # password, secret, token, url.
    "spark.sql.redaction.options.regex": "(?i)url|jaas|keystore[.]key",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# On one machine: state and shuffles in a few partitions, and a checkpoint file written in a
# quarter of the time by the file system's own rename.
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
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
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    ship: bool | None = None,
) -> "SparkSession":
    """The session of this process, made if there is none yet.

    `master` is any Spark master URL; the default is that of `spark-submit`, else all cores of this
    machine. `config` has Spark settings, which override headrace's. `ship` decides whether this
    package is sent to the executors: by default to those on other machines. Raises ConfigError if
    pyspark or Java is missing.
    """
    is_submitted = master is None and _SUBMITTED in os.environ
    master = master or "local[*]"
    is_shipped = not (is_submitted or master.startswith("local")) if ship is None else ship
    if not is_submitted:
        prepare_environment(elsewhere=is_shipped)
        if re.match(r"local(\[|$)", master) and (home := spark_home()) is not None:
            os.environ["SPARK_HOME"] = home
    try:
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - only pipelines need Spark
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "pipelines run on Spark, which is not installed: pip install 'headrace[spark]'"
        ) from None
    builder = SparkSession.builder.appName(name)
    if is_submitted:
        SparkContext._ensure_initialized()
        given = dict(SparkConf().getAll()) | dict(config or {})
        settings = SETTINGS | given
    else:
        builder = builder.master(master)
        settings = session_settings(master) | dict(config or {})
    if is_shipped and SparkContext._active_spark_context is None:
        settings |= shipping_settings(_shipped(), settings)
    tasks = tasks_at_once(settings.get("spark.master", master), settings)
    if tasks is not None:
        # An environment variable, because Spark does not tell a data source, which runs in child
        # processes.
        os.environ[PARALLELISM_VARIABLE] = str(tasks)
    for key, value in settings.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    _activate(found)
    return found


def _activate(spark: "SparkSession") -> None:
    """Make the session that of this thread too: Spark looks for the data sources of Python there,
    and a thread other than the one that made the session has none.
    """
    jvm = spark._jvm
    assert jvm is not None
    spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def _shipped() -> Path:
    """An archive of this package that exists until this process ends."""
    directory = tempfile.mkdtemp(prefix="headrace-ship-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_archive(Path(directory))


def session_settings(master: str) -> dict[str, str]:
    """The default settings of a session on this master."""
    return SETTINGS | (LOCAL_SETTINGS if master.startswith("local") else {})


def tasks_at_once(master: str, settings: Mapping[str, str]) -> int | None:
    """The number of tasks a master runs at once, if its settings or its URL say so.

    >>> tasks_at_once("local[4]", {}), tasks_at_once("local-cluster[2,3,1024]", {})
    (4, 6)
    """
    configured = settings.get("spark.default.parallelism") or settings.get("spark.cores.max")
    if configured is not None:
        return int(configured)
    if master == "local":
        return 1
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    threads = re.fullmatch(r"local\[\s*(\d+|\*)\s*(?:,.*)?\]", master)
    if threads:
        return len(os.sched_getaffinity(0)) if threads[1] == "*" else int(threads[1])
    return None


def prepare_environment(*, elsewhere: bool = False) -> None:
    """Set the environment variables that Spark reads, unless the user has set them.

    `elsewhere` says that workers run on machines with a Python of their own.
    """
    if elsewhere and "PYSPARK_PYTHON" not in os.environ:
        # A name that both sides find on their paths. Here it must be the Python with this package.
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        directory = os.path.dirname(sys.executable)
        if shutil.which(name, path=directory):
            os.environ["PYSPARK_PYTHON"] = name
            os.environ["PATH"] = os.pathsep.join((directory, os.environ.get("PATH", os.defpath)))
    # Otherwise workers run any `python3` on the path, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
