"""Metrics of brokers: their text, figures from two scrapes, and servers that misbehave."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.clock import SystemClock
from headrace.errors import ConfigError
from headrace.monitoring import broker_metrics as module
from headrace.monitoring.broker_metrics import (
    BrokerMetrics,
    MetricsReader,
    Scrape,
    broker_metrics,
    metrics_url,
    parsed,
)

TEXT = """\
# HELP headrace_connections Connections that are open.
# TYPE headrace_connections gauge
headrace_connections{listener="PLAINTEXT"} 7
headrace_connections{listener="odd \\"name\\" \\\\ \\n"} 1
headrace_connections_accepted_total{listener="PLAINTEXT"} 100
headrace_node_info{version="0.2.0",node_id="3",rack=""} 1
headrace_process_cpu_seconds_total 12.5
headrace_process_resident_memory_bytes 5e+07 1700000000000
headrace_topic_bytes_in_total{topic="a"} 1000
headrace_topic_bytes_in_total{topic="b"} 500
headrace_connections nonsense
other_metric 1
"""


def later(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_text_is_read_with_its_labels() -> None:
    scrape = Scrape(0.0, parsed(TEXT))
    assert scrape.by_label("headrace_connections", "listener") == {
        "PLAINTEXT": 7.0,
        'odd "name" \\ \n': 1.0,
    }
    assert scrape.value("headrace_topic_bytes_in_total") == 1500.0
    assert scrape.value("headrace_throttled_connections") is None
    assert "other_metric" not in scrape.samples


def test_rates_are_those_between_two_scrapes() -> None:
    first = Scrape(10.0, parsed(TEXT))
    second = Scrape(
        12.0,
        parsed(
            later(
                TEXT,
                ("total 12.5", "total 13.5"),
                ('total{topic="a"} 1000', 'total{topic="a"} 3000'),
                ('"PLAINTEXT"} 100', '"PLAINTEXT"} 104'),
            )
        ),
    )
    unknown = broker_metrics("u", first, None)
    assert (unknown.node_id, unknown.cpu, unknown.memory_bytes) == (3, None, 50_000_000)
    found = broker_metrics("u", second, first)
    assert (found.cpu, found.bytes_in_per_s, found.connections) == (0.5, 1000.0, 8)
    assert found.listeners[0].accepted_per_s == 2.0


def test_a_restarted_broker_has_no_negative_rates() -> None:
    before = Scrape(10.0, parsed(TEXT))
    restarted = Scrape(12.0, parsed(later(TEXT, ("total 12.5", "total 1.0"))))
    assert broker_metrics("u", restarted, before).cpu == 0.5


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("h:9644", "http://h:9644/metrics"),
        ("https://h:9644", "https://h:9644/metrics"),
        ("http://[::1]:9644/x", "http://[::1]:9644/x"),
    ],
)
def test_an_address_is_enough(text: str, url: str) -> None:
    assert metrics_url(text) == url


@pytest.mark.parametrize("text", ["h", "file:///etc/passwd", "http://:1", "h:port", "ftp://h:1"])
def test_what_is_no_address_of_a_listener_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        metrics_url(text)


@contextmanager
def serving(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def read(*addresses: str) -> tuple[BrokerMetrics, ...]:
    return asyncio.run(MetricsReader(addresses, SystemClock()).read())


def test_one_broker_that_fails_leaves_the_others_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = f"127.0.0.1:{unused.getsockname()[1]}"
    with serving(TEXT.encode()) as good, serving(b"<html>", 200) as other, serving(b"", 503) as bad:
        found = read(good, other, bad, closed)
    assert found[0].node_id == 3
    assert [entry.error is None for entry in found] == [True, False, False, False]
    assert found[1].error == "no metrics of a headrace broker"
    assert "503" in str(found[2].error)


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_BYTES_MAX", len(TEXT))
    with serving(TEXT.encode() + b"x" * 100_000) as address:
        assert read(address)[0].node_id == 3


def test_a_silent_broker_does_not_hold_up_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        [found] = read(f"127.0.0.1:{silent.getsockname()[1]}")
    assert "timed out" in str(found.error)
