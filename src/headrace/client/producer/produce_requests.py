"""Produce requests from batches, and the handling of their responses or lost responses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.backoff import Backoff
from headrace.client.cluster import ClusterClient
from headrace.client.errors import BatchRefused, TimedOut, failure
from headrace.client.metrics import ProducerMetrics
from headrace.client.producer.accumulator import Accumulator, PartitionBuffer
from headrace.client.producer.batches import PartitionQueue, ProducerBatch
from headrace.client.producer.transaction_manager import MARKERS_BACKOFF, TransactionManager
from headrace.client.producer_options import ProducerOptions
from headrace.errors import ErrorCode, HeadraceError, KafkaError, Subject
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.types import ZERO_UUID, TopicPartition

# A request has at least one batch, and more batches of other partitions up to this size.
REQUEST_BYTES_MAX = 4 * 1_048_576


@dataclass(frozen=True, slots=True, eq=False)
class InFlightProduce:
    """A request in flight: its batches, the time it was sent, and its topic names by id."""

    batches: Sequence[tuple[PartitionBuffer, ProducerBatch]]
    names: Mapping[bytes, str]
    sent_at: float


def produce_request(
    batches: Sequence[tuple[PartitionBuffer, ProducerBatch]],
    topic_ids: Mapping[str, bytes],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A request with the encoded batches of different partitions."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for _, batch in batches:
        topics.setdefault(batch.tp.topic, []).append(
            PartitionProduceData(index=batch.tp.partition, records=batch.encoded)
        )
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=name, topic_id=topic_ids.get(name, ZERO_UUID), partition_data=data
            )
            for name, data in topics.items()
        ],
    )


def answers(
    response: ProduceResponse, names: Mapping[bytes, str]
) -> dict[TopicPartition, PartitionProduceResponse]:
    """The results in a response by partition; newer versions name topics by id."""
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.index): partition
        for topic in response.responses
        for partition in topic.partition_responses
    }


def unanswered(tp: TopicPartition) -> PartitionProduceResponse:
    """The result of a partition that is missing in the response."""
    return PartitionProduceResponse(
        index=tp.partition,
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR,
        error_message=f"{tp}: the answer has no such partition",
    )


def error_of(batch: ProducerBatch, answer: PartitionProduceResponse) -> KafkaError:
    """The error in a partition's result, with the partition and, where possible, advice."""
    error = failure(answer.error_code, answer.error_message, Subject("partition", str(batch.tp)))
    assert error is not None
    if error.code is ErrorCode.MESSAGE_TOO_LARGE:
        return KafkaError(
            error.code,
            error.what,
            advice=f"a record of {batch.size_bytes} bytes is more than the topic's"
            " max.message.bytes: raise that, or send smaller records",
            subject=error.subject,
        )
    return error


def errors_by_record(
    batch: ProducerBatch, answer: PartitionProduceResponse, error: KafkaError
) -> tuple[HeadraceError, dict[int, Exception] | None]:
    """The error of most records of a batch, and the errors of the records that caused it.

    Only the latter have the broker's code: the other records are valid (KIP-467).
    """
    if not answer.record_errors:
        return error, None
    guilty: dict[int, Exception] = {}
    for record_error in answer.record_errors:
        message = record_error.batch_index_error_message
        detail = f"{batch.tp}: {message}" if message else error.detail
        guilty[record_error.batch_index] = KafkaError(error.code, detail)
    rest = f"{batch.tp}: not written, since another record of its batch was refused: {error}"
    return BatchRefused(rest), guilty


# The handling of results: a batch was written, is retried, is split in two, or has failed.
#
# Rule: every batch that leaves a queue for good is settled here, so each has exactly one outcome
# and its memory is given back exactly once.


_WRITTEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_OUT_OF_SEQUENCE = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
# After these errors the records are not in the log. After any other retriable error they may be: a
# leader that loses its leadership reports it for records that it has written, too.
_NOT_WRITTEN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class ProduceResultHandler:
    """Settles, retries or splits batches in flight by their results."""

    def __init__(
        self,
        cluster: ClusterClient,
        accumulator: Accumulator,
        options: ProducerOptions,
        metrics: ProducerMetrics,
        lose_identity: Callable[[PartitionQueue], None],
        transactor: TransactionManager | None = None,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._metrics = metrics
        self._lose_identity = lose_identity
        self._transactor = transactor

    def answered(
        self,
        buffer: PartitionBuffer,
        batch: ProducerBatch,
        answer: PartitionProduceResponse,
        node: int,
    ) -> None:
        """Process the result of a batch in flight."""
        if answer.error_code in _WRITTEN:
            self.written(buffer, batch, answer.base_offset, answer.log_append_time_ms)
            return
        error = error_of(batch, answer)
        if self._is_doomed:
            queue_of(buffer).refused(batch)
            self.failed(batch, error)
        elif error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            # The leader is right: it waits for the end of the producer's last transaction.
            self.again(buffer, batch, error, backoff=MARKERS_BACKOFF)
        elif error.code.retriable:
            leader = answer.current_leader
            moved = self._cluster.hear_leader(batch.tp, leader.leader_id, leader.leader_epoch, node)
            if not moved:
                self._cluster.forget([batch.tp.topic])
            uncertain = error.code not in _NOT_WRITTEN
            # The new leader is known, so there is no reason to pause.
            self.again(buffer, batch, error, perhaps_written=uncertain, pause=not moved)
        elif self._options.enable_idempotence and error.code in _OUT_OF_SEQUENCE:
            self._out_of_sequence(buffer, batch, error)
        elif error.code in _TOO_LARGE and batch.count > 1:
            self._too_large(buffer, batch)
        else:
            queue_of(buffer).refused(batch)
            innocent, record_errors = errors_by_record(batch, answer, error)
            self.failed(batch, error, record_errors, innocent)

    def written(
        self, buffer: PartitionBuffer, batch: ProducerBatch, base_offset: int, timestamp: int
    ) -> None:
        """Settle a batch in flight that was written to the log."""
        queue_of(buffer).written(batch)
        assert batch.encoded is not None
        self._metrics.batch_done(batch.count, len(batch.encoded), batch.raw_bytes)
        self._accumulator.free(batch)
        batch.delivery.succeed(base_offset, timestamp)
        self._accumulator.forget(batch.delivery)

    def again(
        self,
        buffer: PartitionBuffer,
        batch: ProducerBatch,
        error: HeadraceError,
        *,
        perhaps_written: bool = False,
        pause: bool = True,
        backoff: Backoff | None = None,
    ) -> None:
        """Retry a batch in flight, after a pause, unless it has expired."""
        queue = queue_of(buffer)
        batch.is_uncertain = batch.is_uncertain or perhaps_written
        if self._is_doomed:
            queue.refused(batch)
            self.failed(batch, error)
        elif self._cluster.clock.monotonic() >= batch.deadline:
            queue.refused(batch)
            self.failed(batch, self.too_late(batch, error))
        elif batch.attempts > self._options.retries:
            queue.refused(batch)
            self.failed(batch, error)
        else:
            if queue.is_first_unsettled(batch):
                self.postpone(queue, error, pause=pause, backoff=backoff)
            queue.returned(batch)
            self._metrics.retried(batch.count)

    def postpone(
        self,
        queue: PartitionQueue,
        error: HeadraceError,
        *,
        pause: bool = True,
        backoff: Backoff | None = None,
    ) -> None:
        """Pause sending to a partition, longer with every failure."""
        backoff = backoff or self._cluster.backoff
        pause_s = backoff.delay_s(queue.attempts, self._cluster.rng) if pause else 0.0
        queue.postpone(self._cluster.clock.monotonic() + pause_s, error)

    def failed(
        self,
        batch: ProducerBatch,
        error: Exception,
        record_errors: dict[int, Exception] | None = None,
        innocent: Exception | None = None,
    ) -> None:
        """Settle a batch, in no queue any more, that will not be sent again.

        Records that `record_errors` does not name have the error `innocent`, if it is given.
        """
        if not batch.delivery.is_done:
            self._metrics.errors(batch.count)
        self._accumulator.free(batch)
        batch.delivery.fail(innocent or error, record_errors)
        self._accumulator.forget(batch.delivery)
        if self._transactor is not None:
            self._transactor.batch_failed(batch, error)

    def abandon(self, buffer: PartitionBuffer, batch: ProducerBatch) -> None:
        """Fail an expired batch in flight; it keeps its place and its memory until its response, to
        keep the order of the batches behind it.
        """
        if not batch.delivery.is_done:
            self._metrics.errors(batch.count)
            error = self.too_late(batch, queue_of(buffer).last_error)
            batch.delivery.fail(error)
            self._accumulator.forget(batch.delivery)
            if self._transactor is not None:
                self._transactor.batch_failed(batch, error)

    def too_late(self, batch: ProducerBatch, error: HeadraceError | None) -> TimedOut:
        """The error of a batch whose delivery timeout has passed."""
        reason = str(error) if error else "no broker has taken it; see whether they are healthy"
        if batch.attempts and batch.is_uncertain:
            reason += "; it may have been written all the same"
        return TimedOut(
            f"{batch.tp}: not written within delivery_timeout_ms"
            f" ({self._options.delivery_timeout_ms} ms): {reason}"
        )

    def _out_of_sequence(
        self, buffer: PartitionBuffer, batch: ProducerBatch, error: KafkaError
    ) -> None:
        """Retry a batch behind a missing one; if that is retried, this one follows it."""
        queue = queue_of(buffer)
        if not queue.is_first_unsettled(batch):
            batch.attempts -= 1
            queue.returned(batch)
        elif self._transactor is not None:
            # Other sequence numbers need another epoch, which belongs to another transaction.
            queue.refused(batch)
            self.failed(batch, error)
        elif batch.is_uncertain and (
            error.code is ErrorCode.UNKNOWN_PRODUCER_ID or not queue.is_newest(batch)
        ):
            # An earlier attempt may have been written, and the broker has forgotten the producer;
            # or it was restarted, and then knows only the last batch of a producer.
            queue.refused(batch)
            self._lose_identity(queue)
            self.in_doubt(batch, error)
        else:
            # The batch before was refused for good. This one was not written, or the broker would
            # know its sequence number; so it may be renumbered.
            queue.none_written()
            self._lose_identity(queue)
            self.again(buffer, batch, error, pause=queue.attempts > 0)

    @property
    def _is_doomed(self) -> bool:
        """Whether retries are useless, because the transaction cannot be committed any more."""
        return self._transactor is not None and self._transactor.state.is_doomed

    def in_doubt(self, batch: ProducerBatch, error: HeadraceError | None) -> None:
        """Fail a batch, in no queue any more, that might be written twice if it were retried."""
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_PRODUCER_ID
        detail = f"{batch.tp}: it may have been written, so it is not sent again"
        self.failed(batch, KafkaError(code, detail))

    def _too_large(self, buffer: PartitionBuffer, batch: ProducerBatch) -> None:
        queue = queue_of(buffer)
        if not queue.is_first_unsettled(batch):
            queue.returned(batch)
            return
        parts = queue.split(batch)
        largest = max(part.raw_bytes for part in parts)
        buffer.batch_bytes_max = min(buffer.batch_bytes_max, largest)


def queue_of(buffer: PartitionBuffer) -> PartitionQueue:
    """The queue of a partition that has been used before."""
    assert buffer.queue is not None
    return buffer.queue
