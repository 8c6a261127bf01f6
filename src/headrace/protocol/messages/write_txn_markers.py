"""Tables of the WriteTxnMarkers API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
)


class WritableTxnMarkerTopic(Struct):
    name: str = string(default="")
    partition_indexes: list[int] = array(int32, default=...)


class WritableTxnMarker(Struct):
    producer_id: int = int64(default=0)
    producer_epoch: int = int16(default=0)
    transaction_result: bool = boolean(default=False)
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, default=...)
    coordinator_epoch: int = int32(default=0)
    transaction_version: int = int8("2+", default=0)


class WriteTxnMarkersRequest(Message, api_key=27, versions=(1, 2), flexible_from=1):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker, default=...)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)


class WritableTxnMarkerTopicResult(Struct):
    name: str = string(default="")
    partitions: list[WritableTxnMarkerPartitionResult] = array(
        WritableTxnMarkerPartitionResult, default=...
    )


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64(default=0)
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, default=...)


class WriteTxnMarkersResponse(Message, api_key=27, versions=(1, 2), flexible_from=1):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, default=...)
