"""Limits on connections: how many there may be, and how fast they may come.

Sans-IO: a connection that wants in goes in with the time, and whether it is served, waits or is
closed comes out. As in Kafka, an address above its rate is closed after a while, so that a client
that connects again at once is slowed down, and a listener or broker above its rate has connections
wait. Unlike Kafka: past `max.connections` a connection is closed, and does not wait in the queue of
the kernel, where no other listener could be served either.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from headrace.options import INT_MAX
from headrace.rates import TokenBucket

# What a listener that was quiet may take at once, in seconds of its rate.
_BURST_SECONDS = 1.0
# A connection that would wait for longer is closed: its client has given up by then.
_WAIT_SECONDS_MAX = 5.0
# The longest time until a connection above the rate of its address is closed.
_CLOSE_SECONDS_MAX = 1.0
# Addresses whose rate is measured; those that were silent for longest are forgotten first.
_ADDRESSES_MAX = 10_000


class ConnectionLimits(NamedTuple):
    """Limits of a broker on its connections; -1 ms is no limit."""

    connections_max: int
    connections_per_ip_max: int
    idle_ms_max: int
    per_ip_overrides: Mapping[str, int] = {}
    creation_rate: int = INT_MAX
    first_request_ms_max: int = -1
    receive_ms_max: int = -1
    unread_bytes_max: int = -1


class ListenerLimits(NamedTuple):
    """Limits of one listener; a `protected` one is served where the broker's limit is reached."""

    connections_max: int = INT_MAX
    creation_rate: int = INT_MAX
    protected: bool = False


class Refusal(Enum):
    """The limit that a connection exceeded."""

    BROKER_COUNT = "max.connections"
    LISTENER_COUNT = "max.connections of the listener"
    ADDRESS_COUNT = "max.connections.per.ip"
    ADDRESS_RATE = "connection_creation_rate of the address"
    RATE = "max.connection.creation.rate"


class Admission(NamedTuple):
    """Whether a connection is served, after `wait_s`; closed then if it is refused."""

    refusal: Refusal | None = None
    wait_s: float = 0.0
    # The broker's limit is reached: a connection of another listener has to go.
    needs_room: bool = False


class ConnectionCounts:
    """The connections of a process by address and by listener, and the rates at which they come."""

    def __init__(self) -> None:
        self.total = 0
        self._by_host = Counter[str]()
        self._by_listener = Counter[str]()
        self._rates: dict[str, TokenBucket] = {}
        self._host_rates: OrderedDict[str, TokenBucket] = OrderedDict()

    def by_listener(self) -> list[tuple[str, int]]:
        """The listeners that have connections, and their number."""
        return list(self._by_listener.items())

    def admit(
        self,
        host: str,
        listener: str,
        limits: ConnectionLimits,
        own: ListenerLimits,
        host_rate: float | None,
        now: float,
    ) -> Admission:
        """Decide on a connection; it is counted unless it is refused."""
        host_max = limits.per_ip_overrides.get(host, limits.connections_per_ip_max)
        if self._by_host[host] >= host_max:
            return Admission(Refusal.ADDRESS_COUNT)
        if self._by_listener[listener] >= own.connections_max:
            # A listener without a limit of its own has that of the broker.
            is_own = own.connections_max != limits.connections_max
            return Admission(Refusal.LISTENER_COUNT if is_own else Refusal.BROKER_COUNT)
        needs_room = self.total >= limits.connections_max
        if needs_room and not own.protected:
            return Admission(Refusal.BROKER_COUNT)
        if host_rate is not None:
            wait_s = self._host_rate(host, host_rate, now).wait_s(now)
            if wait_s > 0:
                return Admission(Refusal.ADDRESS_RATE, min(wait_s, _CLOSE_SECONDS_MAX))
        rates = [self._rate(f"listener {listener}", own.creation_rate, now)]
        if not own.protected:
            rates.append(self._rate("", limits.creation_rate, now))
        wait_s = max((rate.wait_s(now) for rate in rates if rate is not None), default=0.0)
        if wait_s > _WAIT_SECONDS_MAX:
            return Admission(Refusal.RATE)
        if host_rate is not None:
            self._host_rate(host, host_rate, now).charge(1, now)
        for rate in rates:
            if rate is not None:
                rate.charge(1, now)
        self.total += 1
        self._by_host[host] += 1
        self._by_listener[listener] += 1
        return Admission(None, wait_s, needs_room)

    def forget(self, host: str, listener: str) -> None:
        """Count a connection no more that was admitted."""
        self.total -= 1
        for counts, name in ((self._by_host, host), (self._by_listener, listener)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def _rate(self, name: str, rate: int, now: float) -> TokenBucket | None:
        if rate >= INT_MAX:
            self._rates.pop(name, None)
            return None
        limit = self._rates.get(name)
        if limit is None:
            limit = self._rates[name] = _limit(rate, now)
        elif limit.rate != rate:
            limit.change(rate, _burst_s(rate), now)
        return limit

    def _host_rate(self, host: str, rate: float, now: float) -> TokenBucket:
        limit = self._host_rates.get(host)
        if limit is None:
            limit = self._host_rates[host] = _limit(rate, now)
            if len(self._host_rates) > _ADDRESSES_MAX:
                self._host_rates.popitem(last=False)
        else:
            if limit.rate != rate:
                limit.change(rate, _burst_s(rate), now)
            self._host_rates.move_to_end(host)
        return limit


def _limit(rate: float, now: float) -> TokenBucket:
    return TokenBucket(rate, _burst_s(rate), now, _burst_s(rate))


def _burst_s(rate: float) -> float:
    """The seconds that a rate may be saved up: time for one connection at least."""
    return max(_BURST_SECONDS, 1 / rate)
