from collections.abc import Mapping

import pytest

from headrace.client.failures import TimedOut, UnknownTopic
from headrace.client.reader import Reader, ReadRecord, Skipped
from headrace.errors import CorruptBatch, ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.records import encode_batch
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeBrokers

TP = TopicPartition("t", 0)


def brokers_with(
    *batches: list[bytes], nodes: int = 1, partitions: int = 1, fetch_version: int = 17
) -> FakeBrokers:
    brokers = FakeBrokers(nodes, versions={ApiKey.FETCH: fetch_version})
    brokers.add_topic("t", partitions)
    for values in batches:
        append(brokers, TP, values)
    return brokers


def append(brokers: FakeBrokers, tp: TopicPartition, values: list[bytes], **options: bool) -> None:
    rows = [(100 + number, b"k", value, [("h", b"1")]) for number, value in enumerate(values)]
    brokers.logs[tp].append(bytes(encode_batch(rows, **options)))


def read_all(reader: Reader) -> list[ReadRecord]:
    records = []
    while reader.unfinished:
        records += reader.poll()
    return records


def reader_of(
    brokers: FakeBrokers,
    start: int = 0,
    until: int | None = None,
    skipped: list[Skipped] | None = None,
) -> Reader:
    ends: Mapping[TopicPartition, int] = {} if until is None else {TP: until}
    return Reader(
        brokers.cluster(),
        {TP: start},
        until=ends,
        on_skip=(skipped if skipped is not None else []).append,
    )


@pytest.mark.parametrize("fetch_version", [4, 12, 13, 17])
def test_records_come_with_all_they_have(fetch_version: int) -> None:
    brokers = brokers_with([b"a", b"b"], fetch_version=fetch_version)
    records = read_all(reader_of(brokers, until=2))
    assert records == [
        ReadRecord("t", 0, 0, 100, b"k", b"a", (("h", b"1"),)),
        ReadRecord("t", 0, 1, 101, b"k", b"b", (("h", b"1"),)),
    ]


def test_reading_begins_and_ends_within_batches() -> None:
    brokers = brokers_with([b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"])
    reader = reader_of(brokers, start=1, until=5)
    assert [record.value for record in read_all(reader)] == [b"1", b"2", b"3", b"4"]
    assert reader.positions == {TP: 5}


def test_control_batches_are_passed_over() -> None:
    brokers = brokers_with([b"a"])
    append(brokers, TP, [b"marker"], control=True)
    append(brokers, TP, [b"b"])
    reader = reader_of(brokers, until=2)
    assert [record.value for record in read_all(reader)] == [b"a"]
    assert reader.positions == {TP: 2}


def test_following_sees_what_is_written_later() -> None:
    brokers = brokers_with([b"a"])
    reader = reader_of(brokers)
    assert [record.value for record in reader.poll()] == [b"a"]
    assert reader.poll() == []
    append(brokers, TP, [b"b"])
    assert [record.value for record in reader.poll()] == [b"b"]
    assert reader.unfinished == [TP]


def test_partitions_of_several_leaders_are_read_together() -> None:
    brokers = brokers_with(nodes=2, partitions=3)
    partitions = [TopicPartition("t", number) for number in range(3)]
    for tp in partitions:
        append(brokers, tp, [b"%d" % tp.partition])
    reader = Reader(
        brokers.cluster(), dict.fromkeys(partitions, 0), until=dict.fromkeys(partitions, 1)
    )
    assert sorted(record.value or b"" for record in reader.poll()) == [b"0", b"1", b"2"]
    assert reader.unfinished == []


def test_deleted_records_are_skipped_and_reported() -> None:
    brokers = brokers_with([b"0"], [b"1"], [b"2"])
    log = brokers.logs[TP]
    del log.batches[:2]
    log.start_offset = 2
    skipped: list[Skipped] = []
    reader = reader_of(brokers, start=0, until=3, skipped=skipped)
    assert [record.value for record in read_all(reader)] == [b"2"]
    assert skipped == [Skipped(TP, 0, 2)]


def test_an_offset_past_the_end_is_an_error() -> None:
    reader = reader_of(brokers_with([b"0"]), start=7)
    with pytest.raises(KafkaError, match="t-0 has no offset 7") as caught:
        reader.poll()
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_leader_that_moved_is_followed_without_loss() -> None:
    brokers = brokers_with([b"0"], [b"1"], nodes=2)
    reader = reader_of(brokers, until=2)
    values = [record.value for record in reader.poll()]
    brokers.logs[TP].leader = 2
    values += [record.value for record in read_all(reader)]
    assert values == [b"0", b"1"]


def test_a_lost_connection_is_replaced() -> None:
    brokers = brokers_with([b"0"], [b"1"])
    reader = reader_of(brokers, until=2)
    values = [record.value for record in reader.poll()]
    brokers.down = {1}
    assert reader.poll() == []
    brokers.down = set()
    assert values + [record.value for record in read_all(reader)] == [b"0", b"1"]


def test_failing_for_too_long_ends_reading_with_the_reason() -> None:
    brokers = brokers_with([b"0"])
    brokers.fetch_faults.extend([ErrorCode.KAFKA_STORAGE_ERROR] * 1000)
    reader = reader_of(brokers, until=1)
    begun = brokers.clock.seconds
    with pytest.raises(TimedOut, match="KAFKA_STORAGE_ERROR"):
        read_all(reader)
    assert 30 <= brokers.clock.seconds - begun < 40


def test_errors_that_pass_only_cost_time() -> None:
    brokers = brokers_with([b"0"], [b"1"])
    brokers.fetch_faults.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3)
    assert len(read_all(reader_of(brokers, until=2))) == 2


def test_an_error_that_stays_is_raised_with_its_place() -> None:
    brokers = brokers_with([b"0"])
    brokers.fetch_faults.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match="t-0: fetch failed at offset 0"):
        reader_of(brokers).poll()


def test_a_deleted_topic_ends_reading() -> None:
    brokers = brokers_with([b"0"])
    reader = reader_of(brokers)
    reader.poll()
    del brokers.topics["t"], brokers.logs[TP]
    reader.poll()
    with pytest.raises(UnknownTopic, match="topic t does not exist"):
        reader.poll()


def test_a_corrupt_batch_is_named_and_its_records_are_not_returned() -> None:
    brokers = brokers_with([b"good"], [b"bad"])
    brokers.logs[TP].batches[1][-1] ^= 1
    reader = reader_of(brokers, until=2)
    assert [record.value for record in reader.poll()] == [b"good"]
    with pytest.raises(CorruptBatch, match="t-0: batch at offset 1"):
        reader.poll()
    assert reader.positions == {TP: 1}
