"""Load from librdkafka, in a separate process: `python -m bench.load JOB ADDRESS JSON`.

Each job prints one JSON object with its results.
"""

import json
import sys
import time
from random import Random
from string import ascii_lowercase, digits
from threading import Event, Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

# The loss of a broker that is stopped after its measurement need not be logged.
QUIET: dict[str, str | int | float | bool] = {"log_level": 0}


def create_topic(address: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result()


def produce(
    address: str, *, topic: str, size: int, count: int, **settings: Any
) -> dict[str, float]:
    """Produce as fast as possible; the clock stops when everything is acknowledged."""
    producer = Producer(
        {"bootstrap.servers": address, "queue.buffering.max.kbytes": 262_144} | QUIET | settings
    )
    value = bytes(size)
    producer.produce(topic, value)
    producer.flush()
    failures = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal failures
        failures += error is not None

    # By librdkafka's batch call: otherwise a Python call for each message would be measured.
    together = max(1, min(1_000_000 // size, 1_000))
    began = time.perf_counter()
    sent = 0
    while sent < count:
        wanted = min(together, count - sent)
        taken = producer.produce_batch(topic, [{"value": value}] * wanted)
        producer.poll(0 if taken == wanted else 0.005)
        sent += taken
    left = producer.flush(120)
    seconds = time.perf_counter() - began
    # A delivery report for each message would measure Python; one at the end is enough.
    producer.produce(topic, value, on_delivery=delivered)
    left += producer.flush(30)
    if left or failures:
        raise SystemExit(f"{left} messages left, {failures} failed")
    return {"seconds": seconds, "messages": count, "bytes": count * size}


def transact(address: str, *, topic: str, size: int, count: int, together: int) -> dict[str, float]:
    """Write transactions of `together` records as fast as possible, one after the other."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": f"bench-{topic}",
            "queue.buffering.max.kbytes": 262_144,
        }
        | QUIET
    )
    producer.init_transactions(30)
    value = bytes(size)

    def send_transaction(records: int) -> None:
        producer.begin_transaction()
        taken = producer.produce_batch(topic, [{"value": value}] * records)
        if taken != records:
            raise SystemExit(f"{records - taken} of {records} records found no room")
        producer.commit_transaction(30)

    # The first one looks up all coordinators, and takes longer.
    send_transaction(1)
    times = []
    began = time.perf_counter()
    for sent in range(0, count, together):
        begun = time.perf_counter()
        send_transaction(min(together, count - sent))
        times.append(1_000 * (time.perf_counter() - begun))
    seconds = time.perf_counter() - began
    times.sort()
    return {
        "seconds": seconds,
        "messages": count,
        "bytes": count * size,
        "transactions": len(times),
        "p50": times[len(times) // 2],
        "p99": times[int(len(times) * 0.99)],
    }


def consume(address: str, *, topic: str, count: int, **settings: Any) -> dict[str, float]:
    """Consume from the beginning, by librdkafka's batch call."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            # With its defaults librdkafka rests for a second whenever 100,000 messages wait.
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 131_072,
            "fetch.queue.backoff.ms": 1,
            "fetch.message.max.bytes": 4_000_000,
        }
        | settings
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    received = size = 0
    began = time.perf_counter()
    while received < count:
        for message in consumer.consume(min(10_000, count - received), 10.0):
            if message.error():
                raise SystemExit(str(message.error()))
            received += 1
            size += len(message)
    seconds = time.perf_counter() - began
    consumer.close()
    return {"seconds": seconds, "messages": received, "bytes": size}


def find(
    address: str, *, topic: str, partitions: int, count: int, text: str, **settings: Any
) -> dict[str, float]:
    """Look for a text in every message, by librdkafka's batch call and a loop over its messages."""
    began = time.perf_counter()
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 131_072,
            "fetch.queue.backoff.ms": 1,
        }
        | QUIET
        | settings
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    needle = text.encode()
    received = hits = 0
    first = 0.0
    while received < count:
        for message in consumer.consume(min(10_000, count - received), 10.0):
            if message.error():
                raise SystemExit(str(message.error()))
            received += 1
            if needle in (message.value() or b""):
                hits += 1
                first = first or time.perf_counter() - began
    consumer.close()
    return {"hits": hits, "first": first, "messages": received}


def latency(
    address: str, *, topic: str, size: int, rate: int, seconds: float, **settings: Any
) -> dict[str, float]:
    """Send at a fixed rate and time each acknowledgement from the due time of its message."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0} | settings)
    value, waits = bytes(size), list[float]()
    producer.produce(topic, value)
    producer.flush()
    count = int(rate * seconds)
    began = time.perf_counter() + 0.05
    for number in range(count):
        due = began + number / rate
        while (left := due - time.perf_counter()) > 0:
            producer.poll(min(left, 0.001))

        def delivered(error: KafkaError | None, _: Message, due: float = due) -> None:
            if error is None:
                waits.append(time.perf_counter() - due)

        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    producer.flush(30)
    if len(waits) != count:
        raise SystemExit(f"{count - len(waits)} of {count} messages were not acknowledged")
    waits.sort()
    return {
        name: waits[min(int(len(waits) * part), len(waits) - 1)] * 1000
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }


def produce_steadily(
    address: str, *, topic: str, partitions: int, size: int, rate_mb: float, **settings: Any
) -> dict[str, float]:
    """Produce at a fixed rate, or as fast as acknowledged, until the input ends.

    A line on the output reports the start.
    """
    producer = Producer({"bootstrap.servers": address, "acks": "all"} | QUIET | settings)
    records = [{"value": bytes(size)}] * max(1, 100_000 // size)
    producer.produce(topic, bytes(size))
    producer.flush()
    stop = _input_end()
    print("begun", flush=True)
    began = time.perf_counter()
    sent, partition = 0, 0
    while not stop.is_set():
        is_ahead = sent * size > (time.perf_counter() - began) * rate_mb * 1e6
        if is_ahead or len(producer) * size > 32_000_000:
            producer.poll(0.002)
            continue
        partition = (partition + 1) % partitions
        sent += producer.produce_batch(topic, records, partition=partition)
        producer.poll(0)
    sent -= producer.flush(30)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "messages": sent, "bytes": sent * size}


def tabulate(
    address: str, *, topic: str, keys: int, count: int, size: int, **settings: Any
) -> dict[str, float]:
    """Produce records with random keys, as fast as possible."""
    producer = Producer(
        {"bootstrap.servers": address, "queue.buffering.max.kbytes": 262_144} | QUIET | settings
    )
    rng = Random(1)
    # Random letters and digits, which a codec shrinks by about a quarter.
    text = "".join(rng.choices(ascii_lowercase + digits, k=100_000)).encode()
    sent = 0
    while sent < count:
        wanted = min(10_000, count - sent)
        records = [
            {
                "key": b"%012d" % rng.randrange(keys),
                "value": text[start : start + size],
            }
            for start in (rng.randrange(len(text) - size) for _ in range(wanted))
        ]
        taken = producer.produce_batch(topic, records)
        while taken < wanted:
            producer.poll(0.01)
            taken += producer.produce_batch(topic, records[taken:])
        producer.poll(0)
        sent += wanted
    if producer.flush(120):
        raise SystemExit("some records were not acknowledged")
    return {"messages": count}


def watch_latency(
    address: str, *, topic: str, size: int, rate: int, **settings: Any
) -> dict[str, list[tuple[float, float]]]:
    """As `latency`, until the input ends: the due time of each message, and its latency in ms.

    A line on the output reports the start.
    """
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0} | QUIET | settings)
    value, waits = bytes(size), list[tuple[float, float]]()
    producer.produce(topic, value)
    producer.flush()
    stop = _input_end()
    print("begun", flush=True)
    due = time.time()
    while not stop.is_set():
        due += 1 / rate
        while (left := due - time.time()) > 0:
            producer.poll(min(left, 0.001))

        def delivered(error: KafkaError | None, _: Message, due: float = due) -> None:
            if error is None:
                waits.append((due, 1_000 * (time.time() - due)))

        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    producer.flush(30)
    return {"waits": waits}


def _input_end() -> Event:
    """An event that is set when the standard input ends."""
    ended = Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    Thread(target=wait_for_end, daemon=True).start()
    return ended


if __name__ == "__main__":
    job, address, arguments = sys.argv[1:]
    print(json.dumps(globals()[job](address, **json.loads(arguments))))
