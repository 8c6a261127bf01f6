"""Log compaction: its speed, its memory, and its effect on producers.

    python -m bench.compaction [--quick]

A running broker compacts a topic of 10 M records with 1 M keys, once plain and twice compressed,
while a producer writes to another topic at a fixed rate. Its latency is compared with that at rest.
Speeds are those of the bytes in the files; few bytes under zstd are many records, so that its speed
is shown without a target.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from bench.load import QUIET, create_topic
from bench.process import BackgroundLoad, BrokerProcess, run_load
from bench.report import Report

TOPIC = "table"
RECORDS = 10_000_000
KEYS = 1_000_000
VALUE_BYTES = 80
SEGMENT_BYTES = 64 << 20
RATE = 1_000
REST_SECONDS = 15.0
TIMEOUT_SECONDS = 900.0


class Watch:
    """Measures the latency of a producer to another topic, and the broker's memory."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._done = Event()
        self.most_mb = 0.0
        self.waits: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._load = BackgroundLoad(
            "watch_latency", self._broker.address, topic="other", size=100, rate=RATE, acks="all"
        )
        self._thread = Thread(target=self._watch_memory)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._load.__exit__(kind, error, trace)
        self._done.set()
        self._thread.join()
        if error is None:
            self.waits = [(due, wait) for due, wait in self._load.measured["waits"]]

    def _watch_memory(self) -> None:
        while not self._done.wait(0.02):
            self.most_mb = max(self.most_mb, self._broker.resident_mb)

    def p99_ms(self, began: float, ended: float) -> float:
        """The 99th percentile latency of the messages that were due between these times."""
        waits = sorted(wait for due, wait in self.waits if began <= due <= ended)
        return waits[int(len(waits) * 0.99)]


class Table:
    """The topic to compact, and its files in the broker's directory."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._directory = Path(broker.data_dir) / f"{TOPIC}-0"

    def segments(self) -> dict[int, int]:
        """The size of every segment by its base offset."""
        return {int(path.stem): path.stat().st_size for path in self._directory.glob("*.log")}

    def clean_offset(self) -> int:
        """The offset up to which the topic is compacted, by the broker's own checkpoint."""
        path = Path(self._broker.data_dir) / "cleaner-offset-checkpoint"
        lines = path.read_text().splitlines() if path.exists() else []
        offsets = [line.split(" ")[2] for line in lines if line.startswith(f"{TOPIC} 0 ")]
        return int(offsets[0]) if offsets else 0

    def begin(self) -> None:
        """Enable the compaction, which the topic was created without."""
        admin = AdminClient(QUIET | {"bootstrap.servers": self._broker.address})
        entry = ConfigEntry(
            "min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()

    def compact(self) -> tuple[float, float]:
        """Compact the topic; returns the start and end times."""
        end_offset = max(self.segments())
        self.begin()
        began = time.time()
        while self.clean_offset() < end_offset:
            if time.time() - began > TIMEOUT_SECONDS:
                raise SystemExit("the topic was not compacted in time")
            time.sleep(0.01)
        return began, time.time()


def measure(report: Report, directory: Path, codec: str, scale: float) -> None:
    """One topic under one codec."""
    # Checked often, so that no waiting is measured.
    with BrokerProcess(directory, log_cleaner_backoff_ms="100") as broker:
        create_topic(broker.address, "other")
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(int(SEGMENT_BYTES * scale)),
            "min.cleanable.dirty.ratio": "1",
        }
        create_topic(broker.address, TOPIC, 1, **settings)
        run_load(
            "tabulate",
            broker.address,
            topic=TOPIC,
            keys=int(KEYS * scale),
            count=int(RECORDS * scale),
            size=VALUE_BYTES,
            **{"compression.type": codec, "linger.ms": 20, "batch.size": 262_144},
        )
        time.sleep(3)  # Segments are flushed before they are compacted.
        table = Table(broker)
        before = table.segments()
        with Watch(broker) as watch:
            rested = time.time()
            time.sleep(max(REST_SECONDS * scale, 3))
            idle_mb = watch.most_mb
            began, ended = table.compact()
        after = table.segments()
    closed = sum(before.values()) - before[max(before)]
    left = sum(size for offset, size in after.items() if offset < max(before))
    name = f"{scale * RECORDS:,.0f} records, {scale * KEYS:,.0f} keys, codec {codec}"
    report.fact(name, f"{closed / 1e6:,.0f} MB before, {left / 1e6:,.0f} MB after")
    speed = closed / (ended - began) / 1e6
    if codec == "zstd":
        report.fact(f"compaction, codec {codec}", f"{speed:.1f} MB/s")
    else:
        report.at_least(f"compaction, codec {codec}", speed, 50, "MB/s")
    report.at_most(f"its memory, codec {codec}", watch.most_mb - idle_mb, 300, "MB")
    at_rest, meanwhile = watch.p99_ms(rested, began), watch.p99_ms(began, ended)
    report.fact(
        f"produce p99 at {RATE:,}/s, codec {codec}",
        f"{at_rest:.2f} ms at rest, {meanwhile:.2f} ms during compaction",
    )
    report.at_most(f"produce p99, codec {codec}", meanwhile / at_rest, 2, "times that at rest")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("Compaction in a running broker")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        for codec in ("none", "lz4", "zstd"):
            measure(report, Path(directory), codec, 0.1 if options.quick else 1.0)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
