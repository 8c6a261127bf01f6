"""The cost of security: throughput and the broker's CPU by way of security, beside Apache Kafka's.

    python -m bench.security [--quick]

librdkafka is the load, one partition, acks=all, brokers and ways in turns. On few cores it competes
with the broker, so the seconds of the broker's CPU for each GB say more than MB/s, and MB/s of a
machine with other work say little: the brokers are measured one after the other. Each broker gets a
load that is not measured first, for Java's compiler. What holds memory is measured, too: an idle
connection that carried a megabyte before. Kafka is fetched with Maven; where that fails, the report
has headrace alone.
"""

import argparse
import secrets
import socket
import ssl
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import psutil

from bench.load import create_topic
from bench.process import BrokerProcess, run_load
from bench.report import Report
from headrace import Admin, ScramUpsertion
from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority
from headrace.protocol.apis import encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.security.keyring import KEY_SIZE, KeyEncryptionKey
from headrace.storage.key_sources import write_key_file
from headrace.testing.ports import HOST, hold_port
from tools.kafka_broker import KafkaBroker, KafkaMissing, kafka_jars

TOPIC, WARM_TOPIC = "bench", "warm"
GB = 1_000_000_000
SIZES = {1_000: GB // 4, 10_000: GB // 2}
# Of the load that comes first and is not measured: Java needs as much before it is fast.
WARM_BYTES = 100_000_000
PRODUCER = {"acks": "all", "linger.ms": 5, "batch.size": 1_000_000}
MIB = 1 << 20
IDLE_BYTES_MAX = 300_000
USER, MECHANISM = "bench", "SCRAM-SHA-512"
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
# A listener beside those of the brokers themselves.
LISTENER = "BENCH"


class Way(NamedTuple):
    """A way of security: its protocol, and whether the topic is encrypted on disk."""

    name: str
    protocol: str
    encrypted: bool = False


WAYS = (
    Way("plain", "PLAINTEXT"),
    Way("TLS", "SSL"),
    Way("TLS and SCRAM", "SASL_SSL"),
    Way("encrypted topic", "PLAINTEXT", encrypted=True),
)
TLS_WAY = WAYS[1]


class RunningBroker(Protocol):
    """A broker that is measured: the address of its listener, and the CPU time it has used."""

    @property
    def address(self) -> str: ...

    @property
    def cpu_seconds(self) -> float: ...


class Parts:
    """The certificates, the password and the keys of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = CertificateAuthority.create(directory / "certs")
        self.certificate = self.authority.issue_broker("broker", LOOPBACK_HOSTS)
        self.password = secrets.token_hex(8)
        self.keys = directory / "keys"
        key = KeyEncryptionKey("bench", secrets.token_bytes(KEY_SIZE))
        write_key_file(str(self.keys), [key], replace=False)

    def broker_settings(self, way: Way) -> dict[str, str]:
        """The settings that both brokers have for a way."""
        if way.protocol == "PLAINTEXT":
            return {}
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate),
            "sasl.enabled.mechanisms": MECHANISM,
        }
        if way.protocol == "SASL_SSL":
            name = f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config"
            settings[name] = f"{_MODULE} required;"
        return settings

    def load_settings(self, way: Way) -> dict[str, str]:
        """The settings of librdkafka for a way."""
        if way.protocol == "PLAINTEXT":
            return {}
        settings = {"ssl.ca.location": str(self.authority.certificate_path)}
        if way.protocol == "SSL":
            return settings | {"security.protocol": "ssl"}
        return settings | {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": self.password,
        }


@contextmanager
def our_broker(parts: Parts, way: Way) -> Iterator[BrokerProcess]:
    settings = parts.broker_settings(way) | {
        "listeners": f"{LISTENER}://{HOST}:0",
        "listener.security.protocol.map": f"{LISTENER}:{way.protocol}",
    }
    if way.protocol == "SASL_SSL":
        credential = f"{MECHANISM}=[name={USER},password={parts.password}]"
        settings["scram.bootstrap.credentials"] = credential
    if way.encrypted:
        settings["encryption.key.source"] = f"file:{parts.keys}"
    with BrokerProcess(parts.directory, **settings) as broker:
        if way.encrypted:
            for topic in (TOPIC, WARM_TOPIC):
                create_topic(broker.address, topic, 1, **{"encryption.enable": "true"})
        yield broker


class KafkaProcess(NamedTuple):
    """A running broker of Apache Kafka."""

    address: str
    process: psutil.Process

    @property
    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def kafka_broker(parts: Parts, way: Way) -> Iterator[KafkaProcess]:
    held = hold_port()
    address = f"{HOST}:{held.number}"
    protocols = f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{LISTENER}:{way.protocol}"
    settings = parts.broker_settings(way) | {
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with tempfile.TemporaryDirectory(dir=parts.directory, prefix="kafka-") as name:
        broker = KafkaBroker(
            Path(name),
            settings=settings,
            listeners={LISTENER: address},
            # As its own scripts start it.
            java_options=["-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"],
        )
        try:
            with broker:
                if way.protocol == "SASL_SSL":
                    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                        user = ScramUpsertion(USER, MECHANISM, parts.password)
                        admin.alter_user_scram_credentials([user])
                yield KafkaProcess(address, psutil.Process(broker.pid))
        finally:
            held.release()


Start = Callable[[Parts, Way], AbstractContextManager[RunningBroker]]
OURS, KAFKA = "headrace", "Kafka"


def brokers() -> Mapping[str, Start]:
    """The brokers that are compared, by name."""
    try:
        kafka_jars()
    except KafkaMissing as error:
        print(f"without Apache Kafka: {error}")
        return {OURS: our_broker}
    return {OURS: our_broker, KAFKA: kafka_broker}


def measure(broker: RunningBroker, load: dict[str, str], size: int, total: int) -> dict[str, float]:
    """MB/s, and the broker's CPU seconds for each GB, of producing and of consuming."""
    found = {}
    count = total // size
    for topic, records in ((WARM_TOPIC, WARM_BYTES // size), (TOPIC, count)):
        jobs: tuple[tuple[str, dict[str, Any]], ...] = (
            ("produce", {"size": size, **PRODUCER}),
            ("consume", {}),
        )
        for job, arguments in jobs:
            before = broker.cpu_seconds
            done = run_load(job, broker.address, topic=topic, count=records, **arguments, **load)
            found[f"{job}, MB/s"] = done["bytes"] / done["seconds"] / 1e6
            found[f"{job}, s/GB"] = (broker.cpu_seconds - before) / done["bytes"] * GB
    return found


def compare(
    report: Report, parts: Parts, started: Mapping[str, Start], size: int, total: int, rounds: int
) -> None:
    """Measure all ways of all brokers with records of one size."""
    figures: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for way in WAYS:
            for name, start in started.items():
                if way.encrypted and name == KAFKA:
                    continue  # It has none.
                with start(parts, way) as broker:
                    measured = measure(broker, parts.load_settings(way), size, total)
                for figure, value in measured.items():
                    figures[name, way.name, figure].append(value)
    middle = {key: median(values) for key, values in figures.items()}
    for way in WAYS:
        for name in started:
            text = ", ".join(
                f"{figure.replace(',', f' {value:.4g}')}"
                for (broker_name, way_name, figure), value in middle.items()
                if (broker_name, way_name) == (name, way.name)
            )
            if text:
                report.fact(f"{name}, {way.name}, {size // 1000} KB", text)
    if KAFKA in started:
        _beside_kafka(report, middle, size)


def _beside_kafka(report: Report, middle: Mapping[tuple[str, str, str], float], size: int) -> None:
    """Report the throughput of each way as a multiple of Kafka's, and Kafka's CPU of ours.

    Kafka has no encrypted topics: they are compared with its TLS.
    """
    for (name, way, figure), value in middle.items():
        if name != OURS:
            continue
        has_same = (KAFKA, way, figure) in middle
        theirs = middle[KAFKA, way if has_same else TLS_WAY.name, figure]
        is_cpu = figure.endswith("s/GB")
        ratio = theirs / value if is_cpu else value / theirs
        target = None if way == WAYS[0].name else 1.0
        text = "as little CPU as Kafka" if is_cpu else "Kafka's"
        if not has_same:
            text += " with TLS"
        report.times(f"{figure.partition(',')[0]}, {way}, {size // 1000} KB", ratio, text, target)


def idle_bytes(parts: Parts, count: int) -> float:
    """Memory of our broker for each idle TLS connection that carried a megabyte."""
    context = ssl.create_default_context(cafile=str(parts.authority.certificate_path))
    request = ApiVersionsRequest(client_software_name="a" * MIB, client_software_version="1")
    frame = b"".join(encode_request(request, 3, 1, "idle"))
    with our_broker(parts, TLS_WAY) as broker:
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
    report = Report("The cost of security, librdkafka as the load")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as name:
        parts = Parts(Path(name))
        started = brokers()
        for size, total in SIZES.items():
            compare(report, parts, started, size, int(total * scale), rounds)
        idle = idle_bytes(parts, connections)
        report.at_most(f"one of {connections} idle TLS connections", idle, IDLE_BYTES_MAX, "bytes")
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
