"""Real brokers inside a test: started quickly, broken on request, removed afterwards.

    with headrace.testing.Broker() as broker:
        topic = broker.create_topic(partitions=3)
        ...  # any Kafka client, with bootstrap servers broker.bootstrap_servers

`Cluster` is the same of several brokers that replicate.

Rule: nothing is imported before it is used, because the pytest plugin is loaded by every run of
pytest where headrace is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import Broker
    from headrace.testing.cluster import Cluster
    from headrace.testing.ports import BrokerError

__all__ = ["Broker", "BrokerError", "Cluster"]

_MODULES = {
    "Broker": "headrace.testing.broker",
    "BrokerError": "headrace.testing.ports",
    "Cluster": "headrace.testing.cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
