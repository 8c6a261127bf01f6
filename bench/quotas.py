"""Quotas: well-behaved clients beside one at fifty times its quota, and beside a thousand bad ones.

    python -m bench.quotas [--quick]

The noisy client ignores how long it is told to wait, and sends as fast as its socket takes it.
"""

import argparse
import asyncio
import multiprocessing
import select
import socket
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import psutil

from bench.load import create_topic
from bench.process import BrokerProcess
from bench.report import Report
from headrace import Admin
from headrace.net.addresses import Address
from headrace.net.client_connection import PLAINTEXT, ClientConnection, ClientSecurity
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.records import encode_batch

TOPIC = "bench"
CLIENTS = 10
REQUESTS_PER_S = 20
QUOTA = 1_000_000
EXCESS = 50
BAD_CONNECTIONS = 1_000
# What the loop of the broker may take for them, of a core.
LOOP_PERCENT_MAX = 2.0
_PRODUCE_VERSION = 12
_TIMEOUT_S = 60.0
_CREDIT_SECONDS = 2.0
_ROUNDS = 3


def produce_request(size: int) -> ProduceRequest:
    records = encode_batch([(int(time.time() * 1000), None, bytes(size), ())])
    data = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )


async def polite_client(
    address: Address, number: int, seconds: float, security: ClientSecurity
) -> tuple[list[float], int]:
    """Send at an even rate; the latencies, counted from when a request was due, and the waits."""
    connection = await ClientConnection.open(
        address, _TIMEOUT_S, client_id=f"polite-{number}", security=security
    )
    latencies: list[float] = []
    throttled = 0
    # Not all at the same instant.
    due = time.perf_counter() + number / REQUESTS_PER_S / CLIENTS
    end = due + seconds
    while due < end:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        response = await connection.ask(produce_request(1000), _TIMEOUT_S, version_max=12)
        latencies.append(time.perf_counter() - due)
        throttled += response.throttle_time_ms > 0
        due += 1 / REQUESTS_PER_S
    connection.close()
    return latencies, throttled


async def polite_clients(
    address: Address, seconds: float, security: ClientSecurity = PLAINTEXT
) -> tuple[float, int, int]:
    """Run the well-behaved clients; p99 in ms, the requests answered, and the waits told."""
    done = await asyncio.gather(
        *(polite_client(address, number, seconds, security) for number in range(CLIENTS))
    )
    latencies = sorted(latency for found, _ in done for latency in found)
    p99_ms = latencies[int(len(latencies) * 0.99)] * 1000
    return p99_ms, len(latencies), sum(throttled for _, throttled in done)


def run_noisy(address: str, results: Connection) -> None:
    """Offer fifty times the quota, until something is received from `results`.

    What came in the first seconds, with the credit of a new client, is not measured.
    """
    size = 50_000
    frame = b"".join(encode_request(produce_request(size), _PRODUCE_VERSION, 1, "noisy"))
    peer = socket.create_connection(_split(address))
    peer.setblocking(False)
    pending = memoryview(b"")
    received = answer_bytes = received_before = 0
    has_begun = False
    began = due = time.perf_counter()
    measured_since = began + _CREDIT_SECONDS
    while not results.poll():
        # Full sockets are waited for, and so is the next request if they are not full.
        wait_s = max(min(due - time.perf_counter(), 0.1), 0.0)
        readable, writable, _ = select.select([peer], [peer] if pending else [], [], wait_s or 0.01)
        if readable:
            data = peer.recv(65_536)
            # Every answer is as long as the first.
            answer_bytes = answer_bytes or 4 + int.from_bytes(data[:4], "big")
            received += len(data)
        now = time.perf_counter()
        if now < measured_since:
            received_before = received
        elif not has_begun:
            has_begun = True
            results.send("begun")
        if writable:
            pending = pending[peer.send(pending) :]
        if not pending and now >= due:
            # What did not fit into the socket is not made up for.
            pending, due = memoryview(frame), max(due + size / (QUOTA * EXCESS), now - 0.1)
    answers = (received - received_before) / max(answer_bytes, 1)
    results.send((answers * size, time.perf_counter() - measured_since))
    peer.close()


def beside_noisy(broker: BrokerProcess, report: Report, seconds: float) -> None:
    address = Address(*_split(broker.address))
    asyncio.run(polite_clients(address, 2.0))
    cpu_seconds = broker.cpu_seconds
    idle_p99_ms, answered, _ = asyncio.run(polite_clients(address, seconds))
    idle_share = (broker.cpu_seconds - cpu_seconds) / seconds
    report.fact("p99 of ten clients alone", f"{idle_p99_ms:.1f} ms, {answered / seconds:.0f}/s")
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.alter_client_quotas({"producer_byte_rate": QUOTA}, client_id="noisy")
    ours, theirs = multiprocessing.Pipe()
    noisy = multiprocessing.get_context("spawn").Process(
        target=run_noisy, args=(broker.address, theirs)
    )
    noisy.start()
    ours.recv()
    cpu_seconds = broker.cpu_seconds
    p99_ms, answered, throttled = asyncio.run(polite_clients(address, seconds))
    share = (broker.cpu_seconds - cpu_seconds) / seconds
    ours.send("stop")
    accepted, noisy_s = ours.recv()
    noisy.join()
    report.fact("p99 of ten clients beside it", f"{p99_ms:.1f} ms, {answered / seconds:.0f}/s")
    report.fact(
        "CPU of the broker, alone and beside it", f"{idle_share:.1%} and {share:.1%} of a core"
    )
    report.at_most("p99 beside it, as a multiple of alone", p99_ms / idle_p99_ms, 2, "times")
    report.at_least(
        "rate of the ten clients", answered / seconds, 0.99 * CLIENTS * REQUESTS_PER_S, "/s"
    )
    report.at_most("waits that they were told", throttled, 0, "waits")
    share = accepted / noisy_s / QUOTA * 100
    report.at_most(f"noisy client at {EXCESS} times its quota gets", share, 110, "% of it")
    report.at_least("and not less than", share, 90, "% of it")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def bad_connections(address: Address) -> list[asyncio.StreamWriter]:
    """Connections that send half a length, a frame that does not go on, garbage, or nothing."""
    writers = []
    for number in range(BAD_CONNECTIONS):
        _, writer = await asyncio.open_connection(address.host, address.port)
        parts = (
            b"\0\0",
            (50 << 20).to_bytes(4, "big") + b"\0\0\0\3",
            b"GET / HTTP/1.1\r\n\r\n",
            b"",
        )
        writer.write(parts[number % len(parts)])
        writers.append(writer)
    return writers


async def _misbehave(address: Address, pipe: Connection) -> None:
    writers = await bad_connections(address)
    pipe.send("connected")
    while not pipe.poll():
        for number, writer in enumerate(writers):
            if number % 4 == 1 and not writer.is_closing():
                writer.write(b"\0")
        await asyncio.sleep(0.5)
    for writer in writers:
        writer.transport.abort()


def run_bad(address: Address, pipe: Connection) -> None:
    """Keep bad connections, with a byte on some of them now and then, until something is received.

    In a process of its own, so that its work does not delay the clients that are measured.
    """
    asyncio.run(_misbehave(address, pipe))


def beside_bad(broker: BrokerProcess, report: Report, seconds: float) -> None:
    address = Address(*_split(broker.address))
    process = psutil.Process(broker.pid)
    alone_ms, beside_ms, rates, grown_mb = [], [], [], []
    alone_s, beside_s = 0.0, 0.0
    # In turns, since the machine may have other work at times.
    for _ in range(_ROUNDS):
        before_mb = process.memory_info().rss / 1e6
        loop_s = broker.loop_cpu_seconds
        alone_ms.append(asyncio.run(polite_clients(address, seconds / _ROUNDS))[0])
        alone_s += broker.loop_cpu_seconds - loop_s
        ours, theirs = multiprocessing.Pipe()
        bad = multiprocessing.get_context("spawn").Process(target=run_bad, args=(address, theirs))
        bad.start()
        ours.recv()
        loop_s = broker.loop_cpu_seconds
        p99_ms, answered, _ = asyncio.run(polite_clients(address, seconds / _ROUNDS))
        beside_s += broker.loop_cpu_seconds - loop_s
        beside_ms.append(p99_ms)
        rates.append(answered / seconds * _ROUNDS)
        grown_mb.append(process.memory_info().rss / 1e6 - before_mb)
        ours.send("stop")
        bad.join()
    report.at_most(f"memory for {BAD_CONNECTIONS:,} bad connections", max(grown_mb), 64, "MB")
    wanted = 0.99 * CLIENTS * REQUESTS_PER_S
    report.at_least("rate of ten clients beside them", median(rates), wanted, "/s")
    # The time of the loop tells what the broker does for them, whatever else the machine does; the
    # latencies have in them what the processes of this benchmark do on the same cores.
    more = (beside_s - alone_s) / seconds * 100
    report.fact("the broker's loop with ten clients alone", f"{alone_s / seconds:.1%} of a core")
    report.at_most("and more beside them", more, LOOP_PERCENT_MAX, "% of a core")
    ratio = median(beside_ms) / median(alone_ms)
    report.at_most("p99 beside them, as a multiple of alone", ratio, 2, "times")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten seconds instead of a minute")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    seconds = 10.0 if options.quick else 60.0
    report = Report("Quotas and misbehaving clients on one broker")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        with BrokerProcess(Path(directory)) as broker:
            create_topic(broker.address, TOPIC)
            beside_noisy(broker, report, seconds)
            beside_bad(broker, report, seconds)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
