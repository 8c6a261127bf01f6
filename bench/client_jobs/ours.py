"""headrace: rows, rows with asyncio, columns, and the memory of a producer."""

import os
import signal
from typing import Any

import psutil
import pyarrow
import pyarrow.compute
import uvloop

from bench.client_jobs import (
    BATCH_BYTES,
    BUFFER_BYTES,
    FETCH_BYTES,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    PATIENCE_S,
    POLL_RECORDS,
    Measured,
    Stopwatch,
    run,
    wrong_size,
)
from headrace import BufferExhausted, Consumer, Producer, TopicPartition, aio

# The typical size of a table for columns: one of this size is sent repeatedly.
TABLE_BYTES = 10_000_000


def producer_options(address: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": address,
        "acks": "all",
        "linger_ms": LINGER_MS,
        "batch_size": BATCH_BYTES,
        "buffer_memory": BUFFER_BYTES,
    }


def consumer_options(address: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": address,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "fetch_max_bytes": FETCH_BYTES,
        "max_partition_fetch_bytes": PARTITION_FETCH_BYTES,
        "max_poll_records": POLL_RECORDS,
    }


def rows_produce(address: str, *, topic: str, size: int, count: int) -> Measured:
    with Producer(**producer_options(address)) as producer:
        value = bytes(size)
        last = producer.send(topic, value)
        last.result(PATIENCE_S)
        watch = Stopwatch()
        for _ in range(count):
            last = producer.send(topic, value)
        producer.flush()
        done = watch.stop(count, size)
        last.result(PATIENCE_S)
    return done


def rows_consume(
    address: str, *, topic: str, size: int, count: int, partitions: int = 1
) -> Measured:
    with Consumer(**consumer_options(address)) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        received = 0
        watch = Stopwatch()
        while received < count:
            records = consumer.poll(1_000, max_records=min(POLL_RECORDS, count - received))
            for record in records:
                if len(record.value) != size:
                    raise wrong_size(len(record.value), size)
            received += len(records)
        return watch.stop(received, size)


def aio_produce(address: str, *, topic: str, size: int, count: int) -> Measured:
    async def work() -> Measured:
        async with aio.Producer(**producer_options(address)) as producer:
            value = bytes(size)
            last = await producer.send(topic, value)
            await last
            watch = Stopwatch()
            for _ in range(count):
                last = await producer.send(topic, value)
            await producer.flush()
            done = watch.stop(count, size)
            await last
        return done

    return uvloop.run(work())


def aio_consume(
    address: str, *, topic: str, size: int, count: int, partitions: int = 1
) -> Measured:
    async def work() -> Measured:
        async with aio.Consumer(**consumer_options(address)) as consumer:
            await consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
            received = 0
            watch = Stopwatch()
            while received < count:
                wanted = min(POLL_RECORDS, count - received)
                records = await consumer.poll(1_000, max_records=wanted)
                for record in records:
                    if len(record.value) != size:
                        raise wrong_size(len(record.value), size)
                received += len(records)
            return watch.stop(received, size)

    return uvloop.run(work())


def columns_produce(address: str, *, topic: str, size: int, count: int) -> Measured:
    rows = min(TABLE_BYTES // size, count)
    table = pyarrow.record_batch({"value": pyarrow.array([bytes(size)] * rows, pyarrow.binary())})
    with Producer(**producer_options(address)) as producer:
        producer.send(topic, bytes(size)).result(PATIENCE_S)
        futures = []
        watch = Stopwatch()
        for start in range(0, count, rows):
            futures.append(producer.send_arrow(topic, table.slice(0, min(rows, count - start))))
        producer.flush()
        done = watch.stop(count, size)
        sent = sum(batch.count for future in futures for batch in future.result(PATIENCE_S))
    if sent != count:
        raise SystemExit(f"{sent} of {count} messages were delivered")
    return done


def columns_consume(
    address: str, *, topic: str, size: int, count: int, partitions: int = 1
) -> Measured:
    with Consumer(**consumer_options(address)) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        received = 0
        watch = Stopwatch()
        while received < count:
            batch = consumer.poll_arrow(1_000)
            if batch.num_rows:
                sizes = pyarrow.compute.binary_length(batch["value"])
                extremes = pyarrow.compute.min_max(sizes)
                for found in (extremes["min"].as_py(), extremes["max"].as_py()):
                    if found != size:
                        raise wrong_size(found, size)
            received += batch.num_rows
        return watch.stop(received, size)


def memory(address: str, *, topic: str, size: int, pid: int, refusals: int) -> Measured:
    """Send to a frozen broker until the buffer has refused records repeatedly."""

    options = producer_options(address) | {"max_block_ms": 100}
    process = psutil.Process()
    with Producer(**options) as producer:
        value = bytes(size)
        producer.send(topic, value).result(PATIENCE_S)
        before = process.memory_info().rss
        os.kill(pid, signal.SIGSTOP)
        try:
            sent = refused = 0
            last = None
            while refused < refusals:
                try:
                    last = producer.send(topic, value)
                    sent += 1
                except BufferExhausted:
                    refused += 1
            growth = process.memory_info().rss - before
        finally:
            os.kill(pid, signal.SIGCONT)
        producer.flush()
        if last is not None:
            last.result(PATIENCE_S)
    return {"messages": sent, "bytes": sent * size, "growth": growth}


if __name__ == "__main__":
    run(
        rows_produce,
        rows_consume,
        aio_produce,
        aio_consume,
        columns_produce,
        columns_consume,
        memory,
    )
