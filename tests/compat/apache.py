"""Apache Kafka, where it can be had: else what is compared with it is skipped, and says why."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.kafka_broker import KafkaBroker, KafkaMissing, kafka_jars


@contextmanager
def apache_kafka(
    directory: Path,
    transaction_version: int = 2,
    settings: Mapping[str, str] | None = None,
    listeners: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> Iterator[KafkaBroker]:
    """A broker with data in `directory`, which is made, and this version of transactions."""
    try:
        kafka_jars()
    except KafkaMissing as error:
        pytest.skip(str(error))
    directory.mkdir(exist_ok=True)
    broker = KafkaBroker(
        directory,
        transaction_version=transaction_version,
        settings=settings,
        listeners=listeners,
        java_options=java_options,
    )
    with broker:
        yield broker
