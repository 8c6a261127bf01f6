"""A cluster of cores on one event queue: no sockets, no threads, and a clock that jumps.

Everything that happens follows from the seed: messages are late, lost or come twice, links are cut,
nodes crash and lose what they had not flushed, or all they had. What must never happen is looked
for after every event, and raises AssertionError.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from headrace.errors import ErrorCode
from headrace.raft.messages import (
    BOOTSTRAP,
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    HardState,
    OffsetAndEpoch,
    RaftEffects,
    RaftRole,
    RaftSettings,
    Voter,
    VoteRequest,
    Voters,
)
from headrace.raft.raft_node import RaftNode
from tests.unit.raft.memory import Entry, MemoryLog

SETTINGS = RaftSettings()
REQUEST_TIMEOUT_MS = 1000
PARKED_MS = 500
READ_MAX = 3


@dataclass(slots=True)
class Faults:
    """What the network does."""

    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    late_ms: int = 800
    cuts: set[tuple[int, int]] = field(default_factory=set)


class Parked:
    """A fetch that waits for news, and how to answer it."""

    def __init__(self, request: FetchRequest, reply: Callable[[Any], None]) -> None:
        self.request = request
        self.reply = reply


class Process:
    """A node with its disk. The disk outlives a crash, the rest does not."""

    def __init__(self, cluster: "Cluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.directory_id = bytes([node_id]) * 16
        self.log = MemoryLog()
        self.hard_state: HardState | None = None
        self.raft: RaftNode | None = None
        self.incarnation = 0
        self.high_watermark = -1
        self.was_leader = False
        self.parked: list[Parked] = []
        self.flushing = False
        self.tick_at: int | None = None
        # What those that wait for an answer are told when the process dies.
        self.connections: list[Callable[[], None]] = []

    @property
    def node(self) -> RaftNode:
        assert self.raft is not None
        return self.raft

    def start(self) -> None:
        cluster = self.cluster
        history: list[tuple[int, Voters]] = []
        if self.log.snapshot is not None and self.log.snapshot_voters is not None:
            history.append((self.log.snapshot.offset - 1, self.log.snapshot_voters))
        for offset, entry in enumerate(self.log.entries, self.log.start_offset):
            if isinstance(entry.value, tuple):
                history.append((offset, entry.value))
        self.raft = cluster.node_class(
            SETTINGS,
            self.node_id,
            self.directory_id,
            cluster.configured,
            self.hard_state,
            self.log,
            Random(cluster.rng.random()),
            cluster.now,
            history,
        )
        self.incarnation += 1
        self.high_watermark = -1
        self.was_leader = False
        self.parked = []
        self.flushing = False
        self.tick_at = None
        self.do(lambda node: node.tick(cluster.now))

    def crash(self) -> None:
        self.raft = None
        connections, self.connections = self.connections, []
        for reset in connections:
            self.cluster.after(self.cluster.rng.randint(1, 5), reset)
        self.log.crash(self.cluster.rng.randint(self.log.flushed_offset, self.log.end_offset))

    def bounce(self) -> None:
        self.crash()
        self.start()

    def wipe(self) -> None:
        """Lose all data, while down."""
        assert self.raft is None
        self.log = MemoryLog()
        self.hard_state = None
        self.directory_id = bytes([self.node_id, self.incarnation % 256]) * 8

    def lose_log(self) -> None:
        """Find the log damaged, while down, and set it aside; the quorum state is kept."""
        assert self.raft is None and self.hard_state is not None
        self.log = MemoryLog()
        self.hard_state = self.hard_state._replace(may_vote=False, recovering=True)

    def lose_quorum_state(self) -> None:
        """Find the quorum state gone, while down; the log is kept."""
        assert self.raft is None
        self.hard_state = None

    def snapshot(self) -> None:
        """Take one of all that is committed."""
        voters: Voters | None = self.log.snapshot_voters
        for offset in range(self.log.start_offset, self.high_watermark):
            value = self.log.at(offset).value
            voters = value if isinstance(value, tuple) else voters
        self.log.take_snapshot(self.high_watermark, voters)

    # The shell's part.

    def do(
        self, call: Callable[[RaftNode], RaftEffects], records: list[Entry] | None = None
    ) -> None:
        self.perform(call(self.node), records or [])
        self.look_around()

    def perform(self, effects: RaftEffects, records: list[Entry]) -> None:
        now = self.cluster.now
        if effects.hard_state is not None:
            self.cluster.persist(self, effects.hard_state)
        if effects.truncate_to is not None:
            self.log.truncate_to(effects.truncate_to)
            self.perform(self.node.truncated(now), [])
        if effects.append and records:
            self.append(records)
        if effects.lead is not None:
            self.append([Entry(effects.lead.epoch, "leader")])
        if effects.append_voters is not None:
            self.append([Entry(self.node.epoch, effects.append_voters)])
        if effects.fetch_snapshot is not None:
            self.fetch_snapshot(effects.fetch_snapshot)
        for node_id, request in effects.requests:
            self.cluster.ask(self, node_id, request)
        if effects.wake_fetches:
            self.wake()

    def append(self, records: list[Entry]) -> None:
        for entry in records:
            offset = self.log.end_offset
            self.cluster.check_entry(self, offset, entry)
            self.log.append(entry)
            if isinstance(entry.value, tuple):
                self.perform(self.node.voters_appended(offset, entry.value, self.cluster.now), [])
        self.perform(self.node.appended(self.cluster.now), [])
        self.wake()
        if not self.flushing:
            self.flush()

    def flush(self) -> None:
        self.flushing = True
        end_offset = self.log.end_offset

        def done() -> None:
            self.flushing = False
            if self.log.end_offset > end_offset:
                self.flush()
            self.log.flushed_offset = end_offset
            self.do(lambda node: node.flushed(end_offset, self.cluster.now))

        self.cluster.after(self.cluster.rng.randint(0, 10), done, self)

    def look_around(self) -> None:
        wanted = self.node.next_fetch(self.cluster.now)
        if wanted is not None:
            self.cluster.ask(self, *wanted)
        deadline = self.node.deadline_ms
        if deadline is not None and (self.tick_at is None or deadline < self.tick_at):
            self.tick_at = deadline
            self.cluster.at(deadline, lambda: self.ticked(deadline), self)

    def ticked(self, deadline: int) -> None:
        if self.tick_at == deadline:
            self.tick_at = None
        self.do(lambda node: node.tick(self.cluster.now))

    def wake(self) -> None:
        parked, self.parked = self.parked, []
        for fetch in parked:
            self.answer_or_park(fetch, self.node.answer_fetch(fetch.request))

    def fetched(self, request: FetchRequest, reply: Callable[[Any], None]) -> None:
        response, effects = self.node.handle_fetch(request, self.cluster.now)
        self.perform(effects, [])
        fetch = Parked(request, reply)
        self.answer_or_park(fetch, response)
        if fetch in self.parked:
            self.cluster.after(PARKED_MS, lambda: self.unpark(fetch), self)

    def answer_or_park(self, fetch: Parked, response: FetchResponse) -> None:
        records: list[Entry] = []
        if response.records_follow:
            records = self.log.read(fetch.request.offset, self.cluster.rng.randint(1, READ_MAX))
            if not records and response.high_watermark <= fetch.request.high_watermark:
                self.parked.append(fetch)
                return
        fetch.reply((response, records))

    def unpark(self, fetch: Parked) -> None:
        if fetch in self.parked:
            self.parked.remove(fetch)
            response = self.node.answer_fetch(fetch.request)
            fetch.reply(
                (
                    response,
                    self.log.read(fetch.request.offset, self.cluster.rng.randint(1, READ_MAX)),
                )
            )

    def fetch_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """In one piece, from a leader that may be gone by then."""
        leader = self.cluster.processes[self.node.leader_id]

        def arrived() -> None:
            if self.node.wanted_snapshot != snapshot:
                return
            now = self.cluster.now
            reachable = leader.raft is not None and self.cluster.connected(self, leader)
            if not reachable or leader.log.snapshot != snapshot:
                self.do(lambda node: node.snapshot_failed(now))
                return
            error, effects = leader.node.handle_fetch_snapshot(self.node_id, self.node.epoch, now)
            leader.perform(effects, [])
            leader.look_around()
            if error is not ErrorCode.NONE:
                self.do(lambda node: node.snapshot_failed(now))
                return
            self.node.snapshot_piece(now)
            self.log.install(leader.log)
            voters = self.log.snapshot_voters
            self.do(lambda node: node.snapshot_installed(snapshot, voters, now))

        self.cluster.after(self.cluster.rng.randint(1, 50), arrived, self)

    def handle(self, request: Any, reply: Callable[[Any], None]) -> None:
        now = self.cluster.now
        match request:
            case FetchRequest():
                self.fetched(request, reply)
            case VoteRequest():
                response, effects = self.node.handle_vote(request, now)
                self.perform(effects, [])
                reply(response)
            case BeginEpochRequest():
                began, effects = self.node.handle_begin_epoch(request, now)
                self.perform(effects, [])
                reply(began)
            case EndEpochRequest():
                ended, effects = self.node.handle_end_epoch(request, now)
                self.perform(effects, [])
                reply(ended)
        self.look_around()


class Cluster:
    """Processes, the network between them, and the eye on all of them."""

    def __init__(
        self, seed: int, voters: int, observers: int = 0, node_class: type[RaftNode] = RaftNode
    ) -> None:
        self.rng = Random(seed)
        self.node_class = node_class
        self.now = 0
        self.faults = Faults()
        self.configured: Voters = tuple(Voter(node_id) for node_id in range(1, voters + 1))
        self.processes = {
            node_id: Process(self, node_id) for node_id in range(1, voters + observers + 1)
        }
        self.committed: list[Entry] = []
        self.events = 0
        self._queue: list[tuple[int, int, Callable[[], None], Process | None, int]] = []
        self._sequence = 0
        self._entries: dict[tuple[int, int], tuple[Any, int]] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        for process in self.processes.values():
            process.start()

    # The queue.

    def at(self, time: int, call: Callable[[], None], owner: Process | None = None) -> None:
        """Call later, unless the owner has crashed by then."""
        self._sequence += 1
        incarnation = owner.incarnation if owner is not None else 0
        heappush(self._queue, (max(time, self.now), self._sequence, call, owner, incarnation))

    def after(self, wait_ms: int, call: Callable[[], None], owner: Process | None = None) -> None:
        self.at(self.now + wait_ms, call, owner)

    def run(self, until: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen; True if `stop` did."""
        while not stop():
            if not self._queue or self._queue[0][0] > until:
                self.now = until
                return False
            self.now, _, call, owner, incarnation = heappop(self._queue)
            if owner is None or (owner.raft is not None and owner.incarnation == incarnation):
                self.events += 1
                call()
                self.check()
        return True

    # The network.

    def connected(self, one: Process, other: Process) -> bool:
        return (one.node_id, other.node_id) not in self.faults.cuts

    def _delay(self) -> int:
        if self.rng.random() < self.faults.late:
            return self.rng.randint(1, self.faults.late_ms)
        return self.rng.randint(1, 5)

    def ask(self, sender: Process, node_id: int, request: Any) -> None:
        """Deliver a request, perhaps twice, and its answer or its failure, once."""
        if node_id == BOOTSTRAP:
            node_id = self.rng.choice([voter.node_id for voter in self.configured])
        target = self.processes[node_id]
        open_ = [True]

        def end(
            call: Callable[[RaftNode], RaftEffects], records: list[Entry] | None = None
        ) -> None:
            if open_[0]:
                open_[0] = False
                if reset in target.connections:
                    target.connections.remove(reset)
                sender.do(call, records)

        def reply(answer: Any) -> None:
            response, records = answer if type(answer) is tuple else (answer, [])
            if self.connected(target, sender) and self.rng.random() >= self.faults.loss:
                self.after(
                    self._delay(),
                    lambda: end(
                        lambda node: node.answered(node_id, request, response, self.now), records
                    ),
                    sender,
                )

        def failed(refused: bool) -> None:
            end(lambda node: node.failed(node_id, request, self.now, refused=refused))

        incarnation = sender.incarnation

        def reset() -> None:
            if sender.raft is not None and sender.incarnation == incarnation:
                failed(True)

        def arrive() -> None:
            if target.raft is None:
                self.after(self._delay(), lambda: failed(True), sender)
            else:
                target.connections.append(reset)
                target.handle(request, reply)

        self.after(REQUEST_TIMEOUT_MS, lambda: failed(False), sender)
        copies = 2 if self.rng.random() < self.faults.twice else 1
        for _ in range(copies):
            if self.connected(sender, target) and self.rng.random() >= self.faults.loss:
                self.after(self._delay(), arrive)

    # What must hold.

    def persist(self, process: Process, hard_state: HardState) -> None:
        process.hard_state = hard_state

    def check_entry(self, process: Process, offset: int, entry: Entry) -> None:
        """Log matching: one record per offset and epoch, with one record before it (Raft §5.3)."""
        before = process.log.epoch_before(offset)
        assert before <= entry.epoch, (process.node_id, offset, before, entry)
        known = self._entries.setdefault((offset, entry.epoch), (entry.value, before))
        assert known == (entry.value, before), f"two records at {offset} of epoch {entry.epoch}"

    def check(self) -> None:
        for process in self.processes.values():
            if process.raft is not None:
                self._check_leader(process)
                self._check_high_watermark(process)

    def _check_leader(self, process: Process) -> None:
        node = process.node
        if node.role is not RaftRole.LEADER:
            process.was_leader = False
        elif not process.was_leader:
            process.was_leader = True
            who = (process.node_id, process.incarnation)
            assert self._leaders.setdefault(node.epoch, who) == who, f"two leaders in {node.epoch}"
            self._check_committed(process, 0, len(self.committed))

    def _check_high_watermark(self, process: Process) -> None:
        old, new = process.high_watermark, process.node.high_watermark
        if new == old:
            return
        assert new > old, f"the high watermark of {process.node_id} fell from {old} to {new}"
        process.high_watermark = new
        for offset in range(len(self.committed), new):
            self.committed.append(process.log.at(offset))
        self._check_committed(process, max(old, 0), new)

    def _check_committed(self, process: Process, start: int, end: int) -> None:
        log = process.log
        assert log.end_offset >= end, f"{process.node_id} lacks committed records"
        for offset in range(start, end):
            assert log.at(offset) == self.committed[offset], f"committed record {offset} changed"

    # What tests do.

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.raft is not None]

    @property
    def leader(self) -> Process | None:
        """The leader of the newest epoch."""
        leaders = [process for process in self.alive if process.node.is_leader]
        return max(leaders, key=lambda process: process.node.epoch, default=None)

    def write(self, value: int) -> bool:
        """Append at a leader, any leader: one that was replaced must not do harm."""
        leaders = [process for process in self.alive if process.node.is_leader]
        if not leaders:
            return False
        process = self.rng.choice(leaders)
        process.append([Entry(process.node.epoch, value)])
        process.look_around()
        self.check()
        return True

    def heal(self) -> None:
        self.faults = Faults()
        for process in self.processes.values():
            if process.raft is None:
                process.start()

    def agrees(self) -> bool:
        """Whether all have the same log, and know all of it to be committed."""
        ends = {process.log.end_offset for process in self.processes.values()}
        marks = {process.high_watermark for process in self.processes.values()}
        return self.leader is not None and ends == marks and len(ends) == 1
