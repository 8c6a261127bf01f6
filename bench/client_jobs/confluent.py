"""confluent-kafka, called for each message; `consume` for many, as its documentation advises."""

from confluent_kafka import Consumer, Producer, TopicPartition

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


def produce(address: str, *, topic: str, size: int, count: int) -> Measured:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            # The limit in messages is lifted, so that the limit in bytes applies, as for the
            # others.
            "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
            "queue.buffering.max.messages": 10_000_000,
        }
    )
    value = bytes(size)
    producer.produce(topic, value)
    producer.flush(PATIENCE_S)
    watch = Stopwatch()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    left = producer.flush(PATIENCE_S)
    done = watch.stop(count, size)
    if left:
        raise SystemExit(f"{left} messages were not delivered")
    return done


def consume(address: str, *, topic: str, size: int, count: int, partitions: int = 1) -> Measured:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": FETCH_BYTES,
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            # With its defaults librdkafka rests for a second whenever 100,000 messages wait.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.list_topics(topic, timeout=PATIENCE_S)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    received = 0
    watch = Stopwatch()
    while received < count:
        messages = consumer.consume(min(POLL_RECORDS, count - received), PATIENCE_S)
        for message in messages:
            if message.error():
                raise SystemExit(str(message.error()))
            value = message.value() or b""
            if len(value) != size:
                raise wrong_size(len(value), size)
        received += len(messages)
    done = watch.stop(received, size)
    consumer.close()
    return done


if __name__ == "__main__":
    run(produce, consume)
