"""Records to the leaders of their partitions: batched, pipelined, in order, each once.

Rule: one thread. Batches leave while the caller adds records; answers are taken when the buffer is
full, and in `flush`. Order within a partition holds through retries: an idempotent writer may have
several batches of a partition in flight, because the broker refuses gaps; another has one.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.backoff import delay_s
from headrace.client.batches import (
    BATCH_OVERHEAD_BYTES,
    Batch,
    Header,
    PartitionQueue,
    Producer,
    Row,
    row_bytes,
)
from headrace.client.cluster import Cluster
from headrace.client.connection import Connection
from headrace.client.failures import ConnectionFailed, TimedOut
from headrace.client.outcomes import check, failure
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.compression import Compression
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.protocol.murmur2 import partition_for_key
from headrace.protocol.records import NO_PRODUCER_ID, encode_batch
from headrace.types import TopicPartition

ACKS_ALL = -1
REQUESTS_IN_FLIGHT_MAX = 5
REQUEST_BYTES_MAX = 4 * 1_048_576

_WRITTEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_OUT_OF_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NOBODY = Producer(NO_PRODUCER_ID, -1)


@dataclass(frozen=True, slots=True)
class Failure:
    """Records that were not written, by the caller's tags, and why."""

    tp: TopicPartition
    tags: Sequence[object]
    error: HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """How to write. An idempotent writer needs acks from all replicas."""

    acks: int = ACKS_ALL
    compression: Compression = Compression.NONE
    idempotent: bool = True
    batch_bytes: int = 256 * 1024
    linger_ms: int = 5
    buffer_bytes: int = 16 * 1_048_576

    def __post_init__(self) -> None:
        assert self.acks == ACKS_ALL or not self.idempotent


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A Produce request in flight; `names` are the topics it has, by id."""

    connection: Connection
    batches: Sequence[Batch]
    names: Mapping[bytes, str]
    deadline: float


class Writer:
    """Writes records to topics. Not thread-safe; `flush` before leaving, or records are lost."""

    def __init__(
        self,
        cluster: Cluster,
        options: WriterOptions | None = None,
        on_failure: Callable[[Failure], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options or WriterOptions()
        self._on_failure = on_failure or _raise
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._requests: deque[_Request] = deque()
        self._sticky: dict[str, int] = {}
        self._producer: Producer | None = None
        self._buffered_bytes = 0
        self._next_linger: float | None = None
        self.records_written = 0
        self.bytes_written = 0

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        tag: object = None,
    ) -> None:
        """Add a record. Blocks while as much is buffered as may be."""
        clock = self._cluster.clock
        now = clock.monotonic()
        row: Row = (clock.now_ms() if timestamp is None else timestamp, key, value, headers)
        size_bytes = row_bytes(row)
        chosen = self._choose(topic, key) if partition is None else partition
        queue = self._queue(TopicPartition(topic, chosen))
        if not queue.fits(size_bytes):
            queue.seal(now)
            if partition is None and key is None:
                del self._sticky[topic]
                queue = self._queue(TopicPartition(topic, self._choose(topic, None)))
            self._dispatch(now)
        queue.add(row, tag, size_bytes, now)
        self._buffered_bytes += size_bytes
        if self._next_linger is None:
            self._next_linger = now + self._options.linger_ms / 1000
        elif now >= self._next_linger:
            self.poll()
        while self._buffered_bytes > self._options.buffer_bytes:
            self._seal_all(now)
            self._step()

    def poll(self) -> None:
        """Send the batches that have waited as long as they may."""
        now = self._cluster.clock.monotonic()
        linger_s = self._options.linger_ms / 1000
        begun: list[float] = []
        for queue in self._queues.values():
            since = queue.open_since
            if since is not None and now - since >= linger_s:
                queue.seal(now)
            elif since is not None:
                begun.append(since)
        self._next_linger = min(begun) + linger_s if begun else None
        self._dispatch(now)

    def flush(self) -> None:
        """Return when every record has its outcome."""
        self._seal_all(self._cluster.clock.monotonic())
        while not all(queue.is_settled for queue in self._queues.values()):
            self._step()

    def _choose(self, topic: str, key: bytes | None) -> int:
        """The partition of a key, or the one that records without a key go to for now."""
        if key is None and topic in self._sticky:
            return self._sticky[topic]
        partitions = self._cluster.topics([topic], create=True)[topic].partitions
        if key is not None:
            return partition_for_key(key, len(partitions))
        led = [partition.index for partition in partitions if partition.leader >= 0]
        chosen = self._cluster.rng.choice(led or [partition.index for partition in partitions])
        self._sticky[topic] = chosen
        return chosen

    def _queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(tp)
        if queue is None:
            deadline = self._cluster.deadline()
            self._cluster.topics([tp.topic], deadline, create=True)
            self._cluster.retrying(lambda: self._cluster.partition(tp, deadline), deadline)
            queue = self._queues[tp] = PartitionQueue(
                tp,
                in_flight_max=REQUESTS_IN_FLIGHT_MAX if self._options.idempotent else 1,
                batch_bytes=self._options.batch_bytes,
                delivery_s_max=self._cluster.timeout_s,
            )
        return queue

    def _seal_all(self, now: float) -> None:
        for queue in self._queues.values():
            queue.seal(now)
        self._next_linger = None

    def _step(self) -> None:
        """Send what can be sent, then wait for one answer, or for the time of the next attempt."""
        clock = self._cluster.clock
        self._dispatch(clock.monotonic())
        if self._requests:
            self._take_answer()
            return
        unsettled = [queue.retry_at for queue in self._queues.values() if not queue.is_settled]
        if unsettled:
            self._cluster.sleep(max(min(unsettled) - clock.monotonic(), 0.001))

    def _dispatch(self, now: float) -> None:
        """Take the answers that are there, and send every batch that may be sent now."""
        while self._requests and self._requests[0].connection.is_answered():
            self._take_answer()
        while True:
            ready = []
            for queue in self._queues.values():
                for late in queue.drop_waiting(now):
                    self._failed(late, self._too_late(queue.last_error))
                batch = queue.ready(now)
                if batch is not None:
                    ready.append(batch)
            if not ready or not self._send_ready(ready):
                return

    def _send_ready(self, ready: Sequence[Batch]) -> bool:
        """Send one request to each leader that may get another. False if nothing was sent."""
        by_leader: dict[int, list[Batch]] = {}
        for batch in ready:
            try:
                leader = self._cluster.partition(batch.tp, batch.deadline).leader
                by_leader.setdefault(leader, []).append(batch)
            except HeadraceError as error:
                self._not_sent([batch], error)
        progress = False
        for leader, batches in by_leader.items():
            try:
                connection = self._cluster.connection(leader, batches[0].deadline)
                if connection.in_flight < REQUESTS_IN_FLIGHT_MAX:
                    self._send_request(connection, _first_bytes(batches, REQUEST_BYTES_MAX))
                    progress = True
            except HeadraceError as error:
                self._not_sent(batches, error)
                self._drop_broken(error)
        return progress

    def _send_request(self, connection: Connection, batches: Sequence[Batch]) -> None:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            self._encode(batch)
            topics.setdefault(batch.tp.topic, []).append(
                PartitionProduceData(index=batch.tp.partition, records=batch.encoded)
            )
        known = self._cluster.topics(list(topics), batches[0].deadline)
        request = ProduceRequest(
            acks=self._options.acks,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=[
                TopicProduceData(name=name, topic_id=known[name].topic_id, partition_data=data)
                for name, data in topics.items()
            ],
        )
        deadline = self._cluster.deadline()
        answered = self._options.acks != 0
        connection.send(request, deadline, answered=answered)
        for batch in batches:
            self._queues[batch.tp].sent(batch)
        if answered:
            names = {topic.topic_id: name for name, topic in known.items()}
            self._requests.append(_Request(connection, batches, names, deadline))
        else:
            for batch in batches:
                self._written(batch)

    def _encode(self, batch: Batch) -> None:
        """Make the bytes of a batch, once: a repetition must look the same to be known as one."""
        queue = self._queues[batch.tp]
        if self._options.idempotent and queue.producer is None:
            self._producer = self._producer or self._new_producer()
            queue.use_producer(self._producer)
        if batch.encoded is not None and batch.producer == queue.producer:
            return
        batch.producer = queue.producer
        producer = queue.producer or _NOBODY
        batch.encoded = encode_batch(
            batch.rows,
            compression=self._options.compression,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=queue.take_sequence(len(batch.rows)) if queue.producer else -1,
        )

    def _new_producer(self) -> Producer:
        deadline = self._cluster.deadline()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

        def ask() -> Producer:
            response = self._cluster.call(request, deadline)
            check(response.error_code, subject="asking for a producer id")
            return Producer(response.producer_id, response.producer_epoch)

        return self._cluster.retrying(ask, deadline)

    def _take_answer(self) -> None:
        """Wait for the answer to the oldest request."""
        request = self._requests[0]
        try:
            response = request.connection.receive(request.deadline)
        except ConnectionFailed as error:
            self._drop_broken(error)
            return
        self._requests.popleft()
        answers = _by_partition(response, request.names)
        for batch in request.batches:
            answer = answers.get(batch.tp)
            if answer is None:
                self._settle_failed(batch, _unanswered(batch.tp))
            else:
                self._answered(batch, answer)

    def _answered(self, batch: Batch, answer: PartitionProduceResponse) -> None:
        if answer.error_code in _WRITTEN:
            self._written(batch)
            return
        queue = self._queues[batch.tp]
        error = failure(answer.error_code, answer.error_message, str(batch.tp))
        assert error is not None
        if error.code.retriable:
            self._cluster.forget([batch.tp.topic])
            self._again(batch, error)
        elif self._options.idempotent and error.code in _OUT_OF_SEQUENCE:
            self._out_of_sequence(batch, error)
        elif error.code in _TOO_LARGE and len(batch.rows) > 1:
            self._too_large(batch, queue)
        elif answer.record_errors:
            self._blame(batch, answer, error)
        else:
            self._settle_failed(batch, error)

    def _out_of_sequence(self, batch: Batch, error: KafkaError) -> None:
        """A batch before this one is missing; if that is sent again, this one follows it."""
        queue = self._queues[batch.tp]
        if not queue.is_first_unsettled(batch):
            queue.returned(batch)
            return
        # The one before was refused for good. This one was not written, so it may be numbered anew.
        queue.use_producer(None)
        self._producer = None
        self._again(batch, error, pause=queue.attempts > 0)

    def _too_large(self, batch: Batch, queue: PartitionQueue) -> None:
        if queue.is_first_unsettled(batch):
            queue.split(batch)
            self._producer = None
        else:
            queue.returned(batch)

    def _blame(self, batch: Batch, answer: PartitionProduceResponse, error: KafkaError) -> None:
        """A batch is refused as a whole; report the records that caused it apart from the rest."""
        guilty = {one.batch_index: one.batch_index_error_message for one in answer.record_errors}
        for index, message in guilty.items():
            if 0 <= index < len(batch.tags):
                detail = f"{batch.tp}: {message}" if message else error.detail
                self._on_failure(
                    Failure(batch.tp, [batch.tags[index]], KafkaError(error.code, detail))
                )
        rest = [tag for index, tag in enumerate(batch.tags) if index not in guilty]
        self._queues[batch.tp].refused(batch)
        self._release(batch)
        if rest:
            others = KafkaError(error.code, f"{batch.tp}: refused with another record of its batch")
            self._on_failure(Failure(batch.tp, rest, others))

    def _again(self, batch: Batch, error: HeadraceError, *, pause: bool = True) -> None:
        """Send a batch in flight again, after a pause, unless its time is over."""
        if self._cluster.clock.monotonic() >= batch.deadline:
            self._settle_failed(batch, self._too_late(error))
            return
        queue = self._queues[batch.tp]
        if queue.is_first_unsettled(batch):
            self._postpone(queue, error, pause)
        queue.returned(batch)

    def _postpone(self, queue: PartitionQueue, error: HeadraceError, pause: bool = True) -> None:
        now = self._cluster.clock.monotonic()
        pause_s = delay_s(queue.attempts, self._cluster.rng) if pause else 0.0
        queue.postpone(now + pause_s, error)

    def _not_sent(self, batches: Sequence[Batch], error: HeadraceError) -> None:
        """An attempt to send waiting batches failed before anything left."""
        for batch in batches:
            queue = self._queues[batch.tp]
            if self._cluster.passes(error):
                self._cluster.forget([batch.tp.topic])
                self._postpone(queue, error)
            else:
                for dropped in queue.drop_waiting():
                    self._failed(dropped, error)

    def _drop_broken(self, error: HeadraceError) -> None:
        """Take back what was in flight on connections that broke."""
        broken = [request for request in self._requests if not request.connection.is_open]
        for request in broken:
            self._requests.remove(request)
            for batch in request.batches:
                self._cluster.forget([batch.tp.topic])
                self._again(batch, error)

    def _written(self, batch: Batch) -> None:
        self._queues[batch.tp].written(batch)
        self._release(batch)
        self.records_written += len(batch.rows)
        self.bytes_written += sum(
            len(key or b"") + len(value or b"") for _, key, value, _ in batch.rows
        )

    def _settle_failed(self, batch: Batch, error: HeadraceError) -> None:
        self._queues[batch.tp].refused(batch)
        self._failed(batch, error)

    def _failed(self, batch: Batch, error: HeadraceError) -> None:
        """Report a batch that is in no queue any more."""
        self._release(batch)
        self._on_failure(Failure(batch.tp, batch.tags, error))

    def _release(self, batch: Batch) -> None:
        self._buffered_bytes -= batch.size_bytes - BATCH_OVERHEAD_BYTES

    def _too_late(self, error: HeadraceError | None) -> TimedOut:
        reason = f": {error}" if error else "; see whether the brokers are healthy"
        return TimedOut(f"not written within {self._cluster.timeout_s:g} s{reason}")


def _raise(failed: Failure) -> None:
    raise failed.error


def _unanswered(tp: TopicPartition) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{tp}: the answer has no such partition")


def _first_bytes(batches: Sequence[Batch], bytes_max: int) -> list[Batch]:
    """As many batches from the front as fit, at least one."""
    taken: list[Batch] = []
    total = 0
    for batch in batches:
        total += batch.size_bytes
        if taken and total > bytes_max:
            break
        taken.append(batch)
    return taken


def _by_partition(
    response: ProduceResponse, names: Mapping[bytes, str]
) -> dict[TopicPartition, PartitionProduceResponse]:
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.index): partition
        for topic in response.responses
        for partition in topic.partition_responses
    }
