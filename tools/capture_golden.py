"""Record the frames between real clients and a broker, for tests/golden.

A proxy sits between each client and a broker that advertises the proxy's address. Of every API,
version and direction the first few frames are kept. Run it again when a client library moves to a
new version: `python -m tools.capture_golden`.
"""

import argparse
import asyncio
import base64
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka

from headrace.protocol.apis import APIS
from tests.integration.clients import (
    CODECS,
    EARLIEST,
    AiokafkaClient,
    Client,
    ConfluentClient,
    KafkaPythonClient,
    ToSend,
)
from tests.support import BrokerProcess

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
FRAME_BYTES_MAX = 6_000
FRAMES_PER_KIND = 16
SECONDS = 60.0
# Long enough for every codec to compress it: clients send shorter values uncompressed.
VALUE = b"value " * 50


class Captured(NamedTuple):
    """One frame, without its length."""

    api_key: int
    version: int
    direction: str
    data: bytes


class Recorder:
    """Keeps the first frames of each kind that are not too large."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: defaultdict[tuple[int, int, str], list[Captured]] = defaultdict(list)

    def note(self, captured: Captured) -> None:
        if captured.api_key not in APIS or len(captured.data) > FRAME_BYTES_MAX:
            return
        with self._lock:
            kept = self._kept[captured.api_key, captured.version, captured.direction]
            if len(kept) < FRAMES_PER_KIND:
                kept.append(captured)

    def frames(self) -> list[Captured]:
        with self._lock:
            return [frame for kind in sorted(self._kept) for frame in self._kept[kind]]


class Proxy:
    """Forwards bytes in both directions, and passes every whole frame to the recorder."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.recorder = Recorder()
        self._target = ("127.0.0.1", 0)

    def start(self, target: tuple[str, int]) -> None:
        self._target = target
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._target)
            except OSError:
                return
            asked: dict[int, tuple[int, int]] = {}
            for source, sink, note in (
                (client, broker, self._note_request),
                (broker, client, self._note_response),
            ):
                threading.Thread(
                    target=_pump, args=(source, sink, note, asked), daemon=True
                ).start()

    def _note_request(self, frame: bytes, asked: dict[int, tuple[int, int]]) -> None:
        api_key = int.from_bytes(frame[0:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        asked[int.from_bytes(frame[4:8], "big")] = api_key, version
        self.recorder.note(Captured(api_key, version, "request", frame))

    def _note_response(self, frame: bytes, asked: dict[int, tuple[int, int]]) -> None:
        question = asked.pop(int.from_bytes(frame[:4], "big"), None)
        if question is not None:
            self.recorder.note(Captured(*question, "response", frame))


def _pump(
    source: socket.socket,
    sink: socket.socket,
    note: Callable[[bytes, dict[int, tuple[int, int]]], None],
    asked: dict[int, tuple[int, int]],
) -> None:
    buffer = bytearray()
    try:
        while data := source.recv(1 << 20):
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4], "big"):
                size = int.from_bytes(buffer[:4], "big")
                note(bytes(buffer[4 : 4 + size]), asked)
                del buffer[: 4 + size]
            sink.sendall(data)
    except OSError:
        pass  # One side has disconnected; the other is disconnected below.
    for entry in (source, sink):
        entry.close()


def use_client(kind: type[Client], address: str) -> None:
    """Use a client for every API that the broker has."""
    client = kind(address)
    client.create_topic("golden", partitions=2, configs={"retention.ms": "3600000"})
    client.add_partitions("golden", 3)
    client.topics()
    client.cluster()
    records = [
        ToSend(VALUE, b"key", (("header", b"1"), ("empty", b"")), partition=partition)
        for partition in (0, 1)
    ]
    for codec in CODECS:
        client.send("golden", records, codec=codec)
    client.send("golden", records, acks=1)
    client.send("golden", records, acks=0)
    client.send("golden", records, idempotent=True)
    client.read("golden", {0: EARLIEST, 1: EARLIEST}, 2 * (len(CODECS) + 3))
    client.offsets_at("golden", 2, 1)
    client.bounds("golden")
    client.delete_records("golden", 1)
    client.topic_settings("golden")
    client.alter_topic("golden", {"segment.ms": "60000"})
    use_transactions(client, address)
    if kind is KafkaPythonClient:
        use_more_of_kafka_python(address)
    if kind is ConfluentClient:
        use_more_of_librdkafka(address)
    client.delete_topic("golden")
    client.close()


def use_transactions(client: Client, address: str) -> None:
    """Use a committed transaction with offsets, an aborted one, and a read_committed consumer."""
    use: dict[str, Callable[[str], None]] = {
        "librdkafka": transact_with_librdkafka,
        "kafka-python": transact_with_kafka_python,
        "aiokafka": lambda address: asyncio.run(transact_with_aiokafka(address)),
    }
    use[client.name](address)


def transact_with_librdkafka(address: str) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}
    producer = confluent_kafka.Producer(settings | {"transactional.id": "golden"})
    consumer = confluent_kafka.Consumer(
        settings | {"group.id": "golden", "isolation.level": "read_committed"}
    )
    producer.init_transactions(SECONDS)
    for committed in (True, False):
        producer.begin_transaction()
        producer.produce("golden", VALUE, b"key", partition=2)
        producer.flush(SECONDS)
        where = confluent_kafka.TopicPartition("golden", 2, 1)
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([where], group, SECONDS)
        end = producer.commit_transaction if committed else producer.abort_transaction
        end(SECONDS)
    consumer.assign([confluent_kafka.TopicPartition("golden", 2, 0)])
    assert consumer.poll(SECONDS) is not None
    consumer.committed([confluent_kafka.TopicPartition("golden", 2)], SECONDS)
    consumer.close()


def transact_with_kafka_python(address: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address, transactional_id="golden")
    where = kafka.TopicPartition("golden", 2)
    producer.init_transactions()
    for committed in (True, False):
        producer.begin_transaction()
        producer.send("golden", value=VALUE, key=b"key", partition=2)
        producer.flush(SECONDS)
        offsets = {where: kafka.OffsetAndMetadata(1, "", -1)}
        producer.send_offsets_to_transaction(offsets, "golden")
        end = producer.commit_transaction if committed else producer.abort_transaction
        end()
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        group_id="golden",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    assert consumer.poll(timeout_ms=SECONDS * 1000)
    consumer.committed(where)
    consumer.close()


async def transact_with_aiokafka(address: str) -> None:
    where = aiokafka.TopicPartition("golden", 2)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id="golden")
    await producer.start()
    for committed in (True, False):
        await producer.begin_transaction()
        await producer.send_and_wait("golden", VALUE, b"key", partition=2)
        await producer.send_offsets_to_transaction({where: 1}, "golden")
        await (producer.commit_transaction() if committed else producer.abort_transaction())
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    consumer.assign([where])
    assert await consumer.getone()
    await consumer.stop()


def use_more_of_kafka_python(address: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    admin.describe_log_dirs()
    admin.describe_topic_partitions(["golden"])
    admin.list_partition_offsets({kafka.TopicPartition("golden", 0): -3})
    admin.close()


def use_more_of_librdkafka(address: str) -> None:
    admin: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": address, "log_level": 0})
    spec: Any = confluent_kafka.admin.OffsetSpec  # type: ignore[attr-defined]
    where = confluent_kafka.TopicPartition("golden", 0)
    for wanted in (spec.earliest(), spec.max_timestamp()):
        for future in admin.list_offsets({where: wanted}).values():
            future.result(SECONDS)
    names = confluent_kafka.TopicCollection(["golden"])
    for future in admin.describe_topics(names, include_authorized_operations=True).values():
        future.result(SECONDS)


def use_kcat(address: str) -> None:
    def kcat(*arguments: str, said: bytes = b"") -> None:
        command = ["kcat", "-b", address, *arguments]
        subprocess.run(command, input=said, timeout=SECONDS, check=True, capture_output=True)

    for codec in CODECS:
        kcat(
            "-P", "-t", "golden", "-z", codec, "-K", ":", "-H", "h=1", said=b"key:" + VALUE + b"\n"
        )
    kcat("-L")
    kcat("-C", "-t", "golden", "-o", "beginning", "-e")
    kcat("-Q", "-t", "golden:0:-1")


def capture(use: Callable[[str], None]) -> list[Captured]:
    """The frames that are exchanged while `use` works against a new broker."""
    proxy = Proxy()
    advertised = f"PLAINTEXT://127.0.0.1:{proxy.port}"
    with tempfile.TemporaryDirectory() as directory:
        with BrokerProcess(Path(directory), {"advertised.listeners": advertised}) as broker:
            host, _, port = broker.address.rpartition(":")
            proxy.start((host, int(port)))
            use(f"127.0.0.1:{proxy.port}")
            proxy.close()
    return proxy.recorder.frames()


def write(name: str, frames: list[Captured]) -> None:
    """Write one line for each frame, so that a changed frame is one changed line."""
    lines = [
        json.dumps(
            {
                "api": APIS[frame.api_key].name,
                "version": frame.version,
                "direction": frame.direction,
                "frame": base64.b64encode(frame.data).decode(),
            }
        )
        for frame in frames
    ]
    path = GOLDEN / f"{name}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    print(f"{path.name}: {len(frames)} frames, {path.stat().st_size:,} bytes")


def main() -> int:
    sessions: dict[str, Callable[[str], None]] = {
        kind.name: (lambda address, kind=kind: use_client(kind, address))  # type: ignore[misc]
        for kind in (ConfluentClient, KafkaPythonClient, AiokafkaClient)
    }
    sessions["kcat"] = use_kcat
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.capture_golden")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(sessions))
    wanted = parser.parse_args().clients or list(sessions)
    GOLDEN.mkdir(exist_ok=True)
    for name in wanted:
        if name not in sessions:
            parser.error(f"there is no client {name}; there are {', '.join(sessions)}")
        if name == "kcat" and shutil.which("kcat") is None:
            print("kcat is not installed (apt-get install kcat): its frames stay as they are")
            continue
        write(name, capture(sessions[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
