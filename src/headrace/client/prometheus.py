"""Clients' metrics for Prometheus, through the `prometheus_client` package.

    pip install 'headrace[metrics]'

    from prometheus_client import REGISTRY, start_http_server
    from headrace.client.prometheus import Collector

    REGISTRY.register(Collector(producer, consumer))
    start_http_server(8000)

Totals become counters and the rest gauges, such as `headrace_producer_record_send_total` and
`headrace_consumer_records_lag_max`, with the label `client_id`. `headrace_consumer_records_lag` is
every partition's lag, with the labels `topic` and `partition` too. Nothing is counted twice: a
scrape reads what `client.metrics()` shows.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from headrace.client.metrics import (
    CONSUMER_METRICS,
    PRODUCER_METRICS,
    ConsumerMetrics,
    ProducerMetrics,
)
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import Metric

Meter: TypeAlias = ProducerMetrics | ConsumerMetrics


class Measured(Protocol):
    """A client with metrics: every producer and consumer, blocking or not."""

    @property
    def meter(self) -> Meter:
        """What the client's engine reports to."""
        ...


class Collector:
    """The metrics of any number of clients. Register it once; clients may come and go."""

    def __init__(self, *clients: Measured | Meter) -> None:
        self._families = _prometheus_core()
        self._meters: dict[tuple[str, str], Meter] = {}
        for client in clients:
            self.add(client)

    def add(self, client: Measured | Meter) -> None:
        """Show this client's metrics too. Its `client_id` must differ from the others'."""
        meter = _meter(client)
        known = self._meters.setdefault((meter.kind, meter.client_id), meter)
        if known is not meter:
            raise ConfigError(
                f"two {meter.kind}s have the client_id {meter.client_id!r}; give each its own, or"
                " remove the first from the collector"
            )

    def remove(self, client: Measured | Meter) -> None:
        """Show this client's metrics no more."""
        meter = _meter(client)
        if self._meters.get((meter.kind, meter.client_id)) is meter:
            del self._meters[meter.kind, meter.client_id]

    def describe(self) -> "Iterator[Metric]":
        """What `collect` can yield; the registry refuses names that are taken."""
        yield from self._empty("producer", PRODUCER_METRICS).values()
        yield from self._empty("consumer", CONSUMER_METRICS).values()
        yield self._lag()

    def collect(self) -> "Iterator[Metric]":
        """Every metric of every client as it is now."""
        # The registry calls this from the thread of a scrape, while clients are added elsewhere.
        meters = list(self._meters.values())
        for kind, documented in (("producer", PRODUCER_METRICS), ("consumer", CONSUMER_METRICS)):
            families = self._empty(kind, documented)
            for meter in meters:
                if meter.kind == kind:
                    for name, value in meter.snapshot().items():
                        families[name].add_metric([meter.client_id], value)
            yield from families.values()
        lag = self._lag()
        for meter in meters:
            if isinstance(meter, ConsumerMetrics):
                for (topic, partition), records in meter.lags().items():
                    lag.add_metric([meter.client_id, topic, str(partition)], records)
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


def _meter(client: Measured | Meter) -> Meter:
    return client if isinstance(client, ProducerMetrics | ConsumerMetrics) else client.meter


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
