"""An archive of Spark's classes, which halves the CPU time that a JVM of a test takes to start.

    python -m tests.spark.class_archive

makes it, once for the installed Spark and Java. Tests run without it too, only slower.
"""

import os
import sys
from tempfile import TemporaryDirectory

from headrace.pipelines.session import session
from tests.spark.processes import CLASS_ARCHIVE, JAVA_OPTIONS


def main() -> int:
    if CLASS_ARCHIVE.exists():
        return 0
    CLASS_ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    new = CLASS_ARCHIVE.with_suffix(".new")
    new.unlink(missing_ok=True)
    # What cannot be archived is named line by line.
    options = (*JAVA_OPTIONS, f"-XX:ArchiveClassesAtExit={new}", "-Xlog:disable")
    config = {"spark.driver.extraJavaOptions": " ".join(options)}
    with TemporaryDirectory() as directory:
        spark = session("class archive", master="local[1]", config=config)
        rows = spark.range(10).selectExpr("id % 3 as k", "id").groupBy("k").count()
        rows.write.parquet(f"{directory}/rows")
        rows.collect()
        ticks = spark.readStream.format("rate").load()
        written = ticks.writeStream.format("parquet").trigger(once=True)
        written.option("checkpointLocation", f"{directory}/checkpoint")
        written.start(f"{directory}/ticks").awaitTermination()
        spark.stop()
        # The JVM writes the archive when it ends, which is when its standard input does.
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    if new.exists():
        os.replace(new, CLASS_ARCHIVE)
    else:
        sys.stdout.write(
            "this Java makes no archive of classes; the tests start their JVMs slower\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
