"""At least once: process, then commit. A crash may repeat what was done since the last commit.

Nothing is lost. For results that may be made twice: a file that is overwritten, a row that is
inserted or updated by its key.
"""

import argparse
import contextlib

from confluent_kafka import Consumer, KafkaException, Message

BATCH_RECORDS = 10


def process(message: Message) -> None:
    """The work itself, whatever it is; here a line on the terminal."""
    value = message.value() or b""
    print(message.partition(), message.offset(), value.decode(), flush=True)


def run(consumer: Consumer) -> None:
    while True:
        batch = consumer.consume(BATCH_RECORDS, timeout=1.0)
        for message in batch:
            if error := message.error():
                raise KafkaException(error)
            process(message)
        if batch:
            # Until this is done, whoever takes over starts before these records.
            consumer.commit(asynchronous=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="at-least-once")
    arguments = parser.parse_args()
    settings = {
        "bootstrap.servers": arguments.bootstrap_server,
        "group.id": arguments.group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        # So long a consumer that crashed keeps its partitions from the others.
        "session.timeout.ms": 10_000,
    }
    with contextlib.closing(Consumer(settings)) as consumer:
        consumer.subscribe([arguments.topic])
        with contextlib.suppress(KeyboardInterrupt):
            run(consumer)


if __name__ == "__main__":
    main()
