"""The records an application reads: as rows are, by whole batches, and plain objects."""

import copy
import pickle
import random
import struct
import sys
from contextlib import suppress
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptBatch
from headrace.protocol.batch import HEADER_SIZE, crc32c, read_header, stamp_log_append_time
from headrace.protocol.compression import Compression
from headrace.protocol.consumer_records import ConsumerRecord, decode_batches, decode_records
from headrace.protocol.records import decode_rows, encode_batch

ROWS: list[Any] = [
    (100, b"a", b"first", ()),
    (90, None, b"second", (("h", b"x"), ("n", None))),
    (110, b"", None, ()),
    (105, b"dd", b"", (("é", b""),)),
]

maybe_bytes = st.none() | st.binary(max_size=60)
header_lists = st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3)
row_lists = st.lists(
    st.tuples(st.integers(-(2**60), 2**60), maybe_bytes, maybe_bytes, header_lists),
    min_size=1,
    max_size=12,
)


def as_rows(records: list[ConsumerRecord]) -> list[Any]:
    return [
        (entry.offset, entry.timestamp, entry.key, entry.value, entry.headers) for entry in records
    ]


def expected(rows: list[Any], base_offset: int = 0) -> list[Any]:
    return [
        (base_offset + index, timestamp, key, value, tuple(headers))
        for index, (timestamp, key, value, headers) in enumerate(rows)
    ]


def joined(*batches: list[Any], **options: Any) -> bytes:
    data = b""
    offset = 0
    for rows in batches:
        data += encode_batch(rows, base_offset=offset, **options)
        offset += len(rows)
    return data


def record(**changes: Any) -> ConsumerRecord:
    fields: dict[str, Any] = {"topic": "t", "partition": 1, "offset": 2}
    return ConsumerRecord(**(fields | changes))


# Decoding


@given(codec=st.sampled_from(Compression), batches=st.lists(row_lists, min_size=1, max_size=4))
def test_records_are_those_of_all_batches(codec: Compression, batches: list[Any]) -> None:
    records = decode_records(joined(*batches, compression=codec), "orders", 3)
    assert as_rows(records) == expected([row for rows in batches for row in rows])
    assert {(tp.topic, tp.partition) for tp in records} == {("orders", 3)}


@given(batches=st.lists(row_lists, min_size=1, max_size=4), from_offset=st.integers(0, 50))
def test_records_are_the_rows_from_an_offset_on(batches: list[Any], from_offset: int) -> None:
    data = joined(*batches)
    rows = [tuple(row) for row in decode_rows(data, from_offset=from_offset)]
    assert as_rows(decode_records(data, "t", 0, from_offset=from_offset)) == rows


@pytest.mark.parametrize("codec", list(Compression))
def test_what_aiokafka_wrote_is_read(codec: Compression) -> None:
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(ROWS):
        builder.append(offset, timestamp, key, value, list(headers))
    assert as_rows(decode_records(builder.build(), "t", 0)) == expected(ROWS)


def test_batch_says_whose_time_it_is_and_under_which_leader() -> None:
    batch = encode_batch(ROWS, leader_epoch=7)
    assert {
        (record.timestamp_type, record.leader_epoch) for record in decode_records(batch, "t", 0)
    } == {(0, 7)}
    stamp_log_append_time(batch, read_header(batch), 5000)
    times = {(record.timestamp_type, record.timestamp) for record in decode_records(batch, "t", 0)}
    assert times == {(1, 5000)}


def test_control_batches_are_passed_over() -> None:
    control = encode_batch([(1, b"\0\0\0\1", b"", ())], base_offset=4, control=True)
    data = encode_batch(ROWS) + control + encode_batch(ROWS, base_offset=5)
    assert [record.offset for record in decode_records(data, "t", 0)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert decode_batches(control, "t", 0) == ([], len(control), 5)


def test_partial_batch_ends_the_records() -> None:
    data = joined(ROWS, ROWS)
    first = len(encode_batch(ROWS))
    for size in (first, first + 1, first + HEADER_SIZE, len(data) - 1):
        assert as_rows(decode_records(data[:size], "t", 0)) == expected(ROWS)
        assert as_rows(decode_records(data, "t", 0, end=size)) == expected(ROWS)
    assert decode_records(b"", "t", 0) == []


def test_header_name_that_is_no_text_is_made_one() -> None:
    batch = encode_batch([(1, b"k", b"v", (("abc", b"x"),))])
    at = batch.index(b"abc")
    batch[at : at + 3] = b"a\xffc"
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    [one] = decode_records(batch, "t", 0)
    assert one.headers == (("a\ufffdc", b"x"),)
    assert decode_rows(batch)[0].headers == one.headers


def test_topic_and_empty_headers_are_shared() -> None:
    topic = "a topic's name"
    first, second = decode_records(encode_batch([(1, b"k", b"v", ())] * 2), topic, 0)
    assert first.topic is second.topic is topic
    assert first.headers is second.headers


# Batch by batch


@given(batches=st.lists(row_lists, min_size=1, max_size=5), records_min=st.integers(1, 30))
def test_batches_are_decoded_until_there_are_enough(batches: list[Any], records_min: int) -> None:
    data = joined(*batches)
    ends: list[int] = []
    for rows in batches:
        ends.append((ends[-1] if ends else 0) + len(rows))
    records, position, offset = decode_batches(data, "t", 0, records_min=records_min)
    stop = next((end for end in ends if end >= records_min), ends[-1])
    assert (len(records), offset) == (stop, stop)
    rest, end, behind = decode_batches(data, "t", 0, position, None, offset, sys.maxsize)
    assert as_rows(records + rest) == as_rows(decode_records(data, "t", 0))
    assert (end, behind) == (len(data), ends[-1])


def test_offset_to_read_on_from_is_behind_what_was_compacted_away() -> None:
    batch = encode_batch(ROWS, base_offset=10)
    struct.pack_into(">i", batch, 23, 9)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    records, position, offset = decode_batches(batch, "t", 0, from_offset=12)
    assert ([entry.offset for entry in records], position, offset) == ([12, 13], len(batch), 20)


def test_corrupt_batch_is_met_after_the_good_ones() -> None:
    good = encode_batch(ROWS)
    bad = encode_batch(ROWS, base_offset=4)
    bad[-1] ^= 1
    records, position, offset = decode_batches(good + bad, "t", 0, records_min=100)
    assert (len(records), position, offset) == (4, len(good), 4)
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_batches(good + bad, "t", 0, position, None, offset)
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_records(good + bad, "t", 0)
    assert len(decode_records(good + bad, "t", 0, check_crcs=False)) == 8


def test_batch_that_expands_too_far_is_corrupt() -> None:
    batch = encode_batch([(1, None, bytes(100_000), ())], compression=Compression.ZSTD)
    with pytest.raises(CorruptBatch):
        decode_records(batch, "t", 0, max_bytes=1000)


@pytest.mark.parametrize("codec", list(Compression))
def test_damage_is_a_corrupt_batch_or_no_damage(codec: Compression) -> None:
    rng = random.Random(codec)
    for _ in range(400):
        batch = encode_batch(ROWS * 3, compression=codec)
        for _ in range(rng.randint(1, 4)):
            batch[rng.randrange(len(batch))] = rng.randrange(256)
        with suppress(CorruptBatch):
            decode_records(batch, "t", 0, max_bytes=100_000, check_crcs=False)
        cut = batch[: rng.randrange(len(batch))]
        with suppress(CorruptBatch):
            decode_batches(cut, "t", 0, max_bytes=100_000, check_crcs=False)


# The objects


def test_record_has_what_it_is_made_of() -> None:
    one = ConsumerRecord("t", 1, 2, 3, 1, b"k", b"v", [("h", b"x")], 4)
    assert (one.topic, one.partition, one.offset, one.timestamp) == ("t", 1, 2, 3)
    assert (one.timestamp_type, one.key, one.value) == (1, b"k", b"v")
    assert (one.headers, one.leader_epoch) == ((("h", b"x"),), 4)
    bare = record()
    assert (bare.timestamp, bare.timestamp_type, bare.leader_epoch) == (-1, 0, -1)
    assert (bare.key, bare.value, bare.headers) == (None, None, ())


def test_key_and_value_may_be_replaced() -> None:
    one = record(key=b"1", value=b"{}")
    one.key, one.value = 1, {}
    assert (one.key, one.value) == (1, {})


def test_equal_records_are_equal_in_everything() -> None:
    one = record(key=b"k", value=b"v", timestamp=5, headers=[("h", None)], leader_epoch=1)
    assert one == copy.copy(one)
    assert hash(one) == hash(copy.copy(one))
    different: list[dict[str, Any]] = [
        {"topic": "u"},
        {"partition": 0},
        {"offset": 3},
        {"timestamp": 6},
        {"timestamp_type": 1},
        {"key": None},
        {"value": b""},
        {"headers": ()},
        {"leader_epoch": 2},
    ]
    same: dict[str, Any] = {
        "key": b"k",
        "value": b"v",
        "timestamp": 5,
        "headers": [("h", None)],
        "leader_epoch": 1,
    }
    assert [change for change in different if record(**(same | change)) == one] == []
    other: Any = "a record"
    assert one != other


def test_record_of_an_unhashable_value_still_has_a_hash() -> None:
    assert len({record(value={}), record(value=[]), record(offset=9)}) == 3


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_record_survives_pickling(protocol: int) -> None:
    for record in decode_records(encode_batch(ROWS, leader_epoch=3), "t", 5):
        assert pickle.loads(pickle.dumps(record, protocol)) == record


def test_copies_are_equal_and_apart() -> None:
    one = record(value={"a": [1]})
    shallow, deep = copy.copy(one), copy.deepcopy(one)
    assert shallow == one == deep
    deep.value["a"].append(2)
    shallow.value = None
    assert one.value == {"a": [1]}


def test_text_shows_every_field_and_not_all_of_a_long_value() -> None:
    text = repr(record(key=b"k", value=b"v" * 1000, headers=[("h", b"x")]))
    assert text == (
        "ConsumerRecord(topic='t', partition=1, offset=2, timestamp=-1, timestamp_type=0, "
        f"key=b'k', value=b'{'v' * 64}'... (1000 bytes), headers=(('h', b'x'),), leader_epoch=-1)"
    )
    assert "(100 characters)" in repr(record(value="x" * 100))
    assert len(repr(record(value=list(range(10_000))))) < 500
