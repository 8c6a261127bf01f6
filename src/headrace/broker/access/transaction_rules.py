"""Access rules of the APIs about transactions and idempotent producers."""

from headrace.broker.access.rules import (
    EACH_PARTITION,
    EACH_RESOURCE,
    LEFT_OUT,
    WHOLE,
    AccessRule,
    NeededRight,
    may_topic,
    refuse_whole,
    remove_denied,
    right,
    with_refused_partitions,
)
from headrace.broker.request import Denial, RequestContext
from headrace.errors import ErrorCode
from headrace.metadata.topic_names import is_internal
from headrace.protocol.messages import (
    add_partitions_to_txn,
    describe_transactions,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType

_ID, _TOPIC = AclResourceType.TRANSACTIONAL_ID, AclResourceType.TOPIC
_GROUP, _CLUSTER = AclResourceType.GROUP, AclResourceType.CLUSTER
_ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NO_PRODUCER = -1


def _may_write(context: RequestContext, transactional_id: str) -> bool:
    return context.may(AclOperation.WRITE, _ID, transactional_id)


def _check_init(context: RequestContext, request: init_producer_id.InitProducerIdRequest) -> Denial:
    transactional_id = request.transactional_id
    code = None
    if transactional_id is None:
        # Whoever may write to any topic may do so idempotently (KIP-679).
        idempotent = context.sees(AclOperation.IDEMPOTENT_WRITE, _CLUSTER, CLUSTER_NAME)
        if not idempotent and not context.may_any(AclOperation.WRITE, _TOPIC):
            code = _CLUSTER_DENIED
    elif not _may_write(context, transactional_id):
        code = _ID_DENIED
    if code is None:
        return None
    return init_producer_id.InitProducerIdResponse(
        error_code=code, producer_id=_NO_PRODUCER, producer_epoch=_NO_PRODUCER
    )


INIT_PRODUCER_ID = AccessRule(
    (
        right(AclOperation.WRITE, _ID, WHOLE, "with a transactional id"),
        right(
            AclOperation.IDEMPOTENT_WRITE,
            _CLUSTER,
            WHOLE,
            "without a transactional id; WRITE on one topic is enough",
            instead=(AclOperation.WRITE, _TOPIC),
        ),
    ),
    _check_init,
)


# -- AddPartitionsToTxn


def _check_add_partitions(
    context: RequestContext, request: add_partitions_to_txn.AddPartitionsToTxnRequest
) -> Denial:
    if context.version >= 4:  # From brokers, which have asked for the rights of the producer.
        if context.may(AclOperation.CLUSTER_ACTION, _CLUSTER, CLUSTER_NAME):
            return None
        return refuse_whole(context, _CLUSTER_DENIED)
    topics = request.v3_and_below_topics
    if not _may_write(context, request.v3_and_below_transactional_id):
        codes = dict.fromkeys((topic.name for topic in topics), _ID_DENIED)
    else:
        # All or nothing; and nobody but brokers writes to internal topics.
        denied = {
            topic.name
            for topic in topics
            if is_internal(topic.name) or not may_topic(context, AclOperation.WRITE, topic)
        }
        if not denied:
            return None
        codes = {
            topic.name: _TOPIC_DENIED if topic.name in denied else ErrorCode.OPERATION_NOT_ATTEMPTED
            for topic in topics
        }
    return add_partitions_to_txn.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            add_partitions_to_txn.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    add_partitions_to_txn.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=codes[topic.name]
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


ADD_PARTITIONS_TO_TXN = AccessRule(
    (
        right(AclOperation.WRITE, _ID, "each partition", "of producers, up to version 3"),
        right(
            AclOperation.WRITE,
            _TOPIC,
            EACH_PARTITION,
            "of producers; OPERATION_NOT_ATTEMPTED in the others",
        ),
        right(AclOperation.CLUSTER_ACTION, _CLUSTER, WHOLE, "of brokers, from version 4 on"),
    ),
    _check_add_partitions,
)


# -- The other requests of a transactional producer


def _check_add_offsets(context: RequestContext, request: AddOffsetsToTxnRequest) -> Denial:
    if not _may_write(context, request.transactional_id):
        return refuse_whole(context, _ID_DENIED)
    if not context.may(AclOperation.READ, _GROUP, request.group_id):
        return refuse_whole(context, _GROUP_DENIED)
    return None


ADD_OFFSETS_TO_TXN = AccessRule(
    (right(AclOperation.WRITE, _ID), right(AclOperation.READ, _GROUP)), _check_add_offsets
)


def _check_end(context: RequestContext, request: EndTxnRequest) -> Denial:
    if _may_write(context, request.transactional_id):
        return None
    return refuse_whole(context, _ID_DENIED)


END_TXN = AccessRule((right(AclOperation.WRITE, _ID),), _check_end)


def _check_commit(
    context: RequestContext, request: txn_offset_commit.TxnOffsetCommitRequest
) -> Denial:
    if not _may_write(context, request.transactional_id):
        code = _ID_DENIED
    elif not context.may(AclOperation.READ, _GROUP, request.group_id):
        code = _GROUP_DENIED
    else:
        code = _TOPIC_DENIED
    if code is _TOPIC_DENIED:
        denied = remove_denied(
            request, "topics", lambda topic: may_topic(context, AclOperation.READ, topic)
        )
    else:
        denied, request.topics = request.topics, []
        if not denied:
            return txn_offset_commit.TxnOffsetCommitResponse()
    return with_refused_partitions(
        context,
        request,
        denied,
        code,
        txn_offset_commit.TxnOffsetCommitResponseTopic,
        txn_offset_commit.TxnOffsetCommitResponsePartition,
    )


TXN_OFFSET_COMMIT = AccessRule(
    (
        right(AclOperation.WRITE, _ID, "each partition"),
        right(AclOperation.READ, _GROUP, "each partition"),
        right(AclOperation.READ, _TOPIC, EACH_PARTITION),
    ),
    _check_commit,
)


def _check_markers(
    context: RequestContext, request: write_txn_markers.WriteTxnMarkersRequest
) -> Denial:
    if context.sees(AclOperation.ALTER, _CLUSTER, CLUSTER_NAME):
        return None
    if context.may(AclOperation.CLUSTER_ACTION, _CLUSTER, CLUSTER_NAME):
        return None
    return write_txn_markers.WriteTxnMarkersResponse(
        markers=[
            write_txn_markers.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    write_txn_markers.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            write_txn_markers.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=_CLUSTER_DENIED
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


WRITE_TXN_MARKERS = AccessRule(
    (
        right(
            AclOperation.CLUSTER_ACTION,
            _CLUSTER,
            "each partition",
            instead=(AclOperation.ALTER, _CLUSTER),
        ),
    ),
    _check_markers,
)


# -- Lists and descriptions of transactions


def _check_describe(
    context: RequestContext, request: describe_transactions.DescribeTransactionsRequest
) -> Denial:
    denied = remove_denied(
        request, "transactional_ids", lambda name: context.may(AclOperation.DESCRIBE, _ID, name)
    )

    def add(response: describe_transactions.DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            state.topics = [
                topic
                for topic in state.topics
                if context.sees(AclOperation.DESCRIBE, _TOPIC, topic.topic)
            ]
        response.transaction_states += [
            describe_transactions.TransactionState(transactional_id=name, error_code=_ID_DENIED)
            for name in denied
        ]

    return add


DESCRIBE_TRANSACTIONS = AccessRule(
    (
        right(AclOperation.DESCRIBE, _ID, EACH_RESOURCE),
        NeededRight(AclOperation.DESCRIBE, _TOPIC, LEFT_OUT, None, "in a transaction's topics"),
    ),
    _check_describe,
)


def _check_list(
    context: RequestContext, request: list_transactions.ListTransactionsRequest
) -> Denial:
    def leave_out(response: list_transactions.ListTransactionsResponse) -> None:
        response.transaction_states = [
            state
            for state in response.transaction_states
            if context.sees(AclOperation.DESCRIBE, _ID, state.transactional_id)
        ]

    return leave_out


LIST_TRANSACTIONS = AccessRule((right(AclOperation.DESCRIBE, _ID, LEFT_OUT),), _check_list)
