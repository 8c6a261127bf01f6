"""Topics and records for consumers, made by clients that are not ours."""

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import confluent_kafka

from headrace.testing.time_limits import scaled
from tests.integration.wire import create_topic

__all__ = ["create_topic", "feed"]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def feed(
    address: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    partition: int = 0,
    keys: Iterable[bytes | None] | None = None,
    codec: str = "none",
    batch_size: int = 1_000_000,
    **options: Any,
) -> None:
    """Have librdkafka write records to one partition, and wait until they are there."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.size": batch_size,
            "message.max.bytes": 10_000_000,
            "log_level": 0,
        }
    )
    failed: list[Any] = []

    def note(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    for value, key in zip(values, keys or repeat(None), strict=False):
        while True:
            try:
                producer.produce(
                    topic, value, key, partition=partition, on_delivery=note, **options
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(scaled(60)) == 0
    assert not failed, failed
