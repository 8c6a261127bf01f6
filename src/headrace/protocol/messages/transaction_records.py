"""The records of `__transaction_state`, and the value of a transaction's marker."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
)


class EndTxnMarker(Message, versions=(0, 0)):
    coordinator_epoch: int = int32(default=0)


class TransactionLogKey(Message, api_key=0, versions=(0, 0)):
    transactional_id: str = string(default="")


class PartitionsSchema(Struct):
    topic: str = string(default="")
    partition_ids: list[int] = array(int32, default=...)


class TransactionLogValue(Message, api_key=0, versions=(0, 1), flexible_from=1):
    producer_id: int = int64(default=0)
    previous_producer_id: int = int64("1+", tag=0, default=-1)
    next_producer_id: int = int64("1+", tag=1, default=-1)
    producer_epoch: int = int16(default=0)
    next_producer_epoch: int = int16("1+", tag=3, default=-1)
    transaction_timeout_ms: int = int32(default=0)
    transaction_status: int = int8(default=0)
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, nullable="0+", default=...
    )
    transaction_last_update_timestamp_ms: int = int64(default=0)
    transaction_start_timestamp_ms: int = int64(default=0)
    client_transaction_version: int = int16("1+", tag=2, default=0)
