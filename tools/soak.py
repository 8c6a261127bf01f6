"""The long run: brokers, clusters and pipelines killed under load, a million mutated requests.

It fails if an acknowledged record is lost, if the broker stops serving, logs a traceback or an
internal error, changes data that no request named, or keeps growing; if a cluster whose brokers
were killed, paused and cut off has lost a record or has one twice, or takes too long to go on; if
a copy made in transactions is not exact, or an aborted record was read; or if a pipeline whose
driver and executors were killed has lost a record or has one twice, in its topic or its files; or
if a cluster whose files were damaged has lost a record of which a replica was intact. A failure
names the seed. `broker`, `cluster`, `transactions`, `pipeline` or `damage` as an argument runs that
part alone.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import psutil

from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.records import Record
from tests.integration.kills import survive_kills
from tests.integration.mutation import Attack, Counts, Mutator, corpus
from tests.integration.requests import batch
from tests.integration.wire import Wire, create_topic, is_serving, produce, read_all
from tests.support import BrokerProcess
from tools.soak_cluster import break_a_cluster
from tools.soak_damage import damage_a_cluster
from tools.soak_pipeline import kill_a_pipeline
from tools.soak_transactions import copy_under_fire

CANARY = "canary"
REQUESTS_PER_ROUND = 20_000
# The rounds in which buffers, caches and the allocator grow; afterwards memory must not.
WARM_UP_ROUNDS = 3
GROWTH_BYTES_MAX = 40_000_000
# A request that happened to create so many partitions leaves a larger heap for good.
MANY_PARTITIONS = 500
MEMORY_BYTES_MAX = 500_000_000
MB = 1_000_000
CLUSTER_ROUNDS, DAMAGE_ROUNDS = 20, 200


def kill_again_and_again(broker: BrokerProcess, kills: int, seed: int) -> None:
    begin = time.monotonic()

    def report(kill: int, acknowledged: int) -> None:
        if kill % 10 == 0 or kill == kills:
            seconds = time.monotonic() - begin
            print(f"  {kill} kills, {acknowledged:,} records acknowledged, {seconds:.0f} s")

    survive_kills(broker, "killed", kills, Random(seed), report)


class Soak:
    """One broker, attacked in rounds; between them it is checked and cleaned up."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self._broker = broker
        self._seed = seed
        self._process = psutil.Process(broker.pid)
        self._canary = self._store_canary()
        self._kept = self._topics()
        self.counts = Counts()
        self.memory_at_first = self.memory()
        self._memory_when_warm = 0

    def memory(self) -> int:
        return int(self._process.memory_info().rss)

    def run(self, requests: int) -> None:
        begin, rounds = time.monotonic(), 0
        while self.counts.sent < requests:
            self._attack(rounds, min(REQUESTS_PER_ROUND, requests - self.counts.sent))
            made = self._tidy_up()
            self._check(measure_anew=rounds <= WARM_UP_ROUNDS or made > MANY_PARTITIONS)
            rounds += 1
            seconds = time.monotonic() - begin
            print(
                f"  {self.counts.sent:,} requests, {self.counts.sent / seconds:,.0f}/s,"
                f" {self.memory() / MB:.0f} MB resident"
            )

    def _attack(self, number: int, requests: int) -> None:
        rng = Random(f"{self._seed}-{number}")
        topic = f"target-{number}"
        topic_id = create_topic(self._broker.address, topic, 2)
        attack = Attack(self._broker.address, Mutator(rng, corpus(rng, topic, topic_id)))
        attack.run(requests)
        self.counts.add(attack.counts)

    def _topics(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        with Wire(self._broker.address, timeout_s=120) as wire:
            topics = wire.ask(MetadataRequest(topics=None)).topics
        return {topic.name: len(topic.partitions) for topic in topics}

    def _tidy_up(self) -> int:
        """Delete a round's topics, so that growth is a leak, not data; count their partitions."""
        made = {name: count for name, count in self._topics().items() if name not in self._kept}
        with Wire(self._broker.address, timeout_s=120) as wire:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in made])
            codes = {response.error_code for response in wire.ask(request).responses}
        assert codes <= {0}, codes
        assert self._topics() == self._kept
        return sum(made.values())

    def _check(self, *, measure_anew: bool) -> None:
        assert "internal error" not in self._broker.log_text, self._broker.log_text
        self._broker.forget_log()
        assert is_serving(self._broker.address)
        assert read_all(self._broker.address, CANARY) == self._canary, "stored records changed"
        if measure_anew:
            self._memory_when_warm = self.memory()
        growth = self.memory() - self._memory_when_warm
        assert growth < GROWTH_BYTES_MAX, f"the broker grew by {growth / MB:.0f} MB"
        assert self.memory() < MEMORY_BYTES_MAX

    def _store_canary(self) -> list[Record]:
        create_topic(self._broker.address, CANARY)
        with Wire(self._broker.address) as wire:
            for number in range(1000):
                produce(wire, CANARY, batch(b"%d" % number))
        return read_all(self._broker.address, CANARY)


def attack_broker(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as directory:
        settings = {"auto.create.topics.enable": "false"}
        with BrokerProcess(Path(directory), settings) as broker:
            if options.kills:
                print(f"killing a broker under load {options.kills} times")
                kill_again_and_again(broker, options.kills, options.seed)
            print(f"sending {options.requests:,} mutated requests, seed {options.seed}")
            soak = Soak(broker, options.seed)
            soak.run(options.requests)
            counts = soak.counts
            print(
                f"{counts.sent:,} requests: {counts.answered:,} answered, {counts.closed:,} closed"
                f" their connection, {counts.silent:,} were given up waiting\n"
                f"resident memory {soak.memory_at_first / MB:.0f} MB before,"
                f" {soak.memory() / MB:.0f} MB after; the broker serves, its data is unchanged"
            )


def kill_pipeline(options: argparse.Namespace) -> None:
    kill_a_pipeline(options.pipeline_kills, options.records, options.seed)


def break_cluster(options: argparse.Namespace) -> None:
    break_a_cluster(options.rounds or CLUSTER_ROUNDS, options.seed)


def copy_in_transactions(options: argparse.Namespace) -> None:
    copy_under_fire(options.copies, options.seed)


def damage_cluster(options: argparse.Namespace) -> None:
    damage_a_cluster(options.rounds or DAMAGE_ROUNDS, options.seed)


PARTS = {
    "broker": attack_broker,
    "cluster": break_cluster,
    "transactions": copy_in_transactions,
    "pipeline": kill_pipeline,
    "damage": damage_cluster,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.soak")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{' or '.join(PARTS)}: only that")
    parser.add_argument("--requests", type=int, default=1_000_000, help="mutated requests to send")
    parser.add_argument(
        "--kills", type=int, default=100, help="times to kill the broker under load"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=0,
        help=f"times to kill, pause and cut off a leader (default {CLUSTER_ROUNDS}), or to damage"
        f" files (default {DAMAGE_ROUNDS})",
    )
    parser.add_argument(
        "--pipeline-kills", type=int, default=10, help="times to kill a driver or an executor"
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="records of the pipeline")
    parser.add_argument(
        "--copies", type=int, default=100_000, help="records that each client copies"
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed sends the same requests")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for part in options.parts or PARTS:
        try:
            PARTS[part](options)
        except AssertionError:
            print(f'FAILED; `make soak ARGS="{part} --seed {options.seed}"` does the same again')
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
