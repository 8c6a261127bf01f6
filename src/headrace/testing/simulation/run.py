"""One run from a seed: a cluster, clients, faults; then healing and the final checks."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from headrace import aio
from headrace.client.admin.topics import NewTopic
from headrace.errors import HeadraceError
from headrace.storage.data_directory import DELETE_SUFFIX, parse_log_name
from headrace.storage.segment import LOG_SUFFIX
from headrace.testing.simulation.committed_records import CommittedUnit, Copies
from headrace.testing.simulation.faults import Faults
from headrace.testing.simulation.history import History, Violation
from headrace.testing.simulation.hosts import Host, Simulation
from headrace.testing.simulation.invariants import (
    Invariants,
    check_durable,
    check_images_equal,
    check_log_files,
    check_log_starts,
    check_lookups,
    check_replicas_equal,
)
from headrace.testing.simulation.loop import Deadlock, LimitExceeded
from headrace.testing.simulation.recreated_topics import RecreatedTopics
from headrace.testing.simulation.simulated_cluster import DATA, SimulatedCluster
from headrace.testing.simulation.transactional_workload import TransactionalWorkload, epochs_up_to
from headrace.testing.simulation.trimmed_topic import TrimmedTopic
from headrace.testing.simulation.workload import Workload
from headrace.types import TopicPartition

# A file that is rebuilt has lost nothing.
_LOSS = re.compile(r"\b(lost|missing|damaged?)\b")


def reports_loss(line: str, partition: str) -> bool:
    """Whether a line of a broker's log reports lost or damaged records of a partition."""
    named = re.search(rf"(?<![\w.-]){re.escape(partition)}(?![\w-])", line)
    return named is not None and _LOSS.search(line) is not None


class LogLines(logging.Handler):
    """Keeps log lines at WARNING or above while `caught` is active."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def report_loss(self, partition: str) -> bool:
        """Whether a line reports lost records of a partition."""
        return any(reports_loss(line, partition) for line in self.lines)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Capture warnings even if logging is disabled, without showing more than otherwise."""
        logger = logging.getLogger("headrace")
        disabled, propagates = logger.manager.disable, logger.propagate
        logger.addHandler(self)
        logger.propagate = propagates and disabled < logging.WARNING
        logging.disable(min(disabled, logging.INFO))
        try:
            yield
        finally:
            logging.disable(disabled)
            logger.propagate = propagates
            logger.removeHandler(self)


TOPIC = "orders"
_READY_S, _SETTLED_S = 60.0, 30.0
_RUN_S_MAX = 600.0
_HARMLESS_TO_PRODUCERS = frozenset(("slow", "reset", "clog"))


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run; `of_seed` draws one."""

    brokers: int = 3
    partitions: int = 2
    producers: int = 2
    seconds: float = 12.0
    # The mean pause between bursts of records, and if different, between transactions.
    pause_s: float = 0.05
    transaction_pause_s: float | None = None
    # Clients that work in transactions; rivals are two hosts under one transactional id.
    tellers: int = 0
    copiers: int = 0
    rivals: bool = False
    # Tellers abort a transaction right after each commit.
    hasty: bool = False
    transaction_version: int = 2
    # The epoch at which a producer id is used up; None if it is 32767.
    epoch_max: int | None = None
    mean_gap_s: float = 0.7
    # Flush before acknowledging; then power may be lost anywhere and at any time.
    durable: bool = False
    kinds: Sequence[str] | None = None
    # A topic is deleted and created again repeatedly, under a group that commits offsets for it.
    recreates: bool = False
    # A client deletes the oldest records of a topic that it writes to.
    trims: bool = False
    # The time that topics stay without records, while there are faults already.
    unused_s: float = 0.0
    # The time after healing until the cluster must be whole.
    healed_s: float = 60.0
    settings: Mapping[str, str] | None = None
    # Power is lost anywhere, files are damaged, disks are full, fail or are slow.
    damage: bool = False
    # Only these kinds of files, of those in `damage.kind_of`.
    damage_kinds: Sequence[str] | None = None
    # Producers with five small batches in flight, and records with timestamps of long ago.
    eager: bool = False
    old_timestamps: bool = False
    # Topics are encrypted at rest, under data keys that are replaced all the time.
    encrypted: bool = False

    @classmethod
    def of_damage(cls, seed: int | str) -> "RunPlan":
        """A plan in which disks lose and damage data.

        Unless everything is flushed before it is acknowledged, records may truly be lost; the
        effect on transactions and copies is not modelled, so there are none then.
        """
        rng = Random(f"{seed}/damage")
        plan = cls.of_seed(seed)
        plan = replace(
            plan,
            damage=True,
            trims=False,
            durable=rng.random() < 0.5,
            eager=rng.random() < 0.3,
            old_timestamps=rng.random() < 0.3,
            unused_s=Random(f"{seed}/unused").choice((0.0, 0.0, 2.0)),
            settings={
                **(plan.settings or {}),
                "log.retention.ms": "-1",
            },
        )
        return plan if plan.durable else replace(plan, tellers=0, copiers=0, recreates=False)

    @classmethod
    def of_seed(cls, seed: int | str) -> "RunPlan":
        rng = Random(f"{seed}/plan")
        partitions, producers = rng.randint(1, 3), rng.randint(1, 2)
        trims = Random(f"{seed}/trims")
        seconds, pause_s = rng.uniform(6, 14), 10 ** rng.uniform(-1.7, -0.4)
        return cls(
            partitions=partitions,
            producers=producers,
            seconds=seconds,
            pause_s=pause_s,
            # A transaction is as much work for the brokers as dozens of records.
            transaction_pause_s=min(3 * pause_s, 0.4),
            mean_gap_s=rng.uniform(0.3, 1.5),
            durable=rng.random() < 0.3,
            tellers=rng.choice((0, 1, 2)),
            copiers=rng.choice((0, 1, 2)),
            rivals=rng.random() < 0.3,
            transaction_version=rng.choice((1, 2, 2)),
            hasty=Random(f"{seed}/haste").random() < 0.5,
            epoch_max=Random(f"{seed}/epochs").choice((None, None, 4)),
            settings={
                "log.roll.ms": str(rng.choice((700, 3000, 600_000))),
                "replica.lag.time.max.ms": str(rng.choice((800, 2000, 10_000))),
                # Compact the coordinators' topics all the time, or hardly ever.
                "log.cleaner.backoff.ms": str(rng.choice((200, 15_000))),
                "log.cleaner.min.cleanable.ratio": str(rng.choice((0.01, 0.5))),
                "log.cleaner.delete.retention.ms": str(rng.choice((300, 86_400_000))),
                # Remove the segments of deleted records at once, or not at all.
                "log.retention.check.interval.ms": str(trims.choice((300, 300_000))),
            },
            recreates=rng.random() < 0.4,
            encrypted=Random(f"{seed}/encryption").random() < 0.25,
            trims=trims.random() < 0.3,
        )

    def broker_settings(self) -> dict[str, str]:
        durable = {"log.flush.interval.messages": "1"} if self.durable else {}
        encrypted = {}
        if self.encrypted:
            encrypted = {
                "encryption.enable": "true",
                "encryption.data.key.max.age.ms": "1000",
            }
        return {**(self.settings or {}), **durable, **encrypted}


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run; `problem` is empty if all checks passed."""

    seed: int | str
    problem: str
    trace_hash: str
    trace: Sequence[str]
    virtual_s: float
    cpu_s: float
    events: int
    acknowledged: int
    failed: int
    faults: int
    stopped: Sequence[str]
    # Descriptions of the damage, and the number of committed units that all disks have lost.
    damage: Sequence[str] = ()
    lost: int = 0


class SimulationRun:
    """A simulation of one plan."""

    def __init__(
        self, seed: int | str, plan: RunPlan | None = None, *, trace: bool = False
    ) -> None:
        self.plan = plan or RunPlan.of_seed(seed)
        self.simulation = Simulation(seed, trace=trace)
        self.history = History()
        self.cluster = SimulatedCluster(
            self.simulation, self.plan.brokers, self.plan.broker_settings()
        )
        copies = self.copies = Copies() if self.plan.damage else None
        if copies is not None:
            self.history.holders = copies.holders
        self.invariants = Invariants(self.cluster, copies, durable=self.plan.durable)
        self.log_lines = LogLines()
        self.workload = Workload(
            self.history,
            self.cluster.bootstrap_servers,
            TOPIC,
            self.plan.partitions,
            self.plan.pause_s,
            eager=self.plan.eager,
            old_timestamps=self.plan.old_timestamps,
        )
        numbers = range(1, self.plan.producers + 1)
        self.producers = [
            self.simulation.host(f"p{number}", self.workload.produce) for number in numbers
        ]
        self.clients = list(self.producers)
        self.clients.append(self.simulation.host("c1", self.workload.consume))
        self.transactions = TransactionalWorkload(
            self.cluster,
            TOPIC,
            self.plan.partitions,
            self.plan.transaction_pause_s or self.plan.pause_s,
            tellers=self.plan.tellers,
            copiers=self.plan.copiers,
            rivals=self.plan.rivals,
            hasty=self.plan.hasty,
            version_max=self.plan.transaction_version,
            epoch_max=self.plan.epoch_max,
            done_s=self.plan.healed_s,
        )
        self.clients += self.transactions.hosts
        self.recreated = RecreatedTopics(self.cluster, self.plan.pause_s, self.plan.recreates)
        self.trimmed = TrimmedTopic(self.cluster, self.plan.pause_s, self.plan.trims)
        self.clients += self.recreated.hosts + self.trimmed.hosts
        self.faults = Faults(
            self.cluster,
            self.clients,
            killable_clients=self.transactions.writers,
            kinds=self.plan.kinds,
            mean_gap_s=self.plan.mean_gap_s,
            durable=self.plan.durable,
            transaction_version=self.plan.transaction_version,
            copies=copies,
            damage_kinds=self.plan.damage_kinds,
        )
        self.recreated.watch(self.faults)
        self._deleted: list[str] = []
        for host in self.cluster.hosts:
            host.disk.on_rename = partial(self._renamed, host)
        # With other faults a coordinator may have forgotten an epoch, or a request is duplicated.
        is_harmless = set(self.faults.kinds) <= _HARMLESS_TO_PRODUCERS
        self.transactions.is_fencing_wrong = is_harmless and not self.plan.rivals

    def outcome(self) -> RunOutcome:
        """Run it to its end."""
        simulation, loop = self.simulation, self.simulation.loop
        problem = ""
        began = time.process_time()
        try:
            with (
                self.invariants.watching(),
                self.log_lines.caught(),
                epochs_up_to(self.plan.epoch_max),
            ):
                simulation.run(self._drive(), time_max=_RUN_S_MAX)
        except (Violation, ExceptionGroup, HeadraceError, Deadlock, LimitExceeded) as error:
            problem = f"{type(error).__name__}: {error}"
        if loop.errors:
            problem = "; ".join([problem, *loop.errors[:3]]) if problem else loop.errors[0]
        return RunOutcome(
            seed=simulation.seed,
            problem=problem,
            trace_hash=loop.trace.hash(),
            trace=loop.trace.lines or (),
            virtual_s=simulation.now,
            cpu_s=time.process_time() - began,
            events=loop.events,
            acknowledged=len(self.history.acknowledged),
            failed=len(self.history.failed),
            faults=self.faults.count,
            stopped=tuple(self.cluster.fatal),
            damage=tuple(self.faults.damage),
            lost=sum(map(len, self._lost().values())),
        )

    def _renamed(self, host: Host, old: str, new: str) -> None:
        """Record rewritten logs, and the deletion of logs of topics that are never deleted."""
        if self.copies is not None:
            self.copies.renamed(host.name, old.removeprefix(f"{DATA}/"))
        topics = (TOPIC, *(topic.name for topic in self.transactions.topics()))
        partition = parse_log_name(old.removeprefix(f"{DATA}/"))
        if partition is None or partition.topic not in topics or not new.endswith(DELETE_SUFFIX):
            return
        files = host.disk.files(new)
        if any(node.cache for path, node in files if path.endswith(LOG_SUFFIX)):
            self._deleted.append(f"{host.name} deleted its log of {partition} at {new}")

    async def _drive(self) -> None:
        cluster = self.cluster
        cluster.start()
        if not await cluster.whole(_READY_S):
            raise Violation(f"the cluster does not start: {cluster.missing()}")
        await self._create_topics()
        if self.plan.unused_s:
            used_from = self.simulation.now + self.plan.unused_s
            self.simulation.loop.schedule(used_from, self._start_clients)
        else:
            self._start_clients()
        await self.faults.run(self.plan.seconds, self._slow_down)
        self.transactions.clients.calm_down()
        healed_s = self.plan.healed_s
        if not await cluster.whole(healed_s):
            raise Violation(f"not whole {healed_s:.0f} s after healing: {cluster.missing()}")
        await self.workload.probe("probe")
        await self._group_reads("probe")
        await self.transactions.probe()
        self.workload.stop = self.recreated.stop = self.trimmed.stop = True
        await self._clients_done(self.producers)
        await self.transactions.finish(await self.workload.read_all())
        await self._clients_done(self.clients)
        await self._settle()
        self.recreated.check()
        await self.trimmed.check()
        self.history.check(await self.workload.read_all())
        if self._deleted:
            raise Violation(self._deleted[0])
        if self.copies is not None:
            self._check_reports()

    def _lost(self) -> Mapping[TopicPartition, Sequence[CommittedUnit]]:
        """The records that faults took from all disks, internal topics aside."""
        lost = {} if self.copies is None else self.copies.lost()
        return {name: units for name, units in lost.items() if not name.topic.startswith("__")}

    def _check_reports(self) -> None:
        """Check that a broker has reported every loss of records."""
        for partition, units in self._lost().items():
            if not self.log_lines.report_loss(str(partition)):
                first = min(units)
                raise Violation(
                    f"{partition} has lost {len(units)} batches from offset {first.offset} on, and"
                    " no broker has said so"
                )

    async def _create_topics(self) -> None:
        servers = self.cluster.bootstrap_servers
        async with aio.Admin(bootstrap_servers=servers, client_id="admin") as admin:
            topics = [NewTopic(TOPIC, self.plan.partitions, self.plan.brokers)]
            await admin.create_topics(topics + self.transactions.topics() + self.trimmed.topics())

    def _start_clients(self) -> None:
        for client in self.clients:
            if client.process is None:
                client.start()

    def _slow_down(self) -> None:
        """Slow the clients down: no more faults begin, and the present ones are watched."""
        self.workload.calm_down()
        self.transactions.clients.slow_down()
        self.recreated.calm_down()
        self.trimmed.calm_down()

    async def _group_reads(self, producer: str) -> None:
        """Wait until the group has read all acknowledged records of a producer."""
        until = self.simulation.now + _SETTLED_S
        while unseen := self.history.unseen(producer):
            if self.simulation.now > until:
                raise Violation(f"the group does not read after healing: {unseen}")
            await asyncio.sleep(0.2)

    async def _clients_done(self, clients: Sequence[Host]) -> None:
        until = self.simulation.now + _SETTLED_S
        while any(client.process is not None for client in clients):
            if self.simulation.now > until:
                running = [client.name for client in clients if client.process is not None]
                raise Violation(f"clients do not end: {running}")
            await asyncio.sleep(0.1)

    async def _settle(self) -> None:
        """Wait until followers equal their leaders, to the byte, and everything is flushed."""
        until = self.simulation.now + _SETTLED_S
        while problem := self._unsettled():
            if self.simulation.now > until:
                raise Violation(problem)
            await asyncio.sleep(0.2)
        problem = check_log_files(self.cluster)
        if self.plan.damage:
            problem = problem or check_lookups(self.cluster)
        if problem:
            raise Violation(problem)

    def _unsettled(self) -> str | None:
        problem = check_replicas_equal(self.cluster) or check_images_equal(self.cluster)
        if (self.plan.settings or {}).get("log.retention.ms") == "-1":
            problem = problem or check_log_starts(self.cluster)
        # After a failed flush the kernel considers pages flushed that never were.
        if self.plan.durable and "failing_disk" not in self.faults.kinds:
            problem = problem or check_durable(self.cluster)
        return problem
