"""kafka-python: `send` and `poll`."""

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.client_jobs import (
    BATCH_BYTES,
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


def produce(address: str, *, topic: str, size: int, count: int) -> Measured:
    # It has no limit in bytes: its buffer grows without bound.
    producer = KafkaProducer(
        bootstrap_servers=address, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES
    )
    value = bytes(size)
    last = producer.send(topic, value)
    last.get(PATIENCE_S)
    watch = Stopwatch()
    for _ in range(count):
        last = producer.send(topic, value)
    producer.flush(PATIENCE_S)
    done = watch.stop(count, size)
    last.get(PATIENCE_S)
    producer.close()
    return done


def consume(address: str, *, topic: str, size: int, count: int, partitions: int = 1) -> Measured:
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        max_poll_records=POLL_RECORDS,
    )
    where = [TopicPartition(topic, partition) for partition in range(partitions)]
    consumer.assign(where)
    consumer.seek_to_beginning(*where)
    received = 0
    watch = Stopwatch()
    while received < count:
        found = consumer.poll(timeout_ms=1_000, max_records=min(POLL_RECORDS, count - received))
        for messages in found.values():
            for message in messages:
                if len(message.value) != size:
                    raise wrong_size(len(message.value), size)
            received += len(messages)
    done = watch.stop(received, size)
    consumer.close()
    return done


if __name__ == "__main__":
    run(produce, consume)
