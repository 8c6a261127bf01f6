"""Start a broker, send records through the Python client, read them back, and say so.

    python tools/smoke.py

What `tools/check_pythons.sh` runs on every version of Python.
"""

import asyncio
import sys

import headrace
import headrace.testing

RECORDS = 2_000
SECONDS_MAX = 30


def blocking(servers: str, topic: str) -> None:
    """Send and read as threads do."""
    with headrace.Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
        futures = [producer.send(topic, f"value {n}", key=f"key {n}") for n in range(RECORDS)]
        producer.flush()
        assert len({future.result().offset for future in futures}) > 1
    with headrace.Consumer(
        topic,
        bootstrap_servers=servers,
        group_id="smoke",
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS_MAX * 1000,
    ) as consumer:
        seen = set()
        for record in consumer:
            seen.add(record.value)
            if len(seen) == RECORDS:
                break
        consumer.commit()
    assert seen == {f"value {n}".encode() for n in range(RECORDS)}


async def with_asyncio(servers: str, topic: str) -> None:
    """Send and read on an event loop."""
    async with headrace.aio.Producer(bootstrap_servers=servers) as producer:
        future = await producer.send(topic, "hello")
        written = await future
    async with headrace.aio.Consumer(bootstrap_servers=servers) as consumer:
        partition = headrace.TopicPartition(topic, written.partition)
        consumer.assign([partition])
        consumer.seek(partition, written.offset)
        records = await consumer.poll(timeout_ms=SECONDS_MAX * 1000)
    assert [record.value for record in records] == [b"hello"]


def main() -> None:
    """The whole check; an exception is a failure."""
    with headrace.testing.Broker() as broker:
        servers = broker.bootstrap_servers
        blocking(servers, broker.create_topic(partitions=3))
        asyncio.run(with_asyncio(servers, broker.create_topic(partitions=3)))
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {version}: sent and read {RECORDS} records, blocking and with asyncio")


if __name__ == "__main__":
    main()
