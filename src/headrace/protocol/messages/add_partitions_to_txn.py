"""Tables of the AddPartitionsToTxn API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class AddPartitionsToTxnTopic(Struct):
    name: str = string(default="")
    partitions: list[int] = array(int32, default=...)


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = string("4+", default="")
    producer_id: int = int64("4+", default=0)
    producer_epoch: int = int16("4+", default=0)
    verify_only: bool = boolean("4+", default=False)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+", default=...)


class AddPartitionsToTxnRequest(Message, api_key=24, versions=(0, 5), flexible_from=3):
    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, "4+", default=...
    )
    v3_and_below_transactional_id: str = string("0-3", default="")
    v3_and_below_producer_id: int = int64("0-3", default=0)
    v3_and_below_producer_epoch: int = int16("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, "0-3", default=...
    )


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32(default=0)
    partition_error_code: int = int16(default=0)


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string(default="")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, default=...
    )


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = string("4+", default="")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "4+", default=...
    )


class AddPartitionsToTxnResponse(Message, api_key=24, versions=(0, 5), flexible_from=3):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("4+", default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, "4+", default=...
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3", default=...
    )
