"""A plain request of every API of transactions, in every version, about an id nobody has used."""

from collections.abc import Callable

from headrace.errors import ErrorCode
from headrace.protocol.apis import Api
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.protocol.schema import Message

# What is said of an id that nobody has used, where that is not success.
TRANSACTION_ANSWERS: dict[Api, set[int]] = {
    Api.ADD_OFFSETS_TO_TXN: {ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    Api.END_TXN: {ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    Api.TXN_OFFSET_COMMIT: {ErrorCode.INVALID_PRODUCER_ID_MAPPING},
    Api.DESCRIBE_TRANSACTIONS: {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND},
}


def transaction_requests_of(topic: str) -> dict[Api, Callable[[int], Message]]:
    unused = f"id-of-{topic}"
    added = AddPartitionsToTxnTopic(name=topic, partitions=[0])
    return {
        Api.ADD_PARTITIONS_TO_TXN: lambda version: AddPartitionsToTxnRequest(
            transactions=[AddPartitionsToTxnTransaction(transactional_id=unused, topics=[added])],
            v3_and_below_transactional_id=unused,
            v3_and_below_topics=[added],
        ),
        Api.ADD_OFFSETS_TO_TXN: lambda version: AddOffsetsToTxnRequest(
            transactional_id=unused, group_id="any"
        ),
        Api.END_TXN: lambda version: EndTxnRequest(transactional_id=unused),
        Api.WRITE_TXN_MARKERS: lambda version: WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=1 << 40,
                    topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
                )
            ]
        ),
        Api.TXN_OFFSET_COMMIT: lambda version: TxnOffsetCommitRequest(
            transactional_id=unused,
            group_id="any",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic, partitions=[TxnOffsetCommitRequestPartition(committed_offset=7)]
                )
            ],
        ),
        Api.DESCRIBE_PRODUCERS: lambda version: DescribeProducersRequest(
            topics=[TopicRequest(name=topic, partition_indexes=[0])]
        ),
        Api.DESCRIBE_TRANSACTIONS: lambda version: DescribeTransactionsRequest(
            transactional_ids=[unused]
        ),
        Api.LIST_TRANSACTIONS: lambda version: ListTransactionsRequest(),
    }
