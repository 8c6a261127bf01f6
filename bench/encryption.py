"""Encryption at rest: what a topic with `encryption.enable` costs beside one without.

    python -m bench.encryption [--quick]

One broker with one of either topic, in turns and in both orders, so that a busy machine slows both.
Speeds are the client's; CPU is the broker's, for each GB of records. Topics without encryption must
not pay for it: what a fetch and an append ask about it is measured alone.
"""

import argparse
import secrets
import sys
import tempfile
import timeit
from pathlib import Path
from statistics import median

from bench.load import create_topic
from bench.process import BrokerProcess, run_load
from bench.report import Report
from headrace.protocol.batch import first_encrypted, read_header
from headrace.protocol.records import encode_batch
from headrace.security.batch_encryption import BatchEncryption, BatchEncryptor
from headrace.security.keyring import KEY_SIZE, KeyEncryptionKey, Keyring
from headrace.storage.key_sources import write_key_file

TOTAL_BYTES = 600_000_000
ROUNDS = 3
PRODUCER = {"linger.ms": 5, "batch.size": 1_000_000, "acks": "all"}
KINDS = {"plain": "false", "encrypted": "true"}


class Measured:
    """Rounds of one kind of topic: MB/s, and seconds of the broker's CPU for each GB."""

    def __init__(self) -> None:
        self.produced: list[float] = []
        self.produce_cpu: list[float] = []
        self.consumed: list[float] = []
        self.consume_cpu: list[float] = []


def measure(broker: BrokerProcess, kind: str, topic: str, size: int, total: int) -> Measured:
    """Fill a new topic and read it."""
    measured = Measured()
    count = total // size
    create_topic(broker.address, topic, 1, **{"encryption.enable": KINDS[kind]})
    began = broker.cpu_seconds
    done = run_load("produce", broker.address, topic=topic, size=size, count=count, **PRODUCER)
    measured.produced.append(done["bytes"] / done["seconds"] / 1e6)
    measured.produce_cpu.append((broker.cpu_seconds - began) / done["bytes"] * 1e9)
    began = broker.cpu_seconds
    done = run_load("consume", broker.address, topic=topic, count=count)
    measured.consumed.append(done["bytes"] / done["seconds"] / 1e6)
    measured.consume_cpu.append((broker.cpu_seconds - began) / done["bytes"] * 1e9)
    return measured


def through_a_broker(directory: Path, report: Report, size: int, total: int, rounds: int) -> None:
    keys = directory / "keys"
    if not keys.exists():
        key = KeyEncryptionKey("bench", secrets.token_bytes(KEY_SIZE))
        write_key_file(str(keys), [key], replace=False)
    found = {kind: Measured() for kind in KINDS}
    for number in range(rounds):
        order = list(KINDS) if number % 2 == 0 else list(reversed(KINDS))
        with BrokerProcess(directory, encryption_key_source=f"file:{keys}") as broker:
            for kind in order:
                one = measure(broker, kind, kind, size, total)
                for name in vars(one):
                    getattr(found[kind], name).extend(getattr(one, name))
    for kind, figures in found.items():
        label = f"{size} B, {kind}"
        for verb, speeds, cpu in (
            ("produce", figures.produced, figures.produce_cpu),
            ("consume", figures.consumed, figures.consume_cpu),
        ):
            report.fact(
                f"{verb} {label}",
                f"{median(speeds):,.0f} MB/s, {median(cpu):.2f} s of the broker's CPU per GB",
            )


def alone(report: Report, records: int) -> None:
    """One batch in this process: sealing it, opening it, and asking a plain one."""
    key = KeyEncryptionKey("bench", secrets.token_bytes(KEY_SIZE))
    encryption = BatchEncryption(Keyring([key]), secrets.token_bytes)
    batch = encode_batch([(0, None, bytes(1000), ()) for _ in range(records)])
    header = read_header(batch)
    encryptor = BatchEncryptor(encryption)
    sealed = encryptor.encrypt(batch, header, None, 0)
    sealed_header = read_header(sealed)
    for name, work in (
        ("seal", lambda: encryptor.encrypt(batch, header, None, 0)),
        ("open", lambda: encryption.decrypt_batch(sealed, sealed_header, None)),
        ("ask a plain fetch", lambda: first_encrypted(batch)),
    ):
        loops = max(20, min(20_000_000 // len(batch), 20_000))
        seconds = min(timeit.repeat(work, number=loops, repeat=5)) / loops
        report.fact(f"{name}, a batch of {len(batch):,} B", f"{seconds * 1e6:,.2f} µs")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of encryption at rest.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the bytes, once")
    options = parser.parse_args()
    total, rounds = (TOTAL_BYTES // 10, 1) if options.quick else (TOTAL_BYTES, ROUNDS)
    report = Report("encryption at rest")
    for records in (1, 16, 1000):
        alone(report, records)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        for size, share in ((100, 0.25), (1000, 1.0), (10_000, 1.0)):
            through_a_broker(Path(directory), report, size, int(total * share), rounds)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
