"""Which records a topic takes, and which of a batch are named when it is refused (KIP-467)."""

from typing import Any

import pytest

from headrace.broker.replication.partition import RecordsRefused, admit
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.batch import crc32c
from headrace.protocol.records import encode_batch

NOW_MS = 1_700_000_000_000
COMPACTED = TopicConfig(cleanup_policy=("compact",))
TIMED = TopicConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
BOTH = TopicConfig(
    cleanup_policy=("compact",),
    message_timestamp_before_max_ms=1000,
    message_timestamp_after_max_ms=2000,
)
CODECS = pytest.mark.parametrize("compression", [0, 4])


def row(key: bytes | None = b"k", ms: int = 0) -> tuple[int, bytes | None, bytes, tuple[()]]:
    return (NOW_MS + ms, key, b"v", ())


def refusal(rows: list[Any], config: TopicConfig, **options: Any) -> RecordsRefused:
    with pytest.raises(RecordsRefused) as caught:
        admit(memoryview(bytearray(encode_batch(rows, **options))), config, NOW_MS)
    return caught.value


def admitted(rows: list[Any], config: TopicConfig, **options: Any) -> int:
    header, _ = admit(memoryview(bytearray(encode_batch(rows, **options))), config, NOW_MS)
    return header.record_count


@CODECS
def test_a_compacted_topic_names_the_records_without_a_key(compression: int) -> None:
    rows = [row(), row(None), row(b""), row(None)]
    error = refusal(rows, COMPACTED, compression=compression)
    assert (error.code, list(error.records)) == (ErrorCode.INVALID_RECORD, [1, 3])
    assert error.detail == (
        "2 of 4 records are refused, the first of them record 1: it has no key, and a compacted"
        " topic needs one"
    )
    assert admitted(rows[::2], COMPACTED, compression=compression) == 2


@CODECS
def test_records_with_times_out_of_range_are_named(compression: int) -> None:
    rows = [row(), row(ms=-1001), row(ms=2001), row(ms=-1000), row(ms=2000)]
    error = refusal(rows, TIMED, compression=compression)
    assert (error.code, list(error.records)) == (ErrorCode.INVALID_TIMESTAMP, [1, 2])
    assert error.records[1] == (
        f"its timestamp {NOW_MS - 1001} is not between {NOW_MS - 1000} and {NOW_MS + 2000}, which"
        " message.timestamp.before.max.ms and after.max.ms allow"
    )
    assert admitted([rows[0], *rows[3:]], TIMED, compression=compression) == 3


def test_a_record_has_one_error_and_a_wrong_time_decides_on_the_code() -> None:
    error = refusal([row(), row(None, ms=-5000), row(ms=5000)], BOTH)
    assert (error.code, list(error.records)) == (ErrorCode.INVALID_TIMESTAMP, [1, 2])
    assert "no key" in (error.records[1] or "")
    alone = refusal([row(), row(None, ms=-5000)], BOTH)
    assert alone.code is ErrorCode.INVALID_RECORD


def test_records_without_a_time_are_in_range() -> None:
    timeless = (-1, b"k", b"v", ())
    assert admitted([timeless, timeless], TIMED) == 2


def test_under_log_append_time_producers_may_send_any_time() -> None:
    stamping = TopicConfig(
        message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1000
    )
    assert admitted([row(ms=-5000)], stamping) == 1


def test_a_greatest_time_that_no_record_has_is_refused() -> None:
    data = bytearray(encode_batch([row()]))
    data[35:43] = (NOW_MS + 5000).to_bytes(8, "big")
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    with pytest.raises(KafkaError, match="which none of its records has") as caught:
        admit(memoryview(data), TIMED, NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


def test_of_very_many_records_only_some_have_a_reason() -> None:
    error = refusal([row(None)] * 1000, COMPACTED)
    reasons = list(error.records.values())
    assert (len(reasons), reasons.count(None)) == (1000, 900)
