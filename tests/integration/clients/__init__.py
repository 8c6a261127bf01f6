"""Four Kafka clients, headrace's among them, behind one interface: each test runs with every one.

The interface has what users ask of clients; the requests on the wire are up to each client, and the
point of the tests.
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
from tests.integration.clients.ours import HeadraceClient

CLIENTS: tuple[type[Client], ...] = (
    ConfluentClient,
    KafkaPythonClient,
    AiokafkaClient,
    HeadraceClient,
)

__all__ = [
    "CLIENTS",
    "CODECS",
    "EARLIEST",
    "LATEST",
    "SECONDS",
    "AiokafkaClient",
    "Client",
    "ConfluentClient",
    "HeadraceClient",
    "KafkaPythonClient",
    "Reader",
    "Received",
    "Refused",
    "ToSend",
]
