"""The sender of a producer: batches to partition leaders, pipelined, in order, without duplicates.

Rule: everything happens in `pump`, on the loop's thread, and nothing polls. It is called when there
is a new batch, response, connection, metadata or producer id, and by the single timer, set for the
earliest end of lingering, retry pause or expiry.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from headrace.client.cluster import ClusterClient
from headrace.client.errors import Closed, check
from headrace.client.metrics import ProducerMetrics
from headrace.client.producer.accumulator import Accumulator, PartitionBuffer
from headrace.client.producer.batches import PartitionQueue, ProducerBatch, ProducerIdentity
from headrace.client.producer.produce_requests import (
    REQUEST_BYTES_MAX,
    InFlightProduce,
    ProduceResultHandler,
    answers,
    produce_request,
    queue_of,
    unanswered,
)
from headrace.client.producer.transaction_manager import PRODUCE_V1_MAX, TransactionManager
from headrace.client.producer_options import ProducerOptions
from headrace.errors import ErrorCode, HeadraceError, KafkaError, Subject, UnknownTopic
from headrace.net.client_connection import ClientConnection
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.metadata import MetadataRequest


class IdempotentIdentity:
    """The identity of an idempotent producer without transactions.

    `start` runs a coroutine; `answered` is called with the identity, or the error.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        start: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        answered: Callable[[HeadraceError | None], None],
    ) -> None:
        self.current: ProducerIdentity | None = None
        self._cluster = cluster
        self._start = start
        self._answered = answered
        self._request_task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Request an identity, unless a request is under way."""
        if self._request_task is None:
            self._request_task = self._start(self._request_identity())

    def lose(self, queue: PartitionQueue) -> None:
        """Renumber the batches of a partition.

        They get the next epoch: late requests of the present epoch are then refused.
        """
        if self.current is not None and queue.identity == self.current:
            self.current = self.current.next_epoch()
        queue.use_identity(None)

    async def _request_identity(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        error: HeadraceError | None = None
        try:
            response = await self._cluster.call(request, self._cluster.deadline())
            check(response.error_code, subject=Subject("asking for a producer id"))
            self.current = ProducerIdentity(response.producer_id, response.producer_epoch)
        except HeadraceError as caught:
            error = caught
        self._request_task = None
        self._answered(error)


class ProducerChannel:
    """The sender's channel to a broker. `ready` are the partitions that may have a batch to send.

    A channel without an open connection gets a task that opens one, once a partition is ready.
    """

    def __init__(self, node_id: int, in_flight_max: int) -> None:
        self.node_id = node_id
        self.connection: ClientConnection | None = None
        self.opening: asyncio.Task[None] | None = None
        self.draining: asyncio.Task[None] | None = None
        self.in_flight = 0
        self.ready: dict[PartitionBuffer, None] = {}
        self._in_flight_max = in_flight_max

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that works."""
        return self.connection is not None and self.connection.is_open

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        return self.in_flight < self._in_flight_max and self.draining is None

    def rotate(self, buffer: PartitionBuffer) -> None:
        """Move a partition behind the other ready ones."""
        del self.ready[buffer]
        self.ready[buffer] = None


# Produce requests that wait for replicas must not delay metadata requests.
LANE = "produce"

_log = logging.getLogger("headrace.producer")

# The precision of the timer.
_TICK_S = 0.001


class Sender:
    """Sends the accumulator's batches. For one event loop; `start` is called on it."""

    def __init__(
        self,
        cluster: ClusterClient,
        accumulator: Accumulator,
        options: ProducerOptions,
        metrics: ProducerMetrics,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._metrics = metrics
        self.transactor = (
            TransactionManager(cluster, accumulator, options, metrics, self)
            if options.transactional_id
            else None
        )
        self._identities = IdempotentIdentity(cluster, self.start, self._identified)
        self._settler = ProduceResultHandler(
            cluster, accumulator, options, metrics, self._identities.lose, self.transactor
        )
        self._buffers: dict[PartitionBuffer, None] = {}
        self._active: dict[PartitionBuffer, None] = {}
        self._postponed: dict[PartitionBuffer, None] = {}
        self._nameless: dict[PartitionBuffer, None] = {}
        self._unadded: dict[PartitionBuffer, None] = {}
        self._leaderless: dict[str, dict[PartitionBuffer, None]] = {}
        self._links: dict[int, ProducerChannel] = {}
        self._stale: dict[str, None] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._heard: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._is_stopped = False
        self._is_closed = False

    # -- for the producer

    async def load_topic(self, name: str, timeout_s: float) -> None:
        """Return when a topic's partitions are known; UnknownTopic, TimedOut or Unreachable."""
        self._accumulator.home = threading.get_ident()
        try:
            await self._cluster.topics([name], self._cluster.deadline(timeout_s), create=True)
        except UnknownTopic as error:
            raise UnknownTopic(
                f"{error.what}, and the broker does not create topics by itself",
                advice="create it first, for example with headrace.Admin().create_topic()",
                subject=error.subject,
            ) from None
        self._take_topic(name)

    async def request_topic(self, name: str, timeout_s: float) -> None:
        """Refresh a topic's metadata: it may have more partitions by now."""
        self._cluster.forget([name])
        await self.load_topic(name, timeout_s)

    async def stop(self, timeout_s: float) -> None:
        """Fail all remaining batches, and close every connection."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._options.acks == 0:
            await self._wait_until_taken(timeout_s)
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all(Closed("the producer was closed before the record was acknowledged"))
        await self._cluster.close()

    # -- for its transactions

    def use_identity(self, identity: ProducerIdentity) -> None:
        """Renumber all batches for another epoch, while nothing is in flight."""
        self._identities.current = identity
        for buffer in self._buffers:
            queue_of(buffer).use_identity(None)

    def partitions_added(self) -> None:
        """Send batches of partitions that were added to the transaction."""
        self._active.update(self._unadded)
        self._unadded.clear()
        self.pump()

    def drop_unsent(self, error: Exception) -> None:
        """Fail every batch that is not in flight."""
        self._unadded.clear()
        dropped = [batch for buffer in self._buffers for batch in queue_of(buffer).drop_unsent()]
        for batch in (*dropped, *self._accumulator.drop()):
            self._settler.failed(batch, error)

    async def settled(self) -> None:
        """Return when every batch is settled."""
        while not all(queue_of(buffer).is_settled for buffer in self._buffers):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    # -- the pump

    def pump(self) -> None:
        """Send everything that may be sent now."""
        if self._is_stopped:
            return
        try:
            now = self._cluster.clock.monotonic()
            listed, next_linger = self._accumulator.drain(now)
            self._active.update(dict.fromkeys(listed))
            self._resume_postponed(now)
            if self._accumulator.next_expiry() <= now:
                self._expire(now)
            while self._active:
                self._dispatch(now)
            self._set_timer(now, next_linger)
        except Exception as error:
            # A bug must not leave callers waiting for ever.
            self._break(error)

    def _dispatch(self, now: float) -> None:
        active, self._active = self._active, {}
        links: dict[ProducerChannel, None] = {}
        for buffer in active:
            link = self._link_for(buffer, now)
            if link is not None:
                link.ready[buffer] = None
                links[link] = None
        for link in links:
            self._feed(link, now)

    def _link_for(self, buffer: PartitionBuffer, now: float) -> ProducerChannel | None:
        """The channel to a partition's leader; None if the partition has to wait."""
        queue = buffer.queue
        if queue is None:
            queue = buffer.queue = self._new_queue(buffer)
        if queue.retry_at > now:
            self._postponed[buffer] = None
            return None
        tp = buffer.tp
        partition = self._cluster.leader_of(tp)
        if partition is None:
            self._leaderless.setdefault(tp.topic, {})[buffer] = None
            self._request_metadata(tp.topic)
            return None
        if now - self._heard.get(tp.topic, now) >= self._options.metadata_max_age_ms / 1000:
            self._heard[tp.topic] = now
            self._request_metadata(tp.topic)
        link = self._links.get(partition.leader)
        if link is None:
            link = ProducerChannel(partition.leader, self._options.max_in_flight)
            self._links[partition.leader] = link
        return link

    def _feed(self, link: ProducerChannel, now: float) -> None:
        """Send requests on a channel while it has room and ready partitions."""
        while link.ready and link.has_room:
            if not link.is_open:
                if link.opening is None:
                    link.opening = self.start(self._open(link))
                return
            batches = self._compose(link, now)
            if batches:
                self._send(link, batches, now)

    def _compose(
        self, link: ProducerChannel, now: float
    ) -> list[tuple[PartitionBuffer, ProducerBatch]]:
        """The next batches of partitions, as many as fit one request."""
        chosen: list[tuple[PartitionBuffer, ProducerBatch]] = []
        total_bytes = 0
        for buffer in list(link.ready):
            batch = self._next_batch(buffer, link, now)
            if batch is None:
                del link.ready[buffer]
                continue
            if chosen and total_bytes + batch.size_bytes > REQUEST_BYTES_MAX:
                break
            queue_of(buffer).number(
                batch,
                compression=self._options.compression,
                level=self._options.compression_level,
                transactional=self.transactor is not None,
            )
            total_bytes += batch.size_bytes
            chosen.append((buffer, batch))
            link.rotate(buffer)
        return chosen

    def _next_batch(
        self, buffer: PartitionBuffer, link: ProducerChannel, now: float
    ) -> ProducerBatch | None:
        queue = queue_of(buffer)
        if queue.identity is None and self._identities.current is not None:
            # Before anything else: under new numbers no batch may overtake one that is still in
            # flight.
            queue.use_identity(self._identities.current)
            for doubtful in queue.drop_doubtful():
                self._settler.in_doubt(doubtful, queue.last_error)
        if not queue.may_send(now):
            # A response makes the partition active again, or the time of the next attempt.
            if queue.retry_at > now:
                self._postponed[buffer] = None
            return None
        partition = self._cluster.leader_of(buffer.tp)
        if partition is None or partition.leader != link.node_id:
            self._active[buffer] = None
            return None
        if self._options.enable_idempotence and queue.identity is None:
            self._nameless[buffer] = None
            self._identities.ask()
            return None
        if queue.next is None:
            batch = self._accumulator.take(buffer)
            if batch is None:
                return None
            queue.push(batch)
        if self.transactor is not None and not self.transactor.may_send(buffer.tp):
            self._unadded[buffer] = None
            return None
        return queue.next

    def _send(
        self,
        link: ProducerChannel,
        batches: list[tuple[PartitionBuffer, ProducerBatch]],
        now: float,
    ) -> None:
        assert link.connection is not None
        topics = {batch.tp.topic for _, batch in batches}
        known = {name: self._cluster.known_topic(name) for name in topics}
        ids = {name: topic.topic_id for name, topic in known.items() if topic is not None}
        options = self._options
        request = produce_request(
            batches,
            ids,
            acks=options.acks,
            timeout_ms=options.request_timeout_ms,
            transactional_id=options.transactional_id,
        )
        try:
            if options.acks == 0:
                link.connection.tell(request)
                future = None
            else:
                future = link.connection.ask(
                    request, options.request_timeout_ms / 1000, version_max=self._version_max
                )
        except HeadraceError as error:
            for buffer, _ in batches:
                self._obstructed(buffer, error)
            return
        for buffer, batch in batches:
            queue_of(buffer).sent(batch)
            batch.attempts += 1
        if future is None:
            for buffer, batch in batches:
                self._settler.written(buffer, batch, -1, -1)
            link.draining = self.start(self._drain(link))
            return
        link.in_flight += 1
        names = {topic_id: name for name, topic_id in ids.items()}
        future.add_done_callback(
            partial(self._answered, link, InFlightProduce(batches, names, now))
        )

    @property
    def _version_max(self) -> int | None:
        """The newest Produce version to use: newer ones imply transactions of version 2."""
        is_v1 = self.transactor is not None and self.transactor.state.version == 1
        return PRODUCE_V1_MAX if is_v1 else None

    def _answered(
        self, link: ProducerChannel, sent: InFlightProduce, future: "asyncio.Future[Any]"
    ) -> None:
        link.in_flight -= 1
        if future.cancelled():
            return
        # Always retrieved: asyncio complains of an exception that was never retrieved.
        error = future.exception()
        if self._is_stopped:
            return
        if error is None:
            self._metrics.request_done(self._cluster.clock.monotonic() - sent.sent_at)
            response = future.result()
            self._cluster.hear_brokers(response.node_endpoints)
            by_partition = answers(response, sent.names)
            for buffer, batch in sent.batches:
                answer = by_partition.get(batch.tp) or unanswered(batch.tp)
                self._settler.answered(buffer, batch, answer, link.node_id)
        else:
            assert isinstance(error, HeadraceError), error
            for buffer, batch in sent.batches:
                self._cluster.forget([batch.tp.topic])
                self._settler.again(buffer, batch, error, perhaps_written=True)
        self._active.update(dict.fromkeys(buffer for buffer, _ in sent.batches))
        # Other partitions may have waited for room on this channel.
        self._active.update(link.ready)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.pump()

    # -- what buffers wait for

    async def _open(self, link: ProducerChannel) -> None:
        try:
            link.connection = await self._cluster.connection(
                link.node_id, self._cluster.deadline(), lane=LANE
            )
            self._active.update(link.ready)
        except HeadraceError as error:
            waiting, link.ready = link.ready, {}
            for buffer in waiting:
                self._obstructed(buffer, error)
        finally:
            link.opening = None
        self.pump()

    async def _drain(self, link: ProducerChannel) -> None:
        """Continue when most bytes written without an acknowledgement have left."""
        assert link.connection is not None
        await link.connection.drained()
        link.draining = None
        self._active.update(link.ready)
        self.pump()

    def _obstructed(self, buffer: PartitionBuffer, error: HeadraceError) -> None:
        """Handle an error that blocks a partition: postpone it, or fail its batches for good."""
        if self._cluster.passes(error):
            self._cluster.forget([buffer.tp.topic])
            self._settler.postpone(queue_of(buffer), error)
            self._postponed[buffer] = None
            return
        dropped = queue_of(buffer).drop_waiting()
        while (batch := self._accumulator.take(buffer)) is not None:
            dropped.append(batch)
        for batch in dropped:
            self._settler.failed(batch, error)

    def _request_metadata(self, topic: str) -> None:
        self._stale[topic] = None
        if self._refreshing is None:
            self._refreshing = self.start(self._refresh())

    async def _refresh(self) -> None:
        """Refresh the topics without a known leader, until there are none."""
        while self._stale:
            names = list(self._stale)
            self._stale.clear()
            error: HeadraceError | None = None
            codes: dict[str, ErrorCode] = {}
            try:
                view = await self._cluster.refresh(names, self._cluster.deadline(), create=True)
                codes = dict(view.errors)
            except HeadraceError as caught:
                error = caught
            for name in names:
                self._take_topic(name)
                for buffer in self._leaderless.pop(name, ()):
                    self._refreshed(buffer, error, codes.get(name))
        self._refreshing = None
        self.pump()

    def _refreshed(
        self, buffer: PartitionBuffer, error: HeadraceError | None, code: ErrorCode | None
    ) -> None:
        if self._cluster.leader_of(buffer.tp) is not None:
            self._active[buffer] = None
            return
        code = code or ErrorCode.LEADER_NOT_AVAILABLE
        self._obstructed(buffer, error or KafkaError(code, f"{buffer.tp} has no leader now"))

    def _take_topic(self, name: str) -> None:
        topic = self._cluster.known_topic(name)
        if topic is not None:
            self._heard[name] = self._cluster.clock.monotonic()
            self._accumulator.set_topic(
                name, [partition.leader >= 0 for partition in topic.partitions]
            )

    def _identified(self, error: HeadraceError | None) -> None:
        waiting, self._nameless = self._nameless, {}
        for buffer in waiting:
            if error is None:
                self._active[buffer] = None
            else:
                self._obstructed(buffer, error)
        self.pump()

    # -- time

    def _resume_postponed(self, now: float) -> None:
        for buffer in [
            postponed for postponed in self._postponed if queue_of(postponed).retry_at <= now
        ]:
            del self._postponed[buffer]
            self._active[buffer] = None

    def _expire(self, now: float) -> None:
        for buffer in self._buffers:
            queue = queue_of(buffer)
            for batch in queue.drop_waiting(now):
                self._settler.failed(batch, self._settler.too_late(batch, queue.last_error))
            for batch in queue.late_in_flight(now):
                self._settler.abandon(buffer, batch)
        errors = {buffer.tp: queue_of(buffer).last_error for buffer in self._buffers}
        for batch in self._accumulator.drop(now):
            error = errors.get(batch.tp)
            self._settler.failed(batch, self._settler.too_late(batch, error))

    def _set_timer(self, now: float, next_linger: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min(
            next_linger,
            self._accumulator.next_expiry(),
            min((queue_of(buffer).retry_at for buffer in self._postponed), default=next_linger),
        )
        if due != float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due - now, _TICK_S), self.pump)

    # -- beginnings and ends

    def _new_queue(self, buffer: PartitionBuffer) -> PartitionQueue:
        # Unlike Kafka: without idempotence, which lets the broker refuse gaps, a partition has
        # one batch in flight, so that a retry cannot change the order.
        options = self._options
        in_flight_max = options.max_in_flight if options.enable_idempotence else 1
        self._buffers[buffer] = None
        return PartitionQueue(buffer.tp, in_flight_max=in_flight_max)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a coroutine until it ends or the sender stops."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    async def _wait_until_taken(self, timeout_s: float) -> None:
        """Wait until written requests were processed: brokers answer a later request after them."""
        questions = [
            link.connection.ask(MetadataRequest(topics=[]), max(timeout_s, _TICK_S))
            for link in self._links.values()
            if link.connection is not None and link.connection.is_open
        ]
        await asyncio.gather(*questions, return_exceptions=True)

    def _fail_all(self, error: Exception) -> None:
        dropped = [batch for buffer in self._buffers for batch in queue_of(buffer).drop_all()]
        for batch in (*dropped, *self._accumulator.drop()):
            self._settler.failed(batch, error)

    def _break(self, error: BaseException) -> None:
        """Fail everything after a bug, so that no caller waits for ever."""
        _log.error("the producer cannot go on", exc_info=error)
        self._is_stopped = True
        failure = Closed(f"the producer cannot go on, by a bug of its own: {error!r}")
        self._accumulator.refuse(lambda: failure)
        self._fail_all(failure)
