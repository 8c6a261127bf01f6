"""Client quotas as a broker enforces them: the limited entities, the charges, the throttle times.

A client that uses more than its quota gets its answer at once, with the time it has to wait, and
its connection is not read for that time. Produced bytes are charged when they arrive and fetched
bytes when they are answered; a fetch that comes while bytes are owed is answered without records.
Without quotas a request costs a look at `ClientQuotas.active`.

Used on the event loop's thread only; the time is an argument, in seconds of a monotonic clock.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple
from weakref import WeakSet

from headrace.broker.fetch_sessions import replica_of
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.client_quotas import (
    CLIENT_RATES,
    CONSUMER_RATE,
    MUTATION_RATE,
    PRODUCER_RATE,
    REQUEST_PERCENTAGE,
    Quotas,
    Rate,
    connection_rate_of,
    rate_of,
)
from headrace.metrics import catalog
from headrace.metrics.registry import Counter, Histogram, Registry
from headrace.net.server import ServerConnection
from headrace.options import LONG_MAX
from headrace.protocol.apis import Api
from headrace.rates import TokenBucket

# The clients whose limits are remembered; the one that was silent for longest is forgotten first.
_CLIENTS_MAX = 20_000
_LIMITS_MAX = 3 * _CLIENTS_MAX
# A wait below this is not worth a timer: it is owed, and adds to the next.
_WAIT_SECONDS_MIN = 0.001
_WAIT_MS_MAX = 2**31 - 1


class QuotaSettings(NamedTuple):
    """The settings of a broker about quotas; the default rates are LONG_MAX for none."""

    window_s: float = 1.0
    windows: int = 11
    mutation_window_s: float = 1.0
    mutation_windows: int = 11
    producer_default: int = LONG_MAX
    consumer_default: int = LONG_MAX


class ClientLimits(NamedTuple):
    """The limits of one client, None where it has no quota."""

    produce: TokenBucket | None
    fetch: TokenBucket | None
    request: TokenBucket | None
    mutation: TokenBucket | None


_NO_LIMITS = ClientLimits(None, None, None, None)


class _QuotaMetrics:
    """Counts of throttled requests by quota; by client they would have no bound."""

    def __init__(self, registry: Registry, quota: str) -> None:
        labels = {"quota": quota}
        self.violations: Counter = registry.counter(catalog.QUOTA_VIOLATIONS, labels)
        self.throttled: Histogram = registry.histogram(catalog.QUOTA_THROTTLE, labels)

    def count(self, wait_s: float) -> None:
        self.violations.value += 1
        self.throttled.observe(wait_s)


class ClientQuotas:
    """The limits of all clients of a broker, made when a client's first request comes."""

    def __init__(self, registry: Registry, now: Callable[[], float]) -> None:
        self.active = False
        self._now = now
        self._quotas: Quotas = {}
        self._settings = QuotaSettings()
        self._clients: OrderedDict[tuple[str, str], ClientLimits] = OrderedDict()
        self._limits: OrderedDict[tuple[str, str | None, str | None], TokenBucket] = OrderedDict()
        self._throttled = WeakSet[ServerConnection]()
        self.produce = _QuotaMetrics(registry, "produce")
        self.fetch = _QuotaMetrics(registry, "fetch")
        self.request = _QuotaMetrics(registry, "request")
        self.mutation = _QuotaMetrics(registry, "controller_mutation")
        registry.gauge(catalog.QUOTA_CLIENTS, lambda: len(self._limits))
        registry.gauge(
            catalog.THROTTLED_CONNECTIONS,
            lambda: sum(connection.is_muted for connection in self._throttled),
        )

    @property
    def window_s(self) -> float:
        """The seconds of one window of the quotas on bytes and time."""
        return self._settings.window_s

    def change(self, quotas: Quotas, settings: QuotaSettings) -> None:
        """Use other quotas from now on. Every client is let go on, and measured by them."""
        if quotas is self._quotas and settings == self._settings:
            return
        self._quotas, self._settings = quotas, settings
        self._clients.clear()
        self.active = min(settings.producer_default, settings.consumer_default) < LONG_MAX or any(
            not CLIENT_RATES.isdisjoint(values) for values in quotas.values()
        )
        if not self.active:
            self._limits.clear()
        for connection in tuple(self._throttled):
            connection.unmute()
        self._throttled.clear()

    def connection_rate_of(self, ip: str) -> float | None:
        """The connections a second that an address may open; None if that is not limited."""
        return connection_rate_of(self._quotas, ip) if self._quotas else None

    def limits_of(self, user: str, client_id: str | None) -> ClientLimits | None:
        """The limits of a client; None if it has none."""
        client = user, client_id or ""
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = self._resolve(*client)
            if len(self._clients) > _CLIENTS_MAX:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(client)
        return None if found == _NO_LIMITS else found

    def mute(self, connection: ServerConnection, seconds: float) -> None:
        """Stop reading a connection for a time."""
        self._throttled.add(connection)
        connection.mute(seconds)

    def _resolve(self, user: str, client_id: str) -> ClientLimits:
        settings = self._settings
        burst_s = settings.window_s * settings.windows
        request = self._rate(REQUEST_PERCENTAGE, user, client_id)
        if request is not None:
            request = request._replace(value=request.value / 100)
        return ClientLimits(
            self._limit(PRODUCER_RATE, self._rate(PRODUCER_RATE, user, client_id), burst_s),
            self._limit(CONSUMER_RATE, self._rate(CONSUMER_RATE, user, client_id), burst_s),
            self._limit(REQUEST_PERCENTAGE, request, burst_s),
            self._limit(
                MUTATION_RATE,
                self._rate(MUTATION_RATE, user, client_id),
                settings.mutation_window_s * settings.mutation_windows,
            ),
        )

    def _rate(self, key: str, user: str, client_id: str) -> Rate | None:
        found = rate_of(self._quotas, key, user, client_id)
        if found is None:
            default = LONG_MAX
            if key == PRODUCER_RATE:
                default = self._settings.producer_default
            elif key == CONSUMER_RATE:
                default = self._settings.consumer_default
            if default < LONG_MAX:
                return Rate(default, None, client_id)
        return found

    def _limit(self, key: str, rate: Rate | None, burst_s: float) -> TokenBucket | None:
        if rate is None:
            return None
        name = key, rate.user, rate.client_id
        limit = self._limits.get(name)
        if limit is None:
            # Unlike Kafka: a new client has the credit of one window and not of all of them. One
            # that always uses more than its quota would otherwise begin with ten seconds of it.
            first_s = burst_s if key == MUTATION_RATE else self._settings.window_s
            limit = self._limits[name] = TokenBucket(rate.value, burst_s, self._now(), first_s)
            if len(self._limits) > _LIMITS_MAX:
                self._limits.popitem(last=False)
        else:
            limit.change(rate.value, burst_s, self._now())
            self._limits.move_to_end(name)
        return limit


def is_of_the_cluster(api: Api, request: Any) -> bool:
    """Whether a request of an API that clients use too is one of another broker's."""
    if api is Api.FETCH:
        return replica_of(request)[0] >= 0
    if api is Api.ADD_PARTITIONS_TO_TXN:
        return bool(request.transactions)
    return api is Api.OFFSET_FOR_LEADER_EPOCH and request.replica_id >= 0


class RequestCharge:
    """The cost of a request of a limited client, and the wait that its answer names."""

    __slots__ = ("_connection", "_limits", "_muted_until", "_quotas")

    def __init__(
        self, quotas: ClientQuotas, limits: ClientLimits, connection: ServerConnection
    ) -> None:
        self._quotas = quotas
        self._limits = limits
        self._connection = connection
        self._muted_until = 0.0

    def waive(self) -> None:
        """Charge nothing: the request is another broker's."""
        self._limits = _NO_LIMITS

    def produced(self, byte_count: int, now: float) -> None:
        """Charge the bytes of a Produce request."""
        limit = self._limits.produce
        if limit is not None:
            self._wait(limit.charge(byte_count, now), self._quotas.produce, now)

    def may_fetch(self, request: Any, now: float) -> bool:
        """Whether a Fetch may read records, of which it is bound to those within the quota."""
        limit = self._limits.fetch
        if limit is None:
            return True
        wait_s = limit.wait_s(now)
        if wait_s >= _WAIT_SECONDS_MIN:
            self._wait(wait_s, self._quotas.fetch, now)
            return False
        window = int(max(limit.credit(now), limit.rate * self._quotas.window_s))
        request.max_bytes = max(min(request.max_bytes, window), 1)
        return True

    def fetched(self, response: Any, now: float) -> None:
        """Charge the bytes of records in the answer to a Fetch."""
        limit = self._limits.fetch
        if limit is not None:
            byte_count = sum(
                len(partition.records or b"")
                for topic in response.responses
                for partition in topic.partitions
            )
            self._wait(limit.charge(byte_count, now), self._quotas.fetch, now)

    def worked(self, seconds: float, now: float) -> None:
        """Charge time on the event loop."""
        limit = self._limits.request
        if limit is not None:
            # As in Kafka at most a window: a slow request must not stop its client for minutes.
            wait_s = min(limit.charge(seconds, now), self._quotas.window_s)
            self._wait(wait_s, self._quotas.request, now)

    def answer(self, response: Any, now: float) -> None:
        """Put the wait into a response, or take over that of the controller."""
        theirs_ms = getattr(response, "throttle_time_ms", None)
        if theirs_ms is None:
            return
        if theirs_ms > 0:
            self._wait(theirs_ms / 1000, self._quotas.mutation, now)
        if self._muted_until > now:
            left_ms = ceil((self._muted_until - now) * 1000)
            response.throttle_time_ms = min(max(left_ms, theirs_ms), _WAIT_MS_MAX)

    def _wait(self, seconds: float, metrics: _QuotaMetrics, now: float) -> None:
        if seconds >= _WAIT_SECONDS_MIN:
            metrics.count(seconds)
            if now + seconds > self._muted_until:
                self._muted_until = now + seconds
                self._quotas.mute(self._connection, seconds)


class MutationCharge:
    """The partitions that one request creates and deletes, charged to the quota of its client.

    A `strict` request is refused what is above the quota, since its client knows the error for it
    (KIP-599); of any other all is done, and its client waits afterwards.
    """

    def __init__(
        self, limit: TokenBucket | None, now: Callable[[], float], *, strict: bool
    ) -> None:
        self._limit = limit
        self._now = now
        self._strict = strict
        self._wait_s = 0.0

    @property
    def throttle_time_ms(self) -> int:
        """The throttle time in the response."""
        return min(ceil(self._wait_s * 1000), _WAIT_MS_MAX)

    def charge(self, partition_count: int) -> None:
        """Charge partitions; THROTTLING_QUOTA_EXCEEDED if they are refused."""
        if self._limit is None:
            return
        now = self._now()
        owed_s = self._limit.wait_s(now)
        if self._strict and owed_s > 0:
            self._wait_s = max(self._wait_s, owed_s)
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "the quota for changes of topics (controller_mutation_rate) is used up",
                advice=f"try again in {owed_s:.1f} s",
            )
        owed_s = self._limit.charge(partition_count, now)
        if not self._strict:
            self._wait_s = max(self._wait_s, owed_s)
