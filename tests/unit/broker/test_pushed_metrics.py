"""Metrics that clients push: gauges are replaced, sums grow, and everything is bounded."""

from struct import pack

import pytest

from headrace.broker.pushed_metrics import PushedMetrics
from headrace.broker.telemetry import ClientAttributes, TelemetryPush
from headrace.metrics.exposition import ExpositionFormat, exposition
from headrace.metrics.registry import Registry
from headrace.protocol.compression import Compression, compress

ALICE = ClientAttributes("alice", "librdkafka", "2.8.0", "10.0.0.7", "40000")


def nested(field: int, *contents: bytes) -> bytes:
    """A length-delimited field of protobuf."""
    data = b"".join(contents)
    size = varint(len(data))
    return bytes([field << 3 | 2]) + size + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def gauge(name: str, value: float) -> bytes:
    return nested(2, nested(1, name.encode()), nested(5, nested(1, b"\x21", pack("<d", value))))


def delta(name: str, value: int) -> bytes:
    point = nested(1, b"\x31", pack("<q", value))
    return nested(2, nested(1, name.encode()), nested(7, point, b"\x10\x01"))


def push(*metrics: bytes, client: int = 1, terminating: bool = False) -> TelemetryPush:
    data = nested(1, nested(2, *metrics))
    return TelemetryPush(bytes([client]) * 16, ALICE, 30_000, terminating, 0, data)


class Page:
    """The receiver of a broker, and what a scrape shows of it."""

    def __init__(self, clients_max: int = 10) -> None:
        self.registry = Registry()
        self.now_s = 0.0
        self.receiver = PushedMetrics(self.registry, lambda: self.now_s, lambda: clients_max)

    def lines(self, name: str) -> list[str]:
        text = "".join(exposition(self.registry, ExpositionFormat.PROMETHEUS))
        return [line for line in text.splitlines() if line.startswith(f"headrace_{name}")]

    def value(self, name: str) -> int:
        return int(self.lines(name)[0].split()[-1])


def test_gauges_are_replaced_and_deltas_add_up() -> None:
    page = Page()
    page.receiver.receive(push(gauge("rtt.avg", 1.5), delta("sent", 3)))
    page.receiver.receive(push(gauge("rtt.max", 4.0), delta("sent", 2)))
    labels = 'client_id="alice",client_instance_id="AQEBAQEBAQEBAQEBAQEBAQ",software="librdkafka"'
    assert page.lines("client_gauge") == [
        f'headrace_client_gauge{{{labels},metric="rtt.max",attributes=""}} 4.0'
    ]
    assert page.lines("client_sum") == [
        f'headrace_client_sum_total{{{labels},metric="sent",attributes=""}} 5'
    ]


def test_compressed_pushes_are_read_and_others_refused() -> None:
    page = Page()
    plain = push(gauge("rtt", 1.0))
    zipped = bytes(compress(Compression.GZIP, plain.metrics))
    page.receiver.receive(plain._replace(compression=int(Compression.GZIP), metrics=zipped))
    assert len(page.lines("client_gauge")) == 1
    bomb = bytes(compress(Compression.GZIP, bytes(9 * 1024 * 1024)))
    for compression, data in ((1, b"no gzip"), (1, bomb), (0, b"\xff" * 20)):
        with pytest.raises(ValueError):
            page.receiver.receive(plain._replace(compression=compression, metrics=data))
    assert page.value("telemetry_refused_total") == 3


def test_points_and_clients_are_bounded() -> None:
    page = Page(clients_max=2)
    page.receiver.receive(push(*(gauge(f"m{number}", 1.0) for number in range(600))))
    assert len(page.lines("client_gauge")) == 500
    assert page.value("telemetry_dropped_points_total") == 100
    for number in range(20):
        page.receiver.receive(push(*(delta(f"s{number}-{n}", 1) for n in range(50))))
    assert len(page.lines("client_sum")) == 500
    for client in (2, 3):
        page.receiver.receive(push(gauge("rtt", 1.0), client=client))
    assert page.value("telemetry_clients") == 2
    page.receiver.receive(push(gauge("x" * 1000, 1.0), client=3))
    assert max(map(len, page.lines("client_gauge"))) < 300


def test_clients_that_end_or_fall_silent_are_forgotten() -> None:
    page = Page()
    page.receiver.receive(push(gauge("rtt", 1.0)))
    page.receiver.receive(push(gauge("rtt", 1.0), client=2))
    page.receiver.receive(push(gauge("rtt", 1.0), client=2, terminating=True))
    assert page.value("telemetry_clients") == 1
    page.now_s = 91.0
    assert page.value("telemetry_clients") == 0
    assert page.lines("client_gauge") == []
