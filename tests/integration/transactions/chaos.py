"""Copies made in transactions while copiers, coordinators and leaders are killed at random."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from confluent_kafka import Producer

from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import Deadline, scaled
from tests.integration.cluster.replicas import wait_until_identical
from tests.integration.transactions.copiers.interface import Job
from tests.integration.transactions.copy_program import Manner
from tests.integration.transactions.crew import Crew, Post
from tests.integration.transactions.judging import Findings, is_doomed, judge, total, value_of
from tests.integration.transactions.watching import READERS, Watcher
from tests.integration.wire import LATEST, Wire, list_offset, read_all

CONFIG = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A restarted copier joins the group under its old name, and need not wait for anything.
    "group.min.session.timeout.ms": "1000",
}
_GROUP, _TRANSACTION = 0, 1
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_STALLED_S = 60.0
_STABLE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large a trial is."""

    records: int
    partitions: int = 4
    copiers: int = 1
    """Of each client."""
    clients: tuple[str, ...] = tuple(READERS)
    records_max: int = 100
    pause_s: float = 0.0
    gap_s: float = 1.0
    """Between two faults, on average."""
    transaction_timeout_ms: int = 10_000


@dataclass(slots=True)
class Report:
    """What came of a trial."""

    findings: dict[str, Findings] = field(default_factory=dict)
    """By client."""
    strikes: Counter[str] = field(default_factory=Counter)
    doomed: int = 0
    """Records that were written and aborted, which nobody was given."""
    runs: Counter[str] = field(default_factory=Counter)
    fenced: Counter[str] = field(default_factory=Counter)
    ousted: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    hung: Counter[str] = field(default_factory=Counter)
    """How runs of copiers ended, by client."""
    seconds: float = 0.0


class Chaos:
    """A cluster, a source, and a copy by each client in the making."""

    def __init__(self, cluster: Cluster, plan: Plan, seed: str) -> None:
        self.cluster = cluster
        self.plan = plan
        self._rng = Random(seed)
        self._seed = seed
        self._source = f"source-{seed}"
        self._targets = {client: f"copy-{seed}-{client}" for client in plan.clients}
        self._counts = dict.fromkeys(range(plan.partitions), plan.records // plan.partitions)
        self.strikes: dict[str, Callable[[], None]] = {
            "copier killed": self._kill_copier,
            "copier replaced while frozen": self._replace_copier,
            "transaction coordinator killed": lambda: self._kill(self._coordinator(_TRANSACTION)),
            "group coordinator killed": lambda: self._kill(self._coordinator(_GROUP)),
            "partition leader killed": self._kill_leader,
            "transaction coordinator frozen": self._freeze_coordinator,
        }
        self._crew = Crew([])

    def run(
        self,
        strikes: list[str] | None = None,
        on_strike: Callable[[Report, dict[str, int]], None] = lambda report, seen: None,
    ) -> Report:
        """Copy everything, striking all the while: at random, or these once each as all have begun.

        `on_strike` hears after each fault how much every client has copied.
        """
        began = time.monotonic()
        report = Report()
        self._fill()
        watcher = Watcher(
            self.cluster.bootstrap_servers, list(self._targets.values()), self.plan.partitions
        )
        try:
            with Crew(self._posts()) as self._crew:
                while strikes and not all(self._seen(watcher).values()):
                    self._require_progress(watcher)
                for name in strikes or []:
                    self._strike(name, report)
                    watcher_ok(watcher)
                while not self._is_done(watcher):
                    if strikes is None:
                        self._strike(self._rng.choice(list(self.strikes)), report)
                        on_strike(report, self._seen(watcher))
                    self._require_progress(watcher)
        finally:
            watcher.close()
        watcher_ok(watcher)
        self._look(report)
        for post in self._crew.posts:
            for name in ("runs", "fenced", "ousted", "failed", "hung"):
                getattr(report, name)[post.client] += getattr(post, name)
        report.seconds = time.monotonic() - began
        return report

    @property
    def outputs(self) -> str:
        """What the copiers have printed."""
        return "\n".join(f"{post.job.name}:\n{post.output}" for post in self._crew.posts)

    # -- before

    def _fill(self) -> None:
        self.cluster.create_topic(self._source, self.plan.partitions)
        for target in self._targets.values():
            self.cluster.create_topic(target, self.plan.partitions, min_insync_replicas=2)
        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap_servers,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for partition, count in self._counts.items():
            for number in range(count):
                producer.produce(self._source, value_of(number), partition=partition)
        assert producer.flush(scaled(60)) == 0

    def _posts(self) -> list[Post]:
        plan = self.plan
        posts = []
        for client, target in self._targets.items():
            for number in range(plan.copiers):
                name = f"{target}-{number}"
                job = Job(
                    bootstrap_servers=self.cluster.bootstrap_servers,
                    source=self._source,
                    target=target,
                    group=target,
                    name=name,
                    transaction_timeout_ms=plan.transaction_timeout_ms,
                )
                manner = Manner(
                    client=client,
                    seed=f"{self._seed}/{name}",
                    records_max=plan.records_max,
                    pause_s=plan.pause_s,
                )
                posts.append(Post(job, manner))
        return posts

    # -- meanwhile

    def _is_done(self, watcher: Watcher) -> bool:
        wanted = sum(self._counts.values())
        return all(watcher.seen(target) >= wanted for target in self._targets.values())

    def _require_progress(self, watcher: Watcher) -> None:
        """Wait a little, or until something more is copied; fail if nothing ever is."""
        watcher_ok(watcher)
        before = self._seen(watcher)
        deadline = Deadline(_STALLED_S)
        time.sleep(min(self._rng.expovariate(1 / self.plan.gap_s), 3.0))
        while self._seen(watcher) == before and not self._is_done(watcher):
            assert not deadline.has_passed, (
                f"nothing was copied for {_STALLED_S:.0f} s: {before}\n{self.outputs}"
            )
            time.sleep(0.05)

    def _seen(self, watcher: Watcher) -> dict[str, int]:
        return {client: watcher.seen(target) for client, target in self._targets.items()}

    def _strike(self, name: str, report: Report) -> None:
        time.sleep(self._rng.uniform(0.0, self.plan.gap_s))
        self.strikes[name]()
        report.strikes[name] += 1

    def _post(self) -> Post:
        return self._rng.choice(self._crew.posts)

    def _kill_copier(self) -> None:
        self._post().kill()

    def _replace_copier(self) -> None:
        self._post().replace_frozen(self._rng.uniform(0.5, 2.0))

    def _kill_leader(self) -> None:
        target = self._rng.choice(list(self._targets.values()))
        partition = self._rng.randrange(self.plan.partitions)
        self._kill(self.cluster.wait_for_leader(target, partition))

    def _kill(self, node_id: int) -> None:
        """kill -9, and back again; the next fault waits until nothing of it is left."""
        victim = self.cluster.broker(node_id)
        victim.kill()
        time.sleep(self._rng.uniform(0.0, 3.0))
        victim.start()
        self._settle()

    def _freeze_coordinator(self) -> None:
        """For longer than a session: others coordinate meanwhile, and it must find out."""
        with self.cluster.broker(self._coordinator(_TRANSACTION)).paused():
            time.sleep(self._rng.uniform(1.0, 4.0))
        self._settle()

    def _settle(self) -> None:
        for topic in (*_INTERNAL, *self._targets.values()):
            self.cluster.wait_for_isr(topic, timeout_s=60)

    def _coordinator(self, kind: int) -> int:
        """Who coordinates a copier, or its group, now."""
        job = self._post().job
        key = job.name if kind == _TRANSACTION else job.group
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])

        def found() -> int | None:
            for broker in self.cluster.brokers:
                if broker.answers:
                    with Wire(str(broker.listens_on)) as wire:
                        [answer] = wire.ask(request).coordinators
                    if answer.error_code == 0:
                        node_id: int = answer.node_id
                        return node_id
            return None

        return self.cluster.wait_until(found, 30, f"a coordinator of {key}")

    # -- after

    def _look(self, report: Report) -> None:
        """Read everything by every client, and require that nothing is open or differs."""
        self._settle()
        servers = self.cluster.bootstrap_servers
        for client, target in self._targets.items():
            self._wait_until_stable(target)
            values = READERS[client](servers, target, self._counts)
            report.findings[client] = total(
                judge(values[entry], count) for entry, count in self._counts.items()
            )
            for partition in self._counts:
                records = read_all(self._address_of(target, partition), target, partition)
                report.doomed += sum(is_doomed(record.value) for record in records)
            wait_until_identical(self.cluster, target, self.plan.partitions)
        for broker in self.cluster.brokers:
            if "Traceback (most recent call last)" in broker.log:
                raise AssertionError(broker.log)

    def _wait_until_stable(self, topic: str) -> None:
        """No transaction stays open once its copier has gone: the timeout ends it."""
        deadline = Deadline(_STABLE_S)
        for partition in self._counts:
            with Wire(self._address_of(topic, partition)) as wire:
                while True:
                    end = list_offset(wire, topic, LATEST, partition)
                    stable = list_offset(wire, topic, LATEST, partition, committed=True)
                    if end == stable:
                        break
                    assert not deadline.has_passed, (
                        f"{topic}-{partition} is stable up to {stable} of {end}"
                    )
                    time.sleep(0.1)

    def _address_of(self, topic: str, partition: int) -> str:
        return str(self.cluster.broker(self.cluster.leader_of(topic, partition)).listens_on)


def watcher_ok(watcher: Watcher) -> None:
    assert watcher.violations == [], watcher.violations[:10]


def require_exact(report: Report, records: int) -> None:
    """Every client copied each record once."""
    for client, findings in report.findings.items():
        assert findings.problems == {}, (client, findings)
        assert findings.copied == records, (client, findings)
    # Otherwise it was not shown that aborted ones are never read.
    assert report.doomed > 0
