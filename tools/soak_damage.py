"""The part of the long run that damages files of a cluster between a stop and a start.

Three brokers, replication factor 3, min.insync.replicas=2, acks=all, a part of the topics with
flush.messages=1. In each round one to three brokers are stopped or killed under load, and a file of
one of them is damaged; now and then a log on all three. After the start every record is looked for
that was acknowledged. Rule: as long as one replica was left intact nothing is lost; where none was,
a broker has said so in its log.
"""

import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.errors import HeadraceError
from headrace.testing.cluster import Cluster
from headrace.testing.ports import BrokerError
from headrace.testing.simulation.damage import DIRECTORY, SEGMENT, DamageTarget, choose, damaged
from headrace.testing.simulation.run import reports_loss
from tests.integration.cluster.load import SETTINGS
from tests.integration.cluster.replicas import wait_until_identical
from tests.integration.wire import read_all

PARTITIONS = 2
RATE = 400
LOADED_S = 1.0
# The rounds after which topics are recreated, because reading them would take too long.
ROUNDS_PER_TOPIC = 10
ALL_CHANCE = 0.1
SETTLED_S = 120.0
# How long records may wait to be acknowledged at the end of a round. A partition that was damaged
# on all brokers takes none until the operator decides.
UNSENT_S, UNSENT_HARMED_S = 2 * SETTLED_S, 5.0
# How long such a partition may take to have a leader, if it is to have one by itself.
LED_S = 3.0

Place = tuple[str, int]


class Load:
    """Sends numbered records from a thread, and keeps the acknowledged ones."""

    def __init__(self, bootstrap_servers: str, topics: list[str], name: str) -> None:
        self.acknowledged: dict[Place, set[bytes]] = {}
        self.failed = 0
        self._topics = topics
        self._name = name
        self._stop = threading.Event()
        self._wait_s = UNSENT_S
        self._producer = Producer(
            SETTINGS | {"bootstrap.servers": bootstrap_servers, "error_cb": self._on_error}
        )
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> "Load":
        self._thread.start()
        return self

    def stop(self, wait_s: float) -> None:
        """Stop sending, and wait at most so long for the outcome of every record."""
        self._wait_s = wait_s
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            topic = self._topics[count % len(self._topics)]
            partition = count // len(self._topics) % PARTITIONS
            value = f"{self._name}/{count} {'x' * (count % 150)}".encode()
            try:
                self._producer.produce(
                    topic, value, partition=partition, on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.1)
                continue
            except KafkaException:
                break  # `_on_error` got the reason.
            count += 1
            self._producer.poll(1 / RATE)
        self._producer.flush(self._wait_s)

    def _on_error(self, error: KafkaError) -> None:
        """Stop sending after an error that ends an idempotent producer for good.

        librdkafka has one for batches of which some records have timed out, as happens when every
        replica was damaged. Records acknowledged before still count.
        """
        if error.fatal():
            self._stop.set()

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            place = (message.topic(), message.partition())
            self.acknowledged.setdefault(place, set()).add(message.value())
        else:
            self.failed += 1


@dataclass
class Totals:
    """The totals of all rounds."""

    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
    """Though a replica was intact."""
    truly_lost: int = 0
    reported: int = 0
    """Partitions of which a broker said that records are lost."""
    problems: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)


class DamageSoak:
    """A cluster, its topics, and their acknowledged records."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._expected: dict[Place, set[bytes]] = {}
        self._topics: list[str] = []
        self.totals = Totals()

    def run(self, rounds: int) -> None:
        begun = time.monotonic()
        for number in range(1, rounds + 1):
            if (number - 1) % ROUNDS_PER_TOPIC == 0 or not self._topics:
                self._new_topics(number)
            self._round(number)
            totals = self.totals
            totals.rounds = number
            if number % 10 == 0 or number == rounds:
                print(
                    f"  {number} rounds, {totals.acknowledged:,} records acknowledged,"
                    f" {totals.lost} lost, {totals.truly_lost} lost with all replicas,"
                    f" {totals.reported} losses reported, {time.monotonic() - begun:.0f} s"
                )

    def _new_topics(self, number: int) -> None:
        self._expected = {}
        self._topics = [
            self._cluster.create_topic(
                f"damage-{number}-{name}",
                PARTITIONS,
                min_insync_replicas=2,
                segment_ms=1_500,
                **configs,
            )
            for name, configs in (("cached", {}), ("flushed", {"flush_messages": 1}))
        ]

    def _round(self, number: int) -> None:
        """Stop or kill brokers under load, damage, start, and check every record."""
        rng, cluster = self._rng, self._cluster
        for broker in cluster.brokers:
            broker.clear_log()
        harmed: set[Place] = set()
        load = Load(cluster.bootstrap_servers, self._topics, str(number)).start()
        try:
            time.sleep(LOADED_S)
            everywhere = rng.random() < ALL_CHANCE
            count = 3 if everywhere else rng.randint(1, 3)
            victims = rng.sample(cluster.brokers, count)
            for broker in victims:
                (broker.kill if rng.random() < 0.5 else broker.stop)()
            harmed, story = self._damage(victims, everywhere=everywhere)
            try:
                for broker in victims:
                    broker.launch()
                for broker in victims:
                    broker.wait_until_ready(SETTLED_S)
                self._settle(harmed)
            except (BrokerError, AssertionError) as error:
                self.totals.problems.append(f"round {number}, {story}: {error}")
                raise AssertionError(self.totals.problems[-1]) from error
            time.sleep(LOADED_S / 2)
        finally:
            load.stop(UNSENT_HARMED_S if harmed else UNSENT_S)
        for place, values in load.acknowledged.items():
            self._expected.setdefault(place, set()).update(values)
            self.totals.acknowledged += len(values)
        self._check(number, harmed, story)

    def _damage(self, victims: list[Any], *, everywhere: bool) -> tuple[set[Place], str]:
        """Damage a file; return the partitions that may have no intact replica, and a text."""
        rng = self._rng
        if everywhere:
            place = (rng.choice(self._topics), rng.randrange(PARTITIONS))
            stories = [self._damage_log(broker.data_dir, place) for broker in victims]
            return {place}, "; ".join(stories)
        victim = rng.choice(victims)
        files = _files(victim.data_dir)
        target = choose(files, rng)
        # If a voter's metadata is lost too, the others must be running to restore it.
        while target is None or (target.is_metadata and len(victims) > 1):
            target = choose(files, rng)
        return set(), self._apply(victim.data_dir, target)

    def _damage_log(self, data_dir: Path, place: Place) -> str:
        directory = f"{place[0]}-{place[1]}"
        files = [path for path in _files(data_dir) if path.startswith(f"{directory}/")]
        target = choose(files, self._rng, [SEGMENT, DIRECTORY])
        return "nothing" if target is None else self._apply(data_dir, target)

    def _apply(self, data_dir: Path, target: DamageTarget) -> str:
        path = data_dir / target.path
        self.totals.kinds[target.kind] = self.totals.kinds.get(target.kind, 0) + 1
        if target.kind == DIRECTORY:
            shutil.rmtree(path)
            return f"{path} removed"
        way, content = damaged(path.read_bytes(), self._rng)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        return f"{path}: {way}"

    def _settle(self, harmed: set[Place]) -> None:
        """Wait until every replica is in sync, except those of partitions without any intact
        replica.
        """
        for topic in self._topics:
            if any(place[0] == topic for place in harmed):
                continue
            self._cluster.wait_for_isr(topic, timeout_s=SETTLED_S)

    def _check(self, number: int, harmed: set[Place], story: str) -> None:
        """Compare the acknowledged records with the present ones."""
        for place, values in self._expected.items():
            if place in harmed:
                self._check_loss(place, values, story)
                continue
            lost = values - self._read(place)
            self.totals.lost += len(lost)
            assert not lost, (
                f"round {number}: {len(lost)} of {len(values)} acknowledged records of"
                f" {place[0]}-{place[1]} are lost after {story}"
            )
        if harmed:
            # The rest of the damaged partition is for an operator to decide.
            self._topics = []
        for topic in self._topics:
            try:
                wait_until_identical(self._cluster, topic, PARTITIONS)
            except AssertionError as error:
                raise AssertionError(f"round {number}, after {story}: {error}") from error

    def _read(self, place: Place, timeout_s: float = 30.0) -> set[bytes]:
        """The values of the records of a partition, as its leader has them."""
        leader = self._cluster.wait_for_leader(*place, timeout_s=timeout_s)
        address = str(self._cluster.broker(leader).listens_on)
        return {bytes(record.value or b"") for record in read_all(address, *place)}

    def _check_loss(self, place: Place, values: set[bytes], story: str) -> None:
        """Check that losses in a partition damaged on all brokers were reported."""
        try:
            lost = values - self._read(place, LED_S)
        except (AssertionError, KafkaException, HeadraceError):
            lost = values  # Offline, or unreadable, until the operator decides.
        if not lost:
            return
        self.totals.truly_lost += len(lost)
        name = f"{place[0]}-{place[1]}"
        lines = [line for log in self._cluster.logs.values() for line in log.splitlines()]
        reports = [line for line in lines if ("WARN" in line or "ERROR" in line)]
        assert any(reports_loss(line, name) for line in reports), (
            f"{len(lost)} of {len(values)} acknowledged records of {name} are gone after {story},"
            " and no broker reports it"
        )
        self.totals.reported += 1


def _files(data_dir: Path) -> list[str]:
    paths = (path for path in sorted(data_dir.rglob("*")) if path.is_file())
    return [str(path.relative_to(data_dir)) for path in paths]


def damage_a_cluster(rounds: int, seed: int) -> None:
    """Run the rounds; AssertionError if a record is lost although a replica was intact."""
    print(f"damaging files of a cluster of three brokers, {rounds} rounds, seed {seed}")
    # A follower that was stopped cleanly trusts its closed segments until they are scrubbed.
    with Cluster(3, config={"log.scrub.interval.ms": 0}) as cluster:
        soak = DamageSoak(cluster, Random(seed))
        soak.run(rounds)
        totals = soak.totals
        print(
            f"{totals.rounds} rounds: {totals.acknowledged:,} records acknowledged,"
            f" {totals.lost} lost where a replica was intact; {totals.truly_lost:,} lost in"
            f" {totals.reported} partitions that were damaged on all brokers, each reported"
        )
        for kind, count in sorted(totals.kinds.items()):
            print(f"  {count} times: {kind}")
