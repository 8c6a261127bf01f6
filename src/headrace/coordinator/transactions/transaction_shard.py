"""The shard of transactional ids in one `__transaction_state` partition, and its responses."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from headrace.coordinator.deadlines import Deadlines, Timer
from headrace.coordinator.records import (
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
)
from headrace.coordinator.shard import (
    NO_PRODUCER,
    CallTimes,
    CoordinatorRecord,
    Reply,
    ReplyBuffer,
    RequestClient,
    ShardEffects,
    Token,
    fits_string,
)
from headrace.coordinator.transactions import decisions
from headrace.coordinator.transactions.decisions import Decision, ProducerIdAndEpoch
from headrace.coordinator.transactions.transaction_metadata import (
    NO_EPOCH,
    SOURCES,
    STATUS_BY_TITLE,
    TRANSIENT_TITLES,
    VERSION_WITH_BUMP,
    VERSION_WITHOUT_BUMP,
    AddOffsets,
    AddPartitions,
    PendingMarkers,
    TransactionMetadata,
    TransactionSettings,
    TransactionStatus,
)
from headrace.errors import ErrorCode
from headrace.protocol.markers import Marker
from headrace.protocol.messages import describe_transactions, list_transactions
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.describe_transactions import TransactionState
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

# The first versions of requests whose clients know PRODUCER_FENCED.
FENCED_SINCE = 2
_INITIALIZE_FENCED_SINCE = 4


def error_for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """The error code that clients of a request version know."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def init_producer_id_response(decision: Decision, version: int) -> InitProducerIdResponse:
    """The response to InitProducerId, to be sent once the decision is committed."""
    if isinstance(decision, TransactionMetadata):
        if decision.status is TransactionStatus.EMPTY:
            return InitProducerIdResponse(
                producer_id=decision.producer_id, producer_epoch=decision.producer_epoch
            )
        # An open transaction is being aborted; the client retries until that is complete.
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    else:
        code = error_for_version(decision, version, _INITIALIZE_FENCED_SINCE)
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def end_txn_response(
    decision: Decision, current: TransactionMetadata | None, version: int, is_bumping: bool
) -> EndTxnResponse:
    """The response to EndTxn, to be sent once the decision is committed.

    A client of transactions version 2 gets its next producer id and epoch.
    """
    if isinstance(decision, TransactionMetadata):
        current, code = decision, ErrorCode.NONE
    else:
        code = error_for_version(decision, version, FENCED_SINCE)
    if code is not ErrorCode.NONE or current is None or not is_bumping:
        return EndTxnResponse(error_code=code)
    producer_id, producer_epoch = current.client_producer
    return EndTxnResponse(producer_id=producer_id, producer_epoch=producer_epoch)


def add_partitions_response(
    transactional_id: str, codes: Mapping[TopicPartition, ErrorCode], version: int
) -> AddPartitionsToTxnResponse:
    """The response to AddPartitions: one result, in the form of version 4."""
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (topic, partition), code in codes.items():
        result = topics.get(topic)
        if result is None:
            result = topics[topic] = AddPartitionsToTxnTopicResult(name=topic)
        result.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(
                partition_index=partition,
                partition_error_code=error_for_version(code, version, FENCED_SINCE),
            )
        )
    result_of_all = AddPartitionsToTxnResult(
        transactional_id=transactional_id, topic_results=list(topics.values())
    )
    return AddPartitionsToTxnResponse(results_by_transaction=[result_of_all])


def describe_response(
    transactional_id: str, current: TransactionMetadata | None
) -> describe_transactions.TransactionState:
    """A transactional id as DescribeTransactions shows it."""
    answer = describe_transactions.TransactionState(transactional_id=transactional_id)
    if not transactional_id:
        answer.error_code = ErrorCode.INVALID_REQUEST
    elif current is None:
        answer.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    else:
        answer.transaction_state = current.status.title
        answer.transaction_timeout_ms = current.timeout_ms
        answer.transaction_start_time_ms = current.start_ms
        answer.producer_id = current.producer_id
        answer.producer_epoch = current.producer_epoch
        topics: dict[str, list[int]] = {}
        for topic, partition in current.partitions:
            topics.setdefault(topic, []).append(partition)
        answer.topics = [
            describe_transactions.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ]
    return answer


def list_response(
    known: Iterable[tuple[str, TransactionMetadata]],
    request: list_transactions.ListTransactionsRequest,
    now_ms: int,
    matches: Callable[[str], bool] | None = None,
) -> list_transactions.ListTransactionsResponse:
    """The transactional ids that pass the filters; an empty filter passes all."""
    states = {STATUS_BY_TITLE.get(title) for title in request.state_filters}
    producer_ids = set(request.producer_id_filters)
    answer = list_transactions.ListTransactionsResponse(
        unknown_state_filters=[
            title
            for title in request.state_filters
            if title not in STATUS_BY_TITLE and title not in TRANSIENT_TITLES
        ]
    )
    for transactional_id, metadata in known:
        duration_ms = now_ms - metadata.start_ms
        if (
            (not states or metadata.status in states)
            and (not producer_ids or metadata.producer_id in producer_ids)
            and (request.duration_filter < 0 or duration_ms > request.duration_filter)
            and (matches is None or matches(transactional_id))
        ):
            answer.transaction_states.append(
                list_transactions.TransactionState(
                    transactional_id=transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=metadata.status.title,
                )
            )
    return answer


# The shard. Requests are decided in `decisions`; the shard keeps the transactional ids, the order
# of their records, the markers and the timers.


_Handler: TypeAlias = Callable[[ReplyBuffer, Any, int, Token, int], None]

# Bounds the work of one tick: a shard may be loaded with many ids that have expired.
TIMERS_PER_TICK = 1_000
SPARE_PRODUCER_IDS = 5
# Reserve for the record that ends a transaction, which may be larger, and for its batch header.
_RECORD_SLACK_BYTES = 512

_END_WITH_BUMP = 5
_ADD_WITH_BUMP = 4


class _TransactionEntry:
    """The state of one transactional id.

    `current` is the committed metadata, or None; `pending` are the changes that are being appended,
    of which None removes the id. Requests are decided by the latest change: a response is sent
    after all records that it depends on are committed, and never if that fails.
    """

    __slots__ = ("awaiting_markers", "current", "opened_ms", "pending", "timer", "transactional_id")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.current: TransactionMetadata | None = None
        self.pending: deque[TransactionMetadata | None] = deque()
        self.timer = Timer()
        # Start of the open transaction on the monotonic clock; its timestamps are times of day.
        self.opened_ms: int | None = None
        # Partitions of a prepared transaction that have no marker yet, in order.
        self.awaiting_markers: dict[TopicPartition, None] = {}

    @property
    def latest(self) -> TransactionMetadata | None:
        return self.pending[-1] if self.pending else self.current


class TransactionShard:
    """All transactional ids of one partition of `__transaction_state`. Not thread-safe.

    To load: `replay` every record in order, then `loaded`. From then on `handle`, `tick` and
    `marker_written` return effects, and `commit` returns the replies to send once these are
    committed. After `loaded` and after every `commit` the shell calls `take_marker_orders`, and
    after `tick` and `marker_written` it calls `take_completed`.

    After each of these calls, also after a `tick` without effects, the shell fills the stock of
    producer ids if `missing_producer_ids` says so. No request may come to have it filled, and the
    abort of a transaction that timed out at the last epoch needs a producer id.

    Requests: InitProducerIdRequest (with a transactional id), EndTxnRequest, AddPartitions and
    AddOffsets, each with the version that the client sent.

    Invariant: markers and responses follow only from committed records, so another coordinator that
    loads the log at any point continues from there: it may order the same marker again, never a
    different marker.
    """

    def __init__(self, settings: TransactionSettings, coordinator_epoch: int) -> None:
        """`coordinator_epoch` is the leader epoch of the partition; markers carry it."""
        self._settings = settings
        self._coordinator_epoch = coordinator_epoch
        self._entries: dict[str, _TransactionEntry] = {}
        self._deadlines = Deadlines()
        self._producer_ids: deque[int] = deque()
        self._orders: list[PendingMarkers] = []
        self._completed: list[str] = []
        # Prepared transactions without partitions: they are completed at the next tick.
        self._without_partitions: dict[str, _TransactionEntry] = {}
        self._is_loaded = False
        self._loaded_ms = 0
        self.times = CallTimes()
        # The number of records of unknown types that were loaded.
        self.ignored_records = 0
        self._handlers: dict[type[Message], _Handler] = {
            AddOffsets: self._add_offsets,
            AddPartitions: self._add_partitions,
            EndTxnRequest: self._end,
            InitProducerIdRequest: self._initialize,
        }
        self.recording_requests: frozenset[type[Message]] = frozenset(self._handlers)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next call of `tick`; None if no timer runs."""
        return self.times.now_ms if self._without_partitions else self._deadlines.next_ms

    def statuses(self) -> Iterator[str]:
        """The status of each transactional id, by Kafka's name for it, for metrics."""
        for entry in self._entries.values():
            if entry.latest is not None:
                yield entry.latest.status.title

    @property
    def missing_producer_ids(self) -> int:
        """The number of producer ids that the stock lacks.

        InitProducerId may need a producer id; with an empty stock it is answered
        COORDINATOR_LOAD_IN_PROGRESS, so the shell fills the stock before it passes the request on.
        """
        return max(SPARE_PRODUCER_IDS - len(self._producer_ids), 0)

    def add_producer_ids(self, producer_ids: Iterable[int]) -> None:
        """Add unused producer ids to the stock."""
        self._producer_ids.extend(producer_ids)

    def handle(
        self, request: Message, version: int, token: Token, client: RequestClient, now_ms: int
    ) -> ShardEffects:
        """Handle a request for one transactional id."""
        assert self._is_loaded
        self.times.now_ms = now_ms
        out = ReplyBuffer()
        self._handlers[type(request)](out, request, version, token, self.times.wall_ms)
        return out.effects()

    def tick(self, now_ms: int) -> ShardEffects:
        """Abort transactions that timed out, and remove transactional ids that expired.

        The work of one call is bounded; if more is due, `next_deadline_ms` stays in the past.
        """
        assert self._is_loaded
        self.times.now_ms = now_ms
        out = ReplyBuffer()
        for entry in self._without_partitions.values():
            self._complete(out, entry)
        self._without_partitions.clear()
        self._deadlines.fire_due(now_ms, TIMERS_PER_TICK, out)
        return out.effects()

    def marker_written(
        self,
        transactional_id: str,
        marker: Marker,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> ShardEffects:
        """Note that an ordered marker is written to these partitions, or that they are deleted.

        A `marker` that is not that of the transactional id's latest order is ignored.
        """
        self.times.now_ms = now_ms
        out = ReplyBuffer()
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.current is not None and not entry.pending:
            current = entry.current
            if current.status.is_prepared and self._marker(current) == marker:
                for partition in partitions:
                    entry.awaiting_markers.pop(partition, None)
                if not entry.awaiting_markers:
                    self._complete(out, entry)
        return out.effects()

    def take_marker_orders(self) -> list[PendingMarkers]:
        """The marker orders since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def take_completed(self) -> list[str]:
        """The transactional ids whose transactions were completed since the last call.

        The record of the completion may not be committed yet; later responses wait for it.
        """
        completed, self._completed = self._completed, []
        return completed

    def is_prepared(self, transactional_id: str) -> bool:
        """Whether the transaction of an id is prepared, and not completed yet."""
        latest = self._latest(transactional_id)
        return latest is not None and latest.status.is_prepared

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER) -> None:
        """Apply a committed record; RecordError if it cannot be decoded."""
        transactional_id = decode_transaction_key(record.key)
        if transactional_id is None:
            self.ignored_records += 1
            return
        entry = self._entry(transactional_id)
        if self._is_loaded:
            # Equal to the record, and with the fields that are not written.
            entry.current = entry.pending.popleft()
            self._watch(entry)
        else:
            entry.current = None if record.value is None else decode_transaction(record.value)
        if entry.current is None and not entry.pending:
            del self._entries[transactional_id]

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Do nothing: records of this topic are never part of a transaction."""

    def loaded(self, now_ms: int) -> None:
        """End loading: order markers of prepared transactions, start timers of the others."""
        assert not self._is_loaded
        self._is_loaded = True
        self.times.now_ms = self._loaded_ms = now_ms
        for entry in self._entries.values():
            self._watch(entry, is_loading=True)

    def commit(self, effects: ShardEffects, now_ms: int) -> tuple[Reply, ...]:
        """Replay records that are committed; return the replies that waited for them."""
        self.times.now_ms = now_ms
        for record in effects.records:
            self.replay(record)
        return effects.replies

    def cancel(self, token: Token) -> None:
        """Do nothing: every request waits only for its record."""

    def describe(self, transactional_id: str) -> TransactionState:
        """A transactional id as DescribeTransactions shows it."""
        entry = self._entries.get(transactional_id)
        return describe_response(transactional_id, None if entry is None else entry.current)

    def list(
        self,
        request: ListTransactionsRequest,
        now_ms: int,
        matches: Callable[[str], bool] | None = None,
    ) -> ListTransactionsResponse:
        """The transactional ids that pass the request's filters, and the unknown state names.

        `matches` is the filter of the request's pattern, None without a pattern.
        """
        entries = self._entries.values()
        known = [
            (entry.transactional_id, entry.current)
            for entry in entries
            if entry.current is not None
        ]
        return list_response(known, request, now_ms, matches)

    def _initialize(
        self,
        out: ReplyBuffer,
        request: InitProducerIdRequest,
        version: int,
        token: Token,
        now_ms: int,
    ) -> None:
        decision: Decision = self._check_initialize(request)
        if decision is ErrorCode.NONE:
            expected = None
            if request.producer_id != NO_PRODUCER:
                expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            decision = decisions.initialize(
                self._latest(request.transactional_id or ""),
                expected,
                request.transaction_timeout_ms,
                now_ms,
                self._take_producer_id,
            )
            self._change(out, request.transactional_id or "", decision)
        out.reply(token, init_producer_id_response(decision, version))

    def _check_initialize(self, request: InitProducerIdRequest) -> ErrorCode:
        if not request.transactional_id or not fits_string(request.transactional_id):
            return ErrorCode.INVALID_REQUEST
        if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_EPOCH):
            return ErrorCode.INVALID_REQUEST
        if request.enable2_pc:
            # Kafka's answer where two-phase commit is off.
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keep_prepared_txn:
            return ErrorCode.UNSUPPORTED_VERSION
        if not 0 < request.transaction_timeout_ms <= self._settings.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _add_partitions(
        self, out: ReplyBuffer, request: AddPartitions, version: int, token: Token, now_ms: int
    ) -> None:
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        if request.verify_only and request.transactional_id:
            latest = self._latest(request.transactional_id)
            codes = decisions.verify(latest, producer, request.partitions)
        else:
            bump = version >= _ADD_WITH_BUMP
            client_version = VERSION_WITH_BUMP if bump else VERSION_WITHOUT_BUMP
            code = self._add(
                out, request.transactional_id, producer, request.partitions, client_version, now_ms
            )
            codes = dict.fromkeys(request.partitions, code)
        out.reply(token, add_partitions_response(request.transactional_id, codes, version))

    def _add_offsets(
        self, out: ReplyBuffer, request: AddOffsets, version: int, token: Token, now_ms: int
    ) -> None:
        code = self._add(
            out,
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            (TopicPartition(request.topic, request.partition),),
            VERSION_WITHOUT_BUMP,
            now_ms,
        )
        code = error_for_version(code, version, FENCED_SINCE)
        out.reply(token, AddOffsetsToTxnResponse(error_code=code))

    def _add(
        self,
        out: ReplyBuffer,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: tuple[TopicPartition, ...],
        client_version: int,
        now_ms: int,
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        latest = self._latest(transactional_id)
        decision = decisions.add(latest, producer, partitions, client_version, now_ms)
        if isinstance(decision, ErrorCode):
            return decision
        record = encode_transaction(transactional_id, decision)
        size = len(record.key) + len(record.value or b"") + _RECORD_SLACK_BYTES
        if size > self._settings.record_bytes_max:
            return ErrorCode.UNKNOWN_SERVER_ERROR  # As in Kafka, which has no better code for it.
        self._append(out, self._entry(transactional_id), decision, record)
        return ErrorCode.NONE

    def _end(
        self, out: ReplyBuffer, request: EndTxnRequest, version: int, token: Token, now_ms: int
    ) -> None:
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        is_bumping = version >= _END_WITH_BUMP
        latest = self._latest(request.transactional_id)
        if not request.transactional_id:
            decision: Decision = ErrorCode.INVALID_REQUEST
        elif is_bumping:
            decision = decisions.end_with_bump(
                latest, producer, request.committed, now_ms, self._take_producer_id
            )
        else:
            decision = decisions.end(latest, producer, request.committed, now_ms)
        self._change(out, request.transactional_id, decision)
        out.reply(token, end_txn_response(decision, latest, version, is_bumping))

    def _complete(self, out: ReplyBuffer, entry: _TransactionEntry) -> None:
        assert entry.current is not None
        self._change(out, entry.transactional_id, entry.current.completed(self.times.wall_ms))
        self._completed.append(entry.transactional_id)

    def _change(self, out: ReplyBuffer, transactional_id: str, decision: Decision) -> None:
        """Append the record of a decision, unless the decision is an error or no change."""
        if isinstance(decision, TransactionMetadata):
            record = encode_transaction(transactional_id, decision)
            self._append(out, self._entry(transactional_id), decision, record)

    def _append(
        self,
        out: ReplyBuffer,
        entry: _TransactionEntry,
        metadata: TransactionMetadata | None,
        record: CoordinatorRecord,
    ) -> None:
        latest = entry.latest
        status = None if metadata is None else metadata.status
        assert (None if latest is None else latest.status) in SOURCES[status]
        entry.pending.append(metadata)
        out.records.append(record)

    def _latest(self, transactional_id: str) -> TransactionMetadata | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.latest

    def _entry(self, transactional_id: str) -> _TransactionEntry:
        """The entry of a transactional id, made if missing; the caller then appends a record."""
        entry = self._entries.get(transactional_id)
        if entry is None:
            entry = self._entries[transactional_id] = _TransactionEntry(transactional_id)
            entry.timer.fire = partial(self._on_timer, entry)
        return entry

    def _take_producer_id(self) -> int | None:
        return self._producer_ids.popleft() if self._producer_ids else None

    def _watch(self, entry: _TransactionEntry, *, is_loading: bool = False) -> None:
        """Act on a committed state: order markers, or start the timer of its timeout or expiry."""
        current = entry.current

        def since_ms(timestamp_ms: int) -> int:
            return self.times.steady_ms(timestamp_ms) if is_loading else self.times.now_ms

        if current is None or current.status.is_prepared:
            self._deadlines.stop(entry.timer)
            if current is not None:
                self._order_markers(entry, current)
        elif current.status is TransactionStatus.ONGOING:
            if entry.opened_ms is None:
                entry.opened_ms = since_ms(current.start_ms)
            due_ms = self._next_check_ms(entry.opened_ms + current.timeout_ms + 1)
            self._deadlines.start(entry.timer, due_ms)
            return
        else:
            idle_since_ms = since_ms(current.updated_ms)
            self._deadlines.start(entry.timer, idle_since_ms + self._settings.id_expiration_ms)
        entry.opened_ms = None

    def _next_check_ms(self, due_ms: int) -> int:
        """The time of the first periodic check for timeouts at or after `due_ms`.

        Kafka checks for timeouts at an interval, too. A client that ends its transaction a little
        late is not fenced for it.
        """
        interval_ms = self._settings.timeout_check_ms
        return due_ms + (self._loaded_ms - due_ms) % interval_ms

    def _order_markers(self, entry: _TransactionEntry, current: TransactionMetadata) -> None:
        entry.awaiting_markers = dict.fromkeys(current.partitions)
        if not entry.awaiting_markers:
            self._without_partitions[entry.transactional_id] = entry
            return
        order = PendingMarkers(
            entry.transactional_id,
            self._marker(current),
            current.partitions,
            current.client_version,
        )
        self._orders.append(order)

    def _marker(self, current: TransactionMetadata) -> Marker:
        return Marker(
            current.producer_id,
            current.producer_epoch,
            self._coordinator_epoch,
            current.status is TransactionStatus.PREPARE_COMMIT,
        )

    def _on_timer(self, entry: _TransactionEntry, out: ReplyBuffer, now_ms: int) -> None:
        """Abort a transaction that timed out, or remove an expired transactional id."""
        if entry.pending:
            return  # The timer starts again once the pending change is committed.
        assert entry.current is not None
        if entry.current.status is TransactionStatus.ONGOING:
            decision = decisions.fence(entry.current, self.times.wall_ms, self._take_producer_id)
            self._change(out, entry.transactional_id, decision)
            if isinstance(decision, ErrorCode):
                # No producer id is in stock; the shell will add some.
                self._deadlines.start(entry.timer, now_ms + self._settings.timeout_check_ms)
        else:
            self._append(out, entry, None, encode_transaction(entry.transactional_id, None))
