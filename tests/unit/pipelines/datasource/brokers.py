"""What tests of reading share: topics with records, and options to read them with."""

from collections.abc import Iterable

import pyarrow as pa

import headrace
from headrace.pipelines.datasource.offset_ranges import OffsetRange
from headrace.pipelines.datasource.read_options import ReadOptions, read_options
from headrace.pipelines.datasource.readers import read_range
from headrace.testing import Broker


def options(broker: Broker, topic: str = "any", **more: str) -> ReadOptions:
    """The options of a read; names of Kafka's client have `_` for `.` and begin with kafka_."""
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    for name, text in more.items():
        given[name.replace("_", ".")] = text
    return read_options(given)


def fill(broker: Broker, topic: str, values: Iterable[bytes], **config: object) -> None:
    """Send values to partition 0, in batches of a few."""
    servers = broker.bootstrap_servers
    with headrace.Producer(bootstrap_servers=servers, **config) as producer:  # type: ignore[arg-type]
        for number, value in enumerate(values):
            producer.send(topic, value, key=b"%d" % number, partition=0)
            if number % 7 == 6:
                producer.flush()


def table(settings: ReadOptions, topic: str, start: int, end: int) -> pa.Table:
    """A range, read whole."""
    batches = list(read_range(settings, OffsetRange(topic, 0, start, end)))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches) if batches else pa.table({"offset": []})


def offsets(settings: ReadOptions, topic: str, start: int, end: int) -> list[int]:
    """The offsets that a range gives."""
    found: list[int] = table(settings, topic, start, end)["offset"].to_pylist()
    return found
