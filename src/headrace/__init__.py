"""headrace: a distributed message queue that speaks the Apache Kafka protocol.

    import headrace

    with headrace.Producer(bootstrap_servers="localhost:9092") as producer:
        producer.send("orders", "one espresso", key="table 4")

    with headrace.Consumer("orders", group_id="kitchen", auto_offset_reset="earliest") as consumer:
        for record in consumer:
            print(record.value)

`headrace.aio` has the same clients for asyncio, `headrace.testing` a broker for tests.

Rule: a name is imported when it is first used, so that importing the package costs nothing.
"""

from importlib import import_module

__version__ = "0.2.0"

# Importing `typing` for `TYPE_CHECKING` alone would cost more than the rest of this module.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from headrace import aio, testing
    from headrace.client.admin.acls import Acl
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.topics import EARLIEST, LATEST, NewTopic
    from headrace.client.admin.users import DelegationToken, ScramDeletion, ScramUpsertion
    from headrace.client.consumer.consumer import Consumer
    from headrace.client.consumer.rebalance_listener import RebalanceListener
    from headrace.client.errors import (
        BatchRefused,
        BufferExhausted,
        Closed,
        CommitFailed,
        IllegalState,
        LogTruncated,
        NoOffset,
        OutcomeUnknown,
        ProducerFenced,
        RecordTooLarge,
        SerializationFailed,
        SomeFailed,
        TimedOut,
        TransactionAbortable,
        TransactionAborted,
        TransactionFatal,
        Unreachable,
    )
    from headrace.client.producer.producer import Producer
    from headrace.client.types import (
        BatchMetadata,
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        ProducerRecord,
        RecordMetadata,
    )
    from headrace.errors import (
        AuthenticationFailed,
        ConfigError,
        ErrorCode,
        HeadraceError,
        KafkaError,
        UnknownTopic,
    )
    from headrace.net.client_connection import ConnectionFailed
    from headrace.protocol.consumer_records import ConsumerRecord
    from headrace.types import TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "Acl",
    "Admin",
    "AuthenticationFailed",
    "BatchMetadata",
    "BatchRefused",
    "BufferExhausted",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "ConnectionFailed",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "DelegationToken",
    "ErrorCode",
    "HeadraceError",
    "IllegalState",
    "KafkaError",
    "LogTruncated",
    "NewTopic",
    "NoOffset",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OutcomeUnknown",
    "Producer",
    "ProducerFenced",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "RecordTooLarge",
    "ScramDeletion",
    "ScramUpsertion",
    "SerializationFailed",
    "SomeFailed",
    "TimedOut",
    "TopicPartition",
    "TransactionAbortable",
    "TransactionAborted",
    "TransactionFatal",
    "UnknownTopic",
    "Unreachable",
    "__version__",
    "aio",
    "testing",
]

_PACKAGES = ("aio", "testing")

_MODULES = {
    "client.admin.acls": ("Acl",),
    "client.admin.admin": ("Admin",),
    "client.admin.topics": (
        "EARLIEST",
        "LATEST",
        "NewTopic",
    ),
    "client.admin.users": ("DelegationToken", "ScramDeletion", "ScramUpsertion"),
    "client.consumer.consumer": ("Consumer",),
    "client.consumer.rebalance_listener": ("RebalanceListener",),
    "client.types": (
        "BatchMetadata",
        "ConsumerGroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "ProducerRecord",
        "RecordMetadata",
    ),
    "client.errors": (
        "BatchRefused",
        "BufferExhausted",
        "Closed",
        "CommitFailed",
        "IllegalState",
        "LogTruncated",
        "NoOffset",
        "OutcomeUnknown",
        "ProducerFenced",
        "RecordTooLarge",
        "SerializationFailed",
        "SomeFailed",
        "TimedOut",
        "TransactionAbortable",
        "TransactionAborted",
        "TransactionFatal",
        "Unreachable",
    ),
    "client.producer.producer": ("Producer",),
    "errors": (
        "AuthenticationFailed",
        "ConfigError",
        "ErrorCode",
        "HeadraceError",
        "KafkaError",
        "UnknownTopic",
    ),
    "net.client_connection": ("ConnectionFailed",),
    "protocol.consumer_records": ("ConsumerRecord",),
    "types": ("TopicPartition",),
}

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def exported_value(package: str, module_of: dict[str, str], name: str) -> object:
    """The value of an exported name of a package, imported from the module it is defined in."""
    module = module_of.get(name)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(import_module(f"{package}.{module}"), name)
    # From now on the name is found without the package's `__getattr__`.
    setattr(import_module(package), name, value)
    return value


# Hidden from type checkers, which would otherwise accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        return exported_value(__name__, _MODULE_OF, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
