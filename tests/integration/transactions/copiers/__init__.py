"""The clients that copy in transactions, each behind the same interface."""

from tests.integration.transactions.copiers.interface import Copier
from tests.integration.transactions.copiers.kafka_python import KafkaPythonCopier
from tests.integration.transactions.copiers.librdkafka import LibrdkafkaCopier
from tests.integration.transactions.copiers.ours import HeadraceCopier

__all__ = ["COPIERS", "Copier"]

COPIERS: dict[str, type[Copier]] = {
    "librdkafka": LibrdkafkaCopier,
    "kafka-python": KafkaPythonCopier,
    "headrace": HeadraceCopier,
}
