"""Metrics of brokers, read from their admin listeners: load of the process, and connections.

Rule: a broker that does not answer, or answers something else, is an error text and no exception.
What is read is bounded in time and size.
"""

import asyncio
import re
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import urlsplit

from headrace.clock import Clock
from headrace.errors import ConfigError

TIMEOUT_S = 3.0
# A broker shows up to some ten thousand series, of a hundred bytes each.
BODY_BYTES_MAX = 32 * 1024 * 1024
PATH = "/metrics"

_SAMPLE = re.compile(r"^([a-z_:]\w*)(?:\{(.*)\})? (\S+)(?: \d+)?$", re.IGNORECASE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}

_NAMES = frozenset(
    {
        "headrace_authentication_failures_total",
        "headrace_connections",
        "headrace_connections_accepted_total",
        "headrace_event_loop_lag_max_seconds",
        "headrace_node_info",
        "headrace_process_cpu_seconds_total",
        "headrace_process_open_files",
        "headrace_process_resident_memory_bytes",
        "headrace_request_queue_seconds_count",
        "headrace_throttled_connections",
        "headrace_tls_failures_total",
        "headrace_topic_bytes_in_total",
        "headrace_topic_bytes_out_total",
    }
)


@dataclass(frozen=True, slots=True)
class ListenerConnections:
    """The connections of a broker at one of its listeners."""

    listener: str
    open: int
    accepted_per_s: float | None
    login_failures: int
    tls_failures: int


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """The metrics of a broker, from its admin listener. Rates are None until the second scrape."""

    url: str
    node_id: int | None = None
    error: str | None = None
    cpu: float | None = None
    memory_bytes: int | None = None
    open_files: int | None = None
    loop_lag_s: float | None = None
    requests_per_s: float | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    throttled: int | None = None
    listeners: tuple[ListenerConnections, ...] = ()

    @property
    def connections(self) -> int | None:
        """Open connections at all listeners."""
        return sum(listener.open for listener in self.listeners) if self.listeners else None


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one answer, by metric and labels, and the time when it was read."""

    at_s: float
    samples: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """A metric's only value, or the sum of its values; None without any."""
        found = self.samples.get(name)
        return sum(found.values()) if found else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric, summed up by one of its labels."""
        sums: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums


def parsed(
    text: str, names: Iterable[str] = _NAMES
) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of some metrics in Prometheus' text format; other lines are left out."""
    wanted = frozenset(names)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[1] not in wanted:
            continue
        try:
            value = float(sample[3])
        except ValueError:
            continue
        found.setdefault(sample[1], {})[tuple(_labels(sample[2] or ""))] = value
    return found


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for label in _LABEL.finditer(text):
        yield label[1], _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), label[2])


def broker_metrics(url: str, now: Scrape, before: Scrape | None) -> BrokerMetrics:
    """The metrics of a broker from its last two scrapes, or from the first."""

    def rate(name: str) -> float | None:
        new, old = now.value(name), before.value(name) if before else None
        if before is None or new is None or old is None or now.at_s <= before.at_s:
            return None
        # A counter that fell began anew with its process.
        return (
            new / (now.at_s - before.at_s) if new < old else (new - old) / (now.at_s - before.at_s)
        )

    ids = now.by_label("headrace_node_info", "node_id")
    memory, files = (
        now.value("headrace_process_resident_memory_bytes"),
        now.value("headrace_process_open_files"),
    )
    throttled = now.value("headrace_throttled_connections")
    return BrokerMetrics(
        url,
        next((int(node_id) for node_id in ids if node_id.isdecimal()), None),
        cpu=rate("headrace_process_cpu_seconds_total"),
        memory_bytes=None if memory is None else int(memory),
        open_files=None if files is None else int(files),
        loop_lag_s=now.value("headrace_event_loop_lag_max_seconds"),
        requests_per_s=rate("headrace_request_queue_seconds_count"),
        bytes_in_per_s=rate("headrace_topic_bytes_in_total"),
        bytes_out_per_s=rate("headrace_topic_bytes_out_total"),
        throttled=None if throttled is None else int(throttled),
        listeners=tuple(_listeners(now, before)),
    )


def _listeners(now: Scrape, before: Scrape | None) -> Iterator[ListenerConnections]:
    accepted = now.by_label("headrace_connections_accepted_total", "listener")
    earlier = before.by_label("headrace_connections_accepted_total", "listener") if before else {}
    logins = now.by_label("headrace_authentication_failures_total", "listener")
    tls = now.by_label("headrace_tls_failures_total", "listener")
    for name, count in sorted(now.by_label("headrace_connections", "listener").items()):
        new, old = accepted.get(name), earlier.get(name)
        rate = None
        if before and new is not None and old is not None and now.at_s > before.at_s:
            rate = max(new - old, 0.0) / (now.at_s - before.at_s)
        yield ListenerConnections(
            name, int(count), rate, int(logins.get(name, 0)), int(tls.get(name, 0))
        )


class MetricsReader:
    """Reads the metrics of brokers at their URLs, all at once, each in a thread."""

    def __init__(self, urls: Iterable[str], clock: Clock) -> None:
        self.urls = tuple(metrics_url(url) for url in urls)
        self._clock = clock
        self._last: dict[str, Scrape] = {}

    async def read(self) -> tuple[BrokerMetrics, ...]:
        """The metrics of each broker, in the order of the URLs."""
        return tuple(await asyncio.gather(*map(self._read, self.urls)))

    async def _read(self, url: str) -> BrokerMetrics:
        try:
            body = await asyncio.to_thread(_fetched, url)
        except (OSError, HTTPException, ValueError) as error:
            self._last.pop(url, None)
            return BrokerMetrics(url, error=str(error) or type(error).__name__)
        scrape = Scrape(self._clock.monotonic(), parsed(body))
        if not scrape.samples:
            return BrokerMetrics(url, error="no metrics of a headrace broker")
        found = broker_metrics(url, scrape, self._last.get(url))
        self._last[url] = scrape
        return found


def metrics_url(text: str) -> str:
    """The URL of a broker's metrics, from its address or URL: `host:9644`, `https://host:9644`."""
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme not in ("http", "https") or not url.hostname or port is None:
        raise ConfigError(
            f"{text!r} is not the address of an admin listener",
            advice="it is [http://|https://]HOST:PORT, as `admin.listener` of the broker says",
        )
    return url._replace(path=url.path.rstrip("/") or PATH).geturl()


def _fetched(url: str) -> str:
    # A proxy of the environment knows nothing of brokers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read(BODY_BYTES_MAX)
    return body.decode(errors="replace")
