"""Connections by TLS: ten thousand idle ones, and a thousand that misbehave, on one broker.

    python -m bench.connections [--quick]

Beside them ten well-behaved clients send at an even rate. The misbehaving ones are, in turns:
silent before the handshake; without TLS; slow in the handshake; slow with a request of which they
announce 50 MB; and those that ask for much and read nothing.
"""

import argparse
import asyncio
import multiprocessing
import select
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from bench.process import BrokerProcess
from bench.quotas import CLIENTS, REQUESTS_PER_S, TOPIC, polite_clients
from bench.report import Report
from headrace import Producer
from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority
from headrace.net.addresses import Address
from headrace.net.client_connection import ClientSecurity
from headrace.net.tls_contexts import TlsSettings, client_tls
from headrace.net.tls_stores import Store
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

IDLE, BAD = 10_000, 1_000
IDLE_BYTES_MAX = 60_000
# Answers that nobody reads may take `queued.max.response.bytes` in all; all else half as much.
UNREAD_MIB_MAX = 256
BAD_MB_MAX = 1.5 * (UNREAD_MIB_MAX << 20) / 1e6
# Of the topic that is fetched and not read.
FILLED_BYTES = 16_000_000
_FETCH_VERSION = 12
_FETCHES = 8
_SLOW_FRAME = (50 << 20).to_bytes(4, "big") + b"\0\0\0\3"
_CONNECT_S_MAX = 60.0
_DRIP_S = 0.5
KINDS = 5


class TlsClient:
    """Sockets to the broker, plain or after a handshake."""

    def __init__(self, address: str, trust: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._context = ssl.create_default_context(cafile=trust)

    def plain(self) -> socket.socket:
        return socket.create_connection(self._address, _CONNECT_S_MAX)

    def tls(self) -> ssl.SSLSocket:
        return self._context.wrap_socket(self.plain(), server_hostname="localhost")

    def hello(self) -> bytes:
        """The first message of a handshake."""
        outgoing = ssl.MemoryBIO()
        begun = self._context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            begun.do_handshake()
        return outgoing.read()


def hold_idle(address: str, trust: str, count: int, pipe: Connection) -> None:
    """Open connections that ask for versions once; the number that is still open at the end."""
    client = TlsClient(address, trust)
    request = ApiVersionsRequest(client_software_name="idle", client_software_version="1")
    frame = b"".join(encode_request(request, 3, 1, "idle"))
    held = []
    for _ in range(count):
        connected = client.tls()
        connected.sendall(frame)
        size = int.from_bytes(connected.recv(4), "big")
        while size > 0:
            size -= len(connected.recv(size))
        held.append(connected)
    pipe.send(count)
    pipe.recv()
    poller = select.poll()
    for connected in held:
        poller.register(connected, select.POLLIN)
    # Nothing is sent to an idle connection: what can be read is its end.
    pipe.send(count - len(poller.poll(0)))


def misbehave(address: str, trust: str, count: int, pipe: Connection) -> None:
    """Open connections of all bad kinds, and drip bytes on the slow ones until told to stop."""
    client = TlsClient(address, trust)
    hello = client.hello()
    dripping: list[tuple[socket.socket, bytes]] = []
    held: list[socket.socket] = []
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=FILLED_BYTES)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=FILLED_BYTES,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )
    fetches = b"".join(encode_request(fetch, _FETCH_VERSION, 1, "unread")) * _FETCHES
    for number in range(count):
        kind = number % KINDS
        connected = client.plain() if kind < 3 else client.tls()
        held.append(connected)
        if kind == 1:
            connected.sendall(b"GET / HTTP/1.1\r\n\r\n")
        elif kind == 2:
            dripping.append((connected, hello))
        elif kind == 3:
            connected.sendall(_SLOW_FRAME)
            dripping.append((connected, bytes(1000)))
        elif kind == 4:
            connected.sendall(fetches)
    pipe.send(count)
    position = 0
    while not pipe.poll(_DRIP_S):
        for connected, data in dripping:
            # The broker may have closed it, as it should.
            with suppress(OSError):
                connected.sendall(data[position : position + 1])
        position += 1


@contextmanager
def clients(work: object, *arguments: object) -> Iterator[Connection]:
    """A process of clients, and a pipe to it; it has connected when this begins."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=work,  # type: ignore[arg-type]
        args=(*arguments, theirs),
    )
    process.start()
    ours.recv()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def measure(
    broker: BrokerProcess, report: Report, trust: str, seconds: float, share: float
) -> None:
    host, _, port = broker.address.rpartition(":")
    address = Address("localhost" if host == "127.0.0.1" else host, int(port))
    settings = TlsSettings(trust=Store("ssl_truststore_location", path=trust))
    security = ClientSecurity(client_tls(settings))
    idle, bad = int(IDLE * share), int(BAD * share)
    memory = psutil.Process(broker.pid).memory_info

    def polite() -> tuple[float, float]:
        p99_ms, answered, _ = asyncio.run(polite_clients(address, seconds, security))
        return p99_ms, answered / seconds

    polite()
    alone_ms, _ = polite()
    before = memory().rss
    began = time.perf_counter()
    with clients(hold_idle, broker.address, trust, idle) as pipe:
        rate = idle / (time.perf_counter() - began)
        held = (memory().rss - before) / idle
        idle_ms, idle_rate = polite()
        report.fact(f"{idle:,} idle TLS connections", f"{rate:,.0f} new ones a second")
        report.at_most("memory for each", held, IDLE_BYTES_MAX, "bytes")
        wanted = 0.99 * CLIENTS * REQUESTS_PER_S
        report.at_least("rate of ten clients beside them", idle_rate, wanted, "/s")
        report.at_most("p99 beside them, as a multiple of alone", idle_ms / alone_ms, 2, "times")
        before = memory().rss
        with clients(misbehave, broker.address, trust, bad):
            bad_ms, bad_rate = polite()
            grown_mb = (memory().rss - before) / 1e6
            report.at_most(f"memory for {bad:,} misbehaving ones", grown_mb, BAD_MB_MAX, "MB")
            report.at_least("rate of ten clients beside all", bad_rate, wanted, "/s")
            latencies = f"{alone_ms:.1f}, {idle_ms:.1f} and {bad_ms:.1f} ms"
            report.fact("p99 alone, beside idle ones, beside all", latencies)
            # Those without end of their handshake or of their request are closed by then.
            time.sleep(seconds)
            late_ms, late_rate = polite()
            report.at_least("rate after a while", late_rate, wanted, "/s")
            report.fact("p99 after a while", f"{late_ms:.1f} ms")
        pipe.send("count")
        report.at_least("idle connections that are still open", pipe.recv(), idle, "of them")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the connections")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    seconds, share = (5.0, 0.1) if options.quick else (20.0, 1.0)
    report = Report("Idle and misbehaving connections by TLS on one broker")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as name:
        authority = CertificateAuthority.create(Path(name, "certs"))
        trust = str(authority.certificate_path)
        settings = {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(authority.issue_broker("broker", LOOPBACK_HOSTS)),
            "queued.max.response.bytes": str(UNREAD_MIB_MAX << 20),
        }
        with BrokerProcess(Path(name), **settings) as broker:
            with Producer(
                bootstrap_servers=broker.address,
                security_protocol="SSL",
                ssl_truststore_location=trust,
            ) as producer:
                for _ in range(FILLED_BYTES // 500_000):
                    producer.send(TOPIC, bytes(500_000))
            measure(broker, report, trust, seconds, share)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
