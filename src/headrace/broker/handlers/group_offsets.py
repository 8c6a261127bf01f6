"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit: the committed offsets of groups."""

from collections.abc import Awaitable

from headrace.broker.handlers.groups import ask_shard
from headrace.broker.request import RequestContext
from headrace.coordinator.groups.group_offsets import offset_commit_error, txn_offset_commit_error
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.storage.producer_state import ProducerStates

_COMMIT_TOPIC_IDS_SINCE = 10
_FETCH_GROUPS_SINCE = 8
_FETCH_TOPIC_IDS_SINCE = 10


def offset_commit(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    unknown: list[OffsetCommitResponseTopic] = []
    known: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        _split_unknown(context, topic, known, unknown)
    request.topics = known
    if not known and unknown:
        return OffsetCommitResponse(topics=unknown)
    answer = ask_shard(
        context, request.group_id, request, lambda code: offset_commit_error(request, code)
    )
    if isinstance(answer, OffsetCommitResponse):
        return _with_unknown(answer, unknown)
    return _with_unknown_later(answer, unknown)


def _split_unknown(
    context: RequestContext,
    topic: OffsetCommitRequestTopic,
    known: list[OffsetCommitRequestTopic],
    unknown: list[OffsetCommitResponseTopic],
) -> None:
    """Split a topic's partitions into those that exist, by name, and errors for the others."""
    image = context.node.store.image
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = image.topics.get(topic.name)
    if context.version >= _COMMIT_TOPIC_IDS_SINCE:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        found = image.topics_by_id.get(topic.topic_id)
    count = 0 if found is None else len(found.partitions)
    existing = [
        partition for partition in topic.partitions if 0 <= partition.partition_index < count
    ]
    if found is not None and existing:
        known.append(
            OffsetCommitRequestTopic(name=found.name, topic_id=found.topic_id, partitions=existing)
        )
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(existing) < len(topic.partitions):
        unknown.append(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                    if not 0 <= partition.partition_index < count
                ],
            )
        )


def _with_unknown(
    response: OffsetCommitResponse, unknown: list[OffsetCommitResponseTopic]
) -> OffsetCommitResponse:
    known = {topic.name: topic for topic in response.topics}
    for topic in unknown:
        if topic.name in known and topic.name:
            known[topic.name].partitions += topic.partitions
        else:
            response.topics.append(topic)
    return response


async def _with_unknown_later(
    answer: Awaitable[OffsetCommitResponse], unknown: list[OffsetCommitResponseTopic]
) -> OffsetCommitResponse:
    return _with_unknown(await answer, unknown)


def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= _FETCH_GROUPS_SINCE:
        stable = request.require_stable
        return OffsetFetchResponse(
            groups=[_fetch(context, group, stable) for group in request.groups]
        )
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    fetched = _fetch(context, group, request.require_stable)
    return OffsetFetchResponse(
        error_code=fetched.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in fetched.topics
        ],
    )


def _fetch(
    context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    image = context.node.store.image
    unknown: list[OffsetFetchResponseTopics] = []
    if context.version >= _FETCH_TOPIC_IDS_SINCE and group.topics is not None:
        named = []
        for topic in group.topics:
            found = image.topics_by_id.get(topic.topic_id)
            if found is None:
                unknown.append(_unknown_topic(topic))
            else:
                topic.name = found.name
                named.append(topic)
        group.topics = named
    try:
        shard = context.node.groups.driver_of(group.group_id).shard
        fetched = shard.fetch_offsets(group, require_stable)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    if context.version >= _FETCH_TOPIC_IDS_SINCE:
        existing = [known for known in fetched.topics if known.name in image.topics]
        for known in existing:
            known.topic_id = image.topics[known.name].topic_id
        fetched.topics = existing + unknown
    return fetched


def _unknown_topic(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=-1,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            )
            for index in topic.partition_indexes
        ],
    )


def offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    return ask_shard(
        context, request.group_id, request, lambda code: OffsetDeleteResponse(error_code=code)
    )


# Clients of transactions version 2 leave adding the group's partition to the broker.
_ADDING_SINCE = 5
_ABORTABLE_SINCE = 4
_LOADING_SINCE = 2
# Errors of the transaction's coordinator. A client would take them for errors of the group's
# coordinator, and look that up again; so it gets an error after which it only retries.
_PASSING = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    )
)


async def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    unknown = _remove_unknown(context, request)
    if unknown and not request.topics:
        return TxnOffsetCommitResponse(topics=unknown)
    try:
        await _verify(context, request)
        # Nothing is awaited from here on until the offsets are written.
        answer = ask_shard(
            context, request.group_id, request, lambda code: _refused(context, request, code)
        )
    except KafkaError as error:
        answer = _refused(context, request, error.code)
    response = answer if isinstance(answer, TxnOffsetCommitResponse) else await answer
    known = {topic.name: topic for topic in response.topics}
    for topic in unknown:
        if topic.name in known:
            known[topic.name].partitions += topic.partitions
        else:
            response.topics.append(topic)
    return response


def _remove_unknown(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> list[TxnOffsetCommitResponseTopic]:
    """Remove partitions that do not exist from the request, and return errors for them."""
    topics = context.node.store.image.topics
    unknown = []
    known = []
    for topic in request.topics:
        count = len(topics[topic.name].partitions) if topic.name in topics else 0
        existing = [
            partition for partition in topic.partitions if 0 <= partition.partition_index < count
        ]
        if existing:
            known.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=existing))
        missing = [
            TxnOffsetCommitResponsePartition(
                partition_index=partition.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            for partition in topic.partitions
            if not 0 <= partition.partition_index < count
        ]
        if missing:
            unknown.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=missing))
    request.topics = known
    return unknown


async def _verify(context: RequestContext, request: TxnOffsetCommitRequest) -> None:
    """KafkaError unless the producer's transaction is open, and has the partition of the group.

    As for records: if the log does not know of the transaction yet, its coordinator is asked, and
    no marker of it may have been written since.
    """
    node = context.node
    producer_id, epoch = request.producer_id, request.producer_epoch
    adds = context.version >= _ADDING_SINCE
    driver = node.groups.driver_of(request.group_id)
    producers = driver.partition.log.producers
    _check_epoch(producers, request)
    if producers.has_open_transaction(producer_id, epoch):
        return
    if not adds and not node.config.transaction_partition_verification_enable:
        return
    markers_seen = producers.marker_count(producer_id)
    name = driver.partition.name
    verdicts = await node.verifier.verify(
        request.transactional_id, producer_id, epoch, [name], add=adds
    )
    code = verdicts.get(name, ErrorCode.NETWORK_EXCEPTION)
    if code is not ErrorCode.NONE:
        raise KafkaError(_client_error(code, context.version))
    if node.groups.driver_of(request.group_id) is not driver:
        # Another broker may have led meanwhile, and ended the transaction.
        raise KafkaError(ErrorCode.NOT_COORDINATOR)
    _check_epoch(producers, request)
    # Under version 2 the marker of this transaction would have raised the epoch. A marker that
    # leaves it is of the previous transaction, sent again by a new coordinator.
    if not adds and producers.marker_count(producer_id) != markers_seen:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "it ended while it was looked up")


def _check_epoch(producers: ProducerStates, request: TxnOffsetCommitRequest) -> None:
    """Refuse a fenced producer before the append: a refusal of the log would end the shard."""
    if request.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    producer = producers.get(request.producer_id)
    if request.producer_epoch < (0 if producer is None else producer.epoch):
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)


def _client_error(code: ErrorCode, version: int) -> ErrorCode:
    """The error for clients of a version after an error of the transaction's coordinator."""
    if code in _PASSING:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDING_SINCE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _refused(
    context: RequestContext, request: TxnOffsetCommitRequest, code: ErrorCode
) -> TxnOffsetCommitResponse:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.version < _LOADING_SINCE:
        # The first clients with transactions fail for good at COORDINATOR_LOAD_IN_PROGRESS.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return txn_offset_commit_error(request, code)
