"""What a partition takes from a producer: one whole batch, within the bounds of its topic."""

from collections.abc import Mapping
from typing import NamedTuple

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
# Of more records than these it is only said that they are refused, to keep answers small.
_REASONS_MAX = 100


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
    bounds = _timestamp_bounds(config, now_ms)
    if "compact" in config.cleanup_policy or _may_be_out_of(bounds, header):
        _check_each_record(data, header, config, bounds)
    return header, data


class RecordsRefused(KafkaError):
    """Some records of a batch are not what their topic takes, so the batch is refused (KIP-467).

    `records` says why of each of them, by its place in the batch; None for some of very many.
    """

    def __init__(self, code: ErrorCode, detail: str, records: Mapping[int, str | None]) -> None:
        super().__init__(code, detail)
        self.records = records


class _Bounds(NamedTuple):
    """The times that a record may have, both included."""

    oldest: int
    newest: int


def _timestamp_bounds(config: TopicConfig, now_ms: int) -> _Bounds | None:
    if config.message_timestamp_type != "CreateTime":
        return None
    return _Bounds(
        now_ms - config.message_timestamp_before_max_ms,
        now_ms + config.message_timestamp_after_max_ms,
    )


def _may_be_out_of(bounds: _Bounds | None, header: BatchHeader) -> bool:
    """Whether the records have to be looked at; a header says only which timestamp is greatest."""
    return bounds is not None and (header.max_timestamp > bounds.newest or bounds.oldest > 0)


def _check_each_record(
    data: memoryview, header: BatchHeader, config: TopicConfig, bounds: _Bounds | None
) -> None:
    """Refuse records without a key in a compacted topic, which is a table, and wrong times."""
    scan = scan_batch(data, header, 0, batches.EXPANDED_BYTES_MAX)
    keyless: set[int] = set()
    if "compact" in config.cleanup_policy and scan.keys.nulls:
        sizes = memoryview(scan.keys.sizes).cast("i")
        keyless = {index for index, size in enumerate(sizes) if size < 0}
    mistimed: dict[int, int] = {}
    if bounds is not None:
        times = memoryview(scan.timestamps).cast("q")
        if min(times) < bounds.oldest or max(times) > bounds.newest:
            mistimed = {
                index: timestamp
                for index, timestamp in enumerate(times)
                if timestamp != batches.NO_TIMESTAMP
                and not bounds.oldest <= timestamp <= bounds.newest
                and index not in keyless
            }
    if keyless or mistimed:
        raise _refusal(header, keyless, mistimed, bounds)
    if bounds is not None and header.max_timestamp > bounds.newest:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the batch says that its greatest timestamp is {header.max_timestamp}, which none of"
            " its records has",
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


def _refusal(
    header: BatchHeader, keyless: set[int], mistimed: dict[int, int], bounds: _Bounds | None
) -> RecordsRefused:
    records: dict[int, str | None] = {}
    for index in sorted(keyless | mistimed.keys()):
        if len(records) >= _REASONS_MAX:
            records[index] = None
        elif index in keyless:
            records[index] = "it has no key, and a compacted topic needs one"
        else:
            assert bounds is not None
            records[index] = (
                f"its timestamp {mistimed[index]} is not between {bounds.oldest} and"
                f" {bounds.newest}, which message.timestamp.before.max.ms and after.max.ms allow"
            )
    # As in Kafka: one wrong time decides on the code of the batch.
    code = ErrorCode.INVALID_TIMESTAMP if mistimed else ErrorCode.INVALID_RECORD
    first = next(iter(records))
    detail = (
        f"{len(records)} of {header.record_count} records are refused, the first of them"
        f" record {first}: {records[first]}"
    )
    return RecordsRefused(code, detail, records)


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
