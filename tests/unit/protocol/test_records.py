"""Record batches: headers, checks, stamps, rows, and agreement with other clients' codecs."""

import random
import struct
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptBatch, ErrorCode
from headrace.protocol.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    RefusedBatch,
    assign,
    batch_size,
    check_batch,
    claimed_compression,
    claimed_producer,
    claims_transaction,
    crc32c,
    has_magic,
    has_sound_rest,
    read_header,
    renumber,
    scan_headers,
    stamp_log_append_time,
    stamp_max_timestamp,
    validate,
)
from headrace.protocol.column_decoder import decode_columns
from headrace.protocol.compression import (
    Compression,
    compress,
    recompress,
    record_bytes,
    write_header,
)
from headrace.protocol.record_scan import check_records
from headrace.protocol.records import Record, decode_rows, encode_batch

with warnings.catch_warnings():
    # kafka-python loads its schemas in a way Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec as kafka_python_codec
    import kafka.record.default_records as kafka_python_records

Row = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

CODECS = list(Compression)
KAFKA_PYTHON_CODECS = [
    codec
    for codec, available in [
        (Compression.NONE, True),
        (Compression.GZIP, kafka_python_codec.has_gzip()),
        (Compression.SNAPPY, kafka_python_codec.has_snappy()),
        (Compression.LZ4, kafka_python_codec.has_lz4()),
        (Compression.ZSTD, kafka_python_codec.has_zstd()),
    ]
    if available
]
CLIENT_CODECS = [("aiokafka", codec) for codec in CODECS]
CLIENT_CODECS += [("kafka-python", codec) for codec in KAFKA_PYTHON_CODECS]
CLIENTS: dict[str, Any] = {"aiokafka": aiokafka_records, "kafka-python": kafka_python_records}

ROWS: list[Row] = [
    (1_700_000_000_000, b"key", b"value", ()),
    (1_700_000_000_005, None, b"no key", (("trace", b"1"), ("empty", b""), ("null", None))),
    (1_699_999_999_990, b"", None, ()),
    (1_700_000_000_001, b"k" * 200, b"v" * 1000, (("ключ", b"\x00\xff"),)),
]

maybe_bytes = st.none() | st.binary(max_size=80)
header_lists = st.lists(st.tuples(st.text(max_size=10), maybe_bytes), max_size=3)


def row_lists(timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    rows = st.tuples(timestamps, maybe_bytes, maybe_bytes, header_lists)
    return st.lists(rows, min_size=1, max_size=12)


any_rows = row_lists(st.integers(-(2**62), 2**62 - 1))
client_rows = row_lists(st.integers(0, 2**48))


def records_of(rows: Sequence[Row], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + index, timestamp, key, value, headers)
        for index, (timestamp, key, value, headers) in enumerate(rows)
    ]


def sealed(payload: bytes, count: int = 1, **fields: int) -> bytearray:
    """A batch with a right CRC around any payload at all."""
    batch = bytearray(HEADER_SIZE) + payload
    header = {
        "base_offset": 0,
        "leader_epoch": -1,
        "attributes": 0,
        "last_offset_delta": count - 1,
        "base_timestamp": 0,
        "max_timestamp": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": count,
    }
    write_header(batch, **(header | fields))
    return batch


def with_crc(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


# Headers


def test_header_has_every_field_of_the_batch() -> None:
    batch = encode_batch(
        ROWS,
        base_offset=1 << 40,
        leader_epoch=7,
        compression=Compression.ZSTD,
        producer_id=1 << 50,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
    )
    header = read_header(b"x" * 5 + batch, 5)
    assert (header.position, header.size) == (5, len(batch))
    assert header.batch_length == len(batch) - LOG_OVERHEAD
    assert (header.base_offset, header.last_offset_delta) == (1 << 40, 3)
    assert (header.last_offset, header.next_offset) == ((1 << 40) + 3, (1 << 40) + 4)
    assert (header.leader_epoch, header.magic) == (7, 2)
    assert header.crc == crc32c(bytes(batch[21:]))
    assert header.attributes == 0x10 | Compression.ZSTD
    assert header.base_timestamp == 1_700_000_000_000
    assert header.max_timestamp == 1_700_000_000_005
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 50, 3, 11)
    assert header.record_count == 4
    assert header.last_sequence == 14
    assert header.compression == Compression.ZSTD
    assert header.has_producer and header.is_transactional
    assert not (header.is_control or header.is_log_append_time or header.has_delete_horizon)


def test_header_of_negative_and_large_fields_is_read_as_signed_numbers() -> None:
    batch = sealed(
        b"",
        leader_epoch=-(2**31),
        attributes=-1,
        last_offset_delta=2**31 - 1,
        base_timestamp=-(2**63),
        max_timestamp=2**63 - 1,
        producer_id=-(2**63),
        producer_epoch=-(2**15),
        base_sequence=-(2**31),
        record_count=2**31 - 1,
    )
    header = read_header(batch)
    assert header.leader_epoch == -(2**31)
    assert header.attributes == -1
    assert header.last_offset == 2**31 - 1
    assert header.base_timestamp == -(2**63)
    assert header.max_timestamp == 2**63 - 1
    assert header.producer_id == -(2**63)
    assert header.producer_epoch == -(2**15)
    assert header.base_sequence == -(2**31)
    assert header.record_count == 2**31 - 1


def test_sequence_numbers_wrap_to_zero() -> None:
    batch = encode_batch(ROWS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert read_header(batch).last_sequence == 1
    assert read_header(encode_batch(ROWS)).last_sequence == -1


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_read(kind: Callable[[bytes], Any]) -> None:
    buffer = kind(bytes(encode_batch(ROWS)))
    [header] = scan_headers(buffer)
    check_batch(buffer, header)
    assert validate(buffer)[0].crc == header.crc
    assert decode_rows(buffer) == records_of(ROWS)


def test_buffer_shorter_than_a_header_is_corrupt_at_every_length() -> None:
    batch = encode_batch(ROWS)
    for size in range(HEADER_SIZE):
        with pytest.raises(CorruptBatch, match="too few"):
            read_header(batch[:size])
    for position in (-1, len(batch) - HEADER_SIZE + 1, len(batch), 2**40):
        with pytest.raises(CorruptBatch):
            read_header(batch, position)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_message_formats_are_refused_by_name(magic: int) -> None:
    batch = encode_batch(ROWS)
    batch[16] = magic
    # The old formats' headers are shorter: 34 bytes make a whole message.
    for buffer in (batch, batch[:34]):
        with pytest.raises(RefusedBatch, match=f"message format {magic} ") as refused:
            read_header(buffer)
        assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("position", "code", "value"),
    [
        (8, ">i", 48),
        (8, ">i", 0),
        (8, ">i", -1),
        (8, ">i", -(2**31)),
        (0, ">q", -1),
        (0, ">q", -(2**63)),
        (0, ">q", 2**63 - 4),
        (23, ">i", -1),
        (57, ">i", -1),
    ],
)
def test_impossible_header_is_corrupt(position: int, code: str, value: int) -> None:
    batch = encode_batch(ROWS)
    struct.pack_into(code, batch, position, value)
    for read in (read_header, scan_headers, validate, decode_rows, decode_columns):
        with pytest.raises(CorruptBatch):
            read(batch)


def test_scan_finds_whole_batches_and_stops_before_a_partial_one() -> None:
    batches = [encode_batch(ROWS[: count + 1], base_offset=count * 10) for count in range(3)]
    whole = b"".join(batches)
    ends = [len(batches[0]), len(batches[0]) + len(batches[1]), len(whole)]
    for size in range(len(whole) + 1):
        headers = scan_headers(whole[:size])
        assert [header.position + header.size for header in headers] == [
            end for end in ends if end <= size
        ]
    assert [header.base_offset for header in scan_headers(whole, ends[0])] == [10, 20]
    assert [header.base_offset for header in scan_headers(whole, ends[0], ends[1])] == [10]
    assert scan_headers(whole, ends[0], ends[1] - 1) == []
    assert scan_headers(whole, 0, 10**9)[-1].base_offset == 20


# Checks


def test_any_flipped_bit_after_the_crc_is_found() -> None:
    batch = encode_batch(ROWS[:2])
    header = read_header(batch)
    check_batch(batch, header)
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptBatch):
            check_batch(damaged, read_header(damaged))


def test_batch_that_is_cut_off_is_corrupt() -> None:
    batch = encode_batch(ROWS)
    header = read_header(batch)
    for cut_off in (batch[:-1], batch[:HEADER_SIZE], b""):
        for check in (check_batch, check_records, record_bytes):
            with pytest.raises(CorruptBatch, match="cut off"):
                check(cut_off, header)
        with pytest.raises(CorruptBatch, match="cut off"):
            decode_rows(cut_off, header)
    with pytest.raises(CorruptBatch, match="cut off"):
        validate(batch + batch[:-1])


def test_only_a_compacted_batch_may_have_fewer_records_than_offsets() -> None:
    batch = encode_batch(ROWS[:3])
    struct.pack_into(">i", batch, 23, 9)
    header = read_header(with_crc(batch))
    for check in (check_batch, check_records):
        with pytest.raises(RefusedBatch, match="3 records for 10 offsets") as refused:
            check(batch, header)
        assert refused.value.code is ErrorCode.INVALID_RECORD
    check_batch(batch, header, compacted=True)
    check_records(batch, header, compacted=True)
    assert [record.offset for record in decode_rows(batch)] == [0, 1, 2]


def test_more_records_than_offsets_are_always_refused() -> None:
    header = read_header(batch := sealed(b"", last_offset_delta=2, record_count=4))
    for compacted in (False, True):
        with pytest.raises(RefusedBatch, match="4 records for 3 offsets"):
            check_batch(batch, header, compacted)


@pytest.mark.parametrize("codec", CODECS)
def test_batch_that_compaction_emptied_is_sound(codec: Compression) -> None:
    batch = sealed(b"", record_count=0, last_offset_delta=5, attributes=codec)
    check_batch(batch, read_header(batch), compacted=True)
    assert check_records(batch, read_header(batch), compacted=True) == NO_TIMESTAMP
    assert decode_rows(batch) == []
    assert decode_columns(batch).next_offset == 6


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    batch = sealed(b"\x00" * 20, attributes=codec)
    with pytest.raises(RefusedBatch, match=f"number {codec}") as refused:
        check_batch(batch, read_header(batch))
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(CorruptBatch):
        check_records(batch, read_header(batch))


def test_produced_batches_are_validated_together() -> None:
    payload = encode_batch(ROWS) + encode_batch(ROWS[:1], compression=Compression.LZ4)
    assert [header.record_count for header in validate(payload, 2000)] == [4, 1]


def produced(**fields: int) -> bytearray:
    record = bytes(encode_batch(ROWS[:1])[HEADER_SIZE:])
    return sealed(record, **{"base_timestamp": 100, "max_timestamp": 100, **fields})


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (produced(base_offset=1), ErrorCode.INVALID_RECORD),
        (produced(attributes=0x20), ErrorCode.INVALID_RECORD),
        (produced(attributes=0x08), ErrorCode.INVALID_TIMESTAMP),
        (produced(producer_id=5, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (produced(record_count=2), ErrorCode.INVALID_RECORD),
        (produced(record_count=0, last_offset_delta=0), ErrorCode.INVALID_RECORD),
        (produced(max_timestamp=99), ErrorCode.INVALID_TIMESTAMP),
        (produced(attributes=6), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_producers_batch_is_refused_with_kafkas_code(batch: bytes, code: ErrorCode) -> None:
    with pytest.raises(RefusedBatch) as refused:
        validate(batch)
    assert refused.value.code is code


def test_producers_batch_of_the_limit_is_taken_and_a_larger_one_refused() -> None:
    batch = encode_batch(ROWS)
    assert len(validate(batch, len(batch))) == 1
    with pytest.raises(RefusedBatch, match=f"limit of {len(batch) - 1}") as refused:
        validate(batch, len(batch) - 1)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_reserved_attribute_bits_are_tolerated() -> None:
    assert validate(produced(attributes=0x0F80))[0].attributes == 0x0F80


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_checked_to_the_greatest_timestamp(codec: Compression) -> None:
    batch = encode_batch(ROWS, compression=codec)
    assert check_records(batch, read_header(batch)) == 1_700_000_000_005


# Stamps


def test_assigning_an_offset_and_epoch_keeps_the_crc() -> None:
    buffer = bytearray(b"....") + encode_batch(ROWS)
    header = read_header(buffer, 4)
    before = bytes(buffer[21 + 4 :])
    assign(memoryview(buffer), header, (1 << 50) + 3, 9)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (
        (1 << 50) + 3,
        (1 << 50) + 6,
        9,
    )
    assert buffer[:4] == b"...."
    assert bytes(buffer[21 + 4 :]) == before
    again = read_header(buffer, 4)
    check_batch(buffer, again)
    assert repr(again) == repr(header)
    assert decode_rows(buffer[4:]) == records_of(ROWS, (1 << 50) + 3)


def test_stamping_needs_a_writable_buffer_and_the_whole_batch() -> None:
    batch = encode_batch(ROWS)
    header = read_header(batch)
    for stamp in (
        lambda buffer: assign(buffer, header, 5, 0),
        lambda buffer: stamp_log_append_time(buffer, header, 5),
    ):
        with pytest.raises(BufferError):
            stamp(bytes(batch))
        with pytest.raises(BufferError):
            stamp(memoryview(batch).toreadonly())
        with pytest.raises(ValueError, match="not in a buffer"):
            stamp(batch[:-1])
    assert header.base_offset == 0
    assert not header.is_log_append_time


@pytest.mark.parametrize("offset", [-1, 2**63 - 4])
def test_offset_that_does_not_fit_is_not_assigned(offset: int) -> None:
    batch = encode_batch(ROWS)
    with pytest.raises(ValueError, match="out of range"):
        assign(batch, read_header(batch), offset, 0)
    assert batch == encode_batch(ROWS)


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_every_records_timestamp(codec: Compression) -> None:
    now = 1_800_000_000_000
    batch = encode_batch(ROWS, compression=codec, producer_id=4, base_sequence=0)
    header = read_header(batch)
    stamp_log_append_time(batch, header, now)
    again = read_header(batch)
    check_batch(batch, again)
    assert repr(again) == repr(header)
    assert again.is_log_append_time and header.is_log_append_time
    assert again.crc == header.crc
    assert again.max_timestamp == header.max_timestamp == now
    # Kafka leaves the base, so that the records' deltas still mean something.
    assert again.base_timestamp == 1_700_000_000_000
    assert again.compression == codec
    assert {record.timestamp for record in decode_rows(batch)} == {now}
    theirs = aiokafka_records.DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    assert {(record.timestamp, record.timestamp_type) for record in theirs} == {(now, 1)}


def test_stamping_the_same_time_again_changes_nothing() -> None:
    batch = encode_batch(ROWS)
    header = read_header(batch)
    stamp_log_append_time(batch, header, 5)
    first = bytes(batch)
    stamp_log_append_time(batch, header, 5)
    assert batch == first
    stamp_log_append_time(batch, header, 6)
    assert read_header(batch).max_timestamp == 6


def test_max_timestamp_a_producer_left_out_can_be_filled_in() -> None:
    whole = encode_batch(ROWS)
    batch = bytearray(whole)
    struct.pack_into(">q", batch, 35, NO_TIMESTAMP)
    [header] = validate(with_crc(batch))
    assert header.lacks_max_timestamp
    stamp_max_timestamp(batch, header, check_records(batch, header))
    assert batch == whole
    assert not header.lacks_max_timestamp


def test_what_an_unchecked_batch_claims_is_read_of_as_much_as_there_is() -> None:
    batch = bytes(
        encode_batch(
            [(5, b"k", b"v", ())],
            compression=Compression.GZIP,
            producer_id=2**40,
            producer_epoch=7,
            base_sequence=9,
            transactional=True,
        )
    )
    header = read_header(batch)
    assert batch_size(batch) == header.size == len(batch)
    claimed = (header.producer_id, header.producer_epoch, header.base_sequence)
    assert claimed == (2**40, 7, 9)
    for end in range(len(batch) + 1):
        assert claimed_producer(batch[:end]) == (claimed if end >= 57 else None)
        assert claims_transaction(batch[:end]) is (end >= 23)
        assert claimed_compression(batch[:end]) == (Compression.GZIP if end >= 23 else 0)
    plain = memoryview(bytearray(encode_batch([(5, b"k", b"v", ())])))
    assert (claims_transaction(plain), claimed_compression(plain)) == (False, 0)
    assert claimed_producer(plain) == (-1, -1, -1)


def test_rest_of_a_file_is_one_batch_by_its_checksum_alone() -> None:
    batch = bytearray(encode_batch([(5, b"k", b"v", ())]))
    batch[8:12] = b"\xff" * 4  # Its length does not count.
    assert has_sound_rest(b"before" + batch, 6)
    assert has_magic(b"before" + batch, 6)
    assert not has_magic(b"before" + batch, 5)
    assert not has_sound_rest(batch + b"x", 0)
    assert not has_sound_rest(batch[:60], 0)


def test_batch_can_be_given_to_another_producer() -> None:
    rows = [(5, b"k", b"v", ()), (6, None, b"w", (("h", b"1"),))]
    batch = encode_batch(rows, producer_id=1, producer_epoch=0, base_sequence=0)
    renumber(batch, 8, 3, 40)
    assert batch == encode_batch(rows, producer_id=8, producer_epoch=3, base_sequence=40)


def test_records_without_timestamps_lack_nothing() -> None:
    [header] = validate(encode_batch([(NO_TIMESTAMP, b"k", b"v", ())]))
    assert not header.lacks_max_timestamp


# Rows


@pytest.mark.parametrize("codec", CODECS)
@given(rows=any_rows)
def test_rows_come_back_as_they_were(codec: Compression, rows: list[Row]) -> None:
    batch = encode_batch(rows, compression=codec, base_offset=77)
    header = read_header(batch)
    check_batch(batch, header)
    greatest = max(row[0] for row in rows)
    assert header.base_timestamp == rows[0][0]
    assert header.max_timestamp == check_records(batch, header) == greatest
    assert decode_rows(batch) == records_of(rows, 77)


@pytest.mark.parametrize(
    "timestamps",
    [[0, 2**63 - 1], [-1, 2**63 - 2], [-(2**63), -1], [2**63 - 1, 0], [5, 5, 4, -3, 4]],
)
def test_extreme_and_descending_timestamps_come_back(timestamps: list[int]) -> None:
    batch = encode_batch([(timestamp, b"", b"", ()) for timestamp in timestamps])
    assert [record.timestamp for record in decode_rows(batch)] == timestamps


@pytest.mark.parametrize("timestamps", [[-1, 2**63 - 1], [1, -(2**63)], [-(2**63), 2**63 - 1]])
def test_timestamps_too_far_apart_for_one_batch_are_an_error(timestamps: list[int]) -> None:
    with pytest.raises(ValueError, match="too far apart"):
        encode_batch([(timestamp, b"", b"", ()) for timestamp in timestamps])


def test_batch_without_records_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="rows"):
        encode_batch([])


def test_any_bytes_like_object_can_be_a_key_or_value() -> None:
    batch = encode_batch([(1, bytearray(b"key"), memoryview(b"value"), [("h", bytearray(b"x"))])])
    assert decode_rows(batch) == [Record(0, 1, b"key", b"value", [("h", b"x")])]


def test_record_unpacks_compares_and_shows_its_fields() -> None:
    record = Record(1, 2, b"k", None, [("h", None)])
    assert tuple(record) == (1, 2, b"k", None, (("h", None),))
    assert record == Record(1, 2, b"k", None, (("h", None),))
    assert record != Record(1, 2, b"k", b"", (("h", None),))
    assert record != (1, 2, b"k", None, (("h", None),))  # type: ignore[comparison-overlap]
    assert len({record, Record(1, 2, b"k", None, (("h", None),))}) == 1
    assert repr(record) == (
        "Record(offset=1, timestamp=2, key=b'k', value=None, headers=(('h', None),))"
    )


def test_records_before_the_wanted_offset_and_control_records_are_left_out() -> None:
    data = encode_batch(ROWS) + encode_batch(ROWS[:1], base_offset=4, control=True)
    data += encode_batch(ROWS[:2], base_offset=5)
    assert [record.offset for record in decode_rows(data)] == [0, 1, 2, 3, 5, 6]
    assert [record.offset for record in decode_rows(data, from_offset=2)] == [2, 3, 5, 6]
    assert [record.offset for record in decode_rows(data, from_offset=6)] == [6]
    assert decode_rows(data, from_offset=7) == []
    assert decode_rows(data, from_offset=3)[0] == records_of(ROWS)[3]
    control = scan_headers(data)[1]
    assert control.is_control
    assert decode_rows(data, control) == records_of(ROWS[:1], 4)


def test_partial_batch_at_the_end_of_a_fetch_is_left_out() -> None:
    data = encode_batch(ROWS) + encode_batch(ROWS, base_offset=4)
    assert [record.offset for record in decode_rows(data[:-1])] == [0, 1, 2, 3]


def test_crc_is_checked_unless_told_otherwise() -> None:
    batch = encode_batch(ROWS)
    batch[17] ^= 1
    for header in (None, read_header(batch)):
        with pytest.raises(CorruptBatch, match="CRC"):
            decode_rows(batch, header)
        assert decode_rows(batch, header, check_crcs=False) == records_of(ROWS)


@pytest.mark.parametrize("before", CODECS)
@pytest.mark.parametrize("after", CODECS)
def test_recompressed_batch_is_the_same_batch(before: Compression, after: Compression) -> None:
    fields: dict[str, Any] = {
        "base_offset": 30,
        "leader_epoch": 4,
        "producer_id": 9,
        "base_sequence": 2,
    }
    batch = encode_batch(ROWS, compression=before, transactional=True, **fields)
    again = recompress(b"xx" + batch, read_header(b"xx" + batch, 2), after)
    check_batch(again, read_header(again))
    expected = encode_batch(ROWS, compression=after, transactional=True, **fields)
    assert again == expected


# Malformed records. The bytes: length, attributes, time delta, offset delta, key, value, headers.


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(b"", 1, id="no record"),
        pytest.param(bytes([12, 0, 0, 0, 1, 1, 0]) + b"\x00", 1, id="a byte is left over"),
        pytest.param(bytes([12, 0, 0, 0, 1, 1]), 1, id="record is cut off"),
        pytest.param(bytes([14, 0, 0, 0, 1, 1, 0, 0]), 1, id="record is longer than its fields"),
        pytest.param(bytes([10, 0, 0, 0, 1, 1, 0]), 1, id="record is shorter than its fields"),
        pytest.param(bytes([1, 0, 0, 0, 1, 1, 0]), 1, id="record length is negative"),
        pytest.param(bytes([12, 0, 0, 1, 1, 1, 0]), 1, id="offset delta is negative"),
        pytest.param(bytes([12, 0, 0, 2, 1, 1, 0]), 1, id="offset delta is past the last"),
        pytest.param(bytes([12, 0, 0, 0, 1, 1, 0]) * 2, 2, id="offset delta is repeated"),
        pytest.param(
            bytes([12, 0, 0, 2, 1, 1, 0, 12, 0, 0, 0, 1, 1, 0]), 2, id="offset delta steps back"
        ),
        pytest.param(bytes([12, 0, 0, 0, 3, 1, 0]), 1, id="key length is -2"),
        pytest.param(bytes([12, 0, 0, 0, 8, 1, 0]), 1, id="key is longer than the record"),
        pytest.param(bytes([12, 0, 0, 0, 1, 3, 0]), 1, id="value length is -2"),
        pytest.param(bytes([12, 0, 0, 0, 1, 4, 0]), 1, id="value is longer than the record"),
        pytest.param(bytes([12, 0, 0, 0, 1, 1, 1]), 1, id="header count is negative"),
        pytest.param(bytes([12, 0, 0, 0, 1, 1, 2]), 1, id="headers are missing"),
        pytest.param(
            bytes([20, 0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F]), 1, id="2^31 - 1 headers"
        ),
        pytest.param(bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]), 1, id="header name is null"),
        pytest.param(bytes([16, 0, 0, 0, 1, 1, 2, 0, 3]), 1, id="header value length is -2"),
        pytest.param(bytes([16, 0, 0, 0, 1, 1, 2, 4, 1]), 1, id="header name is too long"),
        pytest.param(bytes([16, 0, 0, 0, 1, 1, 2, 0, 2]), 1, id="header value is too long"),
        pytest.param(bytes([18, 0, 0, 0, 1, 1, 2, 0, 1, 0]), 1, id="more after the headers"),
        pytest.param(
            bytes([0x8C, 0x80, 0x80, 0x80, 0x80, 0x00, 0, 0, 0, 1, 1, 0]), 1, id="6-byte int32"
        ),
        pytest.param(
            bytes([22, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 1, 0, 0]), 1, id="int32 of 33 bits"
        ),
        pytest.param(bytes([32, 0, *[0x80] * 10, 0, 0, 1, 1, 0]), 1, id="11-byte int64"),
        pytest.param(bytes([30, 0, *[0x80] * 9, 2, 0, 1, 1, 0]), 1, id="int64 of 65 bits"),
        pytest.param(bytes([0xFF] * 30), 1, id="a number without end"),
        pytest.param(bytes([12, 0, 0, 0, 1, 1, 0]), 2, id="fewer records than counted"),
        pytest.param(bytes(7), 2**31 - 1, id="more records than bytes"),
    ],
)
def test_malformed_record_is_corrupt(payload: bytes, count: int) -> None:
    for codec in CODECS:
        if codec is not Compression.NONE and not payload:
            continue
        batch = sealed(bytes(compress(codec, payload)), count, attributes=codec)
        header = read_header(batch)
        for read in (check_records, decode_rows):
            with pytest.raises(CorruptBatch):
                read(batch, header)


def test_smallest_record_of_all_is_sound() -> None:
    batch = sealed(bytes([12, 0, 0, 0, 1, 1, 0]))
    assert decode_rows(batch) == [Record(0, 0, None, None)]


def test_longest_numbers_are_sound() -> None:
    padded_zero = bytes([0x80, 0x80, 0x80, 0x80, 0x00])
    record = bytes([0, *[0xFF] * 9, 1]) + padded_zero + bytes([1, 1, 0])
    batch = sealed(bytes([len(record) * 2]) + record, base_timestamp=-1, max_timestamp=-1)
    with pytest.raises(CorruptBatch, match="record 0 of 1"):
        decode_rows(batch)
    batch = sealed(bytes([len(record) * 2]) + record)
    assert decode_rows(batch) == [Record(0, -(2**63), None, None)]


def test_timestamp_past_64_bits_is_corrupt() -> None:
    payload = bytes([12, 0, 2, 0, 1, 1, 0])
    batch = sealed(payload, base_timestamp=2**63 - 2)
    assert decode_rows(batch)[0].timestamp == 2**63 - 1
    with pytest.raises(CorruptBatch):
        decode_rows(sealed(payload, base_timestamp=2**63 - 1))


@pytest.mark.parametrize("codec", CODECS)
def test_batch_that_expands_past_the_bound_is_corrupt(codec: Compression) -> None:
    batch = encode_batch([(1, None, bytes(100_000), ())], compression=codec)
    header = read_header(batch)
    size = len(record_bytes(batch, header))
    assert len(decode_rows(batch, header, max_bytes=size)) == 1
    reads: list[Callable[[], object]] = [
        lambda: check_records(batch, header, size - 1),
        lambda: decode_rows(batch, header, max_bytes=size - 1),
        lambda: decode_rows(batch, max_bytes=size - 1),
        lambda: decode_columns(batch, max_bytes=size - 1),
        lambda: recompress(batch, header, 0, size - 1),
    ]
    for read in reads:
        with pytest.raises(CorruptBatch, match="expand"):
            read()


def test_header_name_that_is_not_utf8_is_replaced_as_in_java() -> None:
    bad, good = b"\x04\xffa\x01", b"\x04\xc3\xa9\x00"
    record = bytes([0, 0, 0, 1, 1, 4]) + bad + good
    batch = sealed(bytes([len(record) * 2]) + record)
    assert decode_rows(batch)[0].headers == (("\ufffda", None), ("é", b""))


def test_twenty_thousand_mutated_batches_are_corrupt_or_decode() -> None:
    rng = random.Random(4)
    sources = [encode_batch(ROWS, compression=codec) for codec in CODECS]
    outcomes = {True: 0, False: 0}
    for turn in range(20_000):
        batch = bytearray(sources[turn % len(sources)])
        for _ in range(rng.randrange(1, 4)):
            match rng.randrange(4):
                case 0:
                    batch[rng.randrange(len(batch))] = rng.randrange(256)
                case 1:
                    batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
                case 2:
                    del batch[rng.randrange(HEADER_SIZE, len(batch) + 1) :]
                case _:
                    start = rng.randrange(HEADER_SIZE, len(batch) + 1)
                    batch[start : start + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        # A right length and CRC take the damage past the first defence, most of the time.
        if rng.randrange(8):
            struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
        with_crc(batch)
        try:
            validate(batch)
            header = read_header(batch)
            check_records(batch, header, 100_000)
            decode_rows(batch, max_bytes=100_000)
            outcomes[True] += 1
        except CorruptBatch:
            outcomes[False] += 1
        with suppress(CorruptBatch):
            decode_columns(batch, max_bytes=100_000, check_crcs=False)
    assert min(outcomes.values()) > 1000, outcomes


@given(st.binary(max_size=300))
def test_garbage_after_a_header_is_corrupt_or_decodes(payload: bytes) -> None:
    batch = sealed(payload, 3)
    with suppress(CorruptBatch):
        check_records(batch, read_header(batch))
        decode_rows(batch)


# Other clients


def encode_with(client: str, rows: Sequence[Row], codec: int) -> bytes:
    builder = CLIENTS[client].DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10_000_000,
    )
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        builder.append(offset, timestamp, key, value, list(headers))
    return bytes(builder.build())


@pytest.mark.parametrize(("client", "codec"), CLIENT_CODECS)
@given(rows=client_rows)
def test_other_clients_read_our_batches(client: str, codec: int, rows: list[Row]) -> None:
    ours = bytes(encode_batch(rows, compression=codec))
    theirs = CLIENTS[client].DefaultRecordBatch(ours)
    assert theirs.validate_crc()
    assert [
        Record(their.offset, their.timestamp, their.key, their.value, map(tuple, their.headers))
        for their in theirs
    ] == records_of(rows)


@pytest.mark.parametrize(("client", "codec"), CLIENT_CODECS)
@given(rows=client_rows)
def test_we_read_other_clients_batches(client: str, codec: int, rows: list[Row]) -> None:
    theirs = encode_with(client, rows, codec)
    [header] = validate(theirs)
    assert check_records(theirs, header) == header.max_timestamp
    assert decode_rows(theirs) == records_of(rows)


@pytest.mark.parametrize("client", CLIENTS)
@given(rows=client_rows)
def test_uncompressed_batches_are_the_same_bytes(client: str, rows: list[Row]) -> None:
    # All but the leader epoch, which a producer does not know.
    ours, theirs = bytes(encode_batch(rows)), encode_with(client, rows, Compression.NONE)
    assert (ours[:12], ours[16:]) == (theirs[:12], theirs[16:])
