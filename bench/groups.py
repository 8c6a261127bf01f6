"""Consumer groups: the cost of many members, and the time a large group takes to settle.

python -m bench.groups [--quick]
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bench.members import Connection, Member, find_coordinator
from bench.process import BrokerProcess
from bench.report import Report

HEARTBEAT_SECONDS = 3.0


async def settle(broker: BrokerProcess, members: int) -> float:
    """Join `members` to one group at once; seconds until all are of one generation."""
    await find_coordinator(broker.address, "one")
    everybody = [Member(await Connection.open(broker.address), "one") for _ in range(members)]
    began = time.perf_counter()
    await asyncio.gather(*(member.join() for member in everybody))
    while len({member.generation for member in everybody}) > 1:
        await asyncio.gather(*(member.beat() for member in everybody))
    return time.perf_counter() - began


async def stay(
    broker: BrokerProcess, groups: int, members: int, seconds: float
) -> tuple[float, int]:
    """Keep `members` in each of `groups`; the broker's share of a core, and who had to rejoin."""
    names = [f"group-{number}" for number in range(groups)]
    await find_coordinator(broker.address, names[0])
    everybody = [
        Member(await Connection.open(broker.address), name)
        for name in names
        for _ in range(members)
    ]
    await asyncio.gather(*(member.join() for member in everybody))
    while len({(member.group, member.generation) for member in everybody}) > groups:
        await asyncio.gather(*(member.beat() for member in everybody))
    joins, cpu_seconds = sum(member.joins for member in everybody), broker.cpu_seconds
    end = time.perf_counter() + seconds

    async def live(member: Member, delay: float) -> None:
        await asyncio.sleep(delay)
        while time.perf_counter() < end:
            await member.beat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    # Spread over the interval, like consumers that started at different times.
    step = HEARTBEAT_SECONDS / len(everybody)
    await asyncio.gather(*(live(entry, number * step) for number, entry in enumerate(everybody)))
    share = (broker.cpu_seconds - cpu_seconds) / seconds
    return share, sum(member.joins for member in everybody) - joins


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of a minute")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("Consumer groups on one broker")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        with BrokerProcess(Path(directory)) as broker:
            seconds = asyncio.run(settle(broker, 100))
        report.at_most("100 members join one group", seconds, 5, "s")
        # Kafka's default delays a new group: once, and again if another member joined meanwhile.
        with BrokerProcess(Path(directory), group_initial_rebalance_delay_ms="3000") as broker:
            seconds = asyncio.run(settle(broker, 100))
        report.fact("the same with a rebalance delay of 3 s, as Kafka has", f"{seconds:.2f} s")
        with BrokerProcess(Path(directory)) as broker:
            span = 6.0 if options.quick else 60.0
            share, rejoined = asyncio.run(stay(broker, 100, 10, span))
        report.at_most(f"1,000 members in 100 groups, {span:.0f} s", share * 100, 25, "% of a core")
        report.at_most("members that had to rejoin meanwhile", rejoined, 0, "members")
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
