"""What a partition takes from a producer: one whole batch, within the bounds of its topic."""

from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol import records as batches
from headrace.protocol.compression import Compression
from headrace.protocol.record_scan import scan_batch
from headrace.protocol.records import BatchHeader

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def admit(records: memoryview, config: TopicConfig, now_ms: int) -> tuple[BatchHeader, memoryview]:
    """The one batch of a produce request as it is to be stored."""
    headers = batches.validate(records, config.max_message_bytes)
    header = headers[0]
    if len(headers) != 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a partition takes one batch per request")
    if header.is_transactional and not header.has_producer:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transaction needs a producer id")
    data = records
    codec = _CODECS.get(config.compression_type)
    if codec is not None and codec != header.compression:
        header, data = _recompress(records, header, codec, config)
    if header.lacks_max_timestamp:
        batches.stamp_max_timestamp(data, header, batches.check_records(data, header))
    if config.message_timestamp_type == "CreateTime":
        _check_timestamps(header, config, now_ms)
    if "compact" in config.cleanup_policy:
        _check_keys(data, header)
    return header, data


def _check_keys(data: memoryview, header: BatchHeader) -> None:
    """A compacted topic is a table: a record without a key has no place in it."""
    keyless = scan_batch(data, header, 0, batches.EXPANDED_BYTES_MAX).keys.nulls
    if keyless:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{keyless} of {header.record_count} records have no key; a compacted topic needs one",
        )


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    newest = header.max_timestamp
    if newest > now_ms + config.message_timestamp_after_max_ms or (
        0 <= header.base_timestamp < now_ms - config.message_timestamp_before_max_ms
    ):
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            "a timestamp is outside message.timestamp.before.max.ms and after.max.ms",
        )


def _level(config: TopicConfig, codec: Compression) -> int | None:
    """The level a topic wants of its codec, None for the codec's default."""
    match codec:
        case Compression.GZIP:
            level, default = config.compression_gzip_level, -1
        case Compression.LZ4:
            # Kafka too takes its fast LZ4 for the default level, and the slow one for all others.
            level, default = config.compression_lz4_level, 9
        case Compression.ZSTD:
            level, default = config.compression_zstd_level, 3
        case _:
            return None
    return None if level == default else level


def _recompress(
    records: memoryview, header: BatchHeader, codec: Compression, config: TopicConfig
) -> tuple[BatchHeader, memoryview]:
    """The batch under the topic's own codec, held to the same limits as what came."""
    size, bytes_max = 0, config.max_message_bytes
    if codec is Compression.NONE:
        # Known before the copy is made: what little came may expand to a great deal.
        size = batches.HEADER_SIZE + len(batches.record_bytes(records, header))
    if size <= bytes_max:
        data = memoryview(batches.recompress(records, header, codec, level=_level(config, codec)))
        size = len(data)
    if size > bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"stored with compression.type {codec.name.lower()} the batch would have {size} bytes,"
            f" and the limit is {bytes_max}",
        )
    header = batches.read_header(data)
    # A CRC says that these are the producer's bytes; now they are ours, and must be records.
    batches.check_records(data, header)
    return header, data
