"""Start a broker, send records by the Python client and by commands, and read them back.

    python tools/smoke.py [--documentation]

`tools/check_pythons.sh` runs it on every version of Python, and `tools/check_dist.sh` in an
environment with only the wheel. HEADRACE_EXPECT_BUILD=compiled or pure makes it fail with the other
build of the codec. With --documentation `headrace docs` serves its pages, too.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import headrace
import headrace.testing
from headrace.protocol.records import COMPILED
from headrace.testing.time_limits import scaled

RECORDS = 2_000
SECONDS_MAX = 30


def blocking(servers: str, topic: str) -> None:
    """Send and read with the blocking clients."""
    with headrace.Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
        futures = [producer.send(topic, f"value {n}", key=f"key {n}") for n in range(RECORDS)]
        producer.flush()
        assert len({future.result().offset for future in futures}) > 1
    with headrace.Consumer(
        topic,
        bootstrap_servers=servers,
        group_id="smoke",
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS_MAX * 1000,
    ) as consumer:
        seen = set()
        for record in consumer:
            seen.add(record.value)
            if len(seen) == RECORDS:
                break
        consumer.commit()
    assert seen == {f"value {n}".encode() for n in range(RECORDS)}


async def with_asyncio(servers: str, topic: str) -> None:
    """Send and read with the asyncio clients."""
    async with headrace.aio.Producer(bootstrap_servers=servers) as producer:
        future = await producer.send(topic, "hello")
        written = await future
    async with headrace.aio.Consumer(bootstrap_servers=servers) as consumer:
        partition = headrace.TopicPartition(topic, written.partition)
        consumer.assign([partition])
        consumer.seek(partition, written.offset)
        records = await consumer.poll(timeout_ms=SECONDS_MAX * 1000)
    assert [record.value for record in records] == [b"hello"]


def commands(servers: str, topic: str) -> None:
    """Send and read with the commands."""
    assert "Commands:" in command("--help")
    command("produce", topic, "--quiet", "--bootstrap-server", servers, given="one\ntwo\n")
    assert command("consume", topic, "--bootstrap-server", servers) == "one\ntwo\n"


def command(*arguments: str, given: str = "") -> str:
    """The output of the `headrace` command of this environment."""
    program = Path(sys.executable).with_name("headrace")
    done = subprocess.run(
        [program, *arguments],
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=scaled(SECONDS_MAX),
    )
    return done.stdout


def documentation() -> None:
    """Read pages of the documentation from `headrace docs`, and end it as Ctrl-C does."""
    program = Path(sys.executable).with_name("headrace")
    with subprocess.Popen(
        [program, "docs", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().rpartition(" at ")[2].strip()
        try:
            for page, words in (
                ("", "headrace"),
                ("quick-start.html", "headrace topics create orders"),
                ("operations.html", "HeadraceBrokerDown"),
                ("metrics.html", "headrace_group_lag_seconds"),
            ):
                with urllib.request.urlopen(url + page, timeout=scaled(10)) as answer:
                    text = re.sub(r"<[^>]*>", "", answer.read().decode())
                assert words in text, f"{page or url} has no {words!r}"
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(scaled(SECONDS_MAX)) == 0
    print(f"headrace docs: served its pages at {url}")


def main() -> None:
    """Run the whole check; an exception is a failure."""
    build = "compiled" if COMPILED else "pure"
    assert os.environ.get("HEADRACE_EXPECT_BUILD", build) == build, f"the codec is {build}"
    with headrace.testing.Broker() as broker:
        servers = broker.bootstrap_servers
        blocking(servers, broker.create_topic(partitions=3))
        asyncio.run(with_asyncio(servers, broker.create_topic(partitions=3)))
        commands(servers, broker.create_topic())
    if "--documentation" in sys.argv[1:]:
        documentation()
    version = ".".join(map(str, sys.version_info[:3]))
    print(
        f"headrace {headrace.__version__}, codec: {build}, Python {version}:"
        f" sent and read {RECORDS} records, blocking, with asyncio and by commands"
    )


if __name__ == "__main__":
    main()
