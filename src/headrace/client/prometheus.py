"""Clients' metrics for Prometheus, through the `prometheus_client` package.

    pip install 'headrace[metrics]'

    from prometheus_client import REGISTRY, start_http_server
    from headrace.client.prometheus import Collector

    REGISTRY.register(Collector(producer, consumer, admin))
    start_http_server(8000)

Totals become counters and the rest gauges, such as `headrace_producer_record_send_total`,
`headrace_consumer_records_lag_max` and `headrace_admin_client_request_total`, with the label
`client_id`. `headrace_consumer_records_lag` is
every partition's lag, with the labels `topic` and `partition` too. Nothing is counted twice: a
scrape reads what `client.metrics()` shows.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from headrace.client.metrics import ADMIN_METRICS, CONSUMER_METRICS, PRODUCER_METRICS
from headrace.errors import ConfigError
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from prometheus_client import Metric


class ClientWithMetrics(Protocol):
    """A client with metrics: every producer, consumer and admin client, blocking or not."""

    @property
    def client_id(self) -> str: ...

    def metrics(self) -> dict[str, float]: ...


@runtime_checkable
class ClientWithLag(ClientWithMetrics, Protocol):
    """A client with a lag: every consumer."""

    def lag(self) -> dict[TopicPartition, int]: ...


@runtime_checkable
class ClientWithTopics(ClientWithMetrics, Protocol):
    """A client that lists topics: every admin client."""

    def list_topics(self) -> Any: ...


# By kind of client, which names of metrics begin with. Brokers have metrics of their own that
# begin with `headrace_admin`.
_DOCUMENTED: Mapping[str, Mapping[str, str]] = {
    "producer": PRODUCER_METRICS,
    "consumer": CONSUMER_METRICS,
    "admin_client": ADMIN_METRICS,
}


class Collector:
    """The metrics of any number of clients. Register it once; clients may come and go."""

    def __init__(self, *clients: ClientWithMetrics) -> None:
        self._families = _prometheus_core()
        self._clients: dict[tuple[str, str], ClientWithMetrics] = {}
        for client in clients:
            self.add(client)

    def add(self, client: ClientWithMetrics) -> None:
        """Add a client's metrics. Its `client_id` must differ from those of the others."""
        kind = _kind(client)
        if self._clients.setdefault((kind, client.client_id), client) is not client:
            raise ConfigError(
                f"two {kind.replace('_', ' ')}s have the client_id {client.client_id!r};"
                " give each its own, or remove the first from the collector"
            )

    def remove(self, client: ClientWithMetrics) -> None:
        """Remove a client's metrics."""
        named = _kind(client), client.client_id
        if self._clients.get(named) is client:
            del self._clients[named]

    def describe(self) -> "Iterator[Metric]":
        """The metrics that `collect` can yield; the registry refuses names already in use."""
        for kind, documented in _DOCUMENTED.items():
            yield from self._empty(kind, documented).values()
        yield self._lag()

    def collect(self) -> "Iterator[Metric]":
        """The current value of every metric of every client."""
        # The registry calls this from the thread of a scrape, while clients are added elsewhere.
        clients = list(self._clients.items())
        for kind, documented in _DOCUMENTED.items():
            families = self._empty(kind, documented)
            for (its_kind, client_id), client in clients:
                if its_kind == kind:
                    for name, value in client.metrics().items():
                        families[name].add_metric([client_id], value)
            yield from families.values()
        lag = self._lag()
        for (_, client_id), client in clients:
            if isinstance(client, ClientWithLag):
                for (topic, partition), records in client.lag().items():
                    lag.add_metric([client_id, topic, str(partition)], records)
        yield lag

    def _empty(self, kind: str, documented: Mapping[str, str]) -> dict[str, Any]:
        return {
            name: self._family(name)(_name(kind, name), doc, labels=["client_id"])
            for name, doc in documented.items()
        }

    def _family(self, name: str) -> Any:
        counts = name.endswith("-total")
        return self._families.CounterMetricFamily if counts else self._families.GaugeMetricFamily

    def _lag(self) -> Any:
        return self._families.GaugeMetricFamily(
            "headrace_consumer_records_lag",
            "Records that the partition has yet to give to the application.",
            labels=["client_id", "topic", "partition"],
        )


def _kind(client: ClientWithMetrics) -> str:
    if isinstance(client, ClientWithTopics):
        return "admin_client"
    return "consumer" if isinstance(client, ClientWithLag) else "producer"


def _name(kind: str, metric: str) -> str:
    return f"headrace_{kind}_{metric.replace('-', '_')}"


def _prometheus_core() -> Any:
    try:
        return import_module("prometheus_client.core")
    except ImportError as error:
        raise ConfigError(
            f"metrics for Prometheus need prometheus_client ({error});"
            " run: pip install 'headrace[metrics]'"
        ) from None
