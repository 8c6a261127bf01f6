"""Kafka's own Java client, called from a test."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayClient,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from py4j.protocol import (  # type: ignore[import-untyped]
    ERROR,
    REFERENCE_TYPE,
    get_return_value,
)

from headrace.pipelines.java import java_home
from headrace.testing.time_limits import scaled
from tools.kafka_broker import KafkaMissing, kafka_jars

_STOP_S_MAX = 20


class _Client(GatewayClient):
    """A connection to Java that raises the exceptions of Java by itself.

    A Spark session replaces the function of py4j that raises them, for every gateway of the
    process, by a function that asks Spark's own Java about the exception: there its number is
    of another object, or of none.
    """

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        answer = super().send_command(command, retry, binary)
        if not binary and answer.startswith(ERROR + REFERENCE_TYPE):
            get_return_value(answer, self)
        return answer


class _Gateway(JavaGateway):
    """A gateway whose connection is a `_Client`."""

    def _create_gateway_client(self) -> _Client:
        return _Client(gateway_parameters=self.gateway_parameters)


@contextmanager
def java_gateway() -> Iterator[Any]:
    """The classes of a Java process that has the jars of Apache Kafka, until the end."""
    try:
        jars = kafka_jars()
    except KafkaMissing as error:
        pytest.skip(str(error))
    [gateway_jar] = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    home = java_home()
    port, process = launch_gateway(
        jarpath=str(gateway_jar),
        classpath=f"{jars}/*",
        javaopts=["-Xmx256m"],
        java_path=f"{home}/bin/java" if home else None,
        die_on_exit=True,
        redirect_stdout=deque(maxlen=100),
        redirect_stderr=deque(maxlen=100),
        return_proc=True,
    )
    gateway = _Gateway(gateway_parameters=GatewayParameters(port=port), java_process=process)
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


def java_list(jvm: Any, *items: Any) -> Any:
    """The items as a java.util.List."""
    made = jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made
