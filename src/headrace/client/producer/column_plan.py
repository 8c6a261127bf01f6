"""How a producer cuts Arrow columns into batches, by its options and its partitioner."""

import time
from collections.abc import Iterator
from typing import Any

from headrace.client.producer.buffers import Buffers
from headrace.client.producer.columns import ColumnBatch, as_table, plan_batches
from headrace.client.producer.partitioners import checked
from headrace.client.producer_options import PartitionerFunction, ProducerOptions


def planned(
    topic: str, table: Any, buffers: Buffers, options: ProducerOptions
) -> Iterator[ColumnBatch]:
    """The batches for a topic that is known; what is wrong with the columns is raised at once."""
    count = buffers.partition_count(topic)
    partitioner = checked(options.partitioner)
    if not isinstance(partitioner, str):
        table = _partitioned(topic, table, partitioner, count)
    return plan_batches(
        table,
        partition_count=count,
        sticky=lambda: buffers.sticky(topic),
        batch_bytes_max=min(options.max_request_size, options.buffer_memory),
        now_ms=time.time_ns() // 1_000_000,
        hash_keys=partitioner == "murmur2",
    )


def _partitioned(topic: str, table: Any, partitioner: PartitionerFunction, count: int) -> Any:
    """The columns with every row's partition. An application's function is asked row by row."""
    table = as_table(table)
    names = table.schema.names
    nothing = [None] * table.num_rows
    keys = table.column("key").to_pylist() if "key" in names else nothing
    given = table.column("partition").to_pylist() if "partition" in names else nothing
    chosen = [
        partitioner(topic, key.encode() if isinstance(key, str) else key, count)
        if partition is None
        else partition
        for key, partition in zip(keys, given, strict=True)
    ]
    if "partition" in names:
        table = table.drop_columns(["partition"])
    return table.append_column("partition", [chosen])
