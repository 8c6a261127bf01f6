"""The transaction coordinator on this broker: its shards, and the markers that end transactions."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from headrace.broker.cluster.channels import BrokerBatches, BrokerChannels
from headrace.broker.coordination.runtime import TRANSACTIONS_TOPIC, CoordinatorRuntime, ShardDriver
from headrace.broker.metadata_store import MetadataStore
from headrace.broker.producer_ids import ProducerIds
from headrace.clock import Clock
from headrace.coordinator.transactions.transaction_metadata import (
    PendingMarkers,
    TransactionSettings,
)
from headrace.coordinator.transactions.transaction_shard import TransactionShard
from headrace.errors import ErrorCode, HeadraceError, KafkaError, error_code
from headrace.metadata.image import NO_LEADER
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.protocol.schema import Message
from headrace.tasks import TaskScope
from headrace.types import TopicPartition

# Per transactional id, a FIFO of requests that wait until its prepared transaction is complete.
#
# A client that gets CONCURRENT_TRANSACTIONS retries after 20 to 100 ms, and markers are written in
# a few. And librdkafka sends AddPartitionsToTxn and EndTxn without waiting in between: EndTxn must
# not be decided first, when there is no transaction to end.


# After this the client has to retry: markers take long, or partitions have no leader.
WAIT_SECONDS = 1.0

Answer: TypeAlias = Message | asyncio.Future[Message]


class CompletionQueue:
    """The queues of all transactional ids. Used on the event loop's thread only.

    Invariant: of the requests for one transactional id only the first in its queue is decided
    again, until a request has waited for WAIT_SECONDS.
    """

    def __init__(self, is_prepared: Callable[[str], bool]) -> None:
        """`is_prepared`: whether the transaction of an id is prepared, but not complete."""
        self._is_prepared = is_prepared
        self._queues: dict[str, deque[_QueuedRequest]] = {}
        self._tasks = TaskScope("requests of a prepared transaction")

    def ask(
        self, transactional_id: str, ask: Callable[[], Answer], is_concurrent: Callable[[Any], bool]
    ) -> Message | Awaitable[Any]:
        """The response to a request, as soon as it is not concurrent by `is_concurrent`.

        `ask` decides the request: now, or in its turn if others wait. It may raise KafkaError.
        """
        if transactional_id in self._queues:
            return self._wait(_QueuedRequest(transactional_id, ask, is_concurrent))
        answer = ask()
        if isinstance(answer, Message):
            if not is_concurrent(answer):
                return answer
            return self._wait(_QueuedRequest(transactional_id, ask, is_concurrent))
        return self._checked(answer, _QueuedRequest(transactional_id, ask, is_concurrent))

    def completed(self, transactional_id: str) -> None:
        """Decide the first request again: its transactional id has no prepared transaction now."""
        queue = self._queues.get(transactional_id)
        if queue is not None:
            queue[0].completed.set()

    async def _checked(self, answer: asyncio.Future[Message], waiting: "_QueuedRequest") -> Any:
        response = await answer
        return await self._wait(waiting) if waiting.is_concurrent(response) else response

    def _wait(self, waiting: "_QueuedRequest") -> "asyncio.Task[Any]":
        """Queue a request; it leaves the queue when the task ends, in whatever way."""
        queue = self._queues.setdefault(waiting.transactional_id, deque())
        queue.append(waiting)
        if len(queue) == 1 and not self._is_prepared(waiting.transactional_id):
            waiting.completed.set()
        task = self._tasks.start_awaited(waiting.run(), waiting.transactional_id)
        task.add_done_callback(lambda _: self._leave(waiting))
        return task

    def _leave(self, waiting: "_QueuedRequest") -> None:
        queue = self._queues[waiting.transactional_id]
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.transactional_id]
        else:
            queue[0].completed.set()


class _QueuedRequest:
    """A request in the queue of a transactional id."""

    __slots__ = ("ask", "completed", "is_concurrent", "transactional_id")

    def __init__(
        self, transactional_id: str, ask: Callable[[], Answer], is_concurrent: Callable[[Any], bool]
    ) -> None:
        self.transactional_id = transactional_id
        self.ask = ask
        self.is_concurrent = is_concurrent
        self.completed = asyncio.Event()

    async def run(self) -> Any:
        """Decide again at each completion, and for the last time after WAIT_SECONDS."""
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            is_late = False
            try:
                async with asyncio.timeout_at(deadline):
                    await self.completed.wait()
            except TimeoutError:
                is_late = True
            self.completed.clear()
            answer = self.ask()
            response = answer if isinstance(answer, Message) else await answer
            if is_late or not self.is_concurrent(response):
                return response


logger = logging.getLogger(__name__)

# Longer than a leader waits for the marker's commit, see `handlers.write_txn_markers`.
_REQUEST_S_MAX = 5.0
_BACKOFF_SECONDS = 0.05
_BATCH_MAX = 1_000
# A request is answered when its markers are committed. Markers of other transactions need not wait
# for that: the leader writes them at once, and one round of its followers commits them all.
IN_FLIGHT_MAX = 5
# After these codes a marker is done: it is written, or the log has a newer epoch of the producer,
# so that the transaction of the marker is not open there.
_SETTLED = frozenset((ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH))

TransactionDriver = ShardDriver[TransactionShard]


class _PartitionMarker(NamedTuple):
    """A marker for one partition, and the coordinator that ordered it."""

    driver: TransactionDriver
    order: PendingMarkers
    partition: TopicPartition


class MarkerSender:
    """Sends markers to the leaders of partitions. Used on the event loop's thread only.

    Invariant: an order of a driver that is not closed is in flight, or waits to be sent, until its
    shard was notified of every partition of it. So the orders here are bounded by those of shards.
    """

    def __init__(self, store: MetadataStore, peers: BrokerChannels) -> None:
        self._store = store
        self._peers = peers
        self._outboxes: BrokerBatches[_PartitionMarker] = BrokerBatches(
            self._send, batch_max=_BATCH_MAX, in_flight_max=IN_FLIGHT_MAX
        )
        self._delayed: list[_PartitionMarker] = []
        self._timer: asyncio.TimerHandle | None = None
        # Markers that are written here, until they are committed.
        self._writing = TaskScope("markers that are written here")
        self._failing: set[int] = set()
        self._stopped = False

    def send(self, driver: TransactionDriver, orders: Iterable[PendingMarkers]) -> None:
        """Order markers to be written; the driver's shard is notified of each."""
        self._route(
            [_PartitionMarker(driver, order, name) for order in orders for name in order.partitions]
        )

    @property
    def waiting(self) -> int:
        """The number of markers that wait to be sent."""
        return len(self._outboxes) + len(self._delayed)

    def brokers_changed(self) -> None:
        """Close channels to brokers that are gone or were restarted."""
        self._peers.brokers_changed()

    async def stop(self) -> None:
        """Stop sending: the next leader of the coordinator sends the markers again."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._delayed.clear()
        await self._writing.close()
        await self._outboxes.stop()
        self._peers.close()

    def _route(self, items: Iterable[_PartitionMarker]) -> None:
        """Queue each marker for the present leader of its partition."""
        image = self._store.image
        gone, leaderless, here = [], [], []
        for item in items:
            if item.driver.closed:
                continue
            topic = image.topics.get(item.partition.topic)
            if topic is None or item.partition.partition >= len(topic.partitions):
                # Partitions are part of a transaction only if they are in the image, and images do
                # not go back: this partition was deleted since.
                gone.append(item)
                continue
            leader_id = topic.partitions[item.partition.partition].leader
            if leader_id == NO_LEADER:
                leaderless.append(item)
            elif self._peers.is_self(leader_id):
                here.append(item)
            else:
                self._outboxes.add(leader_id, item)
        self._delay(leaderless)
        self._report(gone)
        if here and not self._stopped:
            self._write_here(here)

    def _delay(self, items: list[_PartitionMarker]) -> None:
        """Send markers again after a pause, together with others that wait."""
        if self._stopped or not items:
            return
        if not self._delayed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_BACKOFF_SECONDS, self._retry_delayed)
        self._delayed += items

    def _retry_delayed(self) -> None:
        items, self._delayed = self._delayed, []
        self._route(items)

    def _write_here(self, items: list[_PartitionMarker]) -> None:
        """Write markers of partitions led here, at once: they do not queue for a commit."""
        try:
            answer = self._peers.answer_locally(_request(items))
        except HeadraceError as error:
            logger.info("this broker writes no markers now: %s", error)
            self._delay(items)
            return
        if isinstance(answer, WriteTxnMarkersResponse):
            self._handle_response(items, answer)
            return
        self._writing.start(self._handle_later(items, answer))

    async def _handle_later(
        self, items: list[_PartitionMarker], answer: Awaitable[WriteTxnMarkersResponse]
    ) -> None:
        try:
            response = await answer
        except HeadraceError as error:
            logger.info("this broker writes no markers now: %s", error)
            self._delay(items)
            return
        self._handle_response(items, response)

    async def _send(self, leader_id: int, items: list[_PartitionMarker]) -> None:
        items = [item for item in items if not item.driver.closed]
        if not items:
            return
        try:
            response: WriteTxnMarkersResponse = await self._peers.ask(
                leader_id, _request(items), _REQUEST_S_MAX
            )
        except HeadraceError as error:
            if leader_id not in self._failing:
                self._failing.add(leader_id)
                logger.info("broker %d writes no markers now: %s", leader_id, error)
            self._delay(items)
            return
        self._failing.discard(leader_id)
        self._handle_response(items, response)

    def _handle_response(
        self, items: list[_PartitionMarker], response: WriteTxnMarkersResponse
    ) -> None:
        """Report the markers that are done, and send the others again."""
        settled, slow, refused = [], [], []
        verdicts = _verdicts(response)
        for item in items:
            code = verdicts.get((item.order.marker.producer_id, item.partition))
            if code in _SETTLED:
                settled.append(item)
            elif code is ErrorCode.REQUEST_TIMED_OUT:
                slow.append(item)
            elif code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                logger.info("%s: a newer coordinator writes its markers", item.partition)
            else:
                refused.append(item)
        self._delay(refused)
        self._report(settled)
        # Their leaders have written them: the same request waits for the commit again.
        self._route(slow)

    def _report(self, items: list[_PartitionMarker]) -> None:
        """Notify the shards that these markers need not be sent any more."""
        done: dict[tuple[TransactionDriver, PendingMarkers], list[TopicPartition]] = {}
        for driver, order, name in items:
            done.setdefault((driver, order), []).append(name)
        for (driver, order), names in done.items():
            if driver.closed:
                continue
            try:
                _mark_written(driver, order, names)
            except KafkaError:
                continue  # The driver has failed and logged it; after loading it orders them again.


def _mark_written(
    driver: TransactionDriver, order: PendingMarkers, names: list[TopicPartition]
) -> None:
    effects = driver.ask(
        lambda shard: shard.marker_written(
            order.transactional_id, order.marker, names, driver.now_ms()
        )
    )
    driver.perform(effects)
    driver.changed()


def _request(items: list[_PartitionMarker]) -> WriteTxnMarkersRequest:
    topics_by_order: dict[PendingMarkers, dict[str, list[int]]] = {}
    for _, order, name in items:
        topics_by_order.setdefault(order, {}).setdefault(name.topic, []).append(name.partition)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=order.marker.producer_id,
                producer_epoch=order.marker.producer_epoch,
                transaction_result=order.marker.committed,
                coordinator_epoch=order.marker.coordinator_epoch,
                transaction_version=order.transaction_version,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in topics.items()
                ],
            )
            for order, topics in topics_by_order.items()
        ]
    )


def _verdicts(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, TopicPartition(topic.name, partition.partition_index)): error_code(
            partition.error_code
        )
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }


class TransactionCoordinator:
    """The shards of `__transaction_state` that are led here. Used on the event loop's thread.

    Markers that a shard orders are sent, and it gets producer ids in advance: it cannot wait.
    """

    def __init__(
        self,
        clock: Clock,
        settings: Callable[[], TransactionSettings],
        producer_ids: ProducerIds,
        markers: MarkerSender,
    ) -> None:
        self.shards: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTIONS_TOPIC,
            clock,
            lambda partition: TransactionShard(settings(), partition.leader_epoch),
            self._on_change,
        )
        self.completions = CompletionQueue(self._is_prepared)
        self._producer_ids = producer_ids
        self._markers = markers
        self._supplying: dict[TransactionDriver, asyncio.Task[None]] = {}
        self._tasks = TaskScope("spare producer ids")

    async def ensure_producer_ids(self, transactional_id: str) -> None:
        """Supply the shard of a transactional id with producer ids; KafkaError as `driver_of`."""
        driver = self.shards.driver_of(transactional_id)
        while (count := driver.shard.missing_producer_ids) > 0:
            await self._supply(driver, count)

    def brokers_changed(self) -> None:
        """Close channels to brokers that are gone or were restarted."""
        self._markers.brokers_changed()

    async def stop(self) -> None:
        """Answer all waiting requests; send no more markers, supply no more ids."""
        self.shards.close()
        await self._tasks.close()
        await self._markers.stop()

    def _is_prepared(self, transactional_id: str) -> bool:
        try:
            return self.shards.driver_of(transactional_id).shard.is_prepared(transactional_id)
        except KafkaError:
            return False  # The request gets the error when it is decided again.

    def _on_change(self, driver: TransactionDriver) -> None:
        orders = driver.shard.take_marker_orders()
        if orders:
            self._markers.send(driver, orders)
        for transactional_id in driver.shard.take_completed():
            self.completions.completed(transactional_id)
        if driver.shard.missing_producer_ids > 0 and driver not in self._supplying:
            task = self._tasks.start(self._supply_later(driver), str(driver.partition.name))
            self._supplying[driver] = task
            task.add_done_callback(lambda _: self._supplying.pop(driver, None))

    async def _supply_later(self, driver: TransactionDriver) -> None:
        try:
            await self._supply(driver, driver.shard.missing_producer_ids)
        except KafkaError as error:
            # A request that needs a producer id is retried, and so is the abort of a transaction
            # that timed out: each attempt ends in `_on_change`, which has the stock filled.
            logger.info("%s has no spare producer ids: %s", driver.partition.name, error)

    async def _supply(self, driver: TransactionDriver, count: int) -> None:
        for _ in range(count):
            driver.shard.add_producer_ids([await self._producer_ids.next_id()])
