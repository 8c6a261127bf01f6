"""Decisions on requests for a transactional id: its next metadata, or an error.

Rule: one pure function for each request. The rules are those of Kafka 4's TransactionCoordinator.

While a transaction is prepared no client is fenced: the client that ended it gets the next epoch,
or the next producer id, before the end is complete. So the answer is CONCURRENT_TRANSACTIONS, after
which clients retry, and the retry is decided by the completed state. Kafka answers the same, since
its transition to the completed state is pending from the moment it answers EndTxn. Requests that
raise no epoch have their producer checked before that, in Kafka and here: EndTxn of transactions
version 1, and the verification of partitions.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from headrace.coordinator.shard import NO_PRODUCER
from headrace.coordinator.transactions.transaction_metadata import (
    CLIENT_EPOCH_MAX,
    NO_EPOCH,
    VERSION_WITH_BUMP,
    TransactionMetadata,
    TransactionStatus,
)
from headrace.errors import ErrorCode
from headrace.types import TopicPartition

Decision: TypeAlias = TransactionMetadata | ErrorCode
# Returns an unused producer id; None if none is in stock.
TakeProducerId: TypeAlias = Callable[[], int | None]

# A retriable error: the client retries, as it does while a coordinator loads.
_NO_ID_IN_STOCK = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class ProducerIdAndEpoch(NamedTuple):
    """The producer id and epoch in a request."""

    producer_id: int
    producer_epoch: int


def initialize(
    current: TransactionMetadata | None,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Decision:
    """Decide InitProducerId: a producer starts (KIP-98), or continues after an error (KIP-360).

    If the decision is PREPARE_ABORT, the abort must complete before a retry can succeed.
    """
    if current is None:
        producer_id = take_producer_id()
        if producer_id is None:
            return _NO_ID_IN_STOCK
        return TransactionMetadata(
            status=TransactionStatus.EMPTY,
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )
    if current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _is_known(current, expected):
        return ErrorCode.PRODUCER_FENCED
    if current.status is TransactionStatus.ONGOING:
        # Unlike Kafka: it compares epochs only after the abort, so a fenced client can abort the
        # transaction of the client that fenced it.
        if expected is not None and expected.producer_epoch != current.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return fence(current, now_ms, take_producer_id)
    return _raise_epoch(current, expected, timeout_ms, now_ms, take_producer_id)


def fence(current: TransactionMetadata, now_ms: int, take_producer_id: TakeProducerId) -> Decision:
    """Abort an open transaction and fence its client: a new client started, or it timed out."""
    assert current.status is TransactionStatus.ONGOING
    next_producer_id = _next_producer_id(current, take_producer_id)
    if next_producer_id is None:
        return _NO_ID_IN_STOCK
    return current.prepared_with_bump(False, next_producer_id, now_ms)


def _is_known(current: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer id is the client's present or previous; the epoch is checked later."""
    if expected.producer_id == current.producer_id:
        return True
    # The response with its new producer id may have been lost.
    return (
        expected.producer_id == current.previous_producer_id
        and expected.producer_epoch >= CLIENT_EPOCH_MAX
    )


def _raise_epoch(
    current: TransactionMetadata,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Decision:
    last_epoch = NO_EPOCH
    if expected is not None:
        if expected.producer_epoch not in (current.producer_epoch, current.last_epoch):
            return ErrorCode.PRODUCER_FENCED
        if expected.producer_epoch != current.producer_epoch and not current.has_last_epoch:
            # A retry: the same client has the present epoch, or there would be no last epoch.
            same = current.with_epoch(
                current.producer_epoch, current.last_epoch, timeout_ms, now_ms
            )
            return replace(same, previous_producer_id=current.previous_producer_id)
        last_epoch = expected.producer_epoch
    if not current.is_epoch_exhausted:
        return current.with_epoch(current.producer_epoch + 1, last_epoch, timeout_ms, now_ms)
    producer_id = take_producer_id()
    if producer_id is None:
        return _NO_ID_IN_STOCK
    return current.with_producer_id(producer_id, last_epoch, timeout_ms, now_ms)


def add(
    current: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    partitions: tuple[TopicPartition, ...],
    client_version: int,
    now_ms: int,
) -> Decision:
    """Decide AddPartitionsToTxn. NONE if all partitions are in the transaction already."""
    if current is not None and current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    code = _check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return code
    assert current is not None
    if current.status is TransactionStatus.ONGOING and set(partitions) <= set(current.partitions):
        return ErrorCode.NONE
    if not partitions:
        return ErrorCode.NONE
    return current.with_partitions(partitions, client_version, now_ms)


def verify(
    current: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    partitions: tuple[TopicPartition, ...],
) -> dict[TopicPartition, ErrorCode]:
    """Decide a verification: whether each partition is in the open transaction of the client."""
    code = _check_producer(current, producer)
    if code is ErrorCode.NONE and current is not None and current.status.is_prepared:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    if code is not ErrorCode.NONE:
        return dict.fromkeys(partitions, code)
    assert current is not None
    known = set(current.partitions)
    return {
        tp: ErrorCode.NONE if tp in known else ErrorCode.TRANSACTION_ABORTABLE for tp in partitions
    }


def _check_producer(current: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> ErrorCode:
    """NONE if the request has the producer id and epoch of the transactional id."""
    if current is None or producer.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != current.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def end(
    current: TransactionMetadata | None, producer: ProducerIdAndEpoch, committed: bool, now_ms: int
) -> Decision:
    """Decide EndTxn of transactions version 1. NONE if the transaction has ended so already."""
    code = _check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return code
    assert current is not None
    if current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.status is TransactionStatus.ONGOING:
        return current.prepared(committed, now_ms)
    return _repeated_end(current, committed)


def end_with_bump(
    current: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    committed: bool,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Decision:
    """Decide EndTxn of transactions version 2. NONE if the transaction has ended so already.

    The epoch distinguishes a retry from the next request, and from a request of another client.
    """
    if current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if _is_retry(current, producer):
        return _repeated_end(current, committed)
    code = _check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return code
    if committed and current.status is not TransactionStatus.ONGOING:
        return ErrorCode.INVALID_TXN_STATE
    next_producer_id = _next_producer_id(current, take_producer_id)
    if next_producer_id is None:
        return _NO_ID_IN_STOCK
    if current.status is TransactionStatus.ONGOING:
        return current.prepared_with_bump(committed, next_producer_id, now_ms)
    # Nothing was written. The epoch rises all the same: the client may not know that.
    opened = replace(current, start_ms=now_ms)
    return opened.prepared_with_bump(False, next_producer_id, now_ms).completed(now_ms)


def _next_producer_id(current: TransactionMetadata, take_producer_id: TakeProducerId) -> int | None:
    """The producer id after this end: a new id if the epochs are used up, None if out of stock."""
    return take_producer_id() if current.is_epoch_exhausted else NO_PRODUCER


def _is_retry(current: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether the present state is the completed outcome of this very request."""
    if current.status not in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT):
        return False
    if current.client_version < VERSION_WITH_BUMP:
        return False  # That end raised no epoch, so the epoch before was another client's.
    if producer.producer_id == current.producer_id:
        return producer.producer_epoch + 1 == current.producer_epoch and not current.has_last_epoch
    return (
        producer == (current.previous_producer_id, CLIENT_EPOCH_MAX) and current.producer_epoch == 0
    )


def _repeated_end(current: TransactionMetadata, committed: bool) -> ErrorCode:
    """The answer to an EndTxn without an open transaction: NONE if it had this outcome."""
    if current.status is (
        TransactionStatus.COMPLETE_COMMIT if committed else TransactionStatus.COMPLETE_ABORT
    ):
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE
