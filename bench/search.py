"""Search of a topic: time to the first hits and to the end, cancellation, and its cost for others.

    python -m bench.search [--quick]

Ten million messages of about 200 bytes of JSON in four partitions. The searches run as the console
runs them, in a process of their own; beside them a loop over the messages of confluent-kafka.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.load import create_topic
from bench.machine import warm_page_cache
from bench.process import BackgroundLoad, BrokerProcess, run_load
from bench.report import Report
from headrace import Producer
from headrace.search.scan_ranges import SearchRequest
from headrace.search.search_process import SearchProcess

TOPIC = "bench"
OTHER_TOPIC = "other"
PARTITIONS = 4
SIZE = 200
CHUNK = 50_000
NEEDLES = 20
NEEDLE = "needle"
PRODUCE_RATE = 200
HITS_MAX = 1_000


def fill(address: str, count: int) -> None:
    """Write orders; a few have the needle in their note, the first of them early."""
    every = count // NEEDLES
    with Producer(bootstrap_servers=address, buffer_memory=256 << 20, linger_ms=20) as producer:
        for start in range(0, count, CHUNK):
            numbers = pa.array(range(start, min(start + CHUNK, count)))
            batch = pa.record_batch(
                {
                    "value": _values(numbers, every),
                    "partition": pc.cast(pc.bit_wise_and(numbers, PARTITIONS - 1), pa.int32()),
                }
            )
            producer.send_arrow(TOPIC, batch).result()


def _values(numbers: pa.Array, every: int) -> pa.Array:
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, every), every))
    note = pc.if_else(pc.equal(rest, 1_000), NEEDLE, "nothing")
    amount = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1_000), 1_000))
    texts = pc.binary_join_element_wise(
        '{"order":', pc.cast(numbers, pa.string()), ',"user":{"id":', pc.cast(amount, pa.string()),
        ',"name":"somebody"},"amount":', pc.cast(amount, pa.string()), ',"note":"', note,
        '","text":"', "",
    )  # fmt: skip
    padded = pc.ascii_rpad(texts, width=SIZE - 2, padding="x")
    return pc.cast(pc.binary_join_element_wise(padded, '"}', ""), pa.binary())


async def search(
    address: str, expression: str, *, hits_max: int = HITS_MAX
) -> tuple[float, float, int, int]:
    """Seconds to the first hit and to the end, both from the request on; hits; records read."""
    began = time.perf_counter()
    first = 0.0
    hits = read = 0
    request = SearchRequest(topic=TOPIC, expression=expression, hits_max=hits_max)
    async with SearchProcess(request, {"bootstrap_servers": address}) as process:
        async for update in process.updates():
            if update.hits and not first:
                first = time.perf_counter() - began
            hits += len(update.hits)
            read = update.progress.records_read
    return first, time.perf_counter() - began, hits, read


async def cancel(address: str) -> float:
    """Seconds from the decision to cancel until the process is gone."""
    request = SearchRequest(topic=TOPIC, expression="value.order = -1")
    async with SearchProcess(request, {"bootstrap_servers": address}) as process:
        async for update in process.updates():
            if update.progress.records_read:
                break
        began = time.perf_counter()
    return time.perf_counter() - began


def searches(broker: BrokerProcess, report: Report, count: int) -> None:
    scale = count / 10_000_000
    for name, expression, hits in (
        ("a text", NEEDLE, NEEDLES),
        ("a field in JSON", f"value.note = '{NEEDLE}' and value.user.id < 1000", NEEDLES),
        ("an amount, read in every record", "value.amount > 998 and value.order < 0", 0),
    ):
        cpu_seconds = broker.cpu_seconds
        first, whole, found, read = asyncio.run(search(broker.address, expression))
        if found != hits or read != count:
            raise SystemExit(f"{expression}: {found} of {hits} hits in {read:,} of {count:,}")
        cpu_seconds = broker.cpu_seconds - cpu_seconds
        report.fact(f"search for {name}", f"{count / whole:,.0f} messages/s, {cpu_seconds:.1f} s of"
                    f" the broker's CPU, load {os.getloadavg()[0]:.1f}")  # fmt: skip
        if hits:
            report.at_most(f"search for {name}: first hit", first, 1, "s")
        report.at_most(f"search for {name}: all {count:,} messages", whole, 20 * scale, "s")
    report.at_most("cancelling a search", asyncio.run(cancel(broker.address)), 0.5, "s")
    began = time.perf_counter()
    loop = run_load(
        "find", broker.address, topic=TOPIC, partitions=PARTITIONS, count=count, text=NEEDLE
    )
    seconds = time.perf_counter() - began
    if loop["hits"] != NEEDLES:
        raise SystemExit(f"the loop of confluent-kafka found {loop['hits']} of {NEEDLES}")
    report.fact(
        "a loop of confluent-kafka for the same text",
        f"{seconds:.1f} s, first hit {loop['first']:.2f} s after its start",
    )


def beside_producer(broker: BrokerProcess, report: Report, seconds: float) -> None:
    """The latency of a producer alone, and beside searches, several times in turn."""
    waits: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for searching in (False, True):
            with BackgroundLoad(
                "watch_latency", broker.address, topic=OTHER_TOPIC, size=1_000, rate=PRODUCE_RATE
            ) as load:
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    if searching:
                        asyncio.run(search(broker.address, "value contains 'absent'"))
                    else:
                        time.sleep(seconds)
            waits[searching] += [wait for _, wait in load.measured["waits"]]
    alone, beside = (sorted(waits[searching]) for searching in (False, True))
    alone_ms, beside_ms = (found[int(len(found) * 0.99)] for found in (alone, beside))
    report.fact(
        f"produce p99 at {PRODUCE_RATE}/s, alone and beside a search",
        f"{alone_ms:.1f} ms and {beside_ms:.1f} ms; p50 {alone[len(alone) // 2]:.1f} ms and"
        f" {beside[len(beside) // 2]:.1f} ms",
    )
    report.at_most("produce p99 beside a search", beside_ms / alone_ms, 2, "times that alone")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    count = 1_000_000 if options.quick else 10_000_000
    report = Report(f"Search through {count:,} messages of {SIZE} B")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        warm_page_cache(Path(directory), count * (SIZE + 20))
        with BrokerProcess(Path(directory)) as broker:
            create_topic(broker.address, TOPIC, PARTITIONS)
            create_topic(broker.address, OTHER_TOPIC)
            fill(broker.address, count)
            searches(broker, report, count)
            beside_producer(broker, report, 3.0 if options.quick else 10.0)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
