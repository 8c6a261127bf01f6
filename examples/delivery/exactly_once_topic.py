"""Exactly once from topic to topic: results and offsets are committed in one transaction of Kafka.

Whenever the process dies, the results that can be read and the offset of the group agree. Readers
of the results ask for committed records: isolation.level=read_committed.
"""

import argparse
import contextlib

from confluent_kafka import Consumer, KafkaException, Message, Producer

BATCH_RECORDS = 10


def result(message: Message) -> bytes:
    """The work itself, whatever it is; here the record as it came."""
    return message.value() or b""


def run(consumer: Consumer, producer: Producer, results: str) -> None:
    while True:
        batch = consumer.consume(BATCH_RECORDS, timeout=1.0)
        for message in batch:
            if error := message.error():
                raise KafkaException(error)
        if batch:
            producer.begin_transaction()
            for message in batch:
                producer.produce(results, result(message), key=message.key())
            # Refused if these partitions belong to another consumer by now.
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            )
            producer.commit_transaction()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="exactly-once-topic")
    parser.add_argument("--results", default="results")
    # Another one for each process of the group, and the same when it is started again.
    parser.add_argument("--transactional-id", default="exactly-once-topic-1")
    arguments = parser.parse_args()
    servers = {"bootstrap.servers": arguments.bootstrap_server}
    consumer_settings = {
        "group.id": arguments.group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        # What others write in transactions counts only when it is committed.
        "isolation.level": "read_committed",
        # So long a consumer that crashed keeps its partitions from the others.
        "session.timeout.ms": 10_000,
    }
    producer = Producer(servers | {"transactional.id": arguments.transactional_id})
    # Aborts what this process has left open when it died, and ends it if it has not.
    producer.init_transactions()
    with contextlib.closing(Consumer(servers | consumer_settings)) as consumer:
        consumer.subscribe([arguments.topic])
        with contextlib.suppress(KeyboardInterrupt):
            run(consumer, producer, arguments.results)


if __name__ == "__main__":
    main()
