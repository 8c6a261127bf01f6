"""Three Kafka clients behind one interface, so that each test runs with every one of them.

What they are asked is what users ask of them; how each of them puts it on the wire is their own,
and the point of the tests.
"""

from tests.integration.clients.aio import AiokafkaClient
from tests.integration.clients.interface import (
    CODECS,
    EARLIEST,
    LATEST,
    SECONDS,
    Client,
    Reader,
    Received,
    Refused,
    ToSend,
)
from tests.integration.clients.kafka_python import KafkaPythonClient
from tests.integration.clients.librdkafka import ConfluentClient

CLIENTS: tuple[type[Client], ...] = (ConfluentClient, KafkaPythonClient, AiokafkaClient)

__all__ = [
    "CLIENTS",
    "CODECS",
    "EARLIEST",
    "LATEST",
    "SECONDS",
    "AiokafkaClient",
    "Client",
    "ConfluentClient",
    "KafkaPythonClient",
    "Reader",
    "Received",
    "Refused",
    "ToSend",
]
