"""Broker processes with TLS on every listener, and their clients."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiokafka
import confluent_kafka
import kafka
from aiokafka.helpers import create_ssl_context

import headrace
from headrace.cli.certificate_authority import LOOPBACK_HOSTS, CertificateAuthority
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.time_limits import scaled
from tests.support import unused_port

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 60.0
SECONDS = 60.0


class TlsBrokers:
    """A cluster of nodes that speak TLS to everybody, controllers and brokers in one process."""

    def __init__(self, directory: Path, count: int, **settings: str) -> None:
        self.directory = directory
        self.authority = CertificateAuthority.create(directory / "certs")
        self.client_file = self.authority.issue_client("alice")
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.ports = {node_id: (unused_port(), unused_port()) for node_id in range(1, count + 1)}
        self.logs = {node_id: BrokerLog() for node_id in self.ports}
        self.processes = {
            node_id: BrokerProcess(self.logs[node_id], STOP_SECONDS) for node_id in self.ports
        }
        for node_id in self.ports:
            self.authority.issue_broker(f"broker-{node_id}", LOOPBACK_HOSTS)

    def __enter__(self) -> Self:
        self.start(*self.ports)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node_id, process in self.processes.items():
            print(f"-- node {node_id}\n{self.logs[node_id].text}")
            if kind is not None and process.is_running:
                process.kill()
        running = [process for process in self.processes.values() if process.is_running]
        for process in running:
            process.request_stop()
        for process in running:
            process.wait_until_stopped()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"localhost:{port}" for port, _ in self.ports.values())

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.processes[node_id].launch(self.properties(node_id), None)
        for node_id in node_ids:
            self.processes[node_id].wait_until_ready(scaled(START_SECONDS))

    def keystore(self, node_id: int) -> Path:
        return self.authority.directory / f"broker-{node_id}.pem"

    def properties(self, node_id: int) -> dict[str, str]:
        port, controller_port = self.ports[node_id]
        voters = ",".join(f"{number}@{HOST}:{ports[1]}" for number, ports in self.ports.items())
        return {
            "node.id": str(node_id),
            "log.dirs": str(self.directory / f"data-{node_id}"),
            "listeners": f"SSL://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"SSL://localhost:{port},CONTROLLER://localhost:{controller_port}",
            "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.location": str(self.keystore(node_id)),
            "ssl.truststore.location": str(self.authority.certificate_path),
            "ssl.client.auth": "requested",
            # Nodes must show who they are.
            "listener.name.controller.ssl.client.auth": "required",
            "offsets.topic.num.partitions": "3",
            "log.segment.delete.delay.ms": "0",
        } | self._settings

    def options(self, **more: Any) -> dict[str, Any]:
        """The options of a client of headrace."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": "SSL",
            "ssl_truststore_location": str(self.authority.certificate_path),
        } | more

    def admin(self, **more: Any) -> headrace.Admin:
        return headrace.Admin(**self.options(**more))


Produce = Callable[[TlsBrokers, str, int], None]
Consume = Callable[[TlsBrokers, str, int], list[bytes]]


def values(count: int, prefix: str) -> Iterator[bytes]:
    return (f"{prefix}-{number}".encode() for number in range(count))


def produce_ours(brokers: TlsBrokers, topic: str, count: int) -> None:
    with headrace.Producer(**brokers.options()) as producer:
        for value in values(count, "ours"):
            producer.send(topic, value)
        producer.flush()


def consume_ours(brokers: TlsBrokers, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    options = brokers.options(auto_offset_reset="earliest")
    with headrace.Consumer(topic, **options) as consumer:
        while len(found) < count:
            found += [bytes(record.value) for record in consumer.poll(1000)]
    return found


def librdkafka(brokers: TlsBrokers) -> Mapping[str, Any]:
    return {
        "bootstrap.servers": brokers.bootstrap_servers,
        "security.protocol": "ssl",
        "ssl.ca.location": str(brokers.authority.certificate_path),
        "ssl.certificate.location": str(brokers.client_file),
        "ssl.key.location": str(brokers.client_file),
    }


def produce_librdkafka(brokers: TlsBrokers, topic: str, count: int) -> None:
    errors: list[Any] = []
    producer = confluent_kafka.Producer(dict(librdkafka(brokers)))
    for value in values(count, "librdkafka"):
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(scaled(SECONDS)) == 0
    assert errors == [None] * count


def consume_librdkafka(brokers: TlsBrokers, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {**librdkafka(brokers), "group.id": "librdkafka", "auto.offset.reset": "earliest"}
    )
    found: list[bytes] = []
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            for message in consumer.consume(count, 1.0):
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
    finally:
        consumer.close()
    return found


def produce_kafka_python(brokers: TlsBrokers, topic: str, count: int) -> None:
    producer = kafka.KafkaProducer(**kafka_python(brokers))
    try:
        sent = [producer.send(topic, value) for value in values(count, "kafka-python")]
        for future in sent:
            future.get(scaled(SECONDS))
    finally:
        producer.close()


def consume_kafka_python(brokers: TlsBrokers, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", **kafka_python(brokers))
    found: list[bytes] = []
    try:
        while len(found) < count:
            for records in consumer.poll(1000).values():
                found += [record.value for record in records]
    finally:
        consumer.close()
    return found


def kafka_python(brokers: TlsBrokers) -> dict[str, Any]:
    return {
        "bootstrap_servers": brokers.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_cafile": str(brokers.authority.certificate_path),
        "ssl_certfile": str(brokers.client_file),
        "ssl_keyfile": str(brokers.client_file),
    }


def produce_aiokafka(brokers: TlsBrokers, topic: str, count: int) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**aio(brokers))
        await producer.start()
        try:
            sent = [await producer.send(topic, value) for value in values(count, "aiokafka")]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(run())


def consume_aiokafka(brokers: TlsBrokers, topic: str, count: int) -> list[bytes]:
    async def run() -> list[bytes]:
        found: list[bytes] = []
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **aio(brokers))
        await consumer.start()
        try:
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found.extend(record.value for record in records)
        finally:
            await consumer.stop()
        return found

    return asyncio.run(run())


def aio(brokers: TlsBrokers) -> dict[str, Any]:
    return {
        "bootstrap_servers": brokers.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": create_ssl_context(
            cafile=str(brokers.authority.certificate_path),
            certfile=str(brokers.client_file),
            keyfile=str(brokers.client_file),
        ),
    }


TLS_CLIENTS: dict[str, tuple[Produce, Consume]] = {
    "ours": (produce_ours, consume_ours),
    "librdkafka": (produce_librdkafka, consume_librdkafka),
    "kafka-python": (produce_kafka_python, consume_kafka_python),
    "aiokafka": (produce_aiokafka, consume_aiokafka),
}


def tls_lines(log: str) -> list[str]:
    """The lines about failed TLS connections."""
    return re.findall(r"TLS with \S+ failed: (.*)", log)
