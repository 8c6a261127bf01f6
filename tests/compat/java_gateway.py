"""Kafka's own Java client, called from a test."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

from headrace.pipelines.java import java_home
from headrace.testing.time_limits import scaled
from tools.kafka_broker import KafkaMissing, kafka_jars

_STOP_S_MAX = 20


@contextmanager
def java_gateway() -> Iterator[Any]:
    """The classes of a Java process that has the jars of Apache Kafka, until the end."""
    try:
        jars = kafka_jars()
    except KafkaMissing as error:
        pytest.skip(str(error))
    [gateway_jar] = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    home = java_home()
    gateway = JavaGateway.launch_gateway(
        jarpath=str(gateway_jar),
        classpath=f"{jars}/*",
        javaopts=["-Xmx256m"],
        java_path=f"{home}/bin/java" if home else None,
        die_on_exit=True,
        redirect_stdout=deque(maxlen=100),
        redirect_stderr=deque(maxlen=100),
    )
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        # It ends when it reads the end of its input.
        gateway.java_process.stdin.close()
        gateway.java_process.wait(scaled(_STOP_S_MAX))


def java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    """The entries as a java.util.Map."""
    made = jvm.java.util.HashMap()
    for name, value in values.items():
        made.put(name, value)
    return made
