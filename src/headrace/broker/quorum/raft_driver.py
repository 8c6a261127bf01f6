"""The driver of the consensus core: its files, its timer, its requests to the other voters.

Rule: one call of the core at a time, and all its effects before the next. A message is sent only
when the state that it promises is on stable storage; if that fails, the node stops acting.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from headrace.broker.quorum import wire
from headrace.broker.quorum.peers import QuorumPeers
from headrace.broker.thread_pools import ThreadPools
from headrace.clock import Clock
from headrace.errors import HeadraceError, KafkaError, StorageError
from headrace.metadata.records import MetadataError, encode_control_batch
from headrace.net.client_connection import ConnectionFailed, NoAnswer
from headrace.protocol.batch import BatchHeader, scan_headers
from headrace.protocol.messages.quorum_records import KRaftVersionRecord
from headrace.protocol.schema import Message
from headrace.raft.messages import (
    FetchRequest,
    OffsetAndEpoch,
    RaftEffects,
    RaftRole,
    Request,
    Voters,
)
from headrace.raft.raft_node import RaftNode
from headrace.storage.metadata_log import MetadataLog, QuorumStateFile, voters_in_batches
from headrace.tasks import TaskScope
from headrace.types import Buffer

# Stalls of this process, which must not be mistaken for silence of the other nodes.
#
# A process that the machine did not let run for a second has received nothing for a second,
# although messages wait unread in its sockets. Such stalls postpone the deadlines of the consensus
# core.


class StallMeter:
    """The delay of calls that the shell has to make every `interval_ms`.

    The interval itself is never deducted. So even in a process that hardly runs, each call counts
    as an interval of silence, and a leader that is gone is noticed after a fixed number of calls.
    """

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        # The time of the next call; None before the first call.
        self.due_ms: int | None = None

    def stall_ms(self, now_ms: int) -> int:
        """The milliseconds by which this call is late."""
        late_ms = 0 if self.due_ms is None else max(now_ms - self.due_ms, 0)
        self.due_ms = now_ms + self.interval_ms
        return late_ms


logger = logging.getLogger(__name__)

_TIMER_SECONDS_MIN = 0.001

# The level of the feature `kraft.version` once the voters are in the log (KIP-853).
KRAFT_VERSION = 1


class FetchedBatches(NamedTuple):
    """Whole, sound batches that a leader sent."""

    data: Buffer
    headers: list[BatchHeader]


class RaftDriver:
    """The core with its log and its quorum state. Used on the event loop's thread only.

    `pulse_ms` is the longest time between two ticks of the core while it waits for other nodes, so
    that a stall of this process is noticed. `on_change` is called when leadership or the high
    watermark may have changed, `fetch_if_due` after every call of the core.
    """

    def __init__(
        self,
        node: RaftNode,
        log: MetadataLog,
        state_file: QuorumStateFile,
        peers: QuorumPeers,
        voter_history: list[tuple[int, Voters]],
        *,
        node_id: int,
        cluster_id: str | None,
        request_seconds: float,
        pulse_ms: int,
        clock: Clock,
        workers: ThreadPools,
        on_fatal: Callable[[HeadraceError], None],
    ) -> None:
        self.node = node
        self.log = log
        self.peers = peers
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.clock = clock
        self.workers = workers
        self.failure: HeadraceError | None = None
        self.closed = False
        self.is_short = False
        # The high watermark in the first response of another leader.
        self.first_high_watermark: int | None = None
        self.news = asyncio.Event()
        self.voter_history = voter_history
        self.on_change: Callable[[], None] = lambda: None
        self.fetch_if_due: Callable[[], None] = lambda: None
        self.on_snapshot: Callable[[OffsetAndEpoch], None] = lambda _: None
        self._state_file = state_file
        self._recovering = node.hard_state.recovering
        self._request_seconds = request_seconds
        self._on_fatal = on_fatal
        self._timer: asyncio.TimerHandle | None = None
        self._stalls = StallMeter(pulse_ms)
        self._tasks = TaskScope("quorum")
        # In the order of their start: a simulated run must end them in the same order each time.
        self._asking: dict[asyncio.Task[None], None] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._notified_state: tuple[RaftRole, int, int] | None = None

    def now_ms(self) -> int:
        """The core's time; a stall of this process is reported to the core first."""
        now_ms = int(self.clock.monotonic() * 1000)
        stall_ms = self._stalls.stall_ms(now_ms)
        if stall_ms:
            self.node.stalled(stall_ms)
        return now_ms

    @property
    def is_down(self) -> bool:
        """Whether this node has failed or was closed, and takes no part in the quorum."""
        return self.failure is not None or self.closed

    def begin(self) -> None:
        """Start the core."""
        self.perform(self.node.tick(self.now_ms()))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the driver at the latest."""
        return self._tasks.start(work)

    async def close(self) -> None:
        """End every task, once the flush under way has ended."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.wake_fetches()
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        await self._tasks.close()
        self.peers.close()

    @property
    def kraft_version(self) -> int:
        """The level of `kraft.version`: 1 if the voters are in the log, else 0."""
        return KRAFT_VERSION if self.voter_history else 0

    def voters_before(self, end_offset: int) -> Voters | None:
        """The voters in the last voters record before `end_offset`; None without one."""
        for offset, voters in reversed(self.voter_history):
            if offset < end_offset:
                return voters
        return None

    async def wait_for_requests(self, seconds: float) -> None:
        """Return when requests to other voters have ended, or after `seconds`."""
        if self._asking:
            await asyncio.wait(list(self._asking), timeout=seconds)

    def fail(self, error: HeadraceError) -> None:
        """Leave the quorum for good: this node can no longer keep its promises."""
        if self.failure is not None:
            return
        self.failure = error
        logger.critical("this node leaves the quorum of controllers: %s", error)
        if self._timer is not None:
            self._timer.cancel()
        self.wake_fetches()
        self.on_change()
        self._on_fatal(error)

    def wake_fetches(self) -> None:
        """Wake the parked fetches of the metadata log."""
        news, self.news = self.news, asyncio.Event()
        news.set()

    # -- effects

    def perform(self, effects: RaftEffects, fetched: FetchedBatches | None = None) -> None:
        """Carry out effects, and schedule the next fetch and tick. Does nothing after a failure."""
        if self.is_down:
            return
        try:
            self._carry_out(effects, fetched)
        except (StorageError, KafkaError, MetadataError) as error:
            self.fail(error)
            return
        self._notify_if_changed()
        self.schedule_next()

    def schedule_next(self) -> None:
        """Begin the fetch that is due, if any, and set the timer."""
        if self.is_down:
            return
        self.fetch_if_due()
        self._arm_timer()

    def _carry_out(self, effects: RaftEffects, fetched: FetchedBatches | None = None) -> None:
        if effects.hard_state is not None:
            self._state_file.write(effects.hard_state)
            if self._recovering and not effects.hard_state.recovering:
                logger.info("the metadata log is whole again: this node votes")
            self._recovering = effects.hard_state.recovering
        if effects.truncate_to is not None:
            logger.info("the metadata log is truncated to offset %d", effects.truncate_to)
            self.log.truncate_to(effects.truncate_to)
            while self.voter_history and self.voter_history[-1][0] >= self.log.end_offset:
                self.voter_history.pop()
            self._carry_out(self.node.truncated(self.now_ms()))
        if effects.append and fetched is not None and fetched.headers:
            self._append_fetched(fetched)
        if effects.lead is not None:
            logger.info("leading the quorum of controllers in epoch %d", effects.lead.epoch)
            self._append_control(wire.leader_change(self.node_id, effects.lead))
            self._appended()
        if effects.append_voters is not None:
            self._append_voters(effects.append_voters)
        if effects.fetch_snapshot is not None:
            self.on_snapshot(effects.fetch_snapshot)
        for node_id, request in effects.requests:
            task = self.spawn(self._exchange(node_id, request))
            self._asking[task] = None
            task.add_done_callback(self._asking.pop)
        if effects.wake_fetches:
            self.wake_fetches()

    def append_records(self, batch: bytearray) -> None:
        """Append a batch of records as the leader. KafkaError if the disk does not take it."""
        try:
            self._append(batch)
        except KafkaError as error:
            if self.log.log.offline is not None:
                self.fail(error)
            raise
        self.flush_later()
        self.perform(self.node.appended(self.now_ms()))
        self.wake_fetches()

    def _append_control(self, *messages: Message) -> None:
        self._append(encode_control_batch(messages, self.clock.now_ms()))

    def _append(self, batch: bytearray) -> None:
        self.log.log.append(batch, scan_headers(batch), self.node.epoch, self.clock.now_ms())

    def _append_voters(self, voters: Voters) -> None:
        voters = tuple(self.peers.with_own_endpoints(voter) for voter in voters)
        offset = self.log.end_offset
        # The first record of the voters is where `kraft.version` 1 begins.
        begins = () if self.voter_history else (KRaftVersionRecord(k_raft_version=KRAFT_VERSION),)
        self._append_control(*begins, wire.voters_record(voters))
        self._voters_appended(offset, voters)
        self._appended()

    def _voters_appended(self, offset: int, voters: Voters) -> None:
        self.voter_history.append((offset, voters))
        self._carry_out(self.node.voters_appended(offset, voters, self.now_ms()))

    def _append_fetched(self, fetched: FetchedBatches) -> None:
        try:
            self.log.log.append_replicated(fetched.data, fetched.headers, self.clock.now_ms())
        except KafkaError as error:
            if self.log.log.offline is not None:
                raise
            # The disk is full. The records were not acknowledged, and will be fetched again.
            logger.error("the metadata log cannot be written: %s", error)
            self.is_short = True
            return
        self.is_short = False
        for offset, record in voters_in_batches(fetched.data, fetched.headers):
            self._voters_appended(offset, wire.voters_in(record))
        self._appended()

    def _appended(self) -> None:
        self.flush_later()
        self._carry_out(self.node.appended(self.now_ms()))
        self.wake_fetches()

    def _notify_if_changed(self) -> None:
        """Call `on_change` if the role, the epoch or the high watermark is new."""
        state = (self.node.role, self.node.epoch, self.node.high_watermark)
        if state != self._notified_state:
            self._notified_state = state
            self.on_change()

    # -- the disk

    @property
    def is_flushing(self) -> bool:
        return self._flushing is not None

    def flush_later(self) -> None:
        """Flush the log in a worker thread, unless that is under way."""
        if self._flushing is None and not self.is_down:
            self._flushing = self._tasks.start(self._flush(), "flush")

    async def wait_until_flushed(self) -> None:
        """Return when no flush is under way: all records are on disk, or the node has failed."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush(self) -> None:
        log = self.log.log
        try:
            await self.workers.flush(log.flush)
        except KafkaError as error:
            self._flushing = None
            self.fail(error)
            return
        self._flushing = None
        if log.recovery_point < log.log_end_offset:
            self.flush_later()
        self.perform(self.node.flushed(log.recovery_point, self.now_ms()))

    # -- time, and requests to others

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self.node.deadline_ms
        if deadline_ms is not None:
            now_ms = self.now_ms()
            wait_ms = min(deadline_ms - now_ms, self._stalls.interval_ms)
            seconds = max(wait_ms / 1000, _TIMER_SECONDS_MIN)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.is_down:
            self.perform(self.node.tick(self.now_ms()))

    async def _exchange(self, node_id: int, request: Request) -> None:
        message = wire.encode_request(
            request, self.peers.voter(node_id), self.peers.own, self.cluster_id
        )
        try:
            async with asyncio.timeout(self._request_seconds):
                answer = await self.peers.link(node_id, "quorum").ask(
                    message, self._request_seconds
                )
            response, addresses = wire.decode_response(answer)
        except (HeadraceError, TimeoutError) as error:
            self.request_failed(node_id, request, error)
            return
        self.peers.learn(response.leader_id, addresses.get(response.leader_id))
        self.perform(self.node.answered(node_id, request, response, self.now_ms()))

    def request_failed(
        self, node_id: int, request: Request | FetchRequest, error: Exception
    ) -> None:
        """Notify the core that a request will not be answered."""
        logger.debug("node %d did not answer: %s", node_id, error)
        if self.is_down:
            return
        self.peers.note_failure(node_id)
        refused = isinstance(error, ConnectionFailed) and not isinstance(error, NoAnswer)
        self.perform(self.node.failed(node_id, request, self.now_ms(), refused=refused))
