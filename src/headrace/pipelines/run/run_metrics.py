"""Metrics of a run for Prometheus: its state as text, and the HTTP listener that serves it.

Rule: a request reads the state that the run published last; nothing of it touches Spark.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.errors import ConfigError
from headrace.metrics.exposition import ExpositionFormat, exposition
from headrace.metrics.registry import Family, Kind, Registry, Samples
from headrace.pipelines.run.progress import QueryProgress
from headrace.pipelines.run.run_state import RunPhase, RunState

_REQUEST_SECONDS = 5.0
_LABELS = ("pipeline", "query")


def _gauge(name: str, text: str) -> Family:
    return Family(f"headrace_pipeline_{name}", Kind.GAUGE, text, _LABELS)


def _counter(name: str, text: str) -> Family:
    return Family(f"headrace_pipeline_{name}_total", Kind.COUNTER, text, _LABELS)


PHASE = Family(
    "headrace_pipeline_phase",
    Kind.GAUGE,
    "1 for the phase of the run, 0 for the others.",
    ("pipeline", "phase"),
)

DEAD_LETTERS = Family(
    "headrace_pipeline_dead_letters_total",
    Kind.COUNTER,
    "Dead letters by kind of reason, 20 kinds and `(other)` at most.",
    ("pipeline", "query", "reason"),
)

QUERY_FAMILIES: dict[Family, Callable[[QueryProgress], float | None]] = {
    _counter("rows_in", "Rows that a query read."): lambda query: query.rows_in,
    _counter(
        "rows_out", "Rows that a query wrote; those of a query of dead letters are dead letters."
    ): lambda query: query.rows_out,
    _counter("batches", "Batches that a query finished."): lambda query: query.batches,
    _counter("busy_milliseconds", "Time of all batches."): lambda query: query.busy_ms,
    _counter("restarts", "Restarts after failures."): lambda query: query.restarts,
    _gauge("rows_per_second", "Rows a second in the last batch."): (
        lambda query: query.rows_per_second
    ),
    _gauge("batch_seconds", "Time of the last batch."): lambda query: query.batch_ms / 1000,
    _gauge("lag_records", "Offsets between the position of a query and the ends of its topics."): (
        lambda query: query.lag
    ),
    _gauge("state_rows", "Rows in the state of aggregations, joins and the like."): (
        lambda query: query.state_rows
    ),
    _gauge(
        "last_report_timestamp_seconds",
        "When the newest trigger began that Spark reported, in seconds since 1970.",
    ): lambda query: datetime.fromisoformat(query.reported).timestamp() if query.reported else None,
    _gauge("active", "1 while a query runs."): lambda query: int(query.active),
    _gauge("waiting", "1 while a query waits, for its brokers say."): (
        lambda query: int(query.waiting_for is not None)
    ),
}


def registry_of(state: Callable[[], RunState | None]) -> Registry:
    """The metrics of the run whose state is published."""
    registry = Registry()

    def phases() -> Samples:
        now = state()
        if now is not None:
            for phase in RunPhase:
                yield (now.pipeline, phase.value), int(phase is now.phase)

    def sampler(read: Callable[[QueryProgress], float | None]) -> Callable[[], Samples]:
        def samples() -> Samples:
            now = state()
            for query in () if now is None else now.queries:
                value = read(query)
                if now is not None and value is not None:
                    yield (now.pipeline, query.name), value

        return samples

    def dead_letters() -> Samples:
        now = state()
        for query in () if now is None else now.queries:
            for reason, count in query.reasons.items():
                if now is not None:
                    yield (now.pipeline, query.name, reason), count

    registry.samples(PHASE, phases)
    registry.samples(DEAD_LETTERS, dead_letters)
    for family, read in QUERY_FAMILIES.items():
        registry.samples(family, sampler(read))
    return registry


class RunMetrics:
    """Serves the metrics of a run at `/metrics` of an address, from a thread of its own."""

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._registry = registry_of(lambda: self._state)

    def show(self, state: RunState) -> None:
        """Take the state that is served from now on."""
        self._state = state

    @contextmanager
    def served(self, address: str) -> Iterator[str]:
        """Listen at HOST:PORT until the block ends; the value is the URL. Port 0 takes any."""
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            raise ConfigError(f"{address!r} is not of the form HOST:PORT")
        registry = self._registry

        class MetricsPage(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                kind = ExpositionFormat.PROMETHEUS
                text = "".join(exposition(registry, kind)) if found else "there is /metrics here\n"
                body = text.encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", kind.value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: each scrape would be a line between those of the run."""

        try:
            server = ThreadingHTTPServer((host.strip("[]") or "0.0.0.0", int(port)), MetricsPage)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address}: {error.strerror or error}",
                advice="stop what uses the address, or choose another one",
            ) from error
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        try:
            yield f"http://{host or '0.0.0.0'}:{server.server_address[1]}/metrics"
        finally:
            server.shutdown()
            server.server_close()
