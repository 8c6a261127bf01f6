"""Records as bytes: those that Kafka writes, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.records import (
    RecordError,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
)
from headrace.coordinator.transactions.decisions import ProducerIdAndEpoch
from headrace.coordinator.transactions.transaction_metadata import (
    TransactionMetadata,
    TransactionStatus,
)
from headrace.types import TopicPartition
from tests.unit.coordinator.transactions.driving import Shell

int16s = st.integers(-1, 2**15 - 1)
int64s = st.integers(-1, 2**63 - 1)
partitions = st.builds(TopicPartition, st.text("ab", min_size=1, max_size=2), st.integers(0, 9))


@st.composite
def metadatas(draw: st.DrawFn) -> TransactionMetadata:
    status = draw(st.sampled_from(TransactionStatus))
    found = () if status is TransactionStatus.EMPTY else draw(st.sets(partitions, max_size=5))
    return TransactionMetadata(
        status=status,
        producer_id=draw(int64s),
        producer_epoch=draw(int16s),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        updated_ms=draw(int64s),
        start_ms=draw(int64s),
        partitions=tuple(sorted(found)),
        previous_producer_id=draw(int64s),
        next_producer_id=draw(int64s),
        client_version=draw(st.integers(0, 2)),
    )


@given(metadatas(), st.text(max_size=20))
def test_round_trip(metadata: TransactionMetadata, transactional_id: str) -> None:
    record = encode_transaction(transactional_id, metadata)
    assert record.value is not None
    assert decode_transaction_key(record.key) == transactional_id
    assert decode_transaction(record.value) == metadata


def test_the_bytes_are_those_of_kafka() -> None:
    metadata = TransactionMetadata(
        status=TransactionStatus.PREPARE_COMMIT,
        producer_id=1,
        producer_epoch=2,
        timeout_ms=3,
        updated_ms=4,
        start_ms=5,
        partitions=(TopicPartition("t", 6), TopicPartition("u", 0), TopicPartition("t", 7)),
        previous_producer_id=1,
        next_producer_id=8,
        client_version=2,
    )
    record = encode_transaction("id", metadata)
    assert record.key.hex(" ", 2) == "0000 0002 6964"
    assert record.value == bytes.fromhex(
        "0001"
        "0000000000000001"  # producer id
        "0002"  # producer epoch
        "00000003"  # timeout
        "02"  # PrepareCommit
        "03 0274 03 00000006 00000007 00 0275 02 00000000 00"  # topics and partitions
        "0000000000000004"  # last update
        "0000000000000005"  # start
        "03"  # tagged fields
        "00 08 0000000000000001"  # previous producer id
        "01 08 0000000000000008"  # next producer id
        "02 02 0002"  # client's transactions version
    )


# Written by Apache Kafka 4.1 for the requests of the test below: when, and what.
GOLDEN = (
    (909, "000100000000000000bd00000000ea600000000001a1e3f903d5ffffffffffffffff00"),
    (
        916,
        "000100000000000000bd00000000ea6001020868322d6469666602000000000000"
        "0001a1e3f903dc000001a1e3f903dc00",
    ),
    (
        917,
        "000100000000000000bd00000000ea6001020868322d6469666603000000000000"
        "000100000001a1e3f903dd000001a1e3f903dc0102020002",
    ),
    (
        918,
        "000100000000000000bd00010000ea6002020868322d6469666603000000000000"
        "000100000001a1e3f903de000001a1e3f903dc0102020002",
    ),
    (918, "000100000000000000bd00010000ea600401000001a1e3f903de000001a1e3f903dc0102020002"),
    (
        939,
        "000100000000000000bd00010000ea6001020868322d6469666602000000020000"
        "0001a1e3f903f3000001a1e3f903f300",
    ),
    (
        942,
        "000100000000000000bd00020000ea6003020868322d6469666602000000020000"
        "0001a1e3f903f6000001a1e3f903f30102020002",
    ),
    (943, "000100000000000000bd00020000ea600501000001a1e3f903f7000001a1e3f903f30102020002"),
)


def test_the_same_requests_leave_the_same_records_as_in_kafka() -> None:
    shell = Shell(now_ms=0, producer_ids=[189])
    times = (1_794_826_109_000 + millisecond for millisecond, _ in GOLDEN)
    first, second, third = (TopicPartition("h2-diff", number) for number in range(3))
    shell.now_ms = next(times)
    producer = shell.start("h2-g")
    shell.now_ms = next(times)
    shell.add(producer, first, version=3, transactional_id="h2-g")
    shell.now_ms = next(times)
    shell.add(producer, second, version=5, transactional_id="h2-g")
    shell.now_ms = next(times)
    after = shell.end(producer, True, transactional_id="h2-g")
    assert isinstance(after, ProducerIdAndEpoch)
    shell.now_ms = next(times)
    shell.write_markers()
    shell.now_ms = next(times)
    shell.add(after, third, version=3, transactional_id="h2-g")
    shell.now_ms = next(times)
    shell.end(after, False, transactional_id="h2-g")
    shell.now_ms = next(times)
    shell.write_markers()
    assert {record.key.hex() for record in shell.log} == {"0000000468322d67"}
    assert [record.value for record in shell.log] == [bytes.fromhex(entry) for _, entry in GOLDEN]


def test_version_0_is_read() -> None:
    value = bytes.fromhex(
        "0000 0000000000000001 0002 00000003 01"
        "00000001 000174 00000001 00000006"
        "0000000000000004 0000000000000005"
    )
    assert decode_transaction(value) == TransactionMetadata(
        status=TransactionStatus.ONGOING,
        producer_id=1,
        producer_epoch=2,
        timeout_ms=3,
        updated_ms=4,
        start_ms=5,
        partitions=(TopicPartition("t", 6),),
    )


def test_an_id_without_a_transaction_has_no_partitions() -> None:
    empty = TransactionMetadata(
        status=TransactionStatus.EMPTY, producer_id=1, producer_epoch=0, timeout_ms=1, updated_ms=1
    )
    value = encode_transaction("id", empty).value
    assert value is not None
    assert value[17:18] == b"\x00", "null, not an empty array"
    assert decode_transaction(value) == empty


def test_a_tombstone() -> None:
    record = encode_transaction("id", None)
    assert decode_transaction_key(record.key) == "id"
    assert record.value is None


def test_keys_of_other_types() -> None:
    assert decode_transaction_key(b"\x00\x01whatever") is None


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00\x00", b"\x00\x00\x00\x05ab"])
def test_damaged_keys(key: bytes) -> None:
    with pytest.raises(RecordError):
        decode_transaction_key(key)


def test_damaged_values() -> None:
    value = encode_transaction(
        "id",
        TransactionMetadata(
            status=TransactionStatus.ONGOING,
            producer_id=1,
            producer_epoch=0,
            timeout_ms=1,
            updated_ms=1,
        ),
    ).value
    assert value is not None
    for damaged in (b"", value[:-1], value + b"\x00", b"\x00\x07" + value[2:]):
        with pytest.raises(RecordError):
            decode_transaction(damaged)
    # A state that is never written.
    with pytest.raises(RecordError):
        decode_transaction(value[:16] + b"\x06" + value[17:])
