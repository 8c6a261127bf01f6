"""Metrics that clients push (KIP-714), kept for the broker's own page of metrics.

Rule: a push replaces the gauges of its client and adds to its sums. Clients, points of a client
and lengths of texts are bounded: what is beyond is counted and not shown. A client that has not
pushed for three intervals, or says that it ends, is forgotten.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import CorruptBatch, ProtocolError
from headrace.metrics import catalog
from headrace.metrics.registry import Registry, Samples
from headrace.protocol.compression import decompress
from headrace.protocol.otlp_metrics import MetricPoint, decode_points
from headrace.types import uuid_text

if TYPE_CHECKING:
    from headrace.broker.telemetry import ClientAttributes, TelemetryPush

# A push has `telemetry.max.bytes` at most, and much more only if it was made to.
_EXPANDED_BYTES_MAX = 8 * 1024 * 1024
_POINTS_PER_CLIENT_MAX = 500
_TEXT_MAX = 100
_INTERVALS_KEPT = 3
_KEPT_SECONDS_MIN = 60.0


@dataclass(slots=True)
class _Client:
    """The metrics of a client; their keys are its labels."""

    instance: str
    attributes: "ClientAttributes"
    forget_at_s: float
    gauges: dict[tuple[str, str], float] = field(default_factory=dict)
    sums: dict[tuple[str, str], float] = field(default_factory=dict)

    def labels(self, key: tuple[str, str]) -> tuple[str, ...]:
        client, software = self.attributes.client_id or "", self.attributes.client_software_name
        return _clipped(client), self.instance, _clipped(software), *key


class PushedMetrics:
    """Receives pushes and shows them. Used on the event loop's thread only."""

    def __init__(
        self, registry: Registry, now: Callable[[], float], clients_max: Callable[[], int]
    ) -> None:
        self._now = now
        self._clients_max = clients_max
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        self._pushes = registry.counter(catalog.TELEMETRY_PUSHES)
        self._refused = registry.counter(catalog.TELEMETRY_REFUSED)
        self._dropped = registry.counter(catalog.TELEMETRY_DROPPED)
        registry.gauge(catalog.TELEMETRY_CLIENTS, self._count)
        registry.samples(catalog.CLIENT_GAUGE, lambda: self._samples("gauges"))
        registry.samples(catalog.CLIENT_SUM, lambda: self._samples("sums"))

    def receive(self, push: "TelemetryPush") -> None:
        """Take a push; ValueError if it cannot be decoded."""
        self._pushes.add()
        try:
            data = decompress(push.compression, push.metrics, _EXPANDED_BYTES_MAX)
            points = list(self._bounded(bytes(data)))
        except (CorruptBatch, ProtocolError) as error:
            self._refused.add()
            raise ValueError(str(error)) from error
        known = self._clients.pop(push.instance_id, None)
        if push.terminating:
            return
        kept_s = max(push.interval_ms / 1000 * _INTERVALS_KEPT, _KEPT_SECONDS_MIN)
        client = _Client(uuid_text(push.instance_id), push.client, self._now() + kept_s)
        if known is not None:
            client.sums = known.sums
        for point in points:
            key = _clipped(point.metric), _clipped(_attributes(point))
            if not point.is_sum:
                client.gauges[key] = point.value
            elif key in client.sums or len(client.sums) < _POINTS_PER_CLIENT_MAX:
                before = client.sums.get(key, 0) if point.is_delta else 0
                client.sums[key] = before + point.value
            else:
                self._dropped.add()
        self._clients[push.instance_id] = client
        while len(self._clients) > self._clients_max():
            _, oldest = self._clients.popitem(last=False)
            self._dropped.add(len(oldest.gauges) + len(oldest.sums))

    def _bounded(self, data: bytes) -> "list[MetricPoint]":
        points: list[MetricPoint] = []
        for point in decode_points(data):
            if len(points) < _POINTS_PER_CLIENT_MAX:
                points.append(point)
            else:
                self._dropped.add()
        return points

    def _count(self) -> int:
        self._forget_silent()
        return len(self._clients)

    def _forget_silent(self) -> None:
        now_s = self._now()
        for instance_id, client in tuple(self._clients.items()):
            if client.forget_at_s <= now_s:
                del self._clients[instance_id]

    def _samples(self, kind: str) -> Samples:
        self._forget_silent()
        for client in tuple(self._clients.values()):
            values: dict[tuple[str, str], float] = getattr(client, kind)
            for key, value in tuple(values.items()):
                yield client.labels(key), value


def _attributes(point: MetricPoint) -> str:
    """The attributes of a point as one text: they differ between metrics and clients."""
    return ",".join(f"{key}={value}" for key, value in sorted(point.attributes))


def _clipped(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
