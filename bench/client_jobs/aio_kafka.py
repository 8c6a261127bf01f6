"""aiokafka: `send` and `getmany`."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.client_jobs import (
    BATCH_BYTES,
    FETCH_BYTES,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    POLL_RECORDS,
    Measured,
    Stopwatch,
    run,
    wrong_size,
)


def produce(address: str, *, topic: str, size: int, count: int) -> Measured:
    async def work() -> Measured:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
        )
        async with producer:
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

    return asyncio.run(work())


def consume(address: str, *, topic: str, size: int, count: int, partitions: int = 1) -> Measured:
    async def work() -> Measured:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            enable_auto_commit=False,
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        )
        async with consumer:
            where = [TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(where)
            await consumer.seek_to_beginning(*where)
            received = 0
            watch = Stopwatch()
            while received < count:
                wanted = min(POLL_RECORDS, count - received)
                found = await consumer.getmany(timeout_ms=1_000, max_records=wanted)
                for messages in found.values():
                    for message in messages:
                        if len(message.value) != size:
                            raise wrong_size(len(message.value), size)
                    received += len(messages)
            return watch.stop(received, size)

    return asyncio.run(work())


if __name__ == "__main__":
    run(produce, consume)
