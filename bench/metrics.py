"""Metrics: what counting costs a request of one message, and what a scrape takes of the event loop.

    python -m bench.metrics [--quick]

A broker gets requests of one message in turns of half a second, in every other of which its
counting is taken out (`bench.uncounted`). A broker uses one core, so that its requests a second,
where it is the bottleneck, are the inverse of its CPU time for a request, which other processes
disturb less.
"""

import argparse
import http.client
import os
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.load import create_topic
from bench.process import BrokerProcess
from bench.quotas import produce_request
from bench.report import Report
from headrace.config.monitoring import ADDRESS_FILE
from headrace.protocol.apis import encode_request

TOPIC = "bench"
VALUE_BYTES = 100
IN_FLIGHT = 5
COST_PERCENT_MAX = 2.0
PARTITIONS = 10_000
SCRAPE_MS_MAX = 50.0
_PRODUCE_VERSION = 12
_TURN_SECONDS = 0.5
_PAUSE_SECONDS = 0.05


class Turn(NamedTuple):
    """Requests that a broker answered in a turn, in wall time and CPU time."""

    requests: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.requests / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.requests * 1e6


class Producer:
    """Sends the same request of one message over and over, some in flight, over a plain socket."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        host, _, port = broker.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        request = produce_request(VALUE_BYTES)
        self._frame = b"".join(encode_request(request, _PRODUCE_VERSION, 1, "bench"))
        self._socket.sendall(self._frame)
        self._answer_bytes = 4 + int.from_bytes(self._received(4), "big")
        self._received(self._answer_bytes - 4)

    def run(self, seconds: float) -> Turn:
        """Send for some seconds, with `IN_FLIGHT` requests under way."""
        cpu_s, began = self._broker.loop_cpu_seconds, time.perf_counter()
        answered = sent = 0
        while sent < IN_FLIGHT or time.perf_counter() - began < seconds:
            if sent - answered < IN_FLIGHT:
                count = IN_FLIGHT - (sent - answered)
                self._socket.sendall(self._frame * count)
                sent += count
            self._received(self._answer_bytes)
            answered += 1
        self._received(self._answer_bytes * (sent - answered))
        return Turn(sent, time.perf_counter() - began, self._broker.loop_cpu_seconds - cpu_s)

    def close(self) -> None:
        self._socket.close()

    def _received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise SystemExit("the broker closed the connection")
            data += part
        return data


def cost_of_counting(directory: Path, report: Report, turns: int) -> None:
    """Compare turns of a broker with and without its counting."""
    counted: list[Turn] = []
    uncounted: list[Turn] = []
    with BrokerProcess(directory, module="bench.uncounted", admin_listener="127.0.0.1:0") as broker:
        create_topic(broker.address, TOPIC)
        producer = Producer(broker)
        producer.run(_TURN_SECONDS)
        sides = counted, uncounted
        for number in range(2 * turns):
            # Neighbours change places, so that a drift of the machine's speed is on both sides.
            sides[(number + 1) // 2 % 2].append(producer.run(_TURN_SECONDS))
            if number % 2 == 0:
                os.kill(broker.pid, signal.SIGUSR1)
                producer.run(_PAUSE_SECONDS)
        producer.close()
    on_us, off_us = (statistics.median(turn.cpu_us for turn in side) for side in sides)
    on_rate, off_rate = (max(turn.rate for turn in side) for side in sides)
    report.fact("CPU of a request, uncounted and counted", f"{off_us:.2f} us and {on_us:.2f} us")
    report.fact("requests/s in the best turn", f"{off_rate:,.0f} and {on_rate:,.0f}")
    # The ratio of turns that were neighbours, since the machine's speed changes meanwhile.
    ratio = statistics.median(
        on.cpu_us / off.cpu_us for on, off in zip(counted, uncounted, strict=True)
    )
    report.at_most("cost of counting in CPU time", (ratio - 1) * 100, COST_PERCENT_MAX, "%")


@contextmanager
def admin_connection(broker: BrokerProcess) -> Iterator[http.client.HTTPConnection]:
    url = urlsplit((Path(broker.data_dir) / ADDRESS_FILE).read_text().strip())
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def scrape(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def turns_of(page: str) -> tuple[float, int, list[tuple[float, int]]]:
    """The seconds and the number of turns that scrapes took until a page began, and by length."""
    seconds = float(re.findall(r"^headrace_scrape_turn_seconds_sum (\S+)", page, re.M)[0])
    count = int(re.findall(r"^headrace_scrape_turn_seconds_count (\d+)", page, re.M)[0])
    buckets = re.findall(r'^headrace_scrape_turn_seconds_bucket{le="([\d.e-]+)"} (\d+)', page, re.M)
    return seconds, count, [(float(bound), int(number)) for bound, number in buckets]


def cost_of_scrapes(directory: Path, report: Report, partitions: int, scrapes: int) -> None:
    """Measure the turns of the event loop that scrapes of many partitions take."""
    with BrokerProcess(directory, admin_listener="127.0.0.1:0") as broker:
        create_topic(broker.address, TOPIC, partitions)
        with admin_connection(broker) as connection:
            scrape(connection)
            # A page has the turns of its own scrape up to a line near its end.
            before = turns_of(scrape(connection))
            began = time.perf_counter()
            for _ in range(scrapes):
                page = scrape(connection)
            wall_s = (time.perf_counter() - began) / scrapes
            after = turns_of(page)
    longest_s = max(
        (
            bound
            for (bound, number), (_, earlier) in zip(after[2], before[2], strict=True)
            if number - earlier < after[1] - before[1]
        ),
        default=0.0,
    )
    total_ms = (after[0] - before[0]) / scrapes * 1000
    report.fact("series of a page", f"{sum(not x.startswith('#') for x in page.splitlines()):,}")
    report.fact("time of a scrape", f"{wall_s * 1000:.0f} ms, {len(page) / 1e6:.1f} MB")
    report.fact(
        "turns of the event loop for a scrape",
        f"{(after[1] - before[1]) / scrapes:.0f}, each"
        f" up to {longest_s * 1000:g} ms or the next bound",
    )
    report.at_most(
        f"event loop for a scrape of {partitions:,} partitions", total_ms, SCRAPE_MS_MAX, "ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns and partitions")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("Cost of metrics")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        cost_of_counting(Path(directory), report, 6 if options.quick else 40)
        cost_of_scrapes(
            Path(directory), report, PARTITIONS // 10 if options.quick else PARTITIONS, 5
        )
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
