"""Responses of the transaction coordinator."""

from collections.abc import Callable, Iterable, Mapping

from headrace.coordinator.transactions.decisions import Decision
from headrace.coordinator.transactions.metadata import TransactionMetadata
from headrace.coordinator.transactions.values import (
    STATUS_BY_TITLE,
    TRANSIENT_TITLES,
    Status,
)
from headrace.errors import ErrorCode
from headrace.protocol.messages import describe_transactions, list_transactions
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.end_txn import EndTxnResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdResponse
from headrace.types import TopicPartition

# The first versions whose clients know PRODUCER_FENCED.
FENCED_SINCE = 2
_INITIALIZE_FENCED_SINCE = 4


def for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """An error as clients of a version know it."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def initialized(decision: Decision, version: int) -> InitProducerIdResponse:
    """The answer to InitProducerId, to be sent once the decision is committed."""
    if isinstance(decision, TransactionMetadata):
        if decision.status is Status.EMPTY:
            return InitProducerIdResponse(
                producer_id=decision.producer_id, producer_epoch=decision.producer_epoch
            )
        # An open transaction is being aborted; the client asks again until it is.
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    else:
        code = for_version(decision, version, _INITIALIZE_FENCED_SINCE)
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def ended(
    decision: Decision, current: TransactionMetadata | None, version: int, is_bumping: bool
) -> EndTxnResponse:
    """The answer to EndTxn, to be sent once the decision is committed.

    A client of transactions version 2 gets the producer id and the epoch to go on with.
    """
    if isinstance(decision, TransactionMetadata):
        current, code = decision, ErrorCode.NONE
    else:
        code = for_version(decision, version, FENCED_SINCE)
    if code is not ErrorCode.NONE or current is None or not is_bumping:
        return EndTxnResponse(error_code=code)
    producer_id, producer_epoch = current.client_producer
    return EndTxnResponse(producer_id=producer_id, producer_epoch=producer_epoch)


def added(
    transactional_id: str, codes: Mapping[TopicPartition, ErrorCode], version: int
) -> AddPartitionsToTxnResponse:
    """The answer to AddPartitions: one result, in the form of version 4."""
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (topic, partition), code in codes.items():
        result = topics.get(topic)
        if result is None:
            result = topics[topic] = AddPartitionsToTxnTopicResult(name=topic)
        result.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(
                partition_index=partition,
                partition_error_code=for_version(code, version, FENCED_SINCE),
            )
        )
    result_of_all = AddPartitionsToTxnResult(
        transactional_id=transactional_id, topic_results=list(topics.values())
    )
    return AddPartitionsToTxnResponse(results_by_transaction=[result_of_all])


def described(
    transactional_id: str, current: TransactionMetadata | None
) -> describe_transactions.TransactionState:
    """One transactional id for DescribeTransactions."""
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


def listed(
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
