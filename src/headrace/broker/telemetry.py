"""Client telemetry (KIP-714): subscriptions to metrics of clients, and the metrics they push.

A subscription is a config resource of type CLIENT_METRICS: metric name prefixes, an interval, and
patterns that a client must match. A client requests its subscription, gets the names of metrics and
an id, and pushes those metrics under the id once per interval. Accepted metrics go to a receiver.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import ConfigKey
from headrace.protocol.batch import crc32c
from headrace.protocol.compression import Compression
from headrace.types import uuid_text

logger = logging.getLogger(__name__)

CLIENT_METRICS = 16

_ALL_METRICS = "*"
_INTERVAL_MS_DEFAULT = 300_000
_INTERVAL_MS_MIN, _INTERVAL_MS_MAX = 100, 3_600_000
_INSTANCES_MAX = 16_384
_INSTANCE_IDLE_MS_MIN = 60_000
# Ids that Kafka's clients never generate: zero, and the id of the metadata topic.
_RESERVED_IDS = (bytes(16), bytes(15) + b"\x01")
_NEVER_MS = -(2**62)
_COMPRESSION_IDS = frozenset(map(int, Compression))
# In the order in which Kafka offers them.
ACCEPTED_COMPRESSION = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)


class ClientAttributes(NamedTuple):
    """The attributes of a client, to be matched with patterns of subscriptions."""

    client_id: str | None
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str

    def matches(self, instance_id: bytes, patterns: Mapping[str, re.Pattern[str]]) -> bool:
        """Whether every pattern matches the whole of its attribute."""
        values = {**self._asdict(), "client_instance_id": uuid_text(instance_id)}
        return all(
            values[name] is not None and pattern.fullmatch(values[name])
            for name, pattern in patterns.items()
        )


MATCH_NAMES = frozenset({*ClientAttributes._fields, "client_instance_id"})


class TelemetrySubscription(NamedTuple):
    """Metrics, by the prefixes of their names, that matching clients push once per interval."""

    metrics: frozenset[str]
    interval_ms: int
    patterns: tuple[tuple[str, re.Pattern[str]], ...]


def parse_subscription(settings: Mapping[str, str]) -> TelemetrySubscription:
    """The subscription of a CLIENT_METRICS resource; ValueError names the wrong setting."""
    interval_ms = int(settings.get("interval.ms", _INTERVAL_MS_DEFAULT))
    if not _INTERVAL_MS_MIN <= interval_ms <= _INTERVAL_MS_MAX:
        raise ValueError(
            f"interval.ms is {interval_ms}, not {_INTERVAL_MS_MIN} to {_INTERVAL_MS_MAX}"
        )
    patterns = []
    for text in _items(settings.get("match", "")):
        name, equals, pattern = (part.strip() for part in text.partition("="))
        if not equals or not pattern or "=" in pattern or name not in MATCH_NAMES:
            raise ValueError(f"{text!r} is not NAME=PATTERN with a NAME of {sorted(MATCH_NAMES)}")
        try:
            patterns.append((name, re.compile(pattern)))
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return TelemetrySubscription(
        frozenset(_items(settings.get("metrics", ""))), interval_ms, tuple(patterns)
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


class TelemetryPush(NamedTuple):
    """Metrics of a client, as OTLP `MetricsData` in protobuf, compressed with `compression`."""

    instance_id: bytes
    client: ClientAttributes
    interval_ms: int
    terminating: bool
    compression: int
    metrics: bytes


class TelemetryReceiver(Protocol):
    """Receives the metrics that clients push: the exporter of the broker's own metrics."""

    def receive(self, push: TelemetryPush) -> None:
        """Take a push. ValueError if it cannot be decoded; the client gets INVALID_RECORD."""


class TelemetryConnection(Protocol):
    """The connection of a client."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""


@dataclass(slots=True)
class _ClientInstance:
    """A client instance that subscribed or pushed under one version of the subscriptions."""

    subscription_id: int
    metrics: frozenset[str]
    interval_ms: int
    version: int
    connection: TelemetryConnection | None
    seen_ms: int
    last_get_ms: int = _NEVER_MS
    last_push_ms: int = _NEVER_MS
    terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE

    @property
    def is_disconnected(self) -> bool:
        """Whether the client's connection ended: when it reconnects it begins anew, as in Kafka."""
        return self.connection is not None and self.connection.closed

    def accept_get(self, now_ms: int) -> bool:
        """Note a request for the subscription; False if it comes before the end of the interval."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def accept_push(self, now_ms: int) -> bool:
        """Note a push; False if it is too early. The first push after `accept_get` never is."""
        if self.last_get_ms <= self.last_push_ms:
            if now_ms - self.last_push_ms < self.interval_ms:
                return False
        self.last_push_ms = now_ms
        return True


class ClientSubscription(NamedTuple):
    """The subscription of a client: the metrics to push, the id to push under, the interval."""

    instance_id: bytes
    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


class TelemetryRequest(NamedTuple):
    """A client's request: the client, its connection, and the time."""

    client: ClientAttributes
    connection: TelemetryConnection | None
    now_ms: int


@dataclass(slots=True)
class ClientTelemetry:
    """The client instances of this broker and their subscriptions. Times are steady ms."""

    receiver: TelemetryReceiver
    _configs: Mapping[ConfigKey, Mapping[str, str]] = field(default_factory=dict)
    _subscriptions: tuple[TelemetrySubscription, ...] = ()
    _version: int = 0
    _instances: OrderedDict[bytes, _ClientInstance] = field(default_factory=OrderedDict)

    def update_subscriptions(self, configs: Mapping[ConfigKey, Mapping[str, str]]) -> None:
        """Take the subscriptions from the configs of an image."""
        if configs is self._configs:
            return
        self._configs = configs
        subscriptions = []
        for resource, settings in configs.items():
            if resource.resource_type == CLIENT_METRICS and settings:
                try:
                    subscriptions.append(parse_subscription(settings))
                except ValueError as error:
                    logger.warning("ignored client metrics %r: %s", resource.name, error)
        if tuple(subscriptions) != self._subscriptions:
            self._subscriptions = tuple(subscriptions)
            self._version += 1

    def subscribe(self, instance_id: bytes, asking: TelemetryRequest) -> ClientSubscription:
        """The subscription of a client; KafkaError if it asks again too early."""
        instance = self._instance(instance_id, asking)
        if not instance.accept_get(asking.now_ms) and instance.last_error not in (
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ):
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance.last_error = ErrorCode.NONE
        return ClientSubscription(
            instance_id,
            instance.subscription_id,
            tuple(sorted(instance.metrics)),
            instance.interval_ms,
        )

    def push(
        self, subscription_id: int, push: TelemetryPush, asking: TelemetryRequest, bytes_max: int
    ) -> None:
        """Pass a push to the receiver; KafkaError if it is refused."""
        if push.instance_id in _RESERVED_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        instance = self._instance(push.instance_id, asking)
        try:
            self._check(instance, subscription_id, push, asking.now_ms, bytes_max)
            if push.metrics:
                self._receive(push._replace(interval_ms=instance.interval_ms))
            instance.last_error = ErrorCode.NONE
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.terminating = push.terminating

    def _check(
        self,
        instance: _ClientInstance,
        subscription_id: int,
        push: TelemetryPush,
        now_ms: int,
        bytes_max: int,
    ) -> None:
        if instance.terminating:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not instance.accept_push(now_ms) and not push.terminating:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != instance.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if push.compression not in _COMPRESSION_IDS:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if len(push.metrics) > bytes_max:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE)

    def _receive(self, push: TelemetryPush) -> None:
        try:
            self.receiver.receive(push)
        except ValueError as error:
            logger.warning("metrics of client %s: %s", uuid_text(push.instance_id), error)
            raise KafkaError(ErrorCode.INVALID_RECORD) from error

    def _instance(self, instance_id: bytes, asking: TelemetryRequest) -> _ClientInstance:
        self._expire(asking.now_ms)
        instance = self._instances.get(instance_id)
        if instance is None or instance.version != self._version or instance.is_disconnected:
            instance = self._new_instance(instance_id, asking)
            self._instances[instance_id] = instance
        instance.seen_ms = asking.now_ms
        self._instances.move_to_end(instance_id)
        while len(self._instances) > _INSTANCES_MAX:
            self._instances.popitem(last=False)
        return instance

    def _expire(self, now_ms: int) -> None:
        while self._instances:
            instance_id, oldest = next(iter(self._instances.items()))
            if now_ms - oldest.seen_ms < max(_INSTANCE_IDLE_MS_MIN, oldest.interval_ms * 3):
                return
            del self._instances[instance_id]

    def _new_instance(self, instance_id: bytes, asking: TelemetryRequest) -> _ClientInstance:
        metrics: set[str] = set()
        interval_ms = _INTERVAL_MS_DEFAULT
        for subscription in self._subscriptions:
            if asking.client.matches(instance_id, dict(subscription.patterns)):
                metrics |= subscription.metrics
                interval_ms = min(interval_ms, subscription.interval_ms)
        if _ALL_METRICS in metrics:
            metrics = {_ALL_METRICS}
        return _ClientInstance(
            _subscription_id(instance_id, metrics, interval_ms),
            frozenset(metrics),
            interval_ms,
            self._version,
            asking.connection,
            asking.now_ms,
        )


def _subscription_id(instance_id: bytes, metrics: set[str], interval_ms: int) -> int:
    """A number that changes with the metrics and the interval, and differs between clients."""
    text = f"{','.join(sorted(metrics))} {interval_ms}".encode()
    unsigned = crc32c(instance_id, crc32c(text))
    return unsigned - 2**32 if unsigned >= 2**31 else unsigned
