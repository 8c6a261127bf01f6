"""What security costs: throughput and the broker's CPU, plain and with TLS, in turns.

    python -m bench.security [--quick]

librdkafka is the load, one partition, acks=all. On few cores it competes with the broker, so the
seconds of the broker's CPU for each GB say more than MB/s. What holds memory is measured, too: an
idle connection that carried a megabyte before.
"""

import argparse
import socket
import ssl
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.process import BrokerProcess, run_load
from bench.report import Report
from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest

TOPIC = "bench"
GB = 1_000_000_000
SIZES = {1_000: GB // 4, 10_000: GB // 2}
PRODUCER = {"acks": "all", "linger.ms": 5, "batch.size": 1_000_000}
MIB = 1 << 20
IDLE_BYTES_MAX = 300_000


class Way(dict[str, Any]):
    """The settings of the broker and of the load for one way of security."""

    def __init__(self, broker: dict[str, str], load: dict[str, str]) -> None:
        super().__init__(broker=broker, load=load)


def ways(authority: CertificateAuthority) -> dict[str, Way]:
    certificate = authority.issue_broker("broker", LOOPBACK_HOSTS)
    tls = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(certificate)}
    trust = {"security.protocol": "ssl", "ssl.ca.location": str(authority.certificate_path)}
    return {"plain": Way({}, {}), "TLS": Way(tls, trust)}


def measure(directory: Path, way: Way, size: int, total: int) -> dict[str, float]:
    """MB/s and the broker's CPU seconds for each GB, of producing and of consuming."""
    found = {}
    with BrokerProcess(directory, **way["broker"]) as broker:
        jobs: tuple[tuple[str, dict[str, Any]], ...] = (
            ("produce", {"size": size, **PRODUCER}),
            ("consume", {}),
        )
        for job, arguments in jobs:
            before = broker.cpu_seconds
            done = run_load(
                job, broker.address, topic=TOPIC, count=total // size, **arguments, **way["load"]
            )
            found[f"{job}, MB/s"] = done["bytes"] / done["seconds"] / 1e6
            found[f"{job}, s/GB"] = (broker.cpu_seconds - before) / done["bytes"] * GB
    return found


def idle_bytes(directory: Path, way: Way, authority: CertificateAuthority, count: int) -> float:
    """Memory of the broker for each idle connection that carried a megabyte."""
    context = ssl.create_default_context(cafile=str(authority.certificate_path))
    request = ApiVersionsRequest(client_software_name="a" * MIB, client_software_version="1")
    frame = b"".join(encode_request(request, 3, 1, "idle"))
    with BrokerProcess(directory, **way["broker"]) as broker:
        host, _, port = broker.address.rpartition(":")

        def connect() -> ssl.SSLSocket:
            raw = socket.create_connection((host, int(port)))
            connected = context.wrap_socket(raw, server_hostname="localhost")
            connected.sendall(frame)
            with connected.makefile("rb") as answers:
                answers.read(int.from_bytes(answers.read(4), "big"))
            return connected

        connections = [connect()]
        before = broker.resident_mb
        connections += [connect() for _ in range(count)]
        grown = (broker.resident_mb - before) * 1e6 / count
        for connected in connections:
            connected.close()
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    rounds, scale, connections = (1, 0.1, 200) if options.quick else (5, 1.0, 1000)
    report = Report("What security costs, librdkafka as the load")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as name:
        directory = Path(name)
        authority = CertificateAuthority.create(directory / "certs")
        known = ways(authority)
        for size, total in SIZES.items():
            figures: dict[tuple[str, str], list[float]] = defaultdict(list)
            for _ in range(rounds):
                for label, way in known.items():
                    measured = measure(directory, way, size, int(total * scale))
                    for figure, value in measured.items():
                        figures[label, figure].append(value)
            for label in known:
                text = ", ".join(
                    f"{figure.replace(',', f' {median(values):.4g}')}"
                    for (way_label, figure), values in figures.items()
                    if way_label == label
                )
                report.fact(f"{label}, {size // 1000} KB", text)
        idle = idle_bytes(directory, known["TLS"], authority, connections)
        report.at_most(f"one of {connections} idle TLS connections", idle, IDLE_BYTES_MAX, "bytes")
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
