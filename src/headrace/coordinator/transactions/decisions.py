"""What becomes of a transactional id by a request: its next metadata, or an error.

Rule: one function for each request, from values to a value. The tables are those of Kafka 4's
TransactionCoordinator.

While a transaction is prepared nobody is fenced: the client that ended it has the next epoch, or
the next producer id, before the end is complete. So the answer is CONCURRENT_TRANSACTIONS, after
which clients send the request again, and the request is judged by the state that is complete.
Kafka answers the same, as its transition to the complete state is pending from the moment at which
the client hears of the end. Requests that raise no epoch are checked first, there and here: EndTxn
of transactions version 1, and the verification of partitions.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from headrace.coordinator.shard import NO_PRODUCER
from headrace.coordinator.transactions.transaction_metadata import (
    CLIENT_EPOCH_MAX,
    NO_EPOCH,
    VERSION_WITH_BUMP,
    Status,
    TransactionMetadata,
)
from headrace.errors import ErrorCode
from headrace.types import TopicPartition

Decision: TypeAlias = TransactionMetadata | ErrorCode
# Gives a producer id that nobody has used; None if there is none at hand.
TakeProducerId: TypeAlias = Callable[[], int | None]

# A client asks again, as it does while a coordinator is loading.
_NO_ID_AT_HAND = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class Producer(NamedTuple):
    """A producer id with an epoch, as a client names itself."""

    producer_id: int
    producer_epoch: int


def initialize(
    current: TransactionMetadata | None,
    expected: Producer | None,
    timeout_ms: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Decision:
    """A producer starts (KIP-98), or goes on after an error with what it has (KIP-360).

    A PREPARE_ABORT has to be carried out before the request can be asked again.
    """
    if current is None:
        producer_id = take_producer_id()
        if producer_id is None:
            return _NO_ID_AT_HAND
        return TransactionMetadata(
            status=Status.EMPTY,
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )
    if current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _is_known(current, expected):
        return ErrorCode.PRODUCER_FENCED
    if current.status is Status.ONGOING:
        # Kafka looks at the epoch only after the abort, so it lets a client that is fenced already
        # abort the transaction of the one that fenced it.
        if expected is not None and expected.producer_epoch != current.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return fence(current, now_ms, take_producer_id)
    return _raise_epoch(current, expected, timeout_ms, now_ms, take_producer_id)


def fence(current: TransactionMetadata, now_ms: int, take_producer_id: TakeProducerId) -> Decision:
    """Abort an open transaction without its client, for a new client or for its timeout."""
    assert current.status is Status.ONGOING
    next_producer_id = _next_producer_id(current, take_producer_id)
    if next_producer_id is None:
        return _NO_ID_AT_HAND
    return current.prepared_with_bump(False, next_producer_id, now_ms)


def _is_known(current: TransactionMetadata, expected: Producer) -> bool:
    """Whether a client may have had this id last; its epoch is looked at later."""
    if expected.producer_id == current.producer_id:
        return True
    # It may not have heard that it got another one.
    return (
        expected.producer_id == current.previous_producer_id
        and expected.producer_epoch >= CLIENT_EPOCH_MAX
    )


def _raise_epoch(
    current: TransactionMetadata,
    expected: Producer | None,
    timeout_ms: int,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Decision:
    last_epoch = NO_EPOCH
    if expected is not None:
        if expected.producer_epoch not in (current.producer_epoch, current.last_epoch):
            return ErrorCode.PRODUCER_FENCED
        if expected.producer_epoch != current.producer_epoch and not current.has_last_epoch:
            # Sent again: nobody else has the present epoch, or it would have no last one.
            same = current.with_epoch(
                current.producer_epoch, current.last_epoch, timeout_ms, now_ms
            )
            return replace(same, previous_producer_id=current.previous_producer_id)
        last_epoch = expected.producer_epoch
    if not current.is_epoch_exhausted:
        return current.with_epoch(current.producer_epoch + 1, last_epoch, timeout_ms, now_ms)
    producer_id = take_producer_id()
    if producer_id is None:
        return _NO_ID_AT_HAND
    return current.with_producer_id(producer_id, last_epoch, timeout_ms, now_ms)


def add(
    current: TransactionMetadata | None,
    producer: Producer,
    partitions: tuple[TopicPartition, ...],
    client_version: int,
    now_ms: int,
) -> Decision:
    """Partitions are about to be written to. NONE if there is nothing to change."""
    if current is not None and current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    code = _check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return code
    assert current is not None
    if current.status is Status.ONGOING and set(partitions) <= set(current.partitions):
        return ErrorCode.NONE
    if not partitions:
        return ErrorCode.NONE
    return current.with_partitions(partitions, client_version, now_ms)


def verify(
    current: TransactionMetadata | None,
    producer: Producer,
    partitions: tuple[TopicPartition, ...],
) -> dict[TopicPartition, ErrorCode]:
    """Whether the client has an open transaction with each of the partitions."""
    code = _check_producer(current, producer)
    if code is ErrorCode.NONE and current is not None and current.status.is_prepared:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    if code is not ErrorCode.NONE:
        return dict.fromkeys(partitions, code)
    assert current is not None
    known = set(current.partitions)
    return {
        one: ErrorCode.NONE if one in known else ErrorCode.TRANSACTION_ABORTABLE
        for one in partitions
    }


def _check_producer(current: TransactionMetadata | None, producer: Producer) -> ErrorCode:
    """NONE if a request is of the client that the transactional id belongs to."""
    if current is None or producer.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != current.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def end(
    current: TransactionMetadata | None, producer: Producer, committed: bool, now_ms: int
) -> Decision:
    """EndTxn of transactions version 1. NONE if it is done already."""
    code = _check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return code
    assert current is not None
    if current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.status is Status.ONGOING:
        return current.prepared(committed, now_ms)
    return _again(current, committed)


def end_with_bump(
    current: TransactionMetadata | None,
    producer: Producer,
    committed: bool,
    now_ms: int,
    take_producer_id: TakeProducerId,
) -> Decision:
    """EndTxn of transactions version 2. NONE if it is done already.

    The epoch tells a request that is sent again from the next one, and from one of somebody else.
    """
    if current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if _is_sent_again(current, producer):
        return _again(current, committed)
    code = _check_producer(current, producer)
    if code is not ErrorCode.NONE:
        return code
    if committed and current.status is not Status.ONGOING:
        return ErrorCode.INVALID_TXN_STATE
    next_producer_id = _next_producer_id(current, take_producer_id)
    if next_producer_id is None:
        return _NO_ID_AT_HAND
    if current.status is Status.ONGOING:
        return current.prepared_with_bump(committed, next_producer_id, now_ms)
    # Nothing was written. The epoch rises all the same: the client may not know what was sent.
    opened = replace(current, start_ms=now_ms)
    return opened.prepared_with_bump(False, next_producer_id, now_ms).completed(now_ms)


def _next_producer_id(current: TransactionMetadata, take_producer_id: TakeProducerId) -> int | None:
    """The id to go on with after an end that uses up the epochs; None if none is at hand."""
    return take_producer_id() if current.is_epoch_exhausted else NO_PRODUCER


def _is_sent_again(current: TransactionMetadata, producer: Producer) -> bool:
    """Whether the present state, which is complete, is the outcome of the same request."""
    if current.status not in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT):
        return False
    if current.client_version < VERSION_WITH_BUMP:
        return False  # The epoch before was somebody else's, since this end has not raised it.
    if producer.producer_id == current.producer_id:
        return producer.producer_epoch + 1 == current.producer_epoch and not current.has_last_epoch
    return (
        producer == (current.previous_producer_id, CLIENT_EPOCH_MAX) and current.producer_epoch == 0
    )


def _again(current: TransactionMetadata, committed: bool) -> ErrorCode:
    """The answer to an end that is complete already, or that has nothing to end."""
    if current.status is (Status.COMPLETE_COMMIT if committed else Status.COMPLETE_ABORT):
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE
