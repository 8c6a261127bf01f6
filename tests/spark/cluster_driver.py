"""A driver in a process of its own: a stream from topic to topic, then what its executors are like.

Arguments: the master, the broker, the topic to read, the topic to write, a directory. Prints, as
JSON, for each of two executors: its directory, its Python, the codec it has, and if it is compiled.
"""

import json
import os
import sys
from typing import Any

from headrace import pipelines

# Small machines, and no time spent on optimizing code that runs for seconds.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    # Both executors are there before the first task.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.enabled": "false",
}


def main(master: str, broker: str, source: str, target: str, directory: str) -> None:
    spark = pipelines.session("cluster", master=master, config=SETTINGS)
    frame = spark.readStream.format("headrace").option("kafka.bootstrap.servers", broker)
    rows = frame.option("subscribe", source).option("startingOffsets", "earliest").load()
    upper = rows.selectExpr("key", "upper(string(value)) AS value")
    query = upper.writeStream.format("headrace").option("kafka.bootstrap.servers", broker)
    query = query.option("topic", target).option("checkpointLocation", directory)
    query.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps(spark.sparkContext.parallelize(range(2), 2).map(seen).collect()))
    spark.stop()


def seen(_: int) -> tuple[Any, ...]:
    from headrace.protocol import records as codec

    return os.getcwd(), sys.executable, codec.__file__, codec.COMPILED


if __name__ == "__main__":
    main(*sys.argv[1:])
